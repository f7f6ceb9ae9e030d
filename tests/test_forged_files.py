"""Files made to do harm: what they unpack to, how deep and how many their parts are; nothing but regular files."""

import gzip
import io as streams
import json
import os
import socket
import struct
import time
import tracemalloc
import zipfile
import zlib

import jax
import numpy as np
import pytest

import last_jax as last
from last_jax import data, io
from last_jax.data.idx import read_idx
from last_jax.io import files
from last_jax.teachers import policy_file
from last_jax.tools import write_json
from tests.data.samples import read_or_refuse

SMALL = 2**20  # In place of 1 GiB.


@pytest.fixture
def small_limit(monkeypatch):
  monkeypatch.setattr(files, "LEAST_UNPACKED", SMALL)


def npy(array):
  stream = streams.BytesIO()
  np.save(stream, array)
  return stream.getvalue()


def header(text, version=b"\x01\x00"):
  """The beginning of an npy file with this header."""
  length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
  return b"\x93NUMPY" + version + length + text.encode()


def archive(path, **members):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as stream:
    for name, content in members.items():
      stream.writestr(f"{name}.npy", content)
  return path


def lying_archive(path, content, declared):
  """An archive with one member that unpacks to `content`, though both of its headers declare another size."""
  packer = zlib.compressobj(9, zlib.DEFLATED, -15)
  packed = packer.compress(content) + packer.flush()
  sizes = struct.pack("<III", zlib.crc32(content[:declared]), len(packed), declared)
  local = b"PK\3\4" + struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", 5, 0) + b"x.npy"
  entry = b"PK\1\2" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 33) + sizes
  entry += struct.pack("<HHHHHII", 5, 0, 0, 0, 0, 0, 0) + b"x.npy"
  end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local) + len(packed), 0)
  path.write_bytes(local + packed + entry + end)
  return path


class TestUnpacking:
  def test_a_bomb_is_refused_before_it_is_unpacked(self, tmp_path, small_limit):
    path = archive(tmp_path / "bomb.npz", x=npy(np.zeros(2 * SMALL, np.uint8)))
    assert os.path.getsize(path) < SMALL / 100
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bomb\.npz .*it unpacks to \d+ bytes, of which at most 1048576 are allowed"):
      io.read_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < SMALL / 2

  def test_many_small_ones_count_together(self, tmp_path, small_limit):
    path = archive(tmp_path / "bomb.npz", **{f"x{i}": npy(np.zeros(SMALL // 8, np.uint8)) for i in range(9)})
    with pytest.raises(ValueError, match=r"bomb\.npz .*it unpacks to"):
      io.read_arrays(path)

  def test_a_declared_size_that_lies_costs_no_memory(self, tmp_path):
    path = lying_archive(tmp_path / "lies.npz", npy(np.zeros(64 * SMALL, np.uint8)), declared=500)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"lies\.npz"):
      io.read_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * SMALL

  @pytest.mark.parametrize("save", [io.save_npz, lambda path, **arrays: last.save(path, arrays)])
  def test_whatever_is_saved_can_be_read(self, tmp_path, small_limit, save):
    """Arrays that pack too well are stored as they are."""
    arrays = {"zeros": np.zeros(3 * SMALL, np.uint8), "more": np.arange(3.0)}
    save(tmp_path / "own.npz", **arrays)
    found = io.read_arrays(tmp_path / "own.npz")
    for name, array in arrays.items():
      np.testing.assert_array_equal(found[name], array)
    save(tmp_path / "few.npz", zeros=np.zeros(SMALL // 2, np.uint8))
    assert os.path.getsize(tmp_path / "few.npz") < SMALL / 50

  def test_gzip(self, tmp_path, small_limit):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 2 * SMALL) + bytes(2 * SMALL)))
    with pytest.raises(ValueError, match=r"images\.gz unpacks to more than 1048576 bytes"):
      read_idx(path)

  @pytest.mark.parametrize(
    "content",
    [
      header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"),
      header("{'descr': '<f8', 'fortran_order': False, 'shape': (3037000500, 3037000500), }") + bytes(64),
      header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
      header("{'descr': '<U0', 'fortran_order': False, 'shape': (1099511627776,), }"),
      header("{'descr': '<U999999999', 'fortran_order': False, 'shape': (1,), }"),
      header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"cos\nsystem\n(S'true'\ntR.",
      header("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }") + bytes(8),
      header("(" * 5000),
      header("{" * 9000, b"\x02\x00"),
      header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", b"\x03\x00") + bytes(8),
      b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
      b"",
    ],
  )
  def test_headers_of_arrays(self, tmp_path, content):
    path, begin = archive(tmp_path / "header.npz", x=content), time.perf_counter()
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"header\.npz: array 'x' cannot be read"):
      io.read_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * SMALL
    assert time.perf_counter() - begin < 5

  def test_parquet(self, tmp_path, capsys):
    import pyarrow
    import pyarrow.parquet

    from launch import teach

    path, values = tmp_path / "table.parquet", pyarrow.array(np.zeros(2**20))
    pyarrow.parquet.write_table(pyarrow.table({f"c{i}": values for i in range(140)}), path)
    assert path.stat().st_size < SMALL
    assert teach.main(["teach", f"--dataset={path}", f"--out={tmp_path / 'out'}"]) == 2
    assert f"--dataset={path}: its table takes {8 * 140 * 2**20} bytes" in capsys.readouterr().err


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
  """A policy in a file: header and arrays."""
  learner, pool = last.learners.softmax(2, 2, learning_rate=0.1), data.half_moons(0, per_class=5).train
  problem = last.Problem(learner, pool, target=learner.init(jax.random.key(0)))
  students = jax.vmap(learner.init)(jax.random.split(jax.random.key(1), 3))
  path = tmp_path_factory.mktemp("policy") / "policy.npz"
  from last_jax.teachers.policy import make_policy

  last.save_policy(path, make_policy(jax.random.key(2), problem, students, hidden=(4,)))
  return io.read(path)[0], io.read_arrays(path)


def nested(depth):
  output = {"kind": "simplex", "fields": {"prior": "leaf"}}
  for _ in range(depth):
    output = {"kind": "residue", "fields": {"alpha": "leaf", "of": output}}
  return output


class TestPolicies:
  @pytest.mark.parametrize(
    "static",
    [
      {"hidden": [1] * 400},
      {"hidden": [1] * 99},
      {"hidden": [10**30]},
      {"hidden": [2.5]},
      {"hidden": [True]},
      {"hidden": 5},
      {"num_outputs": 10**12},
      {"num_outputs": "2"},
      {"features": ["x"] * 1000},
      {"features": [["x"]]},
      {"features": [{}]},
      {"output": nested(200)},
      {"output": nested(1)},
      {"output": {"kind": [], "fields": {}}},
      {"module": 3},
    ],
  )
  @pytest.mark.slow
  def test_a_forged_architecture_is_named_at_once(self, tmp_path, policy, static):
    facts, arrays = policy
    text = json.dumps(facts | {"static": facts["static"] | static}).encode()
    io.save_npz(tmp_path / "policy.npz", **arrays | {"__header__": np.frombuffer(text, np.uint8)})
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"policy\.npz does not hold a Policy"):
      policy_file.load_policy(tmp_path / "policy.npz")
    assert time.perf_counter() - begin < 5  # 99 layers are traced; 400 are not.

  def test_no_policy_is_made_that_could_not_be_read(self):
    learner, pool = last.learners.softmax(2, 2, learning_rate=0.1), data.half_moons(0, per_class=5).train
    with pytest.raises(ValueError, match="hidden must hold at most 100 widths, but it holds 101"):
      last.train_unrolled(
        jax.random.key(0), learner, pool, target=learner.init(jax.random.key(0)), hidden=(1,) * 101, episodes=1
      )


