"""Teachers that users write: a few lines, with and without state, checked when made and when traced."""

import dataclasses

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import last_jax as last
from last_jax import Lesson, Teacher
from tests.compilations import assert_compiled_once, counted
from tests.problems import task

KEY = jax.random.key(0)


def flip(teacher_state, view, proposal):
  return Lesson(proposal, 1 - view.truth[proposal]), teacher_state, None


def init_counts(problem):
  return jnp.zeros(len(problem.pool), int)


def show_the_least_shown(counts, view, proposal):
  index = jnp.argsort(counts)[: proposal.shape[0]]
  return Lesson(index, view.truth[index]), counts.at[index].add(1), None


def init_clock(problem):
  del problem
  return jnp.zeros((), int)


def smooth_by_time(clock, view, proposal):
  share = 1 / (1 + clock)
  return Lesson(proposal, (1 - share) * view.truth[proposal] + share / 5), clock + 1, None


def smooth(share, teacher_state, view, proposal):
  return Lesson(proposal, (1 - share) * view.truth[proposal] + share / 5), teacher_state, None


def soften(share, view, index):
  return (1 - share) * view.truth[index] + share / 5, None


def first_of_pool(view, proposal):
  del view
  return jnp.arange(proposal.shape[0])


def teach(teacher, kind="softmax_5", **settings):
  learner, pool, target = task(kind)
  return last.teach(KEY, learner, teacher, pool, **{"target": target, "steps": 6, "lessons": True} | settings)


def test_without_state():
  result = teach(Teacher("flipped", step=flip), batch_size=2)
  _, pool, _ = task("softmax_5")
  truth = np.eye(5)[np.asarray(pool.y)]
  np.testing.assert_array_equal(result.lessons.label, 1 - truth[np.asarray(result.lessons.index)])
  assert result.state.teacher_state is None
  assert result.certificate is None


def test_with_a_state_that_counts_steps():
  result = teach(Teacher("fading", init_clock, smooth_by_time))
  assert result.state.teacher_state == 6
  share = 1 / (1 + np.arange(6.0))
  np.testing.assert_allclose(np.max(result.lessons.label, (1, 2)), 1 - share + share / 5, rtol=1e-6)


@pytest.mark.slow
def test_with_a_state_that_remembers_the_examples_shown():
  """In one call and in pieces, for one student and for many."""
  teacher = Teacher("in turn", init_counts, show_the_least_shown)
  whole = teach(teacher, steps=30)
  assert sorted(np.asarray(whole.lessons.index).ravel()) == list(range(30))
  learner, pool, target = task("softmax_5")
  problem = last.Problem(learner, pool, target=target)
  state, first = last.run(last.init(KEY, problem, teacher), problem, teacher, steps=13, lessons=True)
  assert np.sum(state.teacher_state) == 13
  state, rest = last.run(state, problem, teacher, steps=17, lessons=True)
  np.testing.assert_array_equal(state.teacher_state, np.ones(30))
  np.testing.assert_array_equal(np.concatenate([first.lessons.index, rest.lessons.index]), whole.lessons.index)
  many = last.teach_many(jax.random.split(KEY, 3), learner, teacher, pool, steps=10, batch_size=3)
  np.testing.assert_array_equal(many.state.teacher_state, np.ones((3, 30)))


def test_composed_of_a_selection_and_labels():
  teacher = last.teachers.compose("soft first", Partial(soften, 0.5), select=first_of_pool)
  result = teach(teacher, batch_size=4)
  np.testing.assert_array_equal(result.lessons.index, np.tile(np.arange(4), (6, 1)))
  np.testing.assert_allclose(np.max(result.lessons.label, -1), 0.6)
  random = teach(last.teachers.compose("soft", Partial(soften, 0.5)), batch_size=4)
  assert len(np.unique(random.lessons.index)) > 4


@pytest.mark.parametrize(
  "make",
  [
    lambda name: Teacher(name, step=flip),
    lambda name: Teacher(name, init_counts, show_the_least_shown),
    lambda name: Teacher(name, step=Partial(smooth, 0.1)),
    lambda name: Teacher(
      name, step=lambda state, view, proposal: (Lesson(proposal, view.truth[proposal]), state, None)
    ),
    lambda name: last.teachers.compose(name, Partial(soften, 0.5), select=first_of_pool),
  ],
)
def test_made_again_they_do_not_compile_again(make):
  """Under another name neither: names are for people."""
  assert_compiled_once(lambda name: teach(make(name)), ["mine", "mine", "another"])
  assert make("mine").name == "mine"


class Smooth:
  """A class that JAX does not know."""

  def __init__(self, share):
    self.share = share

  def __call__(self, teacher_state, view, proposal):
    return smooth(self.share, teacher_state, view, proposal)


