"""Files of a run: written whole or not at all, and readable by every parser."""

import json
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from last_jax import tools


class TestJson:
  def test_types_of_numpy_and_jax(self, tmp_path):
    value = {
      "float": np.float32(0.5), "int": np.int64(3), "flag": np.bool_(True), "array": np.arange(4).reshape(2, 2),
      "device": jnp.ones(2), "pair": (1, None), 7: "seven", "path": tmp_path, "µ": "±",
    }  # fmt: skip
    tools.write_json(tmp_path / "a.json", value)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {
      "float": 0.5, "int": 3, "flag": True, "array": [[0, 1], [2, 3]], "device": [1.0, 1.0], "pair": [1, None],
      "7": "seven", "path": str(tmp_path), "µ": "±",
    }  # fmt: skip

  @pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.array(np.inf)])
  def test_numbers_json_does_not_have(self, tmp_path, number):
    tools.write_json(tmp_path / "a.json", {"x": [number, 1.0]})
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {"x": [None, 1.0]}

  def test_an_error_leaves_the_earlier_file(self, tmp_path):
    tools.write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError, match="object"):
      tools.write_json(tmp_path / "a.json", {"x": object()})
    assert (tmp_path / "a.json").read_text() == "1\n"
    assert os.listdir(tmp_path) == ["a.json"]

  def test_other_users_may_read_it(self, tmp_path):
    (tmp_path / "plain").write_text("")
    tools.write_json(tmp_path / "a.json", {})
    assert stat.S_IMODE(os.stat(tmp_path / "a.json").st_mode) == stat.S_IMODE(os.stat(tmp_path / "plain").st_mode)


def test_check_writable(tmp_path):
  tools.check_writable(tmp_path / "new" / "folder")
  assert os.listdir(tmp_path / "new" / "folder") == []
  (tmp_path / "file").write_text("")
  with pytest.raises(OSError, match="file"):
    tools.check_writable(tmp_path / "file")


def test_versions_name_all_that_computes():
  assert set(tools.versions()) == {"python", "last_jax", "jax", "jaxlib", "numpy", "optax", "device"}
  assert tools.package_versions().items() >= {"jax": jax.__version__, "optax": optax.__version__}.items()
