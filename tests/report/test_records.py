"""Files of a run: whole or not at all, and readable by anyone."""

import json
import os
import stat

import jax.numpy as jnp
import numpy as np
import pytest

from last_jax import report
from last_jax.data.files import read_arrays
from last_jax.report import records
from last_jax.report.statistics import mean_interval


class TestJson:
  def test_types_of_numpy_and_jax(self, tmp_path):
    value = {
      "float": np.float32(0.5), "int": np.int64(3), "flag": np.bool_(True), "array": np.arange(4).reshape(2, 2),
      "device": jnp.ones(2), "pair": (1, None), 7: "seven", "path": tmp_path, "µ": "±",
    }  # fmt: skip
    report.write_json(tmp_path / "a.json", value)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {
      "float": 0.5, "int": 3, "flag": True, "array": [[0, 1], [2, 3]], "device": [1.0, 1.0], "pair": [1, None],
      "7": "seven", "path": str(tmp_path), "µ": "±",
    }  # fmt: skip

  @pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.array(np.inf)])
  def test_numbers_json_does_not_have(self, tmp_path, number):
    report.write_json(tmp_path / "a.json", {"x": [number, 1.0]})
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {"x": [None, 1.0]}

  def test_what_cannot_be_written_leaves_the_earlier_file(self, tmp_path):
    report.write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError, match="object"):
      report.write_json(tmp_path / "a.json", {"x": object()})
    assert (tmp_path / "a.json").read_text() == "1\n"
    assert os.listdir(tmp_path) == ["a.json"]


class TestReplacing:
  def test_failure_leaves_the_earlier_file(self, tmp_path):
    path = tmp_path / "file"
    path.write_text("earlier")

    def write_half():
      with records.replaced(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
      write_half()
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["file"]

  def test_others_may_read_it(self, tmp_path):
    (tmp_path / "plain").write_text("")
    report.write_json(tmp_path / "a.json", {})
    assert stat.S_IMODE(os.stat(tmp_path / "a.json").st_mode) == stat.S_IMODE(os.stat(tmp_path / "plain").st_mode)


def test_npz_keeps_names_with_slashes(tmp_path):
  report.write_npz(tmp_path / "a.npz", {"greedy:simplex/distance": np.arange(3.0), "step": [0, 1]})
  arrays = read_arrays(tmp_path / "a.npz")
  np.testing.assert_array_equal(arrays["greedy:simplex/distance"], [0, 1, 2])
  np.testing.assert_array_equal(arrays["step"], [0, 1])


def test_check_writable(tmp_path):
  report.check_writable(tmp_path / "new" / "folder")
  assert os.listdir(tmp_path / "new" / "folder") == []
  (tmp_path / "file").write_text("")
  with pytest.raises(OSError, match="file"):
    report.check_writable(tmp_path / "file")


def test_versions_name_what_computes():
  assert {"python", "last_jax", "jax", "jaxlib", "numpy", "device"} == set(report.versions())


class TestMeanInterval:
  def test_students_t(self):
    # By hand: mean 2, standard deviation 1, t(2 degrees, 97.5 %) = 4.302653.
    mean, half_width = mean_interval([[1.0], [2.0], [3.0]])
    np.testing.assert_allclose(mean, [2.0])
    np.testing.assert_allclose(half_width, [4.302653 / np.sqrt(3)], rtol=1e-6)

  def test_it_covers_the_mean_as_often_as_it_says(self):
    samples = np.random.default_rng(0).normal(3.0, 2.0, (5, 20_000))
    mean, half_width = mean_interval(samples, confidence=0.9)
    assert np.mean(np.abs(mean - 3.0) <= half_width) == pytest.approx(0.9, abs=0.01)

  def test_one_student_has_no_width(self):
    mean, half_width = mean_interval([[1.0, 2.0]])
    np.testing.assert_array_equal(mean, [1, 2])
    assert np.isnan(half_width).all()

  def test_a_student_who_diverged(self):
    mean, half_width = mean_interval([[1.0, np.inf], [1.0, 2.0]])
    assert mean[0] == 1
    assert np.isnan([mean[1], half_width[1]]).all()

  @pytest.mark.parametrize(("values", "confidence"), [(1.0, 0.95), (np.zeros((0, 3)), 0.95), ([1.0], 1.0)])
  def test_bad_arguments(self, values, confidence):
    with pytest.raises(ValueError, match=r"values|confidence"):
      mean_interval(values, confidence)
