"""Progress of long calls from Python: a line with the time left, and a function of the caller's for each record.

    with last.progress():
      result = last.teach_many(keys, learner, teacher, pool, target=target, steps=100_000)

Inside the block `teach`, `teach_many` and `run` take their steps in 20 to 100 chunks or so, with the same results;
training does the same with episodes, `distill_labels` with updates, and `sweep` reports the settings that are done.
Outside the block nothing changes.
"""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import checks, devices, loop
from last_jax.base import Params, Records, Result, State
from last_jax.loop import Plan
from last_jax.problem import Problem

OnRecord = Callable[[int, Mapping[str, Any]], Any]
Advance = Callable[[State, Plan], tuple[State, Records]]

_SECONDS = 0.1  # Between two changes of the line.


class _Watch(NamedTuple):
  """What is done between chunks."""

  on_record: OnRecord | None
  show: bool

  def line(self, total: int, noun: str) -> "_Line":
    """Return the line for `total` steps or episodes."""
    return _Line(total, noun, self.show and devices.is_first())

  def hand_over(self, values: Mapping[str, Any], axis: int) -> None:
    """Call the caller's function for each record: "step" and metrics `[records]`, or `[students, records]`, axis 1."""
    if self.on_record is None:
      return
    named = devices.gather({name: leaf for name, leaf in values.items() if leaf is not None and name != "diverged"})
    for place in range(named["step"].shape[axis]):
      here = jax.tree.map(lambda leaf, place=place: leaf[(slice(None),) * axis + (place,)], named)
      self.on_record(int(np.max(here.pop("step"))), here)


SILENT = _Watch(None, False)  # For callers that report their own chunks, where nobody watches.

_current: ContextVar[_Watch | None] = ContextVar("last_jax_progress", default=None)


@contextlib.contextmanager
def progress(on_record: OnRecord | None = None, *, show: bool = True) -> Iterator[None]:
  """Show how far calls in the block are, with the time left, and hand over their records as they are made.

  `teach`, `teach_many`, `run` and the training of policies then run in chunks, each a call of a program of its own
  length, compiled once. Results of teaching are those of one call to the bit, as `run` says of calls in pieces, except
  that the record of the start may differ in the last one; those of training are the same to rounding. Calls inside
  somebody's `jit` or `vmap` are left alone.

  Args:
    on_record: called as `on_record(step, metrics)` for each record in their order, as soon as its chunk is done. The
      metrics are arrays on the host by name, `[]` or `[students]`. For Weights & Biases:
      `lambda step, metrics: wandb.log({name: value.mean() for name, value in metrics.items()}, step=step)`. Of training
      there is a record of each episode, with the loss, and the score where there was an evaluation; of `distill_labels`
      one of each update, with the objective; of `sweep` none.
    show: whether to write the line, to stderr.
  """
  if on_record is not None and not callable(on_record):
    raise TypeError(f"on_record must be a function of (step, metrics), but it is a {type(on_record).__name__}")
  show = checks.check_flag("show", show)
  token = _current.set(_Watch(on_record, show))
  try:
    yield
  finally:
    _current.reset(token)


@contextlib.contextmanager
def paused() -> Iterator[None]:
  """Take calls in the block as if there were no `progress` around it: whoever makes them reports them."""
  token = _current.set(None)
  try:
    yield
  finally:
    _current.reset(token)


def current() -> _Watch:
  """Return what is done between chunks, to be called where `is_on`."""
  watch = _current.get()
  assert watch is not None, "checked by is_on"
  return watch


def is_on(*arguments: Any) -> bool:
  """Whether a call with these arguments is to be watched: in a block of `progress`, and not while it is traced."""
  if _current.get() is None:
    return False
  leaves = [*jax.tree.leaves(arguments), jnp.zeros(())]  # The last is a tracer in the jit of a function of nothing.
  return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def teach(state: State, problem: Problem, advance: Advance, plan: Plan) -> Result:
  """Return the `Result` of a run from its first step on."""
  measure = _measure_many if state.key.ndim else _measure_one
  start = Records(state.step, **measure(problem, state.params, plan=plan))
  state, records = run(state, advance, plan, start)
  return Result(records, state)


