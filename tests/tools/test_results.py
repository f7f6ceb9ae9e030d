"""Pictures of results in notebooks."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import last_jax as last

KEY = jax.random.key(0)


def taught(teacher, students=None):
  dataset = last.data.gaussian(0, per_class=10)
  learner = last.learners.logistic(4, learning_rate=0.1)
  teach, key = (last.teach_many, jax.random.split(KEY, students)) if students else (last.teach, KEY)
  target = jax.tree.map(jnp.ones_like, learner.init(KEY))
  return teach(key, learner, teacher, dataset.train, target=target, test=dataset.test, steps=20, record_every=2)


@pytest.mark.slow
def test_methods_by_name(tmp_path):
  results = {"SGD": taught(last.teachers.sgd(), 4), "IMT": taught(last.teachers.imt(), 4)}
  figure = last.plot(results, title="Half moons", path=tmp_path / "curves.png")
  assert [axis.get_title() for axis in figure.axes] == ["Objective", "Distance to the target", "Test accuracy"]
  assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SGD", "IMT"]
  assert figure.get_suptitle() == "Half moons\n(mean over students with 95 % confidence band)"
  for line, result in zip(figure.axes[1].lines, results.values(), strict=True):
    np.testing.assert_array_equal(line.get_xdata(), np.arange(0, 21, 2))
    np.testing.assert_allclose(line.get_ydata(), result.distance.mean(0), rtol=1e-6)
  assert len({line.get_color() for line in figure.axes[1].lines}) == 2
  assert matplotlib.image.imread(tmp_path / "curves.png").shape[0] > 400
  assert figure._repr_png_().startswith(b"\x89PNG")


def test_one_student_and_records_of_a_run():
  result = taught(last.teachers.sgd())
  figure = last.plot(result)
  assert figure.get_suptitle() == ""
  assert not figure.legends
  np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), result.distance, rtol=1e-6)
  run = last.plot({"SGD": result.records})
  np.testing.assert_array_equal(run.axes[1].lines[0].get_ydata(), figure.axes[1].lines[0].get_ydata())


def test_errors():
  with pytest.raises(ValueError, match="results must not be empty"):
    last.plot({})
  with pytest.raises(TypeError, match="SGD is a ndarray"):
    last.plot({"SGD": np.ones(3)})
  with pytest.raises(ValueError, match="taken apart"):
    last.plot(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], taught(last.teachers.sgd()).records))
  with pytest.raises(AttributeError, match="no attribute 'picture'"):
    last.picture  # noqa: B018


def test_the_tools_are_imported_when_a_plot_is_asked_for():
  code = (
    "import sys, last_jax as last; assert 'last_jax.tools' not in sys.modules; assert 'plot' in last.__all__; "
    "assert last.plot.__module__ == 'last_jax.tools.results'; assert 'matplotlib' not in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
