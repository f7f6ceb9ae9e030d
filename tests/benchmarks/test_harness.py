"""The arithmetic of timing and of comparing results, not the speed of anything."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import cases, equality, harness
from benchmarks.equality import ResultsDiffer, Tolerance
from benchmarks.records import Measurement, Target

CASE = cases.draw_linear(students=3, steps=1, pool=4, features=1)
JOB = harness.Job("job", "a job")


class Clock:
  """Time that passes only in calls of `takes`."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now

  def takes(self, *durations):
    """Return a function that takes these durations, one per call."""
    left = iter(durations)

    def run():
      self.now += next(left)

    return run


def measure(ours, baselines=(), **settings):
  side = ours if isinstance(ours, harness.Side) else harness.Side("ours", ours)
  return harness.measure(harness.Options(**{"rest": 0.0} | settings), JOB, CASE, "step", side, baselines)


def baseline(*runs, kind="theirs", target=None):
  """Return a baseline with these variants."""
  sides = [run if isinstance(run, harness.Side) else harness.Side(f"{kind} {i}", run) for i, run in enumerate(runs)]
  return harness.Baseline(kind, sides, target)


# --- Timing.


def test_compile_time_is_separate_from_run_time():
  clock = Clock()
  timing = measure(clock.takes(12.0, 7.0, 2.0, 1.0, 4.0, 3.0, 5.0), repetitions=5, timer=clock).ours
  assert timing.seconds == (2.0, 1.0, 4.0, 3.0, 5.0)  # Neither the first call nor the warm-up.
  assert timing.median == 3.0
  assert (timing.lower_quartile, timing.upper_quartile, timing.fastest) == (2.0, 4.0, 1.0)
  assert timing.compile_seconds == 12.0 - 3.0


def test_compile_time_is_never_negative():
  clock = Clock()
  assert measure(clock.takes(1.0, 2.0, 2.0), repetitions=1, timer=clock).ours.compile_seconds == 0.0


def test_a_single_repetition_is_its_own_quartiles():
  clock = Clock()
  timing = measure(clock.takes(1.0, 2.0), repetitions=1, warmups=0, timer=clock).ours
  assert timing.lower_quartile == timing.median == timing.upper_quartile == 2.0


def test_the_ratio_is_that_of_the_medians_and_its_spread_that_of_the_repetitions():
  clock = Clock()
  theirs = baseline(clock.takes(8.0, 8.0, 8.0, 6.0, 4.0), target=Target(3.0))
  result = measure(clock.takes(9.0, 1.0, 1.0, 2.0, 4.0), [theirs], repetitions=3, timer=clock)
  (against,) = result.against
  assert result.ours.seconds == (1.0, 2.0, 4.0)
  assert against.timing.seconds == (8.0, 6.0, 4.0)
  assert against.ratio == 6.0 / 2.0
  assert (against.ratio_lower_quartile, against.ratio_upper_quartile) == (2.0, 5.5)  # Of 8, 3 and 1.
  assert against.ratio_of_fastest == 4.0 / 1.0
  assert result.ours.compile_seconds == 9.0 - 2.0
  assert (against.target, against.met) == (Target(3.0), True)
  assert (result.job, result.problem["description"], result.problem["sizes"]["students"]) == ("job", "a job", 3)
  assert Measurement.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_sides_take_turns_and_rest():
  order = []
  first, second = (baseline(lambda kind=kind: order.append(kind), kind=kind) for kind in ("first", "second"))
  measure(lambda: order.append("ours"), [first, second], repetitions=3, warmups=0)
  there = ["ours", "first", "second"]
  assert order[3:] == [*there, *reversed(there), *there]
  begin = time.perf_counter()
  measure(lambda: None, repetitions=2, rest=0.05)
  assert time.perf_counter() - begin >= 0.1


def test_of_the_variants_of_a_kind_the_fastest_counts_and_each_kind_is_compared():
  clock = Clock()
  slow, fast = (clock.takes(*(3 * [duration])) for duration in (9.0, 4.0))
  kinds = [baseline(slow, fast, kind="one"), baseline(clock.takes(1.0, 1.0, 1.0), kind="other")]
  result = measure(clock.takes(2.0, 2.0, 2.0), kinds, repetitions=2, warmups=0, timer=clock)
  one, other = result.against
  assert (one.kind, one.timing.name, one.ratio, one.met) == ("one", "one 1", 2.0, None)
  assert [(timing.name, timing.median) for timing in one.slower] == [("one 0", 9.0)]
  assert (other.kind, other.ratio, other.slower) == ("other", 0.5, ())


def test_a_far_slower_variant_is_not_timed_further():
  clock = Clock()
  fast, slow = clock.takes(1.0, 1.0, 1.0, 1.0), clock.takes(99.0, 4.0)  # A third call would fail.
  (against,) = measure(clock.takes(1.0, 1.0, 1.0, 1.0), [baseline(fast, slow)], repetitions=2, timer=clock).against
  assert against.timing.name == "theirs 0"
  assert [timing.seconds for timing in against.slower] == [(4.0,)]