@dataclasses.dataclass(frozen=True)
class SmoothByValue(Smooth):
  share: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SmoothByLeaf(Smooth):
  share: float


@pytest.mark.parametrize(("kind", "again", "other"), [(SmoothByValue, 0, 1), (SmoothByLeaf, 0, 0), (Smooth, 1, 1)])
@pytest.mark.slow
def test_a_step_may_be_an_object_whether_or_not_jax_knows_its_class(kind, again, other):
  """A registered class has its numbers as leaves, a dataclass compares them, any other object equals only itself."""

  def count(share):
    with counted() as programs:
      result = teach(Teacher("smooth", step=kind(share)))
    assert np.max(result.lessons.label) == pytest.approx(1 - share + share / 5)
    return programs.count

  count(0.25)
  assert count(0.25) == again
  assert count(0.75) == other
  with pytest.raises(TypeError, match=r"step must be a function of \(teacher_state, view, proposal\), but it is a obj"):
    Teacher("mine", step=object())


def test_numbers_are_swept_with_one_compilation():
  found = []

  def at(share):
    found.append(teach(Teacher("smooth", step=Partial(smooth, share))).lessons.label)

  shares = np.linspace(0, 1, 20)
  assert_compiled_once(at, [float(share) for share in shares])
  np.testing.assert_allclose(np.max(found, (1, 2, 3)), 1 - shares + shares / 5, rtol=1e-6)


@pytest.mark.slow
def test_numbers_can_be_vmapped_and_differentiated():
  def final(share):
    return teach(Teacher("smooth", step=Partial(smooth, share))).distance[-1]

  together = jax.vmap(final)(jnp.array([0.1, 0.5]))
  np.testing.assert_allclose(together, [final(0.1), final(0.5)], rtol=1e-5)
  assert np.isfinite(jax.grad(final)(0.3))


def test_one_that_finds_its_own_certificate():
  def step(teacher_state, view, proposal):
    return Lesson(proposal, view.truth[proposal]), teacher_state, {"mean": jnp.mean(view.truth[proposal])}

  result = teach(Teacher("reports", step=step))
  np.testing.assert_allclose(result.certificate["mean"], np.full(6, 0.2))
  problem = last.Problem(*task("softmax_5")[:2])
  teacher = Teacher("reports", step=step)
  _, info = last.step(last.init(KEY, problem, teacher), problem, teacher)
  assert info.certificate["mean"] == pytest.approx(0.2)


# --- Errors when a teacher is made.


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: Teacher("mine"), r"step is missing: a teacher is Teacher\(name, step="),
    (lambda: Teacher("mine", init_counts), "step is missing"),
    (lambda: Teacher("mine", stepp=flip), "unexpected keyword argument 'stepp'"),
    (lambda: Teacher("mine", step=flip, need_target=True), "unexpected keyword argument 'need_target'"),
    (lambda: Teacher(step=flip), "missing 1 required positional argument: 'name'"),
    (lambda: Teacher(flip, step=flip), "name must be a string, but it is a function"),
    (lambda: Teacher("mine", step="flip"), r"step must be a function of \(teacher_state, view, proposal\), but"),
    (lambda: Teacher("mine", step=lambda view, proposal: None), r"step must be a function of \(teacher_state, view,"),
    (lambda: Teacher("mine", step=Partial(flip, None)), r"step must be a function of .*: too many positional"),
    (lambda: Teacher("mine", lambda: None, flip), r"init must be a function of \(problem\): too many positional"),
    (lambda: Teacher("mine", step=flip, prepare=3), r"prepare must be a function of \(problem\), but it is a int"),
    (lambda: last.teachers.compose("mine"), "missing 1 required positional argument: 'label'"),
    (lambda: last.teachers.compose("mine", lambda view: None), r"label must be a function of \(view, index\)"),
    (lambda: last.teachers.compose("mine", first_of_pool, select=flip), r"select must be a function of \(view, pro"),
  ],
)
def test_parts_that_are_missing_or_misspelt_are_errors_at_once(make, message):
  with pytest.raises(TypeError, match=message):
    make()


def test_things_that_are_no_teacher_are_refused_by_every_function():
  learner, pool, _ = task("softmax_5")
  problem = last.Problem(learner, pool)
  sgd = last.teachers.sgd()
  state = last.init(KEY, problem, sgd)
  calls = [
    lambda teacher: last.init(KEY, problem, teacher),
    lambda teacher: last.step(state, problem, teacher),
    lambda teacher: last.run(state, problem, teacher, steps=1),
    lambda teacher: last.next_lesson(state, problem, teacher),
    lambda teacher: last.teach(KEY, learner, teacher, pool, steps=1),
  ]
  for call in calls:
    with pytest.raises(TypeError, match=r"teacher must be a Teacher, as teachers\.greedy"):
      call(flip)
  for call in (last.init, last.step):
    with pytest.raises(TypeError, match="problem must be a Problem, but it is a Pool"):
      call(KEY if call is last.init else state, pool, sgd)