class TestLessons:
  @pytest.mark.parametrize("num_outputs", [10**18, 10**9, -1, 0, 2.0, "9", None, [9]])
  def test_forged_numbers_of_outputs(self, tmp_path, num_outputs):
    learner, pool = last.learners.softmax(2, 9, learning_rate=0.1), last.Pool(np.eye(2)[[0, 1] * 9], np.arange(18) % 9)
    lessons = last.Lesson(np.zeros((4, 1), int), np.eye(9, dtype=np.float32)[np.zeros((4, 1), int)])
    path = tmp_path / "lessons.npz"
    last.save(path, last.Curriculum(last.Problem(learner, pool), lessons))
    arrays = io.read_arrays(path)
    assert "label_class" in arrays  # Few classes, which are filled up to all of them.
    facts = json.loads(arrays.pop("__header__").tobytes())
    facts["static"]["num_outputs"] = num_outputs
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    io.save_npz(path, __header__=text, **arrays)
    tracemalloc.start()
    read_or_refuse(last.load, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < SMALL


class TestJson:
  @pytest.mark.parametrize(
    ("content", "message"),
    [
      (b"[" * 200_000, "too deep a nesting"),
      (b'{"a":' * 200_000, "too deep a nesting"),
      (b"9" * 5000, "no JSON"),
      (b"\xff\xfe{", "no JSON"),
      (b" " * (files.MOST_JSON + 1), "more than 16777216 bytes of JSON"),
    ],
  )
  def test_it_is_bounded_and_named(self, tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json has {message}"):
      io.read_json(tmp_path / "a.json")
    io.save_npz(tmp_path / "tree.npz", __header__=np.frombuffer(content, np.uint8))
    with pytest.raises(ValueError, match=r"tree\.npz was not written by last_jax\.save, or is damaged"):
      io.load(tmp_path / "tree.npz")

  def test_names_that_are_not_utf_8_come_back(self, tmp_path):
    name = os.fsdecode(b"caf\xe9 \xff") + " é 😀 \\ud83d"
    write_json(tmp_path / "a.json", {name: [name]})
    assert io.read_json(tmp_path / "a.json") == {name: [name]}
    (tmp_path / "a.json").read_bytes().decode()


class TestOnlyRegularFiles:
  READERS = (io.read_arrays, io.load, data.load_npz, data.load_csv, read_idx, io.read_json, last.load_policy)

  @pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
  def test_fifos_devices_and_sockets(self, tmp_path, read):
    """A FIFO without a writer would block for ever, and /dev/zero never ends."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
      listener.bind(str(tmp_path / "socket"))
      for path, kind in ((tmp_path / "fifo", "a FIFO"), ("/dev/zero", "a device"), ("/dev/null", "a device")):
        with pytest.raises(ValueError, match=f"{path} must be a regular file, but it is {kind}"):
          read(path)
      with pytest.raises(OSError, match="socket"):
        read(tmp_path / "socket")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
      read(tmp_path)

  def test_none_is_replaced_by_a_file(self, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="fifo must be a regular file, but it is a FIFO"):
      io.save_npz(tmp_path / "fifo", x=np.zeros(3))
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]