def test_sides_that_do_different_amounts_are_compared_by_the_unit():
  clock = Clock()
  ours = harness.Side("ours", clock.takes(25.0, 20.0, 10.0, 30.0), units=10)
  theirs = baseline(harness.Side("theirs", clock.takes(12.0, 12.0, 8.0, 16.0), units=2))
  result = measure(ours, [theirs], repetitions=3, warmups=0, timer=clock)
  (against,) = result.against
  assert result.ours.seconds == (2.0, 1.0, 3.0)
  assert (result.ours.median, result.ours.fastest, result.ours.units) == (2.0, 1.0, 10)
  assert result.ours.compile_seconds == 25.0 - 20.0  # Of the call, not of the unit.
  assert (against.ratio, against.ratio_of_fastest) == (3.0, 4.0)
  assert (against.ratio_lower_quartile, against.ratio_upper_quartile) == pytest.approx((17 / 6, 3.5))


@pytest.mark.parametrize(
  ("target", "reached", "missed"), [(Target(5.0), 5.0, 4.9), (Target(1.25, slower=True), 0.8, 0.79)]
)
def test_targets_are_at_least_as_fast_or_at_most_as_long(target, reached, missed):
  assert target.is_met(reached)
  assert not target.is_met(missed)


def test_every_variant_is_checked_before_anything_is_timed():
  calls, differences = [], {"value": 0.5}

  def fail():
    raise ResultsDiffer("by much")

  good = harness.Side("good", lambda: calls.append("good"), lambda: differences)
  bad = harness.Side("bad", lambda: calls.append("bad"), fail)
  assert measure(lambda: None, [baseline(good)], repetitions=1).against[0].largest_difference == differences
  calls.clear()
  with pytest.raises(ResultsDiffer, match="by much"):
    measure(lambda: None, [baseline(good, bad)], repetitions=1, warmups=0)
  assert calls == ["good", "bad"]


def test_the_clock_waits_for_results():
  class Pending:
    waited = 0

    def block_until_ready(self):
      Pending.waited += 1
      return self

  measure(Pending, repetitions=3)
  assert Pending.waited == 5


def test_a_program_is_compiled_once_and_knows_its_memory():
  traced = []

  def function(x):
    traced.append(1)
    return jax.lax.scan(lambda y, _: (y @ x, None), x, length=3)[0]

  program = harness.Program(function, jnp.ones((8, 8)))
  result = measure(program, repetitions=2)
  assert (program() == 8**3).all()
  assert len(traced) == 1
  assert result.ours.temporary_bytes == program.temporary_bytes() > 0


# --- Equality.


@pytest.mark.parametrize(
  ("ours", "message"),
  [
    ({"value": np.array([1.0, 2.5])}, r"value differs at 1 of 2 places, most at \(1,\): 2.5 against 2.0"),
    ({"value": np.array([1.0, np.nan])}, "differs at 1 of 2"),
    ({"value": np.ones(3)}, "shape"),
    ({"other": np.ones(2)}, "our results are other"),
  ],
)
def test_results_that_differ_are_not_compared(ours, message):
  theirs = {"value": np.array([1.0, 2.0])}
  with pytest.raises(ResultsDiffer, match=message):
    equality.check_equal(ours, theirs, Tolerance(0.1))


def test_tolerance_is_relative_to_the_largest_number_and_of_a_share():
  ours, theirs = {"value": np.array([1.0, 11.0, 1.0, 3.0])}, {"value": np.array([0.0, 10.0, 1.0, 1.0])}
  assert equality.check_equal(ours, theirs, Tolerance(0.1, share=0.75)) == {"value": 2.0}
  with pytest.raises(ResultsDiffer, match=r"most at \(3,\): 3.0 against 1.0, where 1 is allowed"):
    equality.check_equal(ours, theirs, Tolerance(0.1, share=0.76))


def test_a_minimised_result_may_be_smaller_but_not_larger():
  theirs = np.array([1.0, 2.0])
  assert equality.check_not_above("distance", np.array([0.5, 2.0]), theirs, 0.0) == {"distance": 0.0}
  assert equality.check_not_above("distance", np.array([0.5, 2.25]), theirs, 0.5) == {"distance": 0.25}
  for wrong in ([1.0, 2.5], [np.nan, 2.0]):
    with pytest.raises(ResultsDiffer, match="distance differs at 1 of 2"):
      equality.check_not_above("distance", np.array(wrong), theirs, 0.1)
  with pytest.raises(ResultsDiffer, match="shape"):
    equality.check_not_above("distance", np.ones(3), theirs, 0.1)
