"""Lessons in files: a student that knows nothing but the file ends where the simulated one did; faults are named."""

import hashlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import io
from tests.followers import follow, labels_of, read

KEY = jax.random.key(0)
SIMPLEX = last.constraints.simplex()


def make_problem(kind="softmax", classes=4, **settings):
  draw = np.random.default_rng(0)
  x = draw.normal(size=(40, 3)).astype(np.float32)
  settings = {"learning_rate": 0.2, "weight_decay": 1e-2} | settings
  learner, y = {
    "softmax": lambda: (last.learners.softmax(3, classes, **settings), np.arange(40) % classes),
    "logistic": lambda: (last.learners.logistic(3, **settings), (x[:, 0] > 0).astype(int)),
    "margin": lambda: (last.learners.logistic(3, form="margin", **settings), (x[:, 0] > 0).astype(int)),
    "least_squares": lambda: (last.learners.least_squares(3, 2, **settings), x[:, :2] + 1),
  }[kind]()
  return last.Problem(learner, last.Pool(x, y), target=learner.init(jax.random.key(5)))


def teach(problem, teacher=None, students=None, **settings):
  """Teach, and return what a curriculum needs, and the result."""
  teacher = teacher or last.teachers.greedy(SIMPLEX if problem.learner.loss.classification else last.constraints.none())
  init = (
    problem.learner.init(KEY) if students is None else jax.vmap(problem.learner.init)(jax.random.split(KEY, students))
  )
  call = last.teach if students is None else last.teach_many
  result = call(
    KEY if students is None else jax.random.split(KEY, students), problem.learner, teacher, problem.pool,
    target=problem.target, init=init, lessons=True, metrics=(), **{"steps": 30, "batch_size": 2} | settings,
  )  # fmt: skip
  return init, result


def saved(path, problem, lessons, **settings):
  last.save(path, last.Curriculum(problem, lessons, **{"examples": True} | settings))
  return path


def assert_close(found, expected):
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5)


SCHEDULE = optax.exponential_decay(0.3, 10, 0.5)
NESTEROV = {"momentum": 0.8, "nesterov": True, "learning_rate": optax.linear_schedule(0.1, 0.0, 50)}
CASES = {
  "softmax": ("softmax", {}),
  "logistic": ("logistic", {"momentum": 0.8}),
  "margin": ("margin", {"learning_rate": SCHEDULE}),
  "least_squares": ("least_squares", NESTEROV),
  "no bias, no decay": ("softmax", {"bias": False, "weight_decay": 0.0}),
  "many classes": ("softmax", {"classes": 12}),
}  # fmt: skip