def run(state: State, advance: Advance, plan: Plan, start: Records | None = None) -> tuple[State, Records]:
  """Return `advance(state, plan)`, taken in chunks. A record of the start comes before those of the run, if given."""
  watch, axis, pieces = current(), state.key.ndim, []
  if start is not None:
    pieces.append(jax.tree.map(lambda leaf: jnp.expand_dims(leaf, axis), start))
    watch.hand_over(_metrics(pieces[-1]), axis)
  before = 0
  with watch.line(plan.steps, "steps") as line:
    for end in _ends(plan.steps, plan.record_every):
      stride = min(plan.record_every, end - before)
      state, records = advance(state, plan._replace(steps=end - before, record_every=stride))
      if end % plan.record_every and end < plan.steps:  # A chunk between two records, which ends with one nonetheless.
        records = _without_metrics(records, axis)
      jax.block_until_ready(state)
      pieces.append(records)
      watch.hand_over(_metrics(records), axis)
      line.update(end)
      before = end
  return state, _join(pieces, axis)


def chunk_length(steps: int, record_every: int) -> int:
  """Return a number of steps to take at a time: whole records and, if possible, a divisor of all of them.

  There are then at most about 100 chunks: long compared with a call, short for a person at the terminal. Chunks of
  equal length share a program.
  """
  records = max(1, steps // record_every)
  about = min(100, max(20, steps // 1000))
  few, many = max(1, records // (2 * about)), max(1, records // (about // 4))
  fitting = [size for size in range(few, many + 1) if records % size == 0]
  size = min(fitting, key=lambda size: abs(records // size - about)) if fitting else -(-records // about)
  return min(steps, size * record_every)


def _ends(steps: int, stride: int) -> list[int]:
  """Return the steps at which chunks end: whole records, or equal parts of the way from one record to the next."""
  length = max(2, chunk_length(steps, stride))
  if length > steps // 10:  # Few records: more chunks, if their number of steps has divisors.
    parts = [part for part in range(max(2, steps // 200), steps // 10 + 1) if stride % part == 0]
    if parts:
      return [*range(parts[-1], steps, parts[-1]), steps]
  ends = [*range(length, steps, length), steps]
  if len(ends) > 1 and steps - ends[-2] == 1:  # A single iteration may be rounded otherwise: see `teaching.run`.
    del ends[-2]
  return ends


def _without_metrics(records: Records, axis: int) -> Records:
  """Return no records, with all lessons."""
  return records._replace(**jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (slice(0),)], _metrics(records)))


def _metrics(records: Records) -> dict[str, Any]:
  return {name: getattr(records, name) for name in ("step", "distance", "objective", "accuracy", "probe", "diverged")}


@functools.partial(jax.jit, static_argnums=1)
def _join(pieces: list[Records], axis: int) -> Records:
  lessons = [(piece.lessons, piece.certificate) for piece in pieces if piece.lessons is not None]
  metrics = [piece._replace(lessons=None, certificate=None) for piece in pieces]

  def concatenate(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *trees)

  joined = concatenate(metrics)
  if lessons:
    joined = joined._replace(**dict(zip(("lessons", "certificate"), concatenate(lessons), strict=True)))
  return joined


def _measure(problem: Problem, params: Params, *, plan: Plan) -> dict[str, Any]:
  return loop.mark_diverged(loop.measure(problem, params, plan))


_measure_one = jax.jit(_measure, static_argnames="plan")


@functools.partial(jax.jit, static_argnames="plan")
def _measure_many(problem: Problem, params: Params, *, plan: Plan) -> dict[str, Any]:
  return jax.vmap(lambda each: loop.mark_diverged(loop.measure(problem, each, plan)))(params)


class _Line:
  """A line on stderr that says how many steps, or episodes, are done, and how long the others will take."""

  def __init__(self, total: int, noun: str, show: bool):
    self._total, self._noun, self._show = total, noun, show
    self._begin = self._written = time.perf_counter()
    self._first: tuple[int, float] | None = None  # The end of the first chunk, whose time is that of compiling too.

  def __enter__(self) -> "_Line":
    return self

  def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
    end = f"100 %  {self._total:,} {self._noun} in {_clock(time.perf_counter() - self._begin)}" if error is None else ""
    self._write(f"{end:<40}\n" if end else "\n")

  def update(self, done: int) -> None:
    """Show that some steps are done."""
    now = time.perf_counter()
    if self._first is None:
      self._first, left = (done, now), ""
    else:
      seconds = (self._total - done) * (now - self._first[1]) / (done - self._first[0])
      left = f", {_clock(seconds)} left"
    if done < self._total and (now - self._written > _SECONDS or not left):
      text = f"{100 * done // self._total:3} %  {done:,} of {self._total:,} {self._noun}{left}"
      self._write(f"{text:<40}")
      self._written = now

  def _write(self, text: str) -> None:
    if self._show:
      sys.stderr.write("\r" * (text != "\n") + text)
      sys.stderr.flush()


def _clock(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
