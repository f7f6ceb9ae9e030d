"""The IDX reader: what was written comes back, and every fault has its message."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from last_jax.data.idx import read_idx
from tests.data.samples import CODES, idx_bytes, read_or_refuse


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
  return tmp_path_factory.mktemp("idx")


ARRAYS = st.builds(
  lambda dtype, shape, seed: np.frombuffer(
    np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype
  ).reshape(shape),
  st.sampled_from(sorted(CODES)),
  st.lists(st.integers(1, 5), min_size=1, max_size=4),
  st.integers(0, 99),
)


class TestReadIdx:
  @settings(deadline=None)
  @given(array=ARRAYS, compress=st.booleans())
  def test_gives_back_what_was_written(self, scratch, array, compress):
    path = scratch / "whole"
    path.write_bytes(gzip.compress(idx_bytes(array)) if compress else idx_bytes(array))
    read = read_idx(path)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    assert read.flags.writeable
    assert read.shape == array.shape
    assert read.tobytes() == array.tobytes()

  @settings(deadline=None)
  @given(array=ARRAYS, compress=st.booleans(), drawn=st.data())
  def test_any_truncation_is_an_error(self, scratch, array, compress, drawn):
    content = gzip.compress(idx_bytes(array)) if compress else idx_bytes(array)
    path = scratch / "truncated"
    path.write_bytes(content[: drawn.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match="truncated") as caught:
      read_idx(path)
    assert str(path) in str(caught.value)

  @settings(deadline=None)
  @given(array=ARRAYS, compress=st.booleans(), tail=st.binary(min_size=1, max_size=20))
  def test_trailing_bytes_are_an_error(self, scratch, array, compress, tail):
    path = scratch / "trailing"
    content = idx_bytes(array) + tail
    path.write_bytes(gzip.compress(content) if compress else content)
    with pytest.raises(ValueError, match=r"trailing has trailing bytes: .* take"):
      read_idx(path)

  @settings(deadline=None, max_examples=300)
  @given(array=ARRAYS, drawn=st.data())
  def test_a_damaged_gzip_is_an_error_or_harmless(self, scratch, array, drawn):
    content = bytearray(gzip.compress(idx_bytes(array)))
    content[drawn.draw(st.integers(0, len(content) - 1))] ^= drawn.draw(st.integers(1, 255))
    path = scratch / "damaged"
    path.write_bytes(content)
    read = read_or_refuse(read_idx, path)
    assert read is None or read.tobytes() == array.tobytes()

  @settings(deadline=None, max_examples=300)
  @given(content=st.binary(max_size=60), start=st.sampled_from([b"", b"\0\0", b"\0\0\x08\x01", b"\x1f\x8b\x08"]))
  def test_noise_is_never_anything_but_a_clear_error(self, scratch, content, start):
    path = scratch / "noise"
    path.write_bytes(start + content)
    read = read_or_refuse(read_idx, path)
    assert read is None or idx_bytes(read) == start + content

  @pytest.mark.parametrize(
    ("content", "message"),
    [
      (b"", "is truncated: an IDX header takes at least 4 bytes, but it holds 0"),
      (b"\0\1\x08\x01\0\0\0\0", "is not an IDX file: it must begin with two zero bytes"),
      (b"PK\x03\x04 and more", "is not an IDX file: it must begin with two zero bytes"),
      (b"\0\0\x0a\x01\0\0\0\1\0", "its dtype byte must be one of 0x08, .* but is 0x0A"),
      (b"\0\0\x08\x00\0", "must have 1 to 32 dimensions, but its header says 0"),
      (b"\0\0\x08\x21" + b"\0\0\0\1" * 33 + b"\0", "must have 1 to 32 dimensions, but its header says 33"),
      (b"\0\0\x08\x02\0\0\0\1", "ends within the sizes of its 2 dimensions"),
      (b"\0\0\x08\x01\0\0\0\2\7", r"is truncated: \[2\] numbers of 1 bytes take 2 bytes, but it holds 1"),
      (b"\0\0\x0b\x01\0\0\0\1\0\0\0", r"has trailing bytes: \[1\] numbers of 2 bytes take 2 bytes, but it holds 3"),
      (b"\0\0\x0e\x04" + b"\xff" * 16, "is truncated"),  # Sizes whose product does not fit in 64 bits.
      (b"\x1f\x8bbroken", "is truncated or damaged gzip"),
      # Without a time stamp: the workers of a parallel run must collect the same test.
      (gzip.compress(b"\0\0\x08\x01\0\0\0\1\7", mtime=0)[:-4], "is truncated or damaged gzip"),
    ],
  )
  def test_each_fault_has_its_message(self, tmp_path, content, message):
    path = tmp_path / "faulty"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"faulty.*{message}"):
      read_idx(path)

  def test_wrong_checksum_is_an_error(self, tmp_path):
    content = bytearray(gzip.compress(idx_bytes(np.arange(50, dtype=np.uint8))))
    content[-8] ^= 1
    path = tmp_path / "checksum"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="truncated or damaged gzip: CRC"):
      read_idx(path)

  def test_missing_file(self, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
      read_idx(tmp_path / "absent")