class TestFollowing:
  @pytest.mark.parametrize("name", CASES)
  @pytest.mark.slow
  def test_a_student_with_nothing_but_the_file_ends_where_the_simulated_one_did(self, tmp_path, name):
    kind, settings = CASES[name]
    problem = make_problem(kind, **settings)
    init, result = teach(problem)
    path = saved(tmp_path / "lessons.npz", problem, result.lessons, init=init, final=result.params)
    found = follow(path)
    assert_close(found, result.params)
    moved = max(np.max(np.abs(found[leaf] - init[leaf])) for leaf in init)
    assert moved > 0.05  # Or there was nothing to compare.
    assert_close(result.params, {key: read(path)[0][f"final/{key}"] for key in init})

  def test_labels_that_stay(self, tmp_path):
    problem = make_problem()
    labels = jax.nn.softmax(jax.random.normal(KEY, (40, 4)))
    pool = last.Pool(problem.pool.x, labels)
    init, result = teach(last.Problem(problem.learner, pool), last.teachers.sgd())
    lessons = last.Lesson(result.lessons.index, labels)
    path = saved(tmp_path / "labels.npz", problem, lessons, init=init)
    assert_close(follow(path), result.params)
    arrays, facts = read(path)
    assert arrays["label"].shape == (40, 4)
    assert facts["order"].startswith("any")
    np.testing.assert_array_equal(labels_of(arrays, facts), result.lessons.label)

  @pytest.mark.slow
  def test_many_students_of_several_teachers(self, tmp_path):
    problem = make_problem()
    teachers = {"sgd": last.teachers.sgd(), "greedy:simplex": last.teachers.greedy(SIMPLEX)}
    results = {name: teach(problem, teacher, students=3, steps=8) for name, teacher in teachers.items()}
    path = saved(
      tmp_path / "lessons.npz",
      problem,
      {name: result.lessons for name, (_, result) in results.items()},
      init=results["sgd"][0],
      final={name: result.params for name, (_, result) in results.items()},
    )
    curriculum = last.load(path)
    assert "x" not in curriculum.lessons
    for name, (init, result) in results.items():
      found = follow(path, student=1, teacher=name)
      assert_close(found, jax.tree.map(lambda leaf: leaf[1], result.params))
      jax.tree.map(np.testing.assert_array_equal, curriculum.lessons[name], result.lessons)
      jax.tree.map(np.testing.assert_array_equal, curriculum.params("final", problem.learner, name), result.params)
      jax.tree.map(np.testing.assert_array_equal, curriculum.params("init", problem.learner), init)
      last.save(tmp_path / "one.npz", curriculum.select(name, student=1))
      assert_close(follow(tmp_path / "one.npz"), found)
      one = last.load(tmp_path / "one.npz")
      assert (one.facts["teachers"], one.facts["students"]) == (None, None)
      labels = {"label_class", "label_value"} if name == "sgd" else {"label"}  # One-hot labels of four classes.
      ends = {f"{place}/{leaf}" for place in ("init", "final") for leaf in init}
      assert set(one.arrays) == {"x", "truth", "learning_rate", "index"} | labels | ends
    assert repr(curriculum) == "Curriculum(sgd, greedy:simplex: 8 steps of 2, softmax_cross_entropy, 3 students)"

  def test_labels_that_stay_of_many_students(self, tmp_path):
    problem = make_problem()
    labels = jax.nn.softmax(jax.random.normal(KEY, (40, 4)))
    init, result = teach(
      last.Problem(problem.learner, last.Pool(problem.pool.x, labels)), last.teachers.sgd(), students=2
    )
    path = saved(tmp_path / "labels.npz", problem, last.Lesson(result.lessons.index, labels), init=init)
    assert_close(follow(path, student=1), jax.tree.map(lambda leaf: leaf[1], result.params))

  def test_numpy_alone_reads_it(self, tmp_path):
    problem = make_problem()
    init, result = teach(problem)
    saved(tmp_path / "lessons.npz", problem, result.lessons, init=init)
    code = (
      "import sys; sys.modules.update(dict.fromkeys(('jax', 'jaxlib', 'last_jax', 'ml_dtypes')))\n"
      "import json, numpy as np\n"
      f"file = np.load({str(tmp_path / 'lessons.npz')!r})\n"
      "told = json.loads(file['__header__'].tobytes())['static']\n"
      "print(told['loss']['name'], file['label'].sum(), file['x'].dtype, sum(file[name].size for name in file))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("softmax_cross_entropy 60.0")


class TestSelect:
  def make(self, label):
    lessons = last.Lesson(np.arange(12).reshape(2, 3, 2), label)
    init = {"weights": np.arange(24.0).reshape(2, 3, 4), "bias": np.zeros((2, 4))}
    final = {name: {"weights": init["weights"] + shift, "bias": init["bias"]} for name, shift in (("a", 1), ("ab", 2))}
    return last.Curriculum(make_problem(), {"a": lessons, "ab": lessons}, init=init, final=final)

  def test_one_student_of_one_teacher(self):
    label = np.random.default_rng(0).uniform(size=(2, 3, 2, 4))
    found = self.make(label).select("ab", 1)
    np.testing.assert_array_equal(found.lessons.index, np.arange(6, 12).reshape(3, 2))
    np.testing.assert_array_equal(found.lessons.label, label[1])
    learner = make_problem().learner
    np.testing.assert_array_equal(found.params("init", learner)["weights"], np.arange(12, 24).reshape(3, 4))
    np.testing.assert_array_equal(found.params("final", learner)["weights"], np.arange(14, 26).reshape(3, 4))

  def test_labels_that_stay_are_of_all_students(self):
    label = np.random.default_rng(0).uniform(size=(40, 4))
    found = self.make(label).select("a", 1)
    np.testing.assert_array_equal(found.lessons.label, label)
    assert found.lessons.index.shape == (3, 2)

  def test_all_students_of_one_teacher(self):
    found = self.make(np.ones((2, 3, 2, 4))).select("a")
    assert found.facts["students"] == 2
    assert found.lessons.label.shape == (2, 3, 2, 4)

  @pytest.mark.parametrize(
    ("teacher", "student", "message"),
    [("b", 0, "teacher='b' is not among"), ("", 0, "teacher='' is not among"), ("a", 2, "student=2 is not among")],
  )
  def test_others_are_named(self, teacher, student, message):
    with pytest.raises(ValueError, match=message):
      self.make(np.ones((2, 3, 2, 4))).select(teacher, student)


class TestStorage:
  @pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.slow)])
  def test_sparse_labels_are_stored_sparsely_and_come_back(self, tmp_path, most):
    problem = make_problem(classes=12)
    _, result = teach(problem, last.teachers.greedy(last.constraints.simplex(max_nonzero=most)))
    path = saved(tmp_path / "lessons.npz", problem, result.lessons)
    arrays, facts = read(path)
    assert arrays["label_value"].shape == arrays["label_class"].shape == (30, 2, most)
    assert "label" not in arrays
    np.testing.assert_array_equal(last.load(path).lessons.label, result.lessons.label)
    np.testing.assert_array_equal(labels_of(arrays, facts), result.lessons.label)

  @pytest.mark.parametrize(
    "row", [[0.0] * 8, [0.0] * 7 + [-2.0], [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0], [0.0, np.nan, *[0.0] * 6]]
  )
  def test_entries_of_any_sign_come_back(self, tmp_path, row):
    problem = make_problem(classes=8)
    label = np.zeros((3, 1, 8), np.float32)
    label[0, 0, 2:4], label[1, 0] = [0.25, 0.75], row
    path = saved(tmp_path / "lessons.npz", problem, last.Lesson(np.zeros((3, 1), int), label))
    assert read(path)[0]["label_value"].shape == (3, 1, 2)
    np.testing.assert_array_equal(last.load(path).lessons.label, label)

  def test_one_more_class_than_is_worth_it_is_stored_densely(self, tmp_path):
    label = np.zeros((1, 1, 8), np.float32)
    label[..., :3] = 1
    path = saved(tmp_path / "lessons.npz", make_problem(classes=8), last.Lesson(np.zeros((1, 1), int), label))
    np.testing.assert_array_equal(read(path)[0]["label"], label)

  def test_sparse_labels_take_less_space(self, tmp_path):
    problem = make_problem(classes=40)
    draw = np.random.default_rng(0)
    index = draw.integers(40, size=(500, 4))
    label = np.zeros((500, 4, 40), np.float32)
    np.put_along_axis(label, draw.integers(40, size=(500, 4, 2)), draw.uniform(size=(500, 4, 2)), -1)
    last.save(tmp_path / "plain.npz", last.Lesson(index, label))
    saved(tmp_path / "lessons.npz", problem, last.Lesson(index, label), examples=False)
    arrays, _ = read(tmp_path / "lessons.npz")
    assert arrays["label_class"].nbytes + arrays["label_value"].nbytes < label.nbytes / 10
    assert (tmp_path / "lessons.npz").stat().st_size < 0.8 * (tmp_path / "plain.npz").stat().st_size

  def test_without_examples_there_are_their_places_and_hashes(self, tmp_path):
    problem = make_problem()
    init, result = teach(problem)
    path = saved(tmp_path / "lessons.npz", problem, result.lessons, init=init, examples=False)
    arrays, facts = read(path)
    assert not {"x", "truth", "final/weights", "target/weights"} & set(arrays)
    x = np.asarray(problem.pool.x)
    assert_close(follow(path, x), result.params)
    assert facts["pool"]["x"]["sha256"] == hashlib.sha256(x.astype("<f4").tobytes()).hexdigest()
    assert facts["pool"]["examples"] == 40

  def test_target_and_truth_when_asked_for(self, tmp_path):
    problem = make_problem()
    _, result = teach(problem)
    path = saved(tmp_path / "lessons.npz", problem, result.lessons, target=problem.target)
    arrays, _ = read(path)
    np.testing.assert_array_equal(arrays["target/weights"], problem.target["weights"])
    np.testing.assert_array_equal(arrays["truth"], np.eye(4)[np.arange(40) % 4])
    np.testing.assert_array_equal(last.load(path).params("target", problem.learner)["bias"], problem.target["bias"])

  def test_float64(self, x64, tmp_path):
    problem = last.Problem(last.learners.softmax(2, 3, learning_rate=1 / 3), last.Pool(np.eye(2), [0, 2]))
    lessons = last.Lesson(np.array([[0, 1]]), np.full((1, 2, 3), 1 / 3))
    path = saved(tmp_path / "lessons.npz", problem, lessons)
    arrays, facts = read(path)
    assert {arrays[name].dtype.name for name in ("x", "truth", "label", "learning_rate")} == {"float64"}
    assert arrays["learning_rate"] == [1 / 3]
    assert facts["inputs"]["dtype"] == "float64"
    np.testing.assert_array_equal(last.load(path).lessons.label, lessons.label)

  def test_numbers_of_16_bits_are_widened_to_what_numpy_has(self, tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 2))
    pool = last.Pool(jnp.asarray(x, jnp.bfloat16), [0, 1, 0, 1])
    problem = last.Problem(last.learners.softmax(2, 2, learning_rate=0.1), pool)
    init = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), problem.learner.init(KEY))
    lessons = last.Lesson(np.array([[0]]), np.ones((1, 1, 2), np.float32))
    arrays, _ = read(saved(tmp_path / "lessons.npz", problem, lessons, init=init))
    assert {arrays[name].dtype.name for name in ("x", "init/weights")} == {"float32"}
    np.testing.assert_array_equal(arrays["x"], np.asarray(pool.x.astype(jnp.float32)))
    last.load(tmp_path / "lessons.npz").check_pool(pool)

  def test_labels_of_tokens(self, tmp_path):
    learner = last.learners.from_apply(
      lambda key: jax.random.normal(key, (2, 3)), lambda w, x: x @ w, "softmax_cross_entropy", learning_rate=0.1
    )
    x = np.random.default_rng(0).normal(size=(6, 5, 2))
    problem = last.Problem(learner, last.Pool(x, np.arange(30).reshape(6, 5) % 3), target=learner.init(KEY))
    init, result = teach(problem, steps=3)
    path = saved(tmp_path / "lessons.npz", problem, result.lessons, init=init, model="a matrix, for each token")
    assert read(path)[0]["label"].shape == (3, 2, 5, 3)
    assert read(path)[0]["init"].shape == (2, 3)  # Parameters without names have none in the file.
    assert read(path)[1]["model"]["words"] == "a matrix, for each token"
    np.testing.assert_array_equal(last.load(path).params("init", learner), init)

  def test_same_lessons_same_bytes_and_like_itself(self, tmp_path):
    problem = make_problem()
    init, result = teach(problem)
    curriculum = last.Curriculum(problem, result.lessons, init=init)
    for name in ("one", "two"):
      last.save(tmp_path / name, curriculum)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    again = last.load(tmp_path / "one", like=curriculum)
    assert again.facts == curriculum.facts
    np.testing.assert_array_equal(again.arrays["index"], result.lessons.index)

  def test_bare_lessons_are_read_as_before(self, tmp_path):
    lessons = last.Lesson(np.zeros((3, 2), np.int32), np.ones((3, 2, 4), np.float32))
    last.save(tmp_path / "lessons.npz", lessons)
    found = last.load(tmp_path / "lessons.npz")
    assert set(found) == {"index", "label"}
    jax.tree.map(np.testing.assert_array_equal, last.load(tmp_path / "lessons.npz", like=lessons), lessons)


