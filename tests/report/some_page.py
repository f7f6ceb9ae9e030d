"""A page with everything that a page can hold, and what is awkward to show, for the tests."""

import numpy as np

from last_jax.report import page as pages

NASTY = """</script><b>"it's" & %{x} <!-- </b>"""
METHODS = ("SGD", "IMT", "LAST (simplex)", NASTY)
MINUS = "\N{MINUS SIGN}"
LABEL = f"‖w {MINUS} w*‖"
BY_STEP, BY_TIME = "iteration", "seconds, 20 students at once"
STYLED = (
  *("SGD", "IMT", "label smoothing", "distillation", "self-training", "policy", "self-training (hard)"),
  *(
    f"LAST ({labels})" for labels in ("one_hot", "simplex", "none", "r=0.01", "r=0.25", "r=0.5", "r=1", "r=2", "r=100")
  ),
  *("mixed (r=1, p=1)", "planner (simplex, r=0.5)", "LAST (r=100, around prediction)", "someone's own", "another"),
)


def some_lines(names=METHODS, seeds=5, records=41, scale=1.0):
  draw = np.random.default_rng(0)
  step = np.arange(records) * 5
  return tuple(
    pages.Line(
      name,
      scale * np.exp(-0.004 * (place + 1) * step) * draw.uniform(0.7, 1.3, (seeds, records)),
      {BY_STEP: step, BY_TIME: 1e-3 * (place + 1) * step},
    )
    for place, name in enumerate(names)
  )


def some_frames(count=60, frames=4):
  draw = np.random.default_rng(1)
  truth = draw.integers(0, 2, count)
  labels = np.where(draw.uniform(size=(frames, count)) < np.linspace(0.4, 0.1, frames)[:, None], 1 - truth, truth)
  boundaries = np.stack([np.linspace(0.2, 1.0, frames), -np.ones(frames), np.zeros(frames)], 1)
  x = draw.normal(size=(count, 2))
  steps = np.arange(frames) * 20
  return pages.LabelFrames("Labels", x, truth, steps, labels, boundaries, np.array([1.0, -1.0, 0.1]))


DIFFICULT = np.array([[1.0, 0.5, np.nan, 0.0, 2.0, 1e300], [1.0, 0.6, 1.0, -0.1, np.inf, 3e300]])


def some_page(picture):
  distance = pages.Chart("Distance", LABEL, some_lines(), log=True, levels={"float32 rounding": 1e-2, "far": 1e-30})
  accuracy = pages.Chart(f"Accuracy {NASTY}", f"share (%) {NASTY}", some_lines(scale=50.0), levels={"target": 60.0})
  odd = pages.Line("SGD", DIFFICULT, {BY_STEP: np.arange(6)})
  alone = pages.Line("IMT", np.ones((1, 6)), {BY_STEP: np.arange(6)})
  sections = (
    pages.Section(
      "lsr", f"Regression {NASTY}", "Figure 4", f"First. {NASTY}\n\nSecond.", {"rate": NASTY}, f"run --x {NASTY}",
      (distance, accuracy),
    ),
    pages.Section(
      "moons", "Half moons", "Figure 3", "Labels.", {}, "run --moons",
      (some_frames(), pages.Chart("Odd values", "y", (odd, alone)), pages.Picture("Photo", picture, f"Grey {NASTY}")),
    ),
    pages.Section("looks", "All looks", "", "", {}, "", (pages.Chart("Looks", "y", some_lines(STYLED)),)),
    pages.Section("cnn", "Networks", "Figure 8", "Nothing.", {}, "run --cnn", failure=f"ValueError: {NASTY}"),
  )  # fmt: skip
  claims = (
    pages.ClaimRow(
      "lsr", "Figure 4", f"Nearer. {NASTY}", "3.1 times nearer", "2.8 to 3.5", 10, "holds", f"Since {NASTY}"
    ),
    pages.ClaimRow("moons", "Figure 3", "Fewer.", "none", "-1 to 1", 10, "not resolved"),
    pages.ClaimRow("nowhere", "Figure 9", "Faster.", "slower", "2 to 3", 10, "does not hold"),
  )
  facts = {"date": "today", "machine": NASTY}
  return pages.Page(f"Results {NASTY}", f"Introduction {NASTY}", facts, "Intervals decide.", claims, sections)


def charts_of(contents):
  for section in contents.sections:
    for place, block in enumerate(section.blocks):
      if isinstance(block, pages.Chart):
        yield f"figure-{section.name}", place, block


def as_array(numbers):
  return np.array([np.nan if number is None else number for number in numbers], np.float64)
