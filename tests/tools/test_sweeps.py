"""Pictures of sweeps."""

import jax
import numpy as np
import pytest

import last_jax as last
from last_jax import tools
from last_jax.tools import sweeps


def make_sweep(rates):
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(20, 3)), np.arange(20) % 2)
  learners = {rate: last.learners.logistic(3, learning_rate=float(rate)) for rate in rates}
  teachers = {"true labels": last.teachers.sgd(), 0.5: last.teachers.label_smoothing(0.5)}
  return last.sweep(jax.random.split(jax.random.key(0), 3), learners, teachers, pool, test=pool, steps=2)


def test_a_line_for_each_teacher_over_sorted_learners(tmp_path, monkeypatch):
  swept, drawn = make_sweep((0.3, 0.1)), []
  monkeypatch.setattr(sweeps, "plot_charts", lambda path, charts, **settings: drawn.extend(charts))
  tools.plot_sweep(tmp_path / "sweep.png", swept)
  assert [chart.title for chart in drawn] == ["Objective", "Test accuracy"]  # There is no target.
  for chart in drawn:
    assert [line.name for line in chart.lines] == ["true labels", "0.5"]
    assert chart.x_log
  line = drawn[0].lines[1]
  np.testing.assert_array_equal(line.axes["learning rate"], [0.1, 0.3])
  np.testing.assert_allclose(line.values[:, 0], swept[0.1, 0.5].objective[:, -1])
  np.testing.assert_allclose(line.values[:, 1], swept[0.3, 0.5].objective[:, -1])


@pytest.mark.slow
def test_it_is_drawn(tmp_path):
  tools.plot_sweep(tmp_path / "sweep.png", make_sweep((0.1, 0.3)), title="rates")
  assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_learners_without_numbers():
  with pytest.raises(ValueError, match=r"swept must have learners named by numbers.*'0\.1'"):
    tools.plot_sweep("sweep.png", make_sweep(("0.1",)))