class TestPool:
  def test_the_same_pool_is_known_again(self, tmp_path):
    problem = make_problem()
    _, result = teach(problem)
    curriculum = last.load(saved(tmp_path / "lessons.npz", problem, result.lessons, examples=False))
    x, y = np.array(problem.pool.x), np.array(problem.pool.y)
    curriculum.check_pool(last.Pool(x, y))
    for other, message in {
      last.Pool(x[::-1], y): "pool.x is not that of the lessons: numbers differ, or are in another order or scaling",
      last.Pool(2 * x, y): "pool.x is not that of the lessons: numbers differ",
      last.Pool(x, np.roll(y, 1)): "pool.y is not that of the lessons: numbers differ",
      last.Pool(x[1:], y[1:]): r"pool.x is not that of the lessons: theirs is float32\[40, 3\] but float32\[39, 3\]",
      last.Pool(x, y.astype(float)): r"pool.y is not that of the lessons: theirs is int32\[40\] but float32\[40\]",
    }.items():
      with pytest.raises(ValueError, match=message):
        curriculum.check_pool(other)
    with pytest.raises(TypeError, match="pool must be a Pool"):
      curriculum.check_pool(x)


def good():
  return last.Lesson(np.zeros((3, 2), int), np.ones((3, 2, 4)))


