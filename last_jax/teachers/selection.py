"""Teachers that choose examples: iterative machine teaching (IMT), and mixed teaching, which chooses labels as well.

A batch of m takes the m examples that would each be best alone. For small steps G falls linearly with the gradients, so
that is the best batch; the joint choice is a combinatorial problem.

For linear learners and small pools the outputs of the whole pool are the teacher's state: a step on example i moves all
of them along row i of the Gram matrix, which is cheaper than a product of the pool with the weights. With a shortlist,
the shortlist is.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from last_jax import checks, linear, solvers, targets
from last_jax.base import STATIC, Array, Lesson, Teacher, View
from last_jax.constraints import Constraint, check_constraint
from last_jax.linear import Geometry
from last_jax.problem import Problem
from last_jax.solvers import Descent
from last_jax.targets import Target
from last_jax.teachers import shortlist as shortlists
from last_jax.teachers.greedy import GreedyLabels, as_target, name_of_set
from last_jax.teachers.scores import Examples, score

# Largest pool whose Gram matrix is formed: 16 MiB. A larger one does not stay in a cache, and then reading a row takes
# as long as computing the outputs. Forming it takes as long as the outputs of n / 2 steps of one student.
_MAX_TRACKED = 2048
# Tracked outputs are computed from the weights again after this many steps: rounding errors of the student's own
# weights, which tracking does not see, stay those of a few steps.
_RENEW_EVERY = 16


class Cache(NamedTuple):
  """Inner products of a pool, for linear learners."""

  geometry: Geometry
  gram: Array | None  # [n, n] where outputs are tracked.


class Memory(NamedTuple):
  """What a teacher carries from step to step, if anything."""

  outputs: Array | None = None  # [n, K] of the whole pool, tracked.
  shortlists: tuple[Array, ...] = ()  # [s], one for each selection.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Selection:
  """The examples of the pool after which the student is nearest to the target.

  Attributes:
    toward: what to steer toward.
    constraint: None: an example is judged with its ground truth (IMT). Otherwise with its best label in the set.
    chunk_size: number of examples that pass through a network at once; None: as many as fit into a cache.
  """

  toward: Target
  constraint: Constraint | None = None
  chunk_size: int | None = dataclasses.field(default=None, metadata=STATIC)

  def __call__(self, view: View, memory: Memory, place: int, batch: int) -> tuple[Array, Memory]:
    """Select the best `batch` examples, `[m]`, and bring the shortlist at `place` up to date, if there is one."""
    number = view.x.shape[0]
    if batch > number:
      raise ValueError(f"batch_size={batch} examples cannot be chosen from a pool of {number}")

    target = self.toward.now(view.learner, view.student, view.problem.target, view.step, view.key)

    def judge(examples: Examples) -> Array:
      return score(view, examples, target, self.constraint, self.chunk_size)

    pool = Examples(view.x, view.truth, None if view.cache is None else view.cache.geometry, memory.outputs)
    if not memory.shortlists:
      return shortlists.lowest(judge(pool), batch), memory
    kept = memory.shortlists[place]
    if batch > kept.shape[0]:
      raise ValueError(f"batch_size={batch} examples cannot be chosen from shortlist={kept.shape[0]}")
    index, kept = shortlists.choose(judge, pool, kept, view.step, batch)
    return index, memory._replace(
      shortlists=tuple(kept if i == place else other for i, other in enumerate(memory.shortlists))
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Setup:
  """What the state of these teachers follows from.

  Attributes:
    toward: what to steer toward.
    shortlist: number of examples on a shortlist, or None.
    selections: number of shortlists.
  """

  toward: Target
  shortlist: int | None = dataclasses.field(default=None, metadata=STATIC)
  selections: int = dataclasses.field(default=1, metadata=STATIC)

  def shortens(self, problem: Problem) -> bool:
    """Return whether a shortlist is kept: less is judged in a step than the whole pool."""
    return self.shortlist is not None and 2 * self.shortlist < len(problem.pool)

  def tracks(self, problem: Problem) -> bool:
    """Return whether outputs are tracked."""
    if len(problem.pool) > _MAX_TRACKED or self.shortens(problem):
      return False
    return self.toward.has_closed_form(problem.learner) and linear.can_track(problem.learner)

  def init(self, problem: Problem) -> Any:
    """Return the state: shortlists; outputs of the pool `[n, K]`, to be renewed in the first step; or None."""
    if self.shortens(problem):
      assert self.shortlist is not None
      return (shortlists.empty(self.shortlist),) * self.selections
    return jnp.zeros_like(problem.truth) if self.tracks(problem) else None

  def prepare(self, problem: Problem) -> Cache | None:
    """Return the inner products of the pool that closed forms need, or None."""
    geometry = self.toward.prepare(problem)
    if geometry is None:
      return None
    return Cache(geometry, linear.gram(problem.learner, problem.pool.x) if self.tracks(problem) else None)


# --- Tracked outputs.


def _with_memory(state: Any, view: View, teach: Callable[[Memory], tuple[Lesson, Memory, Any]]) -> Any:
  """Return what a step returns from `teach(memory)`, with outputs as tracked or, where it is time, computed again."""

  def answer(memory: Memory) -> tuple[Lesson, Any, Any]:
    lesson, after, certificate = teach(memory)
    if memory.outputs is None:
      return lesson, after.shortlists or None, certificate
    return lesson, _outputs_after(memory.outputs, view, lesson), certificate

  if state is None or isinstance(state, tuple):
    return answer(Memory(shortlists=state or ()))

  def compute() -> Any:
    return answer(Memory(view.learner.apply(view.student.params, view.x)))

  if view.reported is True:
    return compute()
  # The whole of `teach` is in both branches: a branch that only returned what is tracked would copy it in every step.
  return jax.lax.cond(view.reported | (view.step % _RENEW_EVERY == 0), compute, lambda: answer(Memory(state)))


def _outputs_after(outputs: Array, view: View, lesson: Lesson) -> Array:
  if view.reported is True:
    return outputs
  return linear.outputs_after(view.learner, view.student, outputs, view.cache.gram, lesson.index, lesson.label)


# --- The teachers.


def _imt_step(selection: Selection, state: Any, view: View, proposal: Array) -> tuple[Lesson, Any, None]:
  def teach(memory: Memory) -> tuple[Lesson, Memory, None]:
    index, memory = selection(view, memory, 0, proposal.shape[0])
    return Lesson(index, view.truth[index]), memory, None

  return _with_memory(state, view, teach)


def _mixed_step(
  alternating: Selection, joint: Selection | None, labels: GreedyLabels, state: Any, view: View, proposal: Array
) -> tuple[Lesson, Any, Any]:
  """Choose examples, then their labels. With `joint`, take the better of the two batches: never worse than either."""
  batch = proposal.shape[0]
  geometry = None if view.cache is None else view.cache.geometry

  def distance(lesson: Lesson) -> Array:
    after = view.learner.step(view.student, view.x[lesson.index], lesson.label)
    return targets.value(labels.target_of(view), view.learner, after)

  def choose(selection: Selection, memory: Memory, place: int) -> tuple[Lesson, Memory, Any]:
    index, memory = selection(view, memory, place, batch)
    label, certificate = labels(view, index, geometry)
    return Lesson(index, label), memory, certificate

  def teach(memory: Memory) -> tuple[Lesson, Memory, Any]:
    if joint is None:
      return choose(alternating, memory, 0)
    lesson, memory, certificate = choose(joint, memory, 0)
    if batch == 1:  # One example judged with its best label cannot be beaten.
      return lesson, memory, certificate
    other, memory, another = choose(alternating, memory, 1)
    better = distance(lesson) <= distance(other)
    pair = jax.tree.map(lambda a, b: jnp.where(better, a, b), (lesson, certificate), (other, another))
    return pair[0], memory, pair[1]

  return _with_memory(state, view, teach)


def imt(
  toward: Target | None = None,
  *,
  layer_weights: Any = None,
  chunk_size: int | None = None,
  shortlist: int | None = None,
) -> Teacher:
  """Iterative machine teaching: the examples of the pool that are best for the next step, with their ground truth.

  Args:
    toward: as for `greedy`.
    layer_weights: as for `greedy`.
    chunk_size: for networks, the number of examples that pass through at once; by default as many as fit into a cache.
    shortlist: for large pools, a number of examples s: approximate selection. In each step 2 s examples are judged
      instead of all n: those on a shortlist, and as many others in turn; in the first step all. By default none: exact.
      What is lost depends on how much a step changes the ranking. With s = n / 100, so 50 times less work, a step kept
      96 to 98 % of exact IMT's progress in the mean on 100,000 Gaussian examples of 24 features, but 74 % on 10,000
      images of digits, where s = n / 20 kept 99 %: `python -m benchmarks.run --suite=shortlist,shortlist_digits`.
  """
  chunk_size, shortlist = _check_sizes(chunk_size, shortlist)
  toward = as_target(toward, layer_weights)
  return _teacher("IMT", Partial(_imt_step, Selection(toward, None, chunk_size)), _Setup(toward, shortlist))


def mixed(
  constraint: Constraint,
  joint: bool = False,
  toward: Target | None = None,
  *,
  layer_weights: Any = None,
  chunk_size: int | None = None,
  shortlist: int | None = None,
  solver: Descent | None = None,
) -> Teacher:
  """Mixed teaching: the examples and the labels that are best for the next step.

  Args:
    constraint: the set of labels to choose from.
    joint: False: the paper's alternation, examples as IMT chooses them, then their best labels. True: examples by what
      their best label does, which is never worse in a step.
    toward: as for `greedy`.
    layer_weights: as for `greedy`.
    chunk_size: as for `imt`.
    shortlist: as for `imt`.
    solver: as for `greedy`; not with `joint`, which judges examples by their exact labels.
  """
  check_constraint(constraint)
  solvers.check_solver(solver, constraint)
  joint = checks.check_flag("joint", joint)
  if joint and solver is not None:
    raise ValueError("solver must be None with joint=True, which judges examples by their exact labels")
  chunk_size, shortlist = _check_sizes(chunk_size, shortlist)
  toward = as_target(toward, layer_weights)
  alternating = Selection(toward, None, chunk_size)
  jointly = Selection(toward, constraint, chunk_size) if joint else None
  step = Partial(_mixed_step, alternating, jointly, GreedyLabels(constraint, toward, solver))
  name = f"{'joint mixed' if joint else 'mixed'} ({name_of_set(constraint, solver)})"
  return _teacher(name, step, _Setup(toward, shortlist, 2 if joint else 1))


def _check_sizes(chunk_size: int | None, shortlist: int | None) -> tuple[int | None, int | None]:
  return (
    None if chunk_size is None else checks.check_count("chunk_size", chunk_size),
    None if shortlist is None else checks.check_count("shortlist", shortlist),
  )


def _teacher(name: str, step: Any, setup: _Setup) -> Teacher:
  init, prepare = Partial(_Setup.init, setup), Partial(_Setup.prepare, setup)
  return Teacher(name, init, step, prepare=prepare, needs_target=setup.toward.needs_params)
