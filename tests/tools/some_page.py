"""A page for the tests, with everything that a page can hold, and awkward texts and numbers."""

import numpy as np

from last_jax.tools import Ball, charts
from last_jax.tools import page as pages

NASTY = """</script><b>"it's" & %{x} <!-- </b>"""
METHODS = {"SGD": ("sgd", ""), "IMT": ("imt", ""), "LAST (simplex)": ("greedy", "simplex"), NASTY: ("other", 0)}
MINUS = "\N{MINUS SIGN}"
LABEL = f"‖w {MINUS} w*‖"
BY_STEP, BY_TIME = "iteration", "seconds, 20 students at once"
STYLED = METHODS | {
  "label smoothing": ("label_smoothing", ""), "distillation": ("distillation", ""), "policy": ("learned", ""),
  "self-training": ("self_training", ""), "self-training (hard)": ("self_training", "hard"),
  "LAST (one_hot)": ("greedy", "one_hot"), "LAST (none)": ("greedy", "none"),
  **{f"LAST (r={radius:g})": ("greedy", Ball(radius)) for radius in (0.01, 0.25, 0.5, 1.0, 2.0, 100.0)},
  "mixed (r=1, p=1)": ("mixed", Ball(1.0, 1.0)), "planner (simplex, r=0.5)": ("planner", Ball(0.5, simplex=True)),
  "LAST (r=100, around prediction)": ("greedy", Ball(100.0, around="prediction")), "another": ("other", 1),
}  # fmt: skip


def some_lines(methods=METHODS, seeds=5, records=41, scale=1.0):
  draw = np.random.default_rng(0)
  step = np.arange(records) * 5
  return tuple(
    charts.Line(
      name,
      scale * np.exp(-0.004 * (place + 1) * step) * draw.uniform(0.7, 1.3, (seeds, records)),
      {BY_STEP: step, BY_TIME: 1e-3 * (place + 1) * step},
      *method,
    )
    for place, (name, method) in enumerate(methods.items())
  )


def some_frames(count=60, frames=4):
  draw = np.random.default_rng(1)
  truth = draw.integers(0, 2, count)
  labels = np.where(draw.uniform(size=(frames, count)) < np.linspace(0.4, 0.1, frames)[:, None], 1 - truth, truth)
  boundaries = np.stack([np.linspace(0.2, 1.0, frames), -np.ones(frames), np.zeros(frames)], 1)
  x = draw.normal(size=(count, 2))
  steps = np.arange(frames) * 20
  return charts.LabelFrames("Labels", x, truth, steps, labels, boundaries, np.array([1.0, -1.0, 0.1]))


def some_opening(count=50, frames=12):
  draw = np.random.default_rng(2)
  truth = np.arange(count) % 2
  shown = draw.integers(count, size=frames)
  labels = np.clip(truth + draw.normal(size=(frames, count)), -1.0, 2.0)
  labels[0, :2] = -1.0, 2.0  # The ends of the scale.
  far = np.linspace(4.0, 0.5, frames)
  lines = np.stack([1.0 - 0.2 * far, np.full(frames, 1.0), 0.1 * far], 1)
  taught = charts.Side("LAST", f"chosen {NASTY}", labels[np.arange(frames), shown], lines, far)
  other = charts.Side("SGD", "true", truth[shown].astype(float), lines + 0.1, far + np.linspace(0, 2, frames))
  x, optimal = draw.normal(size=(count, 2)), np.array([1.0, 1.0, 0.0])
  return charts.Demonstration(
    f"Shown {NASTY}", f"Lead {NASTY}", f"Text {NASTY}\n\nMore.", x, truth, shown, labels, optimal, taught, other
  )


def some_gallery(count=5):
  images = np.random.default_rng(3).integers(256, size=(count, 28, 28)).astype(np.uint8)
  return charts.Gallery(f"Digits {NASTY}", images, (f"3 as {NASTY}", *map(str, range(1, count))), f"Written {NASTY}")


