"""The experiments: their parts against independent computations, one figure of each kind from end to end, and files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import experiments
from last_jax.experiments import FIGURES, Size, classroom, labels, omniscient, storage, theorems
from last_jax.experiments.claims import Claim, Comparison
from last_jax.experiments.config import Outcome
from last_jax.report.page import Chart, LabelFrames, Line, Picture
from last_jax.report.pictures import Gallery

QUICK = Size("quick", 2)

# SPEC section 5, by name.
NAMES = {
  "lsr", "lr_half_moons", "lr_gaussian", "lr_mnist_35", "labels_half_moons", "mlp_mnist_35", "mlp_mnist_79",
  "examples_linear", "examples_mlp", "omniscient_linear", "omniscient_mlp", "action_space", "black_box_linear",
  "theory",
}  # fmt: skip


def silent(text, share):
  assert text
  assert 0 <= share <= 1


def small_room(seeds=range(3), students=2, own_data=True):
  learner = last.learners.least_squares(4, learning_rate=0.01)
  sets = [last.data.regression(seed, num_examples=30) for seed in seeds]
  if not own_data:
    return classroom.make_room(learner, sets[0], last.fit_target(learner, sets[0].train), learner.init, seeds, students)
  targets = classroom.stack([last.fit_target(learner, each.train) for each in sets])
  return classroom.make_room(learner, sets, targets, learner.init, seeds, students)


def test_every_figure_is_there_and_says_what_it_shows():
  assert set(FIGURES) == NAMES
  for figure in FIGURES.values():
    assert figure.title
    assert figure.paper
    assert figure.shows
    assert figure.weight > 0


@pytest.mark.parametrize("own_data", [True, False])
def test_teaching_all_at_once_is_teaching_each_alone(own_data):
  room = small_room(own_data=own_data)
  teacher = last.teachers.greedy(last.constraints.magnitude(1.0))
  taught = classroom.teach_all(room, teacher, [(10, 1), (20, 5)], metrics=("distance", "objective"))
  assert list(taught.step) == [*range(11), 15, 20, 25, 30]
  for seed in range(3):
    data = (
      jax.tree.map(lambda leaf, s=seed: leaf[s], (room.pool, room.target)) if own_data else (room.pool, room.target)
    )
    alone = [
      last.teach(
        room.keys[seed, student],
        room.learner,
        teacher,
        data[0],
        target=data[1],
        init=jax.tree.map(lambda leaf, s=seed, i=student: leaf[s, i], room.init),
        steps=30,
      )
      for student in range(2)
    ]
    for metric in ("distance", "objective"):
      expected = np.mean([np.asarray(getattr(result, metric)) for result in alone], 0)[taught.step]
      np.testing.assert_allclose(taught.metrics[metric][seed], expected, rtol=2e-5, atol=1e-7)


def test_a_seed_does_not_depend_on_the_others():
  teacher = last.teachers.sgd()
  several = classroom.teach_all(small_room(range(3)), teacher, [(5, 1)], metrics=("distance",)).metrics["distance"]
  later = classroom.teach_all(small_room(range(1, 3)), teacher, [(5, 1)], metrics=("distance",)).metrics["distance"]
  np.testing.assert_allclose(several[1:], later, rtol=1e-6)


def test_records_are_thinned_for_linear_and_for_logarithmic_axes():
  step = np.arange(0, 100_001, 10)
  kept = step[classroom.thin_out(step)]
  assert len(kept) <= classroom.MOST_RECORDS
  assert kept[0] == 0
  assert kept[-1] == 100_000
  assert np.diff(kept).max() <= 100_000 / 60  # None missed on a linear axis.
  positive = kept[kept > 0]
  assert (positive[1:] / positive[:-1]).max() <= 2.0  # Nor on a logarithmic one.
  assert np.array_equal(classroom.thin_out(np.arange(7)), np.arange(7))


def test_separable_labels_are_told_from_others():
  draw = np.random.default_rng(0)
  x = draw.normal(size=(200, 2))
  labels_of_a_line = x @ [1.0, -2.0] + 0.3 > 0
  assert labels.separable(x, labels_of_a_line)
  flipped = labels_of_a_line.copy()
  flipped[np.argmax(x @ [1.0, -2.0])] ^= True  # The farthest from the line, surrounded by the other label.
  assert not labels.separable(x, flipped)
  assert labels.separable(x, np.ones(200, bool))
  exclusive_or = np.array([[0, 0], [1, 1], [0, 1], [1, 0]], float)
  assert not labels.separable(exclusive_or, np.array([True, True, False, False]))


def test_replayed_outputs_are_those_of_the_students_when_shown():
  room = small_room(students=1, own_data=False)
  taught = classroom.teach_all(room, last.teachers.sgd(), [(6, 6)], metrics=(), lessons=True)
  outputs = labels._outputs_when_shown(room, taught.lessons)
  student = room.learner.start(jax.tree.map(lambda leaf: leaf[1, 0], room.init))
  truth = room.learner.encode(room.pool.x, room.pool.y)
  for step, index in enumerate(np.asarray(taught.lessons.index)[1, 0]):
    assert outputs[1, step] == pytest.approx(
      float(room.learner.apply(student.params, room.pool.x[index])[0, 0]), abs=1e-5
    )
    student = room.learner.step(student, room.pool.x[index], truth[index])


def test_wall_time_compares_after_equal_seconds():
  # The one goes down a decade per step, the other half as fast: but its steps take a quarter of the time.
  step = np.arange(11)
  one = classroom.Taught(step, {"distance": 10.0 ** -step[None].repeat(2, 0)}, step, 0.0, None)
  other = classroom.Taught(step, {"distance": 10.0 ** (-0.5 * step[None].repeat(2, 0))}, step, 0.0, None)
  taught = {"one": one, "other": other}
  comparison = omniscient.nearer_by_time(taught, {"one": 4.0, "other": 1.0}, "other", "one")
  times = np.geomspace(0.1, 10.0, 60)
  expected = np.trapezoid(0.5 * times - times / 4, np.log(times)) / np.log(100.0)
  np.testing.assert_allclose(comparison.values, expected, rtol=1e-6)


def outcome_of_everything():
  draw = np.random.default_rng(0)
  lines = tuple(
    Line(name, draw.uniform(0.1, 1, size=(3, 5)), {"iteration": np.arange(5), "seconds": np.arange(5) / 7})
    for name in ("SGD", "LAST (none)")
  )
  frames = LabelFrames(
    "labels", draw.normal(size=(9, 2)), np.arange(9) % 2, np.arange(4), draw.integers(2, size=(4, 9)),
    draw.normal(size=(4, 3)), np.ones(3),
  )  # fmt: skip
  gallery = Gallery(
    "digits", draw.integers(256, size=(3, 28, 28)).astype(np.uint8), ("3", "5", "3 as 5"), "three digits"
  )
  claims = (Claim("it holds", [Comparison("a against b", draw.normal(size=8), "times", 0.1)], "remark"),)
  return Outcome({"steps": 5}, (Chart("Distance", "‖w‖", lines, True, True, {"target": 0.2}), frames, gallery), claims)


def test_a_stored_figure_comes_back_as_it_was(tmp_path):
  outcome, figure = outcome_of_everything(), FIGURES["lsr"]
  experiments.save(tmp_path, figure, QUICK, outcome, 1.5)
  stored = experiments.load(tmp_path, figure, QUICK)
  assert stored is not None
  assert stored.settings == {"steps": "5"}
  assert stored.seconds == 1.5
  chart, frames, picture = stored.blocks
  for line, expected in zip(chart.lines, outcome.blocks[0].lines, strict=True):
    assert line.name == expected.name
    np.testing.assert_array_equal(line.values, expected.values)
    for axis, values in expected.axes.items():
      np.testing.assert_array_equal(line.axes[axis], values)
  assert chart._replace(lines=()) == outcome.blocks[0]._replace(lines=())
  for name in LabelFrames._fields[1:]:
    np.testing.assert_array_equal(getattr(frames, name), getattr(outcome.blocks[1], name))
  assert isinstance(picture, Picture)
  assert picture.path.read_bytes().startswith(b"\x89PNG")
  claim, expected = stored.claims[0], outcome.claims[0]
  np.testing.assert_array_equal(claim.comparisons[0].values, expected.comparisons[0].values)
  assert claim.comparisons[0]._replace(values=None) == expected.comparisons[0]._replace(values=None)
  assert (claim.text, claim.remark) == (expected.text, expected.remark)


def test_what_is_not_complete_or_of_another_size_is_not_taken_for_finished(tmp_path):
  figure = FIGURES["lsr"]
  assert experiments.load(tmp_path, figure, QUICK) is None
  experiments.save(tmp_path, figure, QUICK, outcome_of_everything(), 1.0)
  for other in (Size("quick", 3), Size("usual", 2), Size("quick", 2, None, 1)):
    assert experiments.load(tmp_path, figure, other) is None
  assert experiments.load(tmp_path, FIGURES["theory"], QUICK) is None
  arrays = (tmp_path / storage.ARRAYS).read_bytes()
  (tmp_path / storage.ARRAYS).write_bytes(arrays[: len(arrays) // 2])
  assert experiments.load(tmp_path, figure, QUICK) is None
  (tmp_path / storage.ARRAYS).write_bytes(arrays)
  assert experiments.load(tmp_path, figure, QUICK) is not None
  (tmp_path / storage.FACTS).write_text("{")
  assert experiments.load(tmp_path, figure, QUICK) is None


@pytest.mark.parametrize("name", ["lsr", "labels_half_moons", "examples_linear", "action_space"])
def test_figures_run_from_end_to_end(tmp_path, name):
  """One of each kind; `launch.reproduce --quick`, which CI runs, makes them all."""
  figure = FIGURES[name]
  outcome = figure.run(QUICK, silent)
  assert outcome.claims
  assert outcome.blocks
  for block in outcome.blocks:
    if isinstance(block, Chart):
      for line in block.lines:
        assert line.values.shape == (2, len(line.axes["iteration"]))
        assert np.isfinite(line.values).all()
  experiments.save(tmp_path, figure, QUICK, outcome, 1.0)
  assert experiments.load(tmp_path, figure, QUICK) is not None


def test_theorems_hold_in_their_figure():
  """Bounds are never exceeded, and theorem 3 is there in ten steps, at a size with a verdict."""
  size = Size("quick", 6)
  with jax.enable_x64(True):
    for part in (theorems._theorem_2, theorems._theorem_3):
      for claim in part(size)[1]:
        assert experiments.judge(claim).verdict == "holds", claim.text


def test_methods_are_paired(x64):
  """All methods of a figure start from the same parameters and see the same examples."""
  room = small_room()
  schedule = [(4, 4)]
  first, second = (
    classroom.teach_all(room, teacher, schedule, metrics=("distance",), lessons=True)
    for teacher in (last.teachers.sgd(), last.teachers.greedy(last.constraints.none()))
  )
  np.testing.assert_array_equal(first.metrics["distance"][:, 0], second.metrics["distance"][:, 0])
  np.testing.assert_array_equal(first.lessons.index, second.lessons.index)
  assert not jnp.array_equal(first.lessons.label, second.lessons.label)
