"""Live students: lessons for a student that is not simulated here, by NumPy and by PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import distances
from tests.compilations import counted

KEY = jax.random.key(0)
RATE, DECAY = 0.2, 1e-2
SIMPLEX = last.constraints.simplex()


def make_problem(kind, size=60, dtype=np.float32, **settings):
  draw = np.random.default_rng(0)
  x = draw.normal(size=(size, 3)).astype(dtype)
  settings = {"learning_rate": RATE, "weight_decay": DECAY} | settings
  learner, y = {
    "logistic": lambda: (last.learners.logistic(3, **settings), (x[:, 0] + x[:, 1] > 0).astype(int)),
    "softmax": lambda: (last.learners.softmax(3, 4, **settings), np.arange(size) % 4),
    "least_squares": lambda: (last.learners.least_squares(3, **settings), x @ np.array([1.0, -2.0, 0.5])),
  }[kind]()
  return last.Problem(learner, last.Pool(x, y), target=learner.init(jax.random.key(5)))


def numpy_step(kind, params, x, label):
  """One step of SGD with weight decay, written out."""
  outputs = x @ params["weights"] + params["bias"]
  if kind == "softmax":
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    gradient = label.sum(1, keepdims=True) * exponentials / exponentials.sum(1, keepdims=True) - label
  elif kind == "logistic":
    gradient = 1 / (1 + np.exp(-outputs)) - label
  else:
    gradient = outputs - label
  return {
    "weights": params["weights"] - RATE * (x.T @ gradient / len(x) + DECAY * params["weights"]),
    "bias": params["bias"] - RATE * gradient.mean(0),
  }


def make_teacher(name, problem):
  free = problem.learner.loss.name == "squared_error"
  constraint = last.constraints.none() if free else SIMPLEX
  if name == "policy":
    students = jax.vmap(problem.learner.init)(jax.random.split(KEY, 20))
    output = last.outputs.free() if free else last.outputs.simplex()
    return last.teachers.policy(last.teachers.make_policy(KEY, problem, students, output=output, hidden=(8,)))
  return {
    "sgd": last.teachers.sgd,
    "greedy": lambda: last.teachers.greedy(constraint),
    "imt": last.teachers.imt,
    "joint": lambda: last.teachers.mixed(constraint, joint=True),
    "planner": lambda: last.teachers.planner(1, constraint),
  }[name]()


TEACHERS = ("sgd", "greedy", "imt", "joint", "planner", "policy")


def teach_live(problem, teacher, learn, params, steps, batch=1):
  """Teach a student lesson by lesson: `learn(params, x [m, d], label [m, K]) -> params` is its own step."""
  state = last.init(KEY, problem, teacher, params)
  x = np.asarray(problem.pool.x)
  for _ in range(steps):
    lesson, state = last.next_lesson(state, problem, teacher, batch_size=batch)
    params = learn(params, x[np.asarray(lesson.index)], np.asarray(lesson.label))
    state = last.observe(state, params)
  return state, params


def assert_close(found, expected, atol=1e-4):
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "softmax", "least_squares"])
@pytest.mark.parametrize("name", TEACHERS)
def test_a_numpy_student_ends_where_the_simulated_one_does(kind, name):
  problem = make_problem(kind)
  teacher = make_teacher(name, problem)
  params = jax.tree.map(np.asarray, problem.learner.init(jax.random.key(1)))
  batch = 2 if name == "greedy" else 1
  state, found = teach_live(problem, teacher, lambda *given: numpy_step(kind, *given), params, 50, batch)
  simulated = last.teach(
    KEY,
    problem.learner,
    teacher,
    problem.pool,
    target=problem.target,
    init=params,
    steps=50,
    batch_size=batch,
    record_every=50,
    metrics=(),
  )
  assert_close(found, simulated.params)
  assert_close(state.params, simulated.params)
  assert state.step == 50
  moved = max(np.max(np.abs(found[leaf] - params[leaf])) for leaf in params)
  assert moved > 0.05  # Or there was nothing to compare.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "greedy", "imt", "joint"])
def test_a_pytorch_student_ends_where_the_simulated_one_does(name):
  torch = pytest.importorskip("torch")
  problem = make_problem("softmax")
  teacher = make_teacher(name, problem)
  start = jax.tree.map(np.asarray, problem.learner.init(jax.random.key(1)))
  model = torch.nn.Linear(3, 4)
  with torch.no_grad():
    model.weight.copy_(torch.tensor(start["weights"].T.copy()))
    model.bias.copy_(torch.tensor(start["bias"].copy()))
  decayed = [{"params": [model.weight], "weight_decay": DECAY}, {"params": [model.bias], "weight_decay": 0.0}]
  optimizer = torch.optim.SGD(decayed, lr=RATE)

  def learn(params, x, label):
    del params  # The model has its own.
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.tensor(label)).backward()
    optimizer.step()
    return {"weights": model.weight.detach().numpy().T.copy(), "bias": model.bias.detach().numpy().copy()}

  _, found = teach_live(problem, teacher, learn, start, 50, batch=2)
  simulated = last.teach(
    KEY, problem.learner, teacher, problem.pool, target=problem.target, init=start, steps=50, batch_size=2
  )
  assert_close(found, simulated.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEACHERS)
def test_lessons_are_compiled_once(name):
  problem = make_problem("logistic")
  teacher = make_teacher(name, problem)
  params = jax.tree.map(np.asarray, problem.learner.init(jax.random.key(1)))
  state = last.init(KEY, problem, teacher, params)
  lesson, state = last.next_lesson(state, problem, teacher)
  state = last.observe(state, params)
  with counted() as programs:
    for _ in range(50):
      lesson, state = last.next_lesson(state, problem, teacher)
      params = numpy_step("logistic", params, np.asarray(problem.pool.x)[lesson.index], np.asarray(lesson.label))
      state = last.observe(state, params)
  assert not programs.names


def elsewhere(problem, seed):
  """Parameters that no lesson has led to."""
  return problem.learner.init(jax.random.key(1000 + seed))


@pytest.mark.parametrize("kind", ["logistic", "softmax", "least_squares"])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}])
@pytest.mark.slow
def test_a_student_elsewhere_than_expected_gets_the_best_labels_for_where_it_is(kind, settings):
  problem = make_problem(kind, **settings)
  learner, pool, target = problem.learner, problem.pool, problem.target
  constraint = last.constraints.magnitude(0.7)
  teacher = last.teachers.greedy(constraint)
  state = last.init(KEY, problem, teacher)
  for t in range(5):
    params = elsewhere(problem, t)
    state = last.observe(state, params)
    opt_state = state.student.opt_state
    lesson, state = last.next_lesson(state, problem, teacher, batch_size=2)
    x, truth = pool.x[lesson.index], problem.truth[lesson.index]
    expected = last.synthesize_labels(learner, params, target, x, truth, constraint, opt_state=opt_state)
    np.testing.assert_allclose(lesson.label, expected, atol=1e-5)


def distances_of_all(problem, student, constraint=None):
  """The squared distance after a step on each example alone, with its truth or with its best label, `[n]`."""
  learner = problem.learner

  def distance(x, label):
    if constraint is not None:
      label = last.synthesize_labels(
        learner, student.params, problem.target, x[None], label[None], constraint, opt_state=student.opt_state
      )[0]
    return distances.squared_distance(learner.step(student, x[None], label[None]).params, problem.target)

  return jax.lax.map(lambda example: distance(*example), (problem.pool.x, problem.truth))


@pytest.mark.parametrize("kind", ["logistic", "softmax", "least_squares"])
@pytest.mark.parametrize("joint", [False, True])
def test_a_student_elsewhere_than_expected_is_shown_the_best_example_of_the_pool(x64, kind, joint):
  """At steps at which a simulated student's outputs would be predicted, too."""
  problem = make_problem(kind, dtype=np.float64)
  constraint = last.constraints.magnitude(0.7)
  teacher = last.teachers.mixed(constraint, joint=True) if joint else last.teachers.imt()
  judge = jax.jit(lambda student: distances_of_all(problem, student, constraint if joint else None))
  state = last.init(KEY, problem, teacher)
  for t in range(5):
    state = last.observe(state, elsewhere(problem, t))
    every = judge(state.student)
    lesson, state = last.next_lesson(state, problem, teacher)
    assert every[lesson.index[0]] == pytest.approx(float(jnp.min(every)), rel=1e-9)


