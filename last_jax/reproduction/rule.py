"""The rule of verdicts, as the page states it, with every threshold that a claim uses."""

from last_jax.reproduction.claims import FEWEST_SEEDS

RULE = (
  "Every method teaches the same students from the same random examples, so methods are compared seed by seed. The "
  "effect is the mean over seeds, its 95 % interval a bootstrap over seeds (BCa, bias-corrected and accelerated, 9,999 "
  "samples). A claim holds if the whole interval lies above the threshold, does not hold if the whole interval lies "
  f"below it, and is not resolved otherwise or with fewer than {FEWEST_SEEDS} seeds. A claim about several methods "
  "holds if each comparison does; the table shows the weakest. Distances are compared over the run, by the mean "
  "logarithm of their ratio with equal weight for every decade of iterations, and at the end, after the last step, "
  "unless both methods have arrived by then, on average within ten times the rounding of w*; a claim must hold in "
  "both. Where they disagree, the row says so.\n\n"
  'Every row has its threshold: 1 for ratios and 0 for differences, except in these. "Level with or ahead" holds '
  'above 0.909 times nearer: at most a tenth farther. "Exponentially, all the way" holds above 0.5: in the second half '
  "of the way, distances shrink at more than half the pace of the first, so an interval that reaches below 1 is no "
  'contradiction. "Faster than exponentially" holds above 2: at more than twice the pace. "At most 5 points above '
  'chance" holds above −5 points of chance less accuracy. Claims about every seed ("always", "in ten steps") have '
  "the least and the greatest seed in place of an interval, and a single seed refutes them: 100 % of what is counted, "
  "or the farthest student there with more than −0.5 steps to spare, that is, by the last one.\n\n"
  "Where the paper leaves a setting open, a claim is judged in several readings, each a setting that the paper "
  "allows. The first, literal, is that of the paper's appendix with exact labels. A claim whose readings disagree "
  "depends on the reading: the row names the detail that decides. Claims about teachers that need more training "
  "than a run of this size does are not judged by it."
)