DIFFICULT = np.array([[1.0, 0.5, np.nan, 0.0, 2.0, 1e300], [1.0, 0.6, 1.0, -0.1, np.inf, 3e300]])


def some_page(picture):
  floors = (charts.Level("float32 rounding", 1e-2, floor=True), charts.Level("far", 1e-30, floor=True))
  distance = charts.Chart("Distance", LABEL, some_lines(), log=True, levels=floors)
  target = (charts.Level("target", 60.0),)
  accuracy = charts.Chart(f"Accuracy {NASTY}", f"share (%) {NASTY}", some_lines(scale=50.0), levels=target)
  odd = charts.Line("SGD", DIFFICULT, {BY_STEP: np.arange(6)}, "sgd")
  alone = charts.Line("IMT", np.ones((1, 6)), {BY_STEP: np.arange(6)}, "imt")
  sections = (
    pages.Section(
      "lsr", f"Regression {NASTY}", "Figure 4", f"First. {NASTY}\n\nSecond.", {"rate": NASTY}, f"run --x {NASTY}",
      (distance, accuracy),
    ),
    pages.Section(
      "moons", "Half moons", "Figure 3", "Labels.", {}, "run --moons",
      (some_frames(), charts.Chart("Odd values", "y", (odd, alone)), charts.Picture("Photo", picture, f"Grey {NASTY}")),
    ),
    pages.Section("looks", "All looks", "", "", {}, "", (charts.Chart("Looks", "y", some_lines(STYLED)),)),
    pages.Section("cnn", "Networks", "Figure 8", "Nothing.", {}, "run --cnn", failure=f"ValueError: {NASTY}"),
    pages.Section("digits", "Digits", "Figure 16", "Images.", {}, "run --digits", (some_gallery(),)),
    pages.Section("apart", "Nothing in common", "", "", {}, "", (
      charts.Chart("One", "y", some_lines({"theorem 1": ("theorem", 0), "bound of theorem 1": ("bound", 0)}), log=True),
      charts.Chart("Another", "y", some_lines({"theorem 2": ("theorem", 1)})),
    )),
  )  # fmt: skip
  claims = (
    pages.ClaimRow(
      "lsr",
      "Figure 4",
      f"Nearer. {NASTY}",
      "3.1 times nearer",
      "2.8 to 3.5",
      10,
      "holds",
      f"Since {NASTY}",
      threshold="> 0.5",
    ),
    pages.ClaimRow("moons", "Figure 3", "Fewer.", "none", "-1 to 1", 10, "not resolved"),
    pages.ClaimRow("nowhere", "Figure 9", "Faster.", "slower", "2 to 3", 10, "does not hold"),
    pages.ClaimRow(
      "moons",
      "Figure 3",
      "Nearer.",
      "2 times farther",
      "1 to 3",
      10,
      "depends on the reading",
      "The radius decides.",
      (
        pages.ReadingRow("literal", "as written", "2 times farther", "1 to 3", "does not hold"),
        pages.ReadingRow(
          "bounded", "labels within 2 <of> the truth", "4 times nearer", "3 to 5", "holds", "A note.", "> 1"
        ),
      ),
    ),
    pages.ClaimRow("nowhere", "Figure 9", "Later.", "none", "-1 to 1", 10, "not run at this size", "By: --full"),
  )
  facts = {"date": "today", "machine": NASTY}
  names = {"LAST": "Label synthesis teaching.", "r": NASTY}
  texts = (f"Results {NASTY}", f"Introduction {NASTY}", facts, "Intervals decide.")
  return pages.Page(*texts, claims, sections, some_opening(), names)


def charts_of(contents):
  for section in contents.sections:
    for place, block in enumerate(section.blocks):
      if isinstance(block, charts.Chart):
        yield f"figure-{section.name}", place, block


def as_array(numbers):
  return np.array([np.nan if number is None else number for number in numbers], np.float64)