# --- Errors when a teacher's answer is traced.


def answers(make):
  """A teacher whose step answers with `make(view, proposal)`."""
  return Teacher("mine", step=lambda teacher_state, view, proposal: make(view, proposal))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
  ("kind", "make", "message"),
  [
    # Class ids, which would broadcast against the outputs.
    (
      "softmax_5",
      lambda view, index: (Lesson(index, view.problem.pool.y[index]), None, None),
      r"the teacher 'mine' must return labels \[m, K\] = \[\d, 5\], floats, but they are int32\[\d\]",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index, jnp.argmax(view.truth[index], 1) * 1.0), None, None),
      r"'mine' must return labels \[m, K\] = \[\d, 5\], floats, but they are float32\[\d\]",
    ),
    (
      "logistic",
      lambda view, index: (Lesson(index, view.truth[index, 0]), None, None),
      r"'mine' must return labels \[m, K\] = \[\d, 1\], floats, but they are float32\[\d\]",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index, view.truth[index].astype(int)), None, None),
      r"'mine' must return labels \[m, K\] = \[\d, 5\], floats, but they are int32\[\d, 5\]",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index, view.truth[index].T), None, None),
      r"'mine' must return labels \[m, K\]",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index * 1.0, view.truth[index]), None, None),
      r"the teacher 'mine' must return indices \[m\], integers, but they are float32\[\d\]",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index[0], view.truth[index]), None, None),
      r"'mine' must return indices \[m\], integers, but they are int32\[\]",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index == 0, view.truth[index]), None, None),
      r"'mine' must return indices \[m\], integers, but they are bool\[\d\]",
    ),
    (
      "softmax_5",
      lambda view, index: Lesson(index, view.truth[index]),
      r"step of the teacher 'mine' must return \(Lesson, teacher_state, certificate\), but it returned",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index, view.truth[index]), None),
      r"step of the teacher 'mine' must return \(Lesson, teacher_state, certificate\)",
    ),
    (
      "softmax_5",
      lambda view, index: ((index, view.truth[index]), None, None),
      r"step of the teacher 'mine' must return \(Lesson, teacher_state, certificate\)",
    ),
    (
      "softmax_5",
      lambda view, index: (Lesson(index, view.truth[index]), jnp.zeros(3), None),
      r"step of the teacher 'mine' must return a teacher_state like init's, None, but",
    ),
  ],
)
def test_answers_of_other_shapes_and_dtypes_are_refused(kind, make, message, batch):
  with pytest.raises((ValueError, TypeError), match=message):
    teach(answers(make), kind, batch_size=batch)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (
      lambda: answers(lambda view, index: (Lesson(index, None), None, None)),
      "step of the teacher 'mine' must return an array as the label of its Lesson, but it is a NoneType",
    ),
    (
      lambda: answers(lambda view, index: (Lesson([0], view.truth[index]), None, None)),
      "step of the teacher 'mine' must return an array as the index of its Lesson, but it is a list",
    ),
    (
      lambda: answers(lambda view, index: (Lesson(index, "label"), None, None)),
      "step of the teacher 'mine' must return arrays, but Lesson.label is a str",
    ),
    (
      lambda: answers(lambda view, index: (Lesson(index, view.truth[index]), None, {"why": "because"})),
      r"step of the teacher 'mine' must return arrays, but certificate\['why'\] is a str",
    ),
    (
      lambda: Teacher("mine", lambda problem: ["start"], flip),
      r"init of the teacher 'mine' must return arrays, but teacher_state\[0\] is a str",
    ),
    (
      lambda: last.teachers.compose("mine", lambda view, index: view.truth[index]),
      r"label must return \(labels \[m, K\], certificate or None\), but it returned",
    ),
    (
      lambda: last.teachers.compose("mine", Partial(soften, 0.5), select=lambda view, proposal: 1.0 * proposal),
      r"select must return indices \[m\], integers, but it returned .*float32",
    ),
    (
      lambda: last.teachers.compose("mine", Partial(soften, 0.5), select=lambda view, proposal: (proposal, None)),
      r"select must return indices \[m\], integers",
    ),
  ],
)
def test_answers_of_other_kinds_are_refused(make, message):
  with pytest.raises(TypeError, match=message):
    teach(make(), batch_size=2)


