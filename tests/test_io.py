"""Pytrees in files: they come back to the last bit, and whatever does not fit or is damaged is named."""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from last_jax import devices, io
from tests.data.samples import read_or_refuse


class State(NamedTuple):
  """Like the state of teaching."""

  student: Any
  teacher_state: Any
  step: Any
  key: Any
  hitting_time: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Certificate:
  """A dataclass with a static field."""

  residual: Any
  road: str = dataclasses.field(default="", metadata={"static": True})


def make_state(seed=0):
  keys = jax.random.split(jax.random.key(seed), 4)
  params = {"layer_0": {"weights": jax.random.normal(keys[0], (3, 2)), "bias": jnp.zeros(2)}, "scale": jnp.float32(2)}
  return State(
    student=(params, optax.adam(0.1).init(params)),
    teacher_state=[Certificate(jnp.ones(4, jnp.bfloat16), "closed form"), {}, (), None],
    step=jnp.zeros((), jnp.int32),
    key=keys[1],
  )


def raw(leaf):
  """The bits of a leaf."""
  if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    leaf = jax.random.key_data(leaf)
  return np.asarray(leaf).tobytes()


def assert_same(found, expected):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert type(one) is type(other)
    assert np.shape(one) == np.shape(other)
    assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
    assert raw(one) == raw(other)


TREES = {
  "state": make_state,
  "students": lambda: jax.vmap(lambda i: make_state()._replace(step=i, hitting_time=i))(jnp.arange(3)),
  "key": lambda: jax.random.key(3),
  "keys of another kind": lambda: {"keys": jax.random.split(jax.random.key(3, impl="rbg"), (2, 3))},
  "legacy key": lambda: jax.random.PRNGKey(3),
  "array": lambda: jnp.arange(3.0),
  "numbers": lambda: {"a": 1, "b": 2.5, "c": True, "d": 1 + 2j, "e": float("nan"), "f": np.bool_(True)},
  "numpy": lambda: (np.arange(3.0), np.float16(2), np.zeros((0, 2), np.uint8), np.array(True), np.ones(2, np.int64)),
  "special values": lambda: np.array([np.nan, -0.0, np.inf, 5e-324]),
  "extended": lambda: [
    jnp.asarray(np.array([1.5, -0.0, np.nan, 20.0]).astype(dtype))
    for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3b11fnuz)
  ],
  "small integers": lambda: (jnp.arange(-3, 4).astype(jnp.int4), jnp.arange(7).astype(jnp.uint4)),
  "complex": lambda: {"z": jnp.asarray([1 + 2j])},
  "empty": dict,
  "none": lambda: (None, {}, []),
  "odd names": lambda: {"file": 1.0, "allow_pickle": 2.0, "a b/ü\n": {"": 3.0}, "x.npy": 4.0, "x": 5.0},
  "dataclass": lambda: Certificate(jnp.ones(2), "enumeration"),
}


