"""The packaged digits against the original MNIST. Collected only where its files are available: see conftest.py."""

import hashlib
import pathlib
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest

from last_jax import data
from tests.data.samples import full_mnist

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUBSET = ROOT / "last_jax" / "data" / "mnist_subset.npz"


@pytest.fixture(scope="module")
def full():
  return data.mnist_images(folder=full_mnist())


def test_original_has_its_published_sizes(full):
  assert [len(source.digits) for source in full] == [60000, 10000]
  assert np.bincount(full[1].digits).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_the_packaged_digits_are_a_true_subset_of_the_original_in_its_order(full):
  for source, whole in zip(data.mnist_images(), full, strict=True):
    place = {(int(d), image.tobytes()): i for i, (image, d) in enumerate(zip(whole.images, whole.digits, strict=True))}
    places = [place[int(d), image.tobytes()] for image, d in zip(source.images, source.digits, strict=True)]
    assert np.all(np.diff(places) > 0)
    # Chosen from all of the file, not from its beginning.
    assert 0.45 < np.mean(places) / len(whole.digits) < 0.55


@pytest.mark.slow
def test_making_the_subset_again_gives_the_packaged_file(tmp_path):
  made = tmp_path / "again.npz"
  command = [sys.executable, "-m", "last_jax.data.make_mnist_subset", f"--folder={full_mnist()}", f"--out={made}"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  with zipfile.ZipFile(made) as ours, zipfile.ZipFile(SUBSET) as theirs:
    assert ours.namelist() == theirs.namelist()
    for name in ours.namelist():
      assert ours.read(name) == theirs.read(name)
  if "ng" not in zlib.ZLIB_RUNTIME_VERSION:  # zlib-ng compresses the same arrays into other bytes.
    assert hashlib.sha256(made.read_bytes()).digest() == hashlib.sha256(SUBSET.read_bytes()).digest()


def test_full_files_are_read_from_a_folder(full):
  train, test, *_ = data.mnist((3, 5), folder=full_mnist())
  assert [len(train), len(test)] == [np.isin(source.digits, (3, 5)).sum() for source in full] == [11552, 1902]
