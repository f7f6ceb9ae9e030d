"""Datasets in npz files: what is written comes back, and what is wrong is said."""

import io
import os
import pickle
import stat
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from last_jax import data
from last_jax.base import Dataset
from last_jax.io import read_arrays
from tests.data.samples import read_or_refuse

X = np.arange(12.0, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0], np.int32)


class Bomb:
  """Makes a file where it is told, if anyone ever unpickles it."""

  def __init__(self, path):
    self.path = str(path)

  def __reduce__(self):
    return open, (self.path, "w")


def npy_bytes(array):
  stream = io.BytesIO()
  np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
  return stream.getvalue()


def write_zip(path, members, compression=zipfile.ZIP_DEFLATED):
  with zipfile.ZipFile(path, "w", compression) as archive:
    for name, content in members:
      archive.writestr(name, content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A file with everything, its content, and the dataset in it."""
  path = tmp_path_factory.mktemp("npz") / "whole.npz"
  data.save_npz(path, x=X, y=Y, x_test=X[:2], y_test=Y[:2], init=np.ones(3), **{"target/weights": np.arange(2.0)})
  return path, path.read_bytes(), data.load_npz(path)


class TestClasses:
  def test_names_as_labels_and_beside_ids(self, tmp_path):
    data.save_npz(tmp_path / "a.npz", x=X, y=np.array(["b", "a", "c"] * 2), x_test=X[:2], y_test=np.array(["c", "b"]))
    dataset = data.load_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(dataset.train.y, [1, 0, 2] * 2)
    np.testing.assert_array_equal(dataset.test.y, [2, 1])
    assert dataset.train.classes == dataset.test.classes == ("a", "b", "c")
    data.save_npz(tmp_path / "b.npz", x=X, y=Y, classes=np.array(["no", "yes"]))
    assert data.load_npz(tmp_path / "b.npz").train.classes == ("no", "yes")

  def test_names_that_do_not_fit(self, tmp_path):
    data.save_npz(tmp_path / "a.npz", x=X, y=Y, classes=np.array(["no"]))
    with pytest.raises(ValueError, match=r"a\.npz: x and y: classes holds 1 names"):
      data.load_npz(tmp_path / "a.npz")
    data.save_npz(tmp_path / "a.npz", x=X, y=Y, classes=np.arange(2))
    with pytest.raises(TypeError, match=r"a\.npz: classes must be names"):
      data.load_npz(tmp_path / "a.npz")


class TestRoundTrip:
  def test_the_least_a_file_can_hold(self, tmp_path):
    data.save_npz(tmp_path / "d.npz", x=X, y=Y)
    dataset = data.load_npz(tmp_path / "d.npz")
    assert isinstance(dataset, Dataset)
    np.testing.assert_array_equal(dataset.train.x, X)
    np.testing.assert_array_equal(dataset.train.y, Y)
    assert dataset[1:] == (None, None, None)

  def test_a_file_of_numpys_own(self, tmp_path):
    for save in (np.savez, np.savez_compressed):
      save(tmp_path / "d.npz", x=X, y=Y, target=np.arange(3.0))
      dataset = data.load_npz(str(tmp_path / "d.npz"))
      np.testing.assert_array_equal(dataset.train.x, X)
      np.testing.assert_array_equal(dataset.target, np.arange(3.0))

  def test_everything(self, whole):
    dataset = whole[2]
    np.testing.assert_array_equal(dataset.test.x, X[:2])
    np.testing.assert_array_equal(dataset.test.y, Y[:2])
    np.testing.assert_array_equal(dataset.init, np.ones(3))
    assert list(dataset.target) == ["weights"]
    np.testing.assert_array_equal(dataset.target["weights"], np.arange(2.0))

  @pytest.mark.parametrize("name", ["target", "init"])
  def test_parameters_leaf_by_leaf_have_jaxs_paths(self, tmp_path, name):
    params = {"layer_0": {"weights": jnp.arange(6.0).reshape(2, 3), "bias": jnp.float32(4)}, "layers": [jnp.ones(1)]}
    leaves = {
      jax.tree_util.keystr(path, simple=True, separator="/"): leaf
      for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    data.save_npz(tmp_path / "d.npz", x=X, y=Y, **{f"{name}/{leaf}": array for leaf, array in leaves.items()})
    loaded = getattr(data.load_npz(tmp_path / "d.npz"), name)
    assert set(loaded) == {"layer_0/weights", "layer_0/bias", "layers/0"}
    for leaf, array in leaves.items():
      assert isinstance(loaded[leaf], np.ndarray)
      np.testing.assert_array_equal(loaded[leaf], array)

  @pytest.mark.parametrize("y", [np.linspace(-1, 1, 6), np.full((6, 3), 1 / 3), Y.astype(np.uint8), Y.astype(bool)])
  def test_every_kind_of_label(self, tmp_path, y):
    data.save_npz(tmp_path / "d.npz", x=X, y=y)
    np.testing.assert_allclose(data.load_npz(tmp_path / "d.npz").train.y, y, rtol=1e-6)

  @pytest.mark.parametrize("dtype", [">f4", ">f8", "<f8", ">i4", "f2", "u1"])
  def test_every_byte_order_and_width(self, tmp_path, dtype):
    data.save_npz(tmp_path / "d.npz", x=X.astype(dtype), y=Y.astype(">i8"), target=X[0].astype(dtype))
    dataset = data.load_npz(tmp_path / "d.npz")
    np.testing.assert_array_equal(dataset.train.x, X)
    np.testing.assert_array_equal(dataset.train.y, Y)
    assert dataset.target.dtype.isnative

  def test_images_and_large_integers_as_inputs(self, tmp_path):
    x = np.full((6, 4, 4, 1), 10**12)
    data.save_npz(tmp_path / "d.npz", x=x, y=Y)
    np.testing.assert_allclose(data.load_npz(tmp_path / "d.npz").train.x, x, rtol=1e-6)


class TestSave:
  def test_any_name_and_any_plain_dtype(self, tmp_path):
    arrays = {
      "file": X,
      "path": Y,
      "allow_pickle": np.array("text"),
      "a/b c": np.array(1 + 2j),
      "empty": np.ones((0, 2)),
    }
    data.save_npz(tmp_path / "d.npz", **arrays)
    with np.load(tmp_path / "d.npz", allow_pickle=False) as archive:
      assert set(archive) == set(arrays)
      for name, array in arrays.items():
        assert archive[name].dtype == array.dtype
        np.testing.assert_array_equal(archive[name], array)

  def test_same_arrays_give_the_same_bytes(self, tmp_path, monkeypatch):
    data.save_npz(tmp_path / "one.npz", x=X, y=Y)
    monkeypatch.setattr("time.time", lambda: 2e9)
    data.save_npz(tmp_path / "two.npz", x=X, y=Y)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()

  def test_adds_no_suffix_and_leaves_nothing_else(self, tmp_path):
    data.save_npz(tmp_path / "plain", x=X)
    assert os.listdir(tmp_path) == ["plain"]

  def test_has_the_permissions_of_an_ordinary_file(self, tmp_path):
    data.save_npz(tmp_path / "d.npz", x=X)
    (tmp_path / "ordinary").write_bytes(b"")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("d.npz", "ordinary")]
    assert modes[0] == modes[1]

  @pytest.mark.parametrize("where", ["numpy.lib.format.write_array", "os.fsync", "os.replace"])
  def test_a_failure_leaves_the_old_file_and_no_other(self, tmp_path, monkeypatch, where):
    path = tmp_path / "d.npz"
    data.save_npz(path, x=X)
    before = path.read_bytes()

    def fail(*_, **__):
      raise OSError("disk full")

    with monkeypatch.context() as patch:
      patch.setattr(where, fail)
      with pytest.raises(OSError, match="disk full"):
        data.save_npz(path, x=Y)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["d.npz"]

  def test_is_on_disk_before_it_replaces(self, tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
      # Flushed to the last byte: a fresh reader sees a whole archive.
      (temporary,) = tmp_path.iterdir()
      calls.append(("fsync", zipfile.ZipFile(temporary).testzip()))
      fsync(descriptor)

    def record_replace(source, target):
      calls.append(("replace", os.path.dirname(source) == os.path.dirname(target)))
      replace(source, target)

    monkeypatch.setattr("os.fsync", record_fsync)
    monkeypatch.setattr("os.replace", record_replace)
    data.save_npz(tmp_path / "d.npz", x=X)
    assert calls == [("fsync", None), ("replace", True)]

  @pytest.mark.parametrize(
    "bad", [np.array([None]), np.array([{}], object), jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float8_e5m2)]
  )
  def test_what_npz_cannot_hold_is_refused(self, tmp_path, bad):
    with pytest.raises(TypeError, match=r"d\.npz: array 'x' has dtype \w+, which npz cannot hold"):
      data.save_npz(tmp_path / "d.npz", x=bad)
    assert os.listdir(tmp_path) == []


def with_value(array, value):
  changed = np.array(array, np.float64)
  changed.flat[3] = value
  return changed


BAD_ARRAYS = {
  "missing x": ({"x": None}, ValueError, r"lacks x; it holds 'y'"),
  "missing y": ({"y": None}, ValueError, r"lacks y; it holds 'x'"),
  "missing both": ({"x": None, "y": None, "target": np.ones(2)}, ValueError, "lacks x and y; it holds 'target'"),
  "unknown key": ({"X": X, "z": Y}, ValueError, r"unknown keys 'X', 'z'; allowed are x, y, x_test, y_test, target"),
  "empty leaf path": ({"target/": Y}, ValueError, "unknown keys 'target/'; allowed are"),
  "other folder": ({"targets/w": Y}, ValueError, "unknown keys 'targets/w'; allowed are"),
  "x_test alone": ({"x_test": X}, ValueError, "both x_test and y_test or neither, but lacks y_test"),
  "y_test alone": ({"y_test": Y}, ValueError, "both x_test and y_test or neither, but lacks x_test"),
  "x of text": ({"x": X.astype(str)}, TypeError, "x and y: pool x must hold numbers, but its dtype is <U"),
  "y of text": ({"y": Y.astype(bytes)}, TypeError, "x and y: pool y must hold numbers"),
  "y of dates": ({"y": Y.astype("M8[s]")}, TypeError, "x and y: pool y must hold numbers"),
  "x complex": ({"x": X + 1j}, TypeError, "x and y: pool x must hold real numbers"),
  "x of 128 bits": ({"x": X.astype(np.longdouble)}, TypeError, "x has dtype float128, which JAX does not have"),
  "x of records": ({"x": np.zeros((6, 2), [("a", "f4")])}, TypeError, "pool x must hold numbers"),
  "x NaN": ({"x": with_value(X, np.nan)}, ValueError, r"x and y: pool x must be finite, but 1 entries .*\(1, 1\)"),
  "x infinite": ({"x": with_value(X, -np.inf)}, ValueError, "x and y: pool x must be finite"),
  "y NaN": ({"y": with_value(Y, np.nan)}, ValueError, "x and y: pool y must be finite"),
  "x too large": ({"x": with_value(X, 1e300)}, ValueError, r"x has numbers too large for float32, .* to 1e\+300"),
  "y too large": ({"y": Y.astype(np.int64) + 2**40}, ValueError, "y has numbers too large for int32"),
  "y too negative": ({"y": Y.astype(np.int64) - 2**40}, ValueError, "y has numbers too large for int32"),
  "x flat": ({"x": X[:, 0]}, ValueError, r"x and y: pool x must have shape \[n, features...\]"),
  "y with four axes": ({"y": np.ones((6, 1, 1, 1))}, ValueError, r"x and y: pool y must have shape \[n\], \[n, K\]"),
  "lengths differ": ({"y": Y[:5]}, ValueError, "x and y: pool x holds 6 examples but y holds 5"),
  "empty": ({"x": X[:0], "y": Y[:0]}, ValueError, "x and y: the pool is empty"),
  "test lengths differ": ({"x_test": X, "y_test": Y[:5]}, ValueError, "x_test and y_test: pool x holds 6 examples"),
  "test NaN": ({"x_test": with_value(X, np.nan), "y_test": Y}, ValueError, "x_test and y_test: pool x must be finite"),
  "test too large": ({"x_test": with_value(X, 1e39), "y_test": Y}, ValueError, "x_test has numbers too large"),
  "test features": (
    {"x_test": X[:, :1], "y_test": Y},
    ValueError,
    r"row of x_test must have the shape of a row of x, \[2\], but has \[1\]",
  ),
  "test labels": ({"x_test": X, "y_test": np.ones((6, 2))}, ValueError, r"row of y_test must .* \[\], but has \[2\]"),
  "test label kind": (
    {"x_test": X, "y_test": Y.astype(float)},
    ValueError,
    "y and y_test must both be class ids .* but y is int32 and y_test is float64",
  ),
  "target twice": (
    {"target": X[0], "target/w": X[0]},
    ValueError,
    "either target or target/<leaf path>, but holds both",
  ),
  "target not flat": ({"target": X}, ValueError, r"target must be flat, \[p\], but has shape \[6, 2\]"),
  "target a number": ({"target": np.float32(1)}, ValueError, r"target must be flat, \[p\], but has shape \[\]"),
  "target empty": ({"target": X[0, :0]}, ValueError, r"target is empty: its shape is \[0\]"),
  "target NaN": ({"target": np.array([np.nan])}, ValueError, "target must be finite"),
  "target of text": ({"target": np.array(["a"])}, TypeError, "target must hold real numbers, but its dtype is <U1"),
  "target too large": ({"target": np.array([1e39])}, ValueError, "target has numbers too large for float32"),
  "leaf infinite": ({"init/a/b": np.array([np.inf])}, ValueError, "init/a/b must be finite"),
  "leaf complex": ({"init/a": np.array([1j])}, TypeError, "init/a must hold real numbers"),
}


class TestBadContent:
  @pytest.mark.parametrize("case", BAD_ARRAYS)
  def test_is_named(self, tmp_path, case):
    changes, kind, message = BAD_ARRAYS[case]
    if case == "x of 128 bits" and np.dtype(np.longdouble).itemsize <= 8:
      pytest.skip("longdouble is double on this machine")
    arrays = {name: array for name, array in {"x": X, "y": Y, **changes}.items() if array is not None}
    path = tmp_path / "d.npz"
    np.savez(path, **arrays)
    with pytest.raises(kind, match=message) as caught:
      data.load_npz(path)
    assert str(path) in str(caught.value)


class TestBadFile:
  def test_missing(self, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
      data.load_npz(tmp_path / "absent.npz")

  @pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", npy_bytes(X), pickle.dumps({"x": [1]})])
  def test_not_an_npz(self, tmp_path, content):
    path = tmp_path / "d.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"d\.npz is not an npz file, or is truncated or damaged"):
      data.load_npz(path)

  @pytest.mark.parametrize(
    ("content", "message"),
    [
      (b"1, 2, 3", "array 'y' cannot be read: .*magic"),
      (b"", "array 'y' cannot be read"),
      (npy_bytes(Y)[:-1], "array 'y' cannot be read"),
      (npy_bytes(Y) + b"\0", "array 'y' cannot be read: there are bytes after the end"),
      (npy_bytes(Y).replace(b"(6,), ", b"(6e9),"), "array 'y' cannot be read"),
      (npy_bytes(Y).replace(b"(6,), }          ", b"(99999999999,), }"), "array 'y' cannot be read"),
    ],
  )
  def test_member_that_is_no_array(self, tmp_path, content, message):
    path = tmp_path / "d.npz"
    write_zip(path, [("x.npy", npy_bytes(X)), ("y.npy", content)])
    with pytest.raises(ValueError, match=rf"d\.npz: {message}"):
      data.load_npz(path)

  def test_same_name_twice(self, tmp_path):
    path = tmp_path / "d.npz"
    write_zip(path, [("x.npy", npy_bytes(X)), ("x", npy_bytes(X)), ("y.npy", npy_bytes(Y))])
    with pytest.raises(ValueError, match=r"d\.npz is damaged: it holds the array 'x' twice"):
      data.load_npz(path)

  def test_list_that_skips_members(self, whole):
    path, content, _ = whole
    changed = bytearray(content)
    # In the list, the high byte of the length of y's comment: 256 bytes of the entries after it become a comment.
    changed[content.rindex(b"y.npy") - 13] = 1
    damaged = path.with_name("skips.npz")
    damaged.write_bytes(changed)
    with zipfile.ZipFile(damaged) as archive:
      assert archive.namelist() == ["x.npy", "y.npy"]
    with pytest.raises(ValueError, match=r"skips\.npz is not an npz .*: it counts 6 arrays, but lists 2"):
      data.load_npz(damaged)

  @pytest.mark.slow
  def test_no_damaged_bit_of_the_list_loses_an_array(self, whole):
    path, content, _ = whole
    damaged, expected = path.with_name("bits.npz"), read_arrays(path)
    harmless = 0
    for place in range(content.index(b"PK\1\2"), len(content)):
      for bit in range(8):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        damaged.write_bytes(changed)
        arrays = read_or_refuse(read_arrays, damaged)
        if arrays is not None:
          harmless += 1
          assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in expected.items()
          }
    assert harmless > 0  # Dates and permissions.

  def test_bytes_after_the_end(self, whole):
    path, content, _ = whole
    longer = path.with_name("longer.npz")
    longer.write_bytes(content + b"more")
    with pytest.raises(ValueError, match=r"longer\.npz is not an npz .*: there are bytes after the end of the archive"):
      data.load_npz(longer)

  def test_an_archive_may_have_a_comment(self, tmp_path):
    path = tmp_path / "d.npz"
    data.save_npz(path, x=X, y=Y)
    with zipfile.ZipFile(path, "a") as archive:
      archive.comment = b"drawn on a Monday"
    assert len(data.load_npz(path).train) == 6

  def test_other_compression(self, tmp_path):
    path = tmp_path / "d.npz"
    write_zip(path, [("x.npy", npy_bytes(X)), ("y.npy", npy_bytes(Y))], zipfile.ZIP_BZIP2)
    with pytest.raises(ValueError, match="npz files are stored or deflated, but its compression type is 12"):
      data.load_npz(path)

  def test_names_of_classes_that_are_no_text(self, tmp_path):
    classes = np.array([2**31 - 1, 65], np.int32).view("<U1")
    data.save_npz(tmp_path / "d.npz", x=X, y=Y % 2, classes=classes)
    with pytest.raises(ValueError, match=r"d\.npz: array 'classes' cannot be read: it holds what is no text"):
      data.load_npz(tmp_path / "d.npz")

  @pytest.mark.parametrize("nested", [False, True])
  def test_pickle_is_never_loaded(self, tmp_path, nested):
    trap = tmp_path / "sprung"
    array = np.empty(6, [("a", object)] if nested else object)
    array[0] = (Bomb(trap),) if nested else Bomb(trap)
    path = tmp_path / "d.npz"
    np.savez(path, x=X, y=array)
    with pytest.raises(ValueError, match=r"d\.npz: array 'y' cannot be read: Object arrays cannot be loaded"):
      data.load_npz(path)
    write_zip(path, [("x.npy", npy_bytes(X)), ("y.npy", pickle.dumps(Bomb(trap)))])
    with pytest.raises(ValueError, match=r"d\.npz: array 'y' cannot be read"):
      data.load_npz(path)
    assert not trap.exists()

  @settings(deadline=None, max_examples=150)
  @given(drawn=st.data())
  def test_any_truncation_is_an_error(self, whole, drawn):
    path, content, _ = whole
    damaged = path.with_name("truncated.npz")
    damaged.write_bytes(content[: drawn.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match=r"truncated\.npz"):
      data.load_npz(damaged)

  @settings(deadline=None, max_examples=300)
  @given(drawn=st.data())
  def test_a_damaged_byte_is_an_error_or_harmless(self, whole, drawn):
    path, content, dataset = whole
    changed = bytearray(content)
    changed[drawn.draw(st.integers(0, len(content) - 1))] ^= drawn.draw(st.integers(1, 255))
    damaged = path.with_name("damaged.npz")
    damaged.write_bytes(changed)
    loaded = read_or_refuse(data.load_npz, damaged)
    if loaded is not None:
      assert jax.tree.structure(loaded) == jax.tree.structure(dataset)
      jax.tree.map(np.testing.assert_array_equal, loaded, dataset)

  @settings(deadline=None, max_examples=300)
  @given(drawn=st.data())
  def test_a_damaged_array_with_a_right_checksum_is_never_anything_but_a_clear_error(self, whole, drawn):
    content = bytearray(npy_bytes(X))
    content[drawn.draw(st.integers(0, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    path = whole[0].with_name("crafted.npz")
    write_zip(path, [("x.npy", bytes(content)), ("y.npy", npy_bytes(Y))])
    read_or_refuse(data.load_npz, path, (ValueError, TypeError))