@pytest.mark.parametrize(
  "change",
  [
    lambda counts: (counts, counts),
    lambda counts: None,
    lambda counts: counts * 1.0,
    lambda counts: counts[:-1],
    lambda counts: {"counts": counts},
  ],
)
def test_a_teacher_state_that_changes_its_structure_is_refused(change):
  def step(counts, view, proposal):
    return Lesson(proposal, view.truth[proposal]), change(counts), None

  with pytest.raises(ValueError, match=r"step of the teacher 'mine' must return a teacher_state like init's"):
    teach(Teacher("mine", init_counts, step))


def test_a_shorter_batch_is_a_teachers_own_choice():
  def step(teacher_state, view, proposal):
    return Lesson(proposal[:1], view.truth[proposal[:1]]), teacher_state, None

  assert teach(Teacher("one of them", step=step), batch_size=3).lessons.index.shape == (6, 1)


# --- Black boxes.


def spy_on(seen, needs_target):
  """A teacher that writes down the targets that it is given."""

  def init(problem):
    seen.append(("init", problem.target, problem.tolerance))
    return jnp.zeros(())

  def prepare(problem):
    seen.append(("prepare", problem.target, problem.tolerance))

  def step(teacher_state, view, proposal):
    seen.append(("step", view.problem.target, view.problem.tolerance))
    return Lesson(proposal, view.truth[proposal]), teacher_state, None

  return Teacher("spy", init, step, prepare=prepare, needs_target=needs_target)


@pytest.mark.slow
def test_a_teacher_that_does_not_declare_it_cannot_reach_the_target():
  seen = []
  teach(spy_on(seen, needs_target=False), tolerance=0.1)
  assert {place for place, *_ in seen} == {"init", "prepare", "step"}
  assert all(target is None and tolerance is None for _, target, tolerance in seen)
  seen = []
  teach(spy_on(seen, needs_target=True), tolerance=0.1)
  assert all(target is not None for _, target, _ in seen)

  def steal(teacher_state, view, proposal):
    view.target  # noqa: B018
    return Lesson(proposal, view.truth[proposal]), teacher_state, None

  with pytest.raises(ValueError, match=r"view.target is not available: the teacher must be made with needs_target=T"):
    teach(Teacher("thief", step=steal))
  with pytest.raises(ValueError, match="target is missing: the teacher thief is omniscient"):
    teach(Teacher("thief", step=steal, needs_target=True), target=None)


def depends(function, argument):
  """Whether any output of a function depends on an argument, by its jaxpr: operations count as a whole."""
  closed = jax.make_jaxpr(function)(argument)
  reached = set(closed.jaxpr.invars)
  for equation in closed.jaxpr.eqns:
    if any(v in reached for v in equation.invars if not isinstance(v, jax.extend.core.Literal)):
      reached.update(equation.outvars)
  return any(v in reached for v in closed.jaxpr.outvars if not isinstance(v, jax.extend.core.Literal))


BLACK_BOXES = {
  "sgd": last.teachers.sgd(),
  "label_smoothing": last.teachers.label_smoothing(0.8),
  "self_training": last.teachers.self_training(),
  "theorem_2": last.teachers.theorem_2(),
  "newton": last.teachers.theorem_3(),
  "own": Teacher("flipped", step=flip),
  "with state": Teacher("in turn", init_counts, show_the_least_shown),
}


@pytest.mark.parametrize("name", BLACK_BOXES)
def test_lessons_of_a_black_box_do_not_depend_on_the_target(name):
  teacher = BLACK_BOXES[name]
  learner, pool, target = task("softmax_5")
  assert not teacher.needs_target

  def lesson_toward(target, teacher=teacher):
    problem = last.Problem(learner, pool, target=target, tolerance=0.1)
    state = last.init(KEY, problem, teacher, learner.init(KEY))
    state, info = last.step(state, problem, teacher, batch_size=2)
    return info, state.teacher_state, state.student

  assert not depends(lesson_toward, target)
  assert depends(lambda target: lesson_toward(target, last.teachers.greedy(last.constraints.none())), target)
  elsewhere = jax.tree.map(lambda leaf: leaf + 100.0, target)
  results = [teach(teacher, target=goal, metrics=(), steps=3) for goal in (None, target, elsewhere)]
  for result in results[1:]:
    np.testing.assert_array_equal(result.lessons.label, results[0].lessons.label)
    np.testing.assert_array_equal(result.lessons.index, results[0].lessons.index)


def test_steps_of_own_teachers_compile_once():
  teacher = Teacher("in turn", init_counts, show_the_least_shown)
  problem = last.Problem(*task("softmax_5")[:2])
  state, _ = last.step(last.init(KEY, problem, teacher), problem, teacher)
  with counted() as programs:
    for _ in range(20):
      state, _ = last.step(state, problem, teacher)
  assert not programs.names
  assert state.step == 21