class TestRoundTrip:
  @pytest.mark.parametrize("name", TREES)
  def test_every_leaf_comes_back_to_the_last_bit(self, tmp_path, name):
    with jax.debug_nans(False):
      tree = TREES[name]()
      io.save(tmp_path / "tree.npz", tree)
      assert_same(io.load(tmp_path / "tree.npz", like=tree), tree)

  def test_float64(self, tmp_path, x64):
    tree = {"a": jnp.asarray([1 / 3]), "b": jnp.asarray(2**40)}
    io.save(tmp_path / "tree.npz", tree)
    assert_same(io.load(tmp_path / "tree.npz", like=tree), tree)
    message = r"leaf 'a' is float64\[1\], which JAX holds only with jax_enable_x64"
    with jax.enable_x64(False), pytest.raises(ValueError, match=message):
      io.load(tmp_path / "tree.npz", like=tree)

  def test_shapes_are_a_template_too(self, tmp_path):
    state = make_state()
    io.save(tmp_path / "state.npz", state)
    assert_same(io.load(tmp_path / "state.npz", like=jax.eval_shape(lambda: state)), state)

  def test_another_process_reads_the_same(self, tmp_path):
    io.save(tmp_path / "key.npz", {"key": jax.random.key(7), "w": jnp.asarray([1 / 3], jnp.bfloat16)})
    code = (
      "import jax; from last_jax import io; "
      f"leaves = io.load({str(tmp_path / 'key.npz')!r}); "
      "print(jax.random.bits(leaves['key']), leaves['w'].dtype, leaves['w'].tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    expected = f"{jax.random.bits(jax.random.key(7))} bfloat16 {np.asarray([1 / 3], jnp.bfloat16).tobytes().hex()}"
    assert done.stdout.strip() == expected

  def test_any_byte_order_and_memory_layout(self, tmp_path):
    tree = {"big": np.arange(6.0, dtype=">f8"), "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3))[:, ::2]}
    io.save(tmp_path / "tree.npz", tree)
    for name, leaf in io.load(tmp_path / "tree.npz").items():
      assert leaf.dtype == np.float64
      np.testing.assert_array_equal(leaf, tree[name])

  def test_without_a_template_leaves_come_by_name(self, tmp_path):
    io.save(tmp_path / "state.npz", make_state(), about={"teacher": "greedy"})
    leaves = io.load(tmp_path / "state.npz")
    assert {"student/0/layer_0/weights", "teacher_state/0/residual", "step", "key"} <= set(leaves)
    assert isinstance(leaves["student/0/layer_0/weights"], np.ndarray)
    header, again = io.read(tmp_path / "state.npz")
    assert (header["format"], header["version"], header["kind"]) == ("last_jax", 1, "State")
    assert header["about"] == {"teacher": "greedy"}
    assert header["leaves"]["key"] == "key<threefry2x32>"
    assert header["leaves"]["teacher_state/0/residual"] == "bfloat16"
    assert again.keys() == leaves.keys() == header["leaves"].keys()

  def test_plain_numpy_can_read_it(self, tmp_path):
    io.save(tmp_path / "lessons.npz", {"index": np.arange(3), "label": np.eye(3)})
    with np.load(tmp_path / "lessons.npz", allow_pickle=False) as archive:
      np.testing.assert_array_equal(archive["label"], np.eye(3))
      assert json.loads(archive["__header__"].tobytes())["kind"] == "dict"

  def test_students_on_devices_are_gathered_by_the_caller(self, tmp_path):
    mesh = devices.mesh(1)
    state = devices.split(TREES["students"](), mesh)
    io.save(tmp_path / "state.npz", devices.gather(state))
    found = io.load(tmp_path / "state.npz", like=state)
    jax.tree.map(lambda one, other: chex.assert_equal(raw(one), raw(other)), found, state)


class TestSave:
  def test_same_tree_same_bytes(self, tmp_path, monkeypatch):
    io.save(tmp_path / "one", make_state())
    monkeypatch.setattr("time.time", lambda: 2e9)
    io.save(tmp_path / "two", make_state())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

  @pytest.mark.parametrize("where", ["numpy.lib.format.write_array", "os.fsync", "os.replace"])
  def test_a_failure_leaves_the_old_file_and_no_other(self, tmp_path, monkeypatch, where):
    path = tmp_path / "state.npz"
    io.save(path, make_state(0))
    before = path.read_bytes()

    def fail(*_, **__):
      raise OSError("disk full")

    with monkeypatch.context() as patch:
      patch.setattr(where, fail)
      with pytest.raises(OSError, match="disk full"):
        io.save(path, make_state(1))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.npz"]

  @pytest.mark.parametrize(
    ("tree", "error", "message"),
    [
      ({"a": {"b": "text"}}, TypeError, "leaf 'a/b' must be an array or a number, but it is a str"),
      ([np.array(["text"])], TypeError, "leaf '0' must hold numbers"),
      ([np.array([None])], TypeError, "leaf '0' must hold numbers"),
      ([np.zeros(2, [("a", "f4")])], TypeError, "leaf '0' must hold numbers"),
      ([2**70], TypeError, "leaf '0' must hold numbers"),
      ({"a/b": 1.0, "a": {"b": 2.0}}, ValueError, "'a/b' cannot be the name of a leaf"),
      ({"__header__": 1.0}, ValueError, "'__header__' cannot be the name of a leaf"),
      ({"a\0b": 1.0}, ValueError, "cannot be the name of a leaf"),
    ],
  )
  def test_what_a_file_cannot_hold_is_named(self, tmp_path, tree, error, message):
    with pytest.raises(error, match=message):
      io.save(tmp_path / "tree.npz", tree)
    assert os.listdir(tmp_path) == []

  @pytest.mark.parametrize("about", [{"a": object()}, {"a": float("nan")}, {"a": np.zeros(2)}])
  def test_notes_are_json(self, tmp_path, about):
    with pytest.raises(ValueError, match="about must be a dict of JSON values"):
      io.save(tmp_path / "tree.npz", {}, about=about)
    assert os.listdir(tmp_path) == []

  def test_tracers_are_refused(self, tmp_path):
    with pytest.raises(TypeError, match="leaf 'a' is a tracer"):
      jax.jit(lambda a: io.save(tmp_path / "tree.npz", {"a": a}))(1.0)


class TestLike:
  @pytest.mark.parametrize(
    ("change", "message"),
    [
      (lambda s: s._replace(step=jnp.zeros(())), r"leaf 'step' is int32\[\], but in like it is float32\[\]"),
      (lambda s: s._replace(step=jnp.zeros(2, int)), r"leaf 'step' is int32\[\], but in like it is int32\[2\]"),
      (lambda s: s._replace(step=0), r"leaf 'step' is int32\[\], but in like it is a Python int"),
      (
        lambda s: s._replace(key=jax.random.key(0, impl="rbg")),
        r"leaf 'key' is key<fry>\[\], but in like it is key<rbg>",
      ),
      (
        lambda s: s._replace(key=jax.random.key_data(s.key)),
        r"leaf 'key' is key<fry>\[\], but in like it is uint32\[2\]",
      ),
      (lambda s: s._replace(hitting_time=jnp.zeros((), int)), "lacks the leaf 'hitting_time' of like"),
      (lambda s: s._replace(key=None), "holds the leaf 'key', which like does not have"),
      (lambda s: s._replace(student=s.student[:1]), "holds the leaf 'student/1/0/count', which like does not have"),
      (tuple, "holds a State, but like is a tuple"),
    ],
  )
  def test_the_first_difference_is_named(self, tmp_path, change, message):
    path = tmp_path / "state.npz"
    io.save(path, make_state())
    with pytest.raises(ValueError, match=message) as raised:
      io.load(path, like=change(make_state()))
    assert str(path) in str(raised.value)


class TestKinds:
  def test_a_registered_kind_needs_no_template(self, tmp_path):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Described:
      leaf: Any
      name: str = dataclasses.field(metadata={"static": True})

    io.register_kind(Described, lambda d: {"name": d.name}, lambda static, leaves: Described(leaves["leaf"], **static))
    path = tmp_path / "described.npz"
    io.save(path, Described(np.arange(3), "ü"))
    assert_same(io.load(path), Described(np.arange(3), "ü"))
    assert_same(io.load(path, like=Described(np.arange(3), "ü")), Described(np.arange(3), "ü"))
    with pytest.raises(ValueError, match=r"described\.npz holds a Described with .*, but like has"):
      io.load(path, like=Described(np.arange(3), "u"))

    def refuse(static, leaves):
      raise KeyError("colour")

    other = dataclasses.make_dataclass("Described", ["leaf"])
    with pytest.raises(ValueError, match="a type of the name Described is registered already"):
      io.register_kind(other, lambda d: {}, refuse)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Refused:
      leaf: Any

    io.register_kind(Refused, lambda d: {}, refuse)
    io.save(path, Refused(np.arange(3)))
    with pytest.raises(ValueError, match=r"described\.npz does not hold a Refused: KeyError: 'colour'"):
      io.load(path)


def rewrite(path, **changes):
  """Change entries of a file's header; None deletes one."""
  arrays = io.read_arrays(path)
  header = json.loads(arrays.pop("__header__").tobytes()) | changes
  header = {name: value for name, value in header.items() if value is not None}
  io.save_npz(path, __header__=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)


class TestForeignFiles:
  def test_missing(self, tmp_path):
    with pytest.raises(FileNotFoundError):
      io.load(tmp_path / "absent.npz")

  @pytest.mark.parametrize("content", [b"", b"text", b"PK\5\6" + bytes(18)])
  def test_no_archive_of_ours(self, tmp_path, content):
    path = tmp_path / "foreign.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.npz"):
      io.load(path)

  def test_another_npz(self, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz was not written by last_jax\.save: it has no header"):
      io.load(tmp_path / "other.npz")

  @pytest.mark.parametrize(
    ("changes", "message"),
    [
      ({"version": 2}, r"has version 2 of the format, but this last_jax reads up to 1: update it"),
      ({"version": 2, "leaves": None, "kind": None}, "has version 2 of the format"),
      ({"version": "new"}, "was not written by last_jax.save, or is damaged"),
      ({"format": "other"}, "its format is 'other'"),
      ({"format": None}, "was not written by last_jax.save, or is damaged"),
      ({"leaves": {}}, "is damaged: it also holds the array 'a'"),
      ({"leaves": {"a": "float32", "b": "float32"}}, "is damaged: it lacks the leaf 'b'"),
      ({"leaves": {"a": "int32"}}, "leaf 'a' cannot be read as int32: the array has dtype float32"),
      ({"leaves": {"a": "float33"}}, "leaf 'a' cannot be read as float33"),
      ({"leaves": {"a": "key<secret>"}}, "leaf 'a' cannot be read as key<secret>"),
      ({"leaves": {"a": "python int"}}, "leaf 'a' cannot be read as python int"),
      ({"leaves": {"a": 3}}, "wrong entries leaves"),
      ({"leaves": []}, "wrong entries leaves"),
      ({"static": None}, "or is damaged: its header has 'static'"),
    ],
  )
  def test_another_header(self, tmp_path, changes, message):
    path = tmp_path / "tree.npz"
    io.save(path, {"a": np.zeros(3, np.float32)})
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=message) as raised:
      io.load(path)
    assert str(path) in str(raised.value)

  @pytest.mark.parametrize("header", [b"", b"3", b"null", b"\xff\xfe", b'{"format": "last_jax"', b"[" * 100_000])
  def test_a_header_that_is_none(self, tmp_path, header):
    io.save_npz(tmp_path / "tree.npz", __header__=np.frombuffer(header, np.uint8))
    with pytest.raises(ValueError, match=r"tree\.npz was not written by last_jax\.save, or is damaged"):
      io.load(tmp_path / "tree.npz")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A file, its content, and the state in it."""
  path = tmp_path_factory.mktemp("io") / "whole.npz"
  io.save(path, make_state(), about={"teacher": "greedy"})
  return path, path.read_bytes(), make_state()


class TestDamage:
  @settings(deadline=None, max_examples=150)
  @given(drawn=st.data())
  def test_any_truncation_is_an_error(self, whole, drawn):
    path, content, state = whole
    damaged = path.with_name("truncated.npz")
    damaged.write_bytes(content[: drawn.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match=r"truncated\.npz"):
      io.load(damaged, like=state)

  @settings(deadline=None, max_examples=500)
  @given(drawn=st.data())
  def test_damaged_bytes_are_an_error_or_harmless(self, whole, drawn):
    path, content, state = whole
    changed = bytearray(content)
    for _ in range(drawn.draw(st.integers(1, 3))):
      changed[drawn.draw(st.integers(0, len(content) - 1))] ^= drawn.draw(st.integers(1, 255))
    damaged = path.with_name("damaged.npz")
    damaged.write_bytes(changed)
    found = read_or_refuse(lambda path: (io.load(path, like=state), io.read(path)[0]), damaged)
    if found is not None:  # A date or a permission.
      assert_same(found[0], state)
      assert found[1] == io.read(path)[0]

  @pytest.mark.slow
  def test_no_damaged_bit_outside_the_arrays_changes_a_name(self, whole):
    """Bits of the list of members and of the end of the file: names, sizes, checksums."""

    def bits(leaves):
      return {name: raw(leaf) for name, leaf in leaves.items()}

    path, content, _ = whole
    header, leaves = io.read(path)
    damaged, expected = path.with_name("bits.npz"), (header, bits(leaves))
    for place in range(content.index(b"PK\1\2"), len(content)):
      for bit in range(0, 8, 2):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        damaged.write_bytes(changed)
        found = read_or_refuse(io.read, damaged)
        if found is not None:
          assert (found[0], bits(found[1])) == expected
