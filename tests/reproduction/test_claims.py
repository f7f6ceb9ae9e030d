"""Verdicts: on data whose answer is known, and against NumPy's own resampling."""

import numpy as np
import pytest

from last_jax.reproduction import claims
from last_jax.reproduction.claims import DEPENDS, FAILS, HOLDS, NOT_RUN, OPEN, Claim, Comparison, Reading


def comparison(mean, spread=0.1, seeds=20, **settings):
  values = np.random.default_rng(0).normal(size=seeds)
  values = (values - values.mean()) / values.std(ddof=1)
  return Comparison("one against another", mean + spread * values, **settings)


@pytest.mark.parametrize(
  ("mean", "margin", "expected"),
  [(1.0, 0.0, HOLDS), (-1.0, 0.0, FAILS), (0.01, 0.0, OPEN), (1.0, 2.0, FAILS), (1.0, 1.0, OPEN), (-0.02, -0.5, HOLDS)],
)
def test_a_claim_is_judged_by_the_side_of_its_interval(mean, margin, expected):
  assert claims.judge(Claim("it is so", [comparison(mean, margin=margin)])).verdict == expected


def test_the_weakest_comparison_decides_and_comes_first():
  good, level, bad = comparison(1.0), comparison(0.0), comparison(-1.0)
  assert claims.judge(Claim("", [good, good])).verdict == HOLDS
  judged = claims.judge(Claim("", [good, level]))
  assert judged.verdict == OPEN
  assert abs(judged.weakest.mean) < 1e-9
  judged = claims.judge(Claim("", [good, bad, level]))
  assert judged.verdict == FAILS
  assert judged.weakest.mean == pytest.approx(-1.0)
  stronger, weaker = comparison(3.0), comparison(0.5)
  assert claims.judge(Claim("", [stronger, weaker])).weakest.mean == pytest.approx(0.5)


def test_few_seeds_resolve_nothing():
  for seeds in range(1, claims.FEWEST_SEEDS):
    values = 5.0 + 0.01 * np.arange(seeds)
    assert claims.judge(Claim("", [Comparison("", values)])).verdict == OPEN
  assert claims.judge(Claim("", [comparison(5.0, seeds=claims.FEWEST_SEEDS)])).verdict == HOLDS


def test_one_seed_refutes_a_claim_about_every_seed():
  always = Comparison("", np.ones(20), claims.Unit("of the iterations"), 1 - 1e-9, every=True)
  assert claims.judge(Claim("", [always])).verdict == HOLDS
  values = np.ones(20)
  values[7] = 0.99
  once = claims.judge(Claim("", [always._replace(values=values)]))
  assert once.verdict == FAILS
  assert (once.weakest.low, once.weakest.high) == (0.99, 1.0)


def test_nan_is_not_resolved():
  values = np.ones(20)
  values[3] = np.nan
  assert claims.judge(Claim("", [Comparison("", values)])).verdict == OPEN


def test_the_interval_agrees_with_plain_resampling_where_values_are_symmetric():
  values = np.random.default_rng(1).normal(size=40)
  low, high = claims.bootstrap(values)
  draws = np.random.default_rng(2).choice(values, (20_000, 40)).mean(1)
  expected = np.percentile(draws, [2.5, 97.5])
  assert np.allclose([low, high], expected, atol=0.15 * (expected[1] - expected[0]))
  assert claims.bootstrap(values) == (low, high)  # The same every time.


def test_the_interval_covers_the_truth():
  draw = np.random.default_rng(3)
  inside = [low <= 0.0 <= high for low, high in (claims.bootstrap(draw.normal(size=20)) for _ in range(100))]
  assert 0.85 <= np.mean(inside) <= 1.0


def test_the_mean_log_ratio_is_that_of_known_curves():
  step = np.arange(0, 1001)
  slower = np.ones((3, 1001))
  assert np.allclose(claims.mean_log_ratio(step, slower, slower / 10), 1.0)
  # A ratio of t over decades of t: its logarithm runs from 0 to 3, so its mean is 1.5.
  assert np.allclose(claims.mean_log_ratio(step, slower * np.maximum(step, 1)[None], slower), 1.5, atol=1e-3)
  # Values below the floor are rounding.
  assert np.allclose(claims.mean_log_ratio(step, slower, 0 * slower, floor=1e-7), 7.0)


def test_explanations():
  def explanation(*comparisons, **texts):
    return claims.judge(Claim("", comparisons, **texts)).explanation

  texts = {"remark": "Measured twice.", "because": "Because."}
  assert explanation(comparison(1.0), **texts) == "Measured twice."
  assert explanation(comparison(-1.0), **texts) == "Measured twice. Because."
  assert explanation(comparison(-1.0)) == "The measurements show the opposite."
  assert explanation(comparison(0.0), **texts) == "Measured twice. The interval contains both answers. Because."
  assert explanation(comparison(1.0, seeds=3), because="Because.") == "3 seeds are too few for a verdict."
  assert "Decided by a against b." in explanation(comparison(1.0), comparison(-1.0)._replace(name="a against b"))