def shorter():
  return last.Lesson(good().index[:2], good().label[:2])


class TestFaults:
  @pytest.mark.parametrize(
    ("lessons", "settings", "error", "message"),
    [
      (np.zeros(3), {}, TypeError, "lessons must be a Lesson, or a dict of them"),
      ({}, {}, TypeError, "lessons must be a Lesson, or a dict of them"),
      ({"a": np.zeros(3)}, {}, TypeError, r"lessons\['a'\] must be a Lesson\(index, label\)"),
      ({"a/b": good()}, {}, ValueError, "'a/b' cannot name a teacher"),
      ({"init": good()}, {}, ValueError, "'init' cannot name a teacher"),
      (last.Lesson(np.zeros((3, 2)), good().label), {}, ValueError, r"index must be whole numbers .*float64\[3, 2\]"),
      (last.Lesson(np.zeros(3, int), good().label), {}, ValueError, r"must be whole numbers \[steps, m\]"),
      (last.Lesson(np.full((3, 2), 40), good().label), {}, ValueError, "index must lie between 0 and 39"),
      (last.Lesson(np.full((3, 2), -1), good().label), {}, ValueError, "it goes from -1 to -1"),
      (good()._replace(label=np.ones((3, 2, 5))), {}, ValueError, r"must be .* \[3, 2, 4\], .*float64\[3, 2, 5\]"),
      (good()._replace(label=np.ones((39, 4))), {}, ValueError, r"or \[40, 4\], for each example"),
      (good()._replace(label=np.ones((3, 2, 4), int)), {}, ValueError, "label must be real numbers"),
      ({"a": good(), "b": shorter()}, {}, ValueError, r"lessons\['b'\] must be like the first"),
      (good(), {"init": {"weights": np.zeros((3, 4))}}, ValueError, "init does not have the learner's parameters"),
      (good(), {"init": {"weights": np.zeros((3, 3)), "bias": np.zeros(4)}}, ValueError, "init.*must have shape"),
      (good(), {"final": {"weights": np.zeros((3, 3)), "bias": np.zeros(4)}}, ValueError, "final.*must have shape"),
      ({"a": good()}, {"final": {"b": None}}, ValueError, "final must have the names of the lessons, a, but has b"),
      ({"a": good()}, {"final": np.zeros(3)}, TypeError, "final must be a dict by teacher"),
      (good(), {"inputs": 3}, TypeError, "inputs must be words, but it is a int"),
    ],
  )  # fmt: skip
  def test_are_named(self, lessons, settings, error, message):
    with pytest.raises(error, match=message):
      last.Curriculum(make_problem(), lessons, **settings)

  def test_of_the_problem(self):
    with pytest.raises(TypeError, match="problem must be a Problem"):
      last.Curriculum(make_problem().learner, good())
    with pytest.raises(TypeError, match="outside jit"):
      jax.jit(lambda index: last.Curriculum(make_problem(), good()._replace(index=index)).arrays["index"])(good().index)

  def test_a_student_that_diverged_has_an_end_too_but_no_start(self):
    params = {"weights": np.full((3, 4), np.nan), "bias": np.zeros(4)}
    assert np.isnan(last.Curriculum(make_problem(), good(), final=params).arrays["final/weights"]).all()
    with pytest.raises(ValueError, match=r"init.*holds NaN"):
      last.Curriculum(make_problem(), good(), init=params)

  def test_a_loss_or_an_optimizer_that_nobody_could_repeat(self, tmp_path):
    learner = last.learners.from_apply(
      lambda key: jnp.zeros((3, 4)), lambda w, x: x @ w, lambda z, y: jnp.sum(jnp.abs(z - y)), optimizer=optax.adam(0.1)
    )
    problem = last.Problem(learner, make_problem().pool)
    with pytest.raises(ValueError, match="loss is missing: the learner's loss <lambda> has no formula"):
      last.Curriculum(problem, good(), optimizer="Adam")
    with pytest.raises(ValueError, match="optimizer is missing: the learner's is not SGD"):
      last.Curriculum(problem, good(), loss="sum of |z - y|")
    saved(tmp_path / "lessons.npz", problem, good(), loss="sum of |z - y|", optimizer="Adam, rate 0.1")
    arrays, facts = read(tmp_path / "lessons.npz")
    assert (facts["loss"]["words"], facts["optimizer"]["words"]) == ("sum of |z - y|", "Adam, rate 0.1")
    assert "learning_rate" not in arrays

  def test_parameters_that_are_not_there(self):
    curriculum, learner = last.Curriculum(make_problem(), good()), make_problem().learner
    with pytest.raises(ValueError, match="name='init': the file does not have these parameters"):
      curriculum.params("init", learner)
    with pytest.raises(ValueError, match="name='start' is not known"):
      curriculum.params("start", learner)

  @pytest.mark.parametrize(
    ("change", "message"),
    [
      (lambda facts, arrays: facts.update(curriculum=2), "its version is 2, but this last_jax reads up to 1"),
      (lambda facts, arrays: facts.pop("steps"), "does not hold a Curriculum: KeyError: 'steps'"),
      (lambda facts, arrays: facts.update(steps=4), r"index has shape \(3, 2\), which is not that of its facts"),
      (lambda facts, arrays: arrays.pop("index"), "does not hold a Curriculum: KeyError: 'index'"),
      (lambda facts, arrays: arrays.pop("label"), "does not hold a Curriculum: KeyError"),
    ],
  )
  def test_files_of_others_are_named(self, tmp_path, change, message):
    curriculum = last.Curriculum(make_problem(), good())
    change(curriculum.facts, curriculum.arrays)
    last.save(tmp_path / "lessons.npz", curriculum)
    with pytest.raises(ValueError, match=message) as raised:
      io.load(tmp_path / "lessons.npz")
    assert "lessons.npz" in str(raised.value)


def test_a_curriculum_of_one_teacher_and_one_student_names_neither():
  problem = make_problem()
  lessons = last.Lesson(np.zeros((8, 2), int), np.ones((8, 2, 4), np.float32))
  assert repr(last.Curriculum(problem, lessons)) == "Curriculum(8 steps of 2, softmax_cross_entropy)"
