"""Verdicts: against hand-made data whose answer is known, and against NumPy's own resampling."""

import numpy as np
import pytest

from last_jax.experiments import claims
from last_jax.experiments.claims import FAILS, HOLDS, OPEN, Claim, Comparison


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


def test_one_seed_refutes_what_is_said_of_every_seed():
  always = Comparison("", np.ones(20), "of the iterations", 1 - 1e-9, every=True)
  assert claims.judge(Claim("", [always])).verdict == HOLDS
  values = np.ones(20)
  values[7] = 0.99
  once = claims.judge(Claim("", [always._replace(values=values)]))
  assert once.verdict == FAILS
  assert (once.weakest.low, once.weakest.high) == (0.99, 1.0)


def test_values_that_are_not_numbers_are_not_resolved():
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


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
  draw = np.random.default_rng(3)
  inside = [low <= 0.0 <= high for low, high in (claims.bootstrap(draw.normal(size=20)) for _ in range(100))]
  assert 0.85 <= np.mean(inside) <= 1.0


def test_the_mean_log_ratio_is_that_of_known_curves():
  step = np.arange(0, 1001)
  slower = np.ones((3, 1001))
  assert np.allclose(claims.mean_log_ratio(step, slower, slower / 10), 1.0)
  # A ratio of t over decades of t: its logarithm runs from 0 to 3, so its mean is 1.5.
  assert np.allclose(claims.mean_log_ratio(step, slower * np.maximum(step, 1)[None], slower), 1.5, atol=1e-3)
  # What is below the floor is rounding and does not count.
  assert np.allclose(claims.mean_log_ratio(step, slower, 0 * slower, floor=1e-7), 7.0)


def test_explanations_say_what_is_to_be_said():
  holds = claims.judge(Claim("", [comparison(1.0)], remark="Measured so."))
  assert claims.explain(holds, "reason") == "Measured so."
  fails = claims.judge(Claim("", [comparison(-1.0)]))
  assert claims.explain(fails, "Because.") == "Because."
  assert claims.explain(fails)  # Never without a word.
  few = claims.judge(Claim("", [comparison(1.0, seeds=3)]))
  assert "3 seeds are too few" in claims.explain(few, "Because.")
  several = claims.judge(Claim("", [comparison(1.0), comparison(-1.0)._replace(name="a against b")]))
  assert "a against b" in claims.explain(several)


def test_ratios_are_told_as_ratios():
  effect, interval = claims.judge(Claim("", [comparison(np.log10(3.0), 0.0)])).weakest.describe()
  assert (effect, interval) == ("3 times nearer", "3 to 3")
  assert claims.judge(Claim("", [comparison(0.5, 0.0, unit="steps")])).weakest.describe()[0] == "0.5 steps"


def test_a_claim_without_comparisons_is_refused():
  with pytest.raises(ValueError, match="no comparisons"):
    claims.judge(Claim("empty", []))