@pytest.mark.parametrize(
  ("mean", "unit", "expected"),
  [
    (np.log10(3.0), claims.NEARER, ("3 times nearer", "3 to 3")),
    (-np.log10(3.0), claims.NEARER, ("3 times farther", "3 to 3")),
    (-np.log10(3.0), claims.AS_FAST, ("0.333 times as fast", "0.333 to 0.333")),
    (np.log10(1.01), claims.BELOW, ("1.0100 times below", "1.0100 to 1.0100")),
    (0.5, claims.Unit("steps"), ("0.5 steps", "0.5 to 0.5")),
    (-0.5, claims.Unit("times out of ten"), ("-0.5 times out of ten", "-0.5 to -0.5")),
  ],
)
def test_effects_in_words(mean, unit, expected):
  assert claims.judge(Claim("", [comparison(mean, 0.0, unit=unit)])).weakest.describe() == expected


def test_a_claim_without_comparisons_is_refused():
  with pytest.raises(ValueError, match="must have comparisons"):
    claims.judge(Claim("empty", []))


@pytest.mark.parametrize(
  ("literal", "other", "expected"),
  [
    (1.0, 1.0, HOLDS),
    (1.0, -1.0, DEPENDS),
    (-1.0, 1.0, DEPENDS),
    (0.0, 1.0, DEPENDS),
    (-1.0, -1.0, FAILS),
    (-1.0, 0.0, FAILS),
    (0.0, -1.0, OPEN),
  ],
)
def test_readings_are_judged_apart_and_the_literal_one_stays(literal, other, expected):
  claim = Claim("", [comparison(literal)], readings=[Reading("bounded", "labels within 2", [comparison(other)])])
  judged = claims.judge(claim)
  assert judged.verdict == expected
  assert [each.reading.name for each in judged.readings] == ["literal", "bounded"]
  alone = [claims.judge(Claim("", [comparison(mean)])).verdict for mean in (literal, other)]
  assert [each.verdict for each in judged.readings] == alone
  assert judged.weakest.mean == pytest.approx(literal)  # The numbers of the row are the literal ones.


def test_readings_need_names_of_their_own():
  twice = [Reading("bounded", "", [comparison(1.0)])] * 2
  with pytest.raises(ValueError, match="different names"):
    claims.judge(Claim("", [comparison(1.0)], readings=twice))


@pytest.mark.parametrize(
  ("run", "end", "expected", "text"),
  [
    (1.0, 2.0, HOLDS, ""),
    (-1.0, -2.0, FAILS, ""),
    (1.0, -1.0, FAILS, "Over the run it holds, at the end it does not hold: the last step alone decides."),
    (1.0, 0.0, OPEN, "Over the run it holds, at the end it is not resolved: the last step alone decides."),
    (0.0, -1.0, FAILS, "Over the run it is not resolved, at the end it does not hold: the last step alone decides."),
    (-1.0, 1.0, FAILS, "Over the run it does not hold, at the end it holds: the run decides."),
    (-1.0, 0.0, FAILS, "Over the run it does not hold, at the end it is not resolved: the run decides."),
  ],
)
def test_a_claim_must_hold_over_the_run_and_at_the_end(run, end, expected, text):
  judged = claims.judge(Claim("", [comparison(run, part="run"), comparison(end, part="end")]))
  assert judged.verdict == expected
  assert judged.readings[0].disagreement == text
  assert text in judged.explanation
  assert ("the last step alone decides" in judged.explanation) == ("alone" in text)


def test_the_part_that_decides_is_named():
  judged = claims.judge(Claim("", [comparison(2.0, 0.0, part="run"), comparison(1.0, 0.0, part="end")]))
  assert judged.weakest.describe()[0] == "10 times nearer at the end"


def test_other_measurements_stand_beside_and_decide_nothing():
  worse = comparison(-1.0, 0.0, unit=claims.Unit("points"))._replace(name="accuracy")
  judged = claims.judge(Claim("", [comparison(1.0)._replace(beside=[worse])]))
  assert judged.verdict == HOLDS
  assert "accuracy -1 points (-1 to -1)" in judged.explanation


def test_a_run_that_is_too_small_judges_nothing():
  for mean in (1.0, -1.0):
    judged = claims.judge(Claim("", [comparison(mean)], because="Because.", size="full"))
    assert judged.verdict == NOT_RUN
    assert "Because" not in judged.explanation
    assert "judge nothing" in judged.explanation


@pytest.mark.parametrize(
  ("settings", "mean", "expected"),
  [
    ({}, 1.0, "> 1"),
    ({}, -1.0, "< 1"),  # Its inverse is reported, "10 times farther": it would have to be less than 1.
    ({"margin": np.log10(0.5), "unit": claims.AS_FAST}, -0.1, "> 0.5"),
    ({"margin": -np.log10(1.1)}, -1.0, "< 1.1"),
    ({"margin": -np.log10(1.1)}, 1.0, "> 0.909"),
    ({"margin": -5.0, "unit": claims.Unit("points")}, 1.0, "> −5"),
    ({"margin": 100 - 1e-6, "unit": claims.Unit("%"), "every": True}, 100.0, "every seed ≥ 100"),
    ({"margin": -1e-9, "unit": claims.TIMES, "every": True}, 0.0, "every seed ≥ 1"),
    ({"margin": -0.5, "unit": claims.Unit("steps to spare"), "every": True}, 3.0, "every seed > −0.5"),
  ],
)
def test_thresholds_are_in_the_unit_of_the_effect(settings, mean, expected):
  assert claims.judge(Claim("", [comparison(mean, 0.01, **settings)])).weakest.threshold == expected


def test_large_ratios_are_written_out():
  (judged,) = claims.judge(Claim("", [comparison(3.5, 0.0)])).readings
  assert judged.weakest.describe() == ("3,160 times nearer", "3,160 to 3,160")
