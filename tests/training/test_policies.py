"""Policies: their inputs and labels, black boxes, and files."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import io
from last_jax.teachers import features
from tests import problems

KEY = jax.random.key(0)


def task(kind="softmax_5"):
  make, shape, width = problems.KINDS[kind]
  learner = make(0.3)
  draw = np.random.default_rng(0)
  classes = max(2, width)
  y = np.arange(20) % classes if learner.loss.classification else draw.normal(size=(20, width))
  return learner, last.Pool(draw.normal(size=(20, *shape)), y), learner.init(jax.random.key(1))


def view_of(learner, pool, params, target):
  return problems.view_of(last.Problem(learner, pool, target=target), learner.start(params))


def students_of(learner, count=50):
  return jax.vmap(learner.init)(jax.random.split(jax.random.key(3), count))


def policy_of(learner, pool, target, output=None, **settings):
  problem = last.Problem(learner, pool, target=target)
  return last.teachers.make_policy(KEY, problem, students_of(learner), output=output, hidden=(8,), **settings)


class TestFeatures:
  @pytest.mark.slow
  @pytest.mark.parametrize("kind", ["softmax_5", "mlp", "conv", "least_squares_3"])
  def test_progress_is_the_inner_product_of_way_and_gradient(self, x64, kind):
    learner, pool, target = task(kind)
    params = learner.init(jax.random.key(2))
    view = view_of(learner, pool, params, target)
    index = jnp.array([3, 7])
    width = learner.num_outputs(pool.x)
    candidates = jax.random.normal(KEY, (2, 4, width))
    found = features.observe(("progress",), view, index, candidates)["progress"]
    for example, action in itertools.product(range(2), range(4)):
      label = candidates[example, action][None]
      gradient = jax.grad(learner.mean_loss)(params, pool.x[index[example]][None], label)
      inner = jax.tree.map(lambda w, goal, g: jnp.sum((goal - w) * g), params, target, gradient)
      np.testing.assert_allclose(found[example, action], sum(jax.tree.leaves(inner)), rtol=1e-9)

  def test_the_others_are_what_they_are_called(self, x64):
    learner, pool, target = task("conv")
    params = learner.init(jax.random.key(2))
    view = view_of(learner, pool, params, target)
    index = jnp.array([3, 7])
    seen = features.observe(features.UNROLLED, view, index, None)
    np.testing.assert_array_equal(seen["x"], pool.x[index].reshape(2, -1))
    np.testing.assert_array_equal(seen["label"], view.truth[index])
    np.testing.assert_array_equal(seen["params"], problems.flatten(params))
    np.testing.assert_array_equal(seen["target"], problems.flatten(target))
    np.testing.assert_allclose(seen["prediction"], jax.nn.softmax(learner.apply(params, pool.x[index])))

  def test_features_are_brought_to_one_size(self, x64):
    samples = np.random.default_rng(0).normal(size=(4000, 6)) * np.array([1e-3, 1.0, 50.0, 2.0, 7.0, 0.0]) + 5.0
    center, scale = map(np.asarray, features.measure("params", jnp.asarray(samples)))
    scaled = (samples - center) / scale
    np.testing.assert_allclose(scaled.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(scaled[:, :5].std(0), 3.0 / 6**0.5)
    assert np.all(scaled[:, 5] == 0)  # It does not vary, so it says nothing.
    center, scale = features.measure("progress", jnp.asarray(samples))
    assert np.all(center == 0)
    assert np.all(scale == scale[0])

  @pytest.mark.slow
  def test_what_enters_the_network_is_of_one_size(self, x64):
    """Of students like those it was measured on, in whatever order features are named."""
    learner, pool, target = task("mlp")
    students = students_of(learner, 300)
    for names in (features.UNROLLED, features.UNROLLED[::-1]):
      problem = last.Problem(learner, pool, target=target)
      policy = last.teachers.make_policy(KEY, problem, students, hidden=(8,), features=names)

      def enter(params, policy=policy):
        return policy.inputs(view_of(learner, pool, params, target), jnp.arange(20))

      own, shared = jax.vmap(enter)(students)
      for values in (own.reshape(-1, own.shape[-1]), shared):
        varies = values.std(0) > 0
        np.testing.assert_allclose(values.mean(0), 0.0, atol=0.5)
        sizes = np.asarray(values.std(0))[np.asarray(varies)]
        assert np.all(sizes < 3.0)
        assert np.all(sizes > 0.02)
      total = np.sum(np.asarray(own).reshape(-1, own.shape[-1]).var(0))
      np.testing.assert_allclose(total, 3 * 9.0, rtol=0.25)  # x, label and prediction.
      np.testing.assert_allclose(np.sum(np.asarray(shared).var(0)), 9.0, rtol=0.05)  # params; the target does not vary.

  @pytest.mark.slow
  def test_examples_of_a_batch_are_labelled_each_on_its_own(self, x64):
    learner, pool, target = task("mlp")
    policy = policy_of(learner, pool, target)
    view = view_of(learner, pool, learner.init(jax.random.key(2)), target)
    together = policy.labels(view, jnp.array([2, 9, 4]), None)
    alone = [policy.labels(view, jnp.array([i]), None)[0] for i in (2, 9, 4)]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-12)


class TestOutputs:
  def test_simplex(self, x64):
    learner, pool, target = task()
    numbers = jax.random.normal(KEY, (4, 5))
    truth = learner.encode(pool.x, pool.y)[:4]
    index = jnp.arange(4)
    labels = last.outputs.simplex().labels(learner, numbers, truth, index, None)
    np.testing.assert_allclose(labels, jax.nn.softmax(numbers))
    believing = last.outputs.simplex(prior=3.0).labels(learner, 0 * numbers, truth, index, None)
    np.testing.assert_allclose(believing, jax.nn.softmax(3.0 * truth))
    assert target is not None

  def test_simplex_of_one_output_lies_between_the_class_labels(self, x64):
    for form, low in (("cross_entropy", 0.0), ("margin", -1.0)):
      learner = last.learners.logistic(4, learning_rate=0.1, form=form)
      numbers = jnp.array([[-2.0], [0.0], [2.0]])
      truth = jnp.array([[low], [1.0], [1.0]])
      labels = last.outputs.simplex().labels(learner, numbers, truth, jnp.arange(3), None)
      np.testing.assert_allclose(labels, low + (1 - low) * jax.nn.sigmoid(numbers))
      sure = last.outputs.simplex(prior=30.0).labels(learner, 0 * numbers, truth, jnp.arange(3), None)
      np.testing.assert_allclose(sure, truth, atol=1e-9)

  def test_free_and_residue(self, x64):
    learner, pool, _ = task()
    numbers = jax.random.normal(KEY, (4, 5))
    truth = learner.encode(pool.x, pool.y)[:4]
    given = (learner, numbers, truth, jnp.arange(4), None)
    np.testing.assert_array_equal(last.outputs.free().labels(*given), truth + numbers)
    np.testing.assert_allclose(last.outputs.residue(0.3).labels(*given), 0.3 * truth + 0.7 * jax.nn.softmax(numbers))
    np.testing.assert_allclose(last.outputs.residue(0.3, last.outputs.free()).labels(*given), truth + 0.7 * numbers)

  def test_mixtures_with_uniform_and_with_soft_labels(self, x64):
    learner, pool, _ = task()
    truth = learner.encode(pool.x, pool.y)
    soft = jax.nn.softmax(jax.random.normal(KEY, truth.shape))
    index = jnp.array([4, 11])
    mu = np.array([0.5, 0.75, 1.0])
    for p, output in (
      (np.full((2, 5), 0.2), last.outputs.mixtures(mu)),
      (soft[index], last.outputs.mixtures(mu, soft_labels=soft)),
    ):
      found = output.candidates(truth[index], index)
      for example, action in itertools.product(range(2), range(3)):
        expected = mu[action] * truth[index[example]] + (1 - mu[action]) * p[example]
        np.testing.assert_allclose(found[example, action], expected)

  @pytest.mark.slow
  def test_actions_are_drawn_by_their_probabilities(self, x64):
    values = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    output = last.outputs.actions(values, prior=1.5)
    truth = jnp.broadcast_to(jnp.array([[1.0, 0.0]]), (20000, 2))
    numbers = jnp.broadcast_to(jnp.array([[0.2, 1.0, -0.3]]), (20000, 3))
    labels = output.labels(None, numbers, truth, jnp.arange(20000), jax.random.key(1))
    shares = [np.mean(np.all(labels == value[None], 1)) for value in values]
    logits = numbers[0] - 1.5 * np.array([2.0, 0.5, 0.0])
    np.testing.assert_allclose(shares, jax.nn.softmax(logits), atol=0.015)
    logs = [
      output.log_probabilities(numbers[:1], truth[:1], jnp.zeros(1, int), jnp.asarray(v)[None])[0] for v in values
    ]
    np.testing.assert_allclose(logs, jax.nn.log_softmax(logits))
    certain = output.labels(None, numbers[:1], truth[:1], jnp.zeros(1, int), None)
    np.testing.assert_array_equal(certain[0], values[np.argmax(logits)])

  @pytest.mark.parametrize(
    ("make", "error", "message"),
    [
      (lambda: last.outputs.residue(1.5), ValueError, "alpha must lie between"),
      (lambda: last.outputs.residue(0.5, "free"), TypeError, "of must be outputs.simplex"),
      (lambda: last.outputs.simplex(prior=-1), ValueError, "prior must be zero or"),
      (lambda: last.outputs.mixtures(0.5), ValueError, "mu must hold at least two shares"),
      (lambda: last.outputs.mixtures([0.5, 1.5]), ValueError, "mu must lie between"),
      (lambda: last.outputs.mixtures(soft_labels=[1.0, 2.0]), ValueError, "soft_labels must have shape"),
    ],
  )
  def test_bad_settings_are_named(self, make, error, message):
    with pytest.raises(error, match=message):
      make()

  def test_soft_labels_are_for_classifiers(self):
    learner, pool, target = task("least_squares_3")
    with pytest.raises(ValueError, match="soft labels are for classifiers"):
      policy_of(learner, pool, target, last.outputs.simplex())


class TestBlackBox:
  @pytest.mark.slow
  def test_it_teaches_the_same_whatever_the_target(self):
    learner, pool, target = task()
    policy = policy_of(learner, pool, None)
    assert not policy.needs_target
    assert policy_of(learner, pool, target).needs_target
    teacher = last.teachers.policy(policy)
    assert not teacher.needs_target
    elsewhere = jax.tree.map(lambda leaf: leaf + 100.0, target)
    results = [
      last.teach(KEY, learner, teacher, pool, target=t, steps=3, lessons=True, metrics=())
      for t in (None, target, elsewhere)
    ]
    for result in results[1:]:
      np.testing.assert_array_equal(result.lessons.label, results[0].lessons.label)

  @pytest.mark.slow
  def test_an_omniscient_policy_does_not_teach_without_a_target(self):
    learner, pool, target = task()
    teacher = last.teachers.policy(policy_of(learner, pool, target))
    with pytest.raises(ValueError, match="target is missing"):
      last.teach(KEY, learner, teacher, pool, steps=2)


class TestTeacher:
  @pytest.mark.slow
  @pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_5", "mlp", "conv"])
  def test_it_runs_in_the_loop_of_all_teachers(self, kind):
    learner, pool, target = task(kind)
    output = last.outputs.simplex() if learner.loss.classification else last.outputs.free()
    for policy in (policy_of(learner, pool, target, output), policy_of(learner, pool, None, output)):
      keys = jax.random.split(KEY, 3)
      result = last.teach_many(
        keys, learner, last.teachers.policy(policy), pool, target=target, steps=4, batch_size=2, lessons=True
      )
      assert result.lessons.label.shape == (3, 4, 2, learner.num_outputs(pool.x))
      assert np.isfinite(result.distance).all()

  @pytest.mark.slow
  def test_sampling_depends_on_the_key_and_the_step_alone(self):
    learner, pool, target = task()
    policy = policy_of(learner, pool, target, last.outputs.mixtures(), features=("params", "progress"))
    teacher = last.teachers.policy(policy, sample=True)

    def teach(**settings):
      return last.teach(KEY, learner, teacher, pool, target=target, lessons=True, metrics=(), **settings)

    whole = teach(steps=6)
    half = teach(steps=3)
    problem = last.Problem(learner, pool, target=target)
    _, rest = last.run(half.state, problem, teacher, steps=3, lessons=True, metrics=())
    np.testing.assert_array_equal(whole.lessons.label[3:], rest.lessons.label)
    again = teach(steps=6)
    np.testing.assert_array_equal(whole.lessons.label, again.lessons.label)

  @pytest.mark.slow
  def test_many_policies_at_once(self):
    learner, pool, target = task()
    policies = [policy_of(learner, pool, target)]
    other = jax.tree.map(lambda w: w + 0.1, policies[0].weights)
    policies.append(dataclasses.replace(policies[0], weights=other))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)

    def final(policy):
      return last.teach(KEY, learner, last.teachers.policy(policy), pool, target=target, steps=3).distance

    together = jax.vmap(final)(stacked)
    np.testing.assert_allclose(together, np.stack([final(p) for p in policies]), rtol=1e-5)

  @pytest.mark.slow
  def test_a_policy_of_another_learner_is_refused(self):
    learner, pool, target = task("softmax_5")
    policy = policy_of(learner, pool, target)
    other, other_pool, other_target = task("mlp")
    with pytest.raises(ValueError, match="policy was made for another learner or pool"):
      last.teach(KEY, other, last.teachers.policy(policy), other_pool, target=other_target, steps=2)
    other, other_pool, other_target = task("softmax_2")
    with pytest.raises(ValueError, match="labels of length 5"):
      last.teach(KEY, other, last.teachers.policy(policy), other_pool, target=other_target, steps=2)
    with pytest.raises(TypeError, match="policy must be a Policy"):
      last.teachers.policy(policy.weights)


SAVED = {
  "simplex": lambda: last.outputs.simplex(1.0),
  "free": last.outputs.free,
  "residue": lambda: last.outputs.residue(0.2, last.outputs.free()),
  "actions": lambda: last.outputs.actions(np.eye(5)),
  "mixtures": last.outputs.mixtures,
  "distilled": lambda: last.outputs.mixtures(soft_labels=np.full((20, 5), 0.2)),
}


class TestFiles:
  @pytest.mark.parametrize("name", SAVED)
  @pytest.mark.slow
  def test_a_policy_comes_back_as_it_was(self, tmp_path, name):
    learner, pool, target = task()
    policy = policy_of(learner, pool, target, SAVED[name]())
    last.save_policy(tmp_path / "policy.npz", policy)
    found = last.load_policy(tmp_path / "policy.npz")
    assert jax.tree.structure(found) == jax.tree.structure(policy)
    jax.tree.map(np.testing.assert_array_equal, found, policy)
    before = (tmp_path / "policy.npz").read_bytes()
    last.save_policy(tmp_path / "policy.npz", found)
    assert (tmp_path / "policy.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["policy.npz"]

  @pytest.mark.slow
  def test_what_is_no_policy_is_refused_by_name(self, tmp_path):
    learner, pool, target = task()
    path = tmp_path / "policy.npz"
    last.save_policy(path, policy_of(learner, pool, target))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"policy\.npz"):
      last.load_policy(path)
    last.data.save_npz(path, x=np.zeros(3))
    with pytest.raises(ValueError, match=r"policy\.npz was not written by last_jax\.save"):
      last.load_policy(path)
    io.save(path, {"x": np.zeros(3)})
    with pytest.raises(ValueError, match=r"policy\.npz does not hold a Policy: it holds a dict"):
      last.load_policy(path)
    with pytest.raises(FileNotFoundError):
      last.load_policy(tmp_path / "nothing.npz")

  @pytest.mark.parametrize(
    ("change", "message"),
    [
      (lambda leaves, static: leaves.pop("weights/own/kernel"), "weights of the shapes"),
      (lambda leaves, static: leaves.update({"weights/own/kernel": np.zeros((2, 2))}), "weights of the shapes"),
      (lambda leaves, static: leaves.update({"extra": np.zeros(2)}), "it also holds extra"),
      (lambda leaves, static: leaves.update({"center/own": leaves["center/own"] * np.nan}), "NaN or infinite"),
      (lambda leaves, static: leaves.pop("scale/shared"), "KeyError: 'scale/shared'"),
      (lambda leaves, static: static["features"].append("secret"), "features must be a list of known names"),
      (lambda leaves, static: static["output"].update(kind="secret"), "KeyError: 'secret'"),
    ],
  )
  def test_a_policy_that_does_not_fit_together_is_refused(self, tmp_path, change, message):
    learner, pool, target = task()
    path = tmp_path / "policy.npz"
    last.save_policy(path, policy_of(learner, pool, target))
    header, leaves = io.read(path)
    change(leaves, header["static"])
    header["leaves"] = {name: leaf.dtype.name for name, leaf in leaves.items()}
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    last.data.save_npz(path, __header__=text, **leaves)
    with pytest.raises(ValueError, match=rf"policy\.npz does not hold a Policy: .*{message}"):
      last.load_policy(path)

  @pytest.mark.slow
  def test_a_policy_is_one_of_the_trees_that_files_hold(self, tmp_path):
    learner, pool, target = task()
    policy = policy_of(learner, pool, target)
    io.save(tmp_path / "one.npz", policy, about={"trained": "never"})
    last.save_policy(tmp_path / "other.npz", policy)
    for found in (
      io.load(tmp_path / "one.npz"),
      io.load(tmp_path / "one.npz", like=jax.eval_shape(lambda: policy)),
      last.load_policy(tmp_path / "one.npz"),
      io.load(tmp_path / "other.npz", like=policy),
    ):
      assert jax.tree.structure(found) == jax.tree.structure(policy)
      jax.tree.map(np.testing.assert_array_equal, found, policy)
    assert io.read(tmp_path / "one.npz")[0]["about"] == {"trained": "never"}
    other = dataclasses.replace(policy, features=(*policy.features[1:], policy.features[0]))
    with pytest.raises(ValueError, match=r"one\.npz holds a Policy with .*, but like has"):
      io.load(tmp_path / "one.npz", like=other)

  def test_only_one_policy_fits_into_a_file(self, tmp_path):
    learner, pool, target = task()
    policy = policy_of(learner, pool, target)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), policy)
    with pytest.raises(ValueError, match="must be one policy"):
      last.save_policy(tmp_path / "policy.npz", stacked)
    assert not list(tmp_path.iterdir())