@pytest.mark.parametrize("teacher", [last.teachers.imt(), last.teachers.mixed(SIMPLEX, joint=True)])
def test_simulating_on_from_a_report_starts_from_the_report(teacher):
  """`run` after `observe`, at a step at which outputs are predicted from those of the step before."""
  problem = make_problem("logistic")
  live = simulated = last.run(last.init(KEY, problem, teacher), problem, teacher, steps=5)[0]
  params = elsewhere(problem, 0)
  live, simulated = last.observe(live, params), last.observe(simulated, params)
  shown = []
  for _ in range(5):
    lesson, live = last.next_lesson(live, problem, teacher)
    shown.append(lesson.index)
  _, records = last.run(simulated, problem, teacher, steps=5, lessons=True)
  np.testing.assert_array_equal(records.lessons.index, np.stack(shown))


@pytest.mark.slow
def test_a_report_of_one_of_many_students_is_taken_up():
  problem = make_problem("logistic")
  teacher = last.teachers.imt()
  many, _ = last.run(last.init(jax.random.split(KEY, 3), problem, teacher), problem, teacher, steps=5)
  params = jax.tree.map(lambda all, one: all.at[1].set(one), many.params, elsewhere(problem, 0))
  many, records = last.run(last.observe(many, params), problem, teacher, steps=4, lessons=True)
  assert not np.any(many.reported)
  state = last.init(jax.random.split(KEY, 3)[1], problem, teacher, elsewhere(problem, 0))
  shown = []
  for _ in range(4):
    lesson, state = last.next_lesson(state, problem, teacher)
    shown.append(lesson.index)
  np.testing.assert_array_equal(records.lessons.index[1], np.stack(shown))


@pytest.mark.slow
def test_without_a_report_the_student_is_taken_to_have_learned_as_expected():
  problem = make_problem("softmax", momentum=0.5)
  teacher = last.teachers.greedy(SIMPLEX)
  state = simulated = last.init(KEY, problem, teacher)
  for _ in range(10):
    lesson, state = last.next_lesson(state, problem, teacher)
    simulated, info = last.step(simulated, problem, teacher)
    np.testing.assert_array_equal(lesson.index, info.lesson.index)
    np.testing.assert_allclose(lesson.label, info.lesson.label, atol=1e-5)
  assert_close(state.params, simulated.params)


def test_reports_of_other_shapes_are_refused():
  problem = make_problem("logistic")
  state = last.init(KEY, problem, last.teachers.sgd())
  with pytest.raises(ValueError, match=r"params\['weights'\] must have shape \(3, 1\), but it has shape \(3,\)"):
    last.observe(state, {"weights": np.zeros(3), "bias": np.zeros(1)})
  with pytest.raises(ValueError, match="params must have the tree of the student's parameters"):
    last.observe(state, {"weights": np.zeros((3, 1))})
  report = last.observe(state, {"weights": np.zeros((3, 1)), "bias": np.zeros(1)})  # In NumPy's float64.
  assert report.params["weights"].dtype == jnp.float32
