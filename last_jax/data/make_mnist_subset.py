"""Make the subset of MNIST that is shipped with the package, from the four original IDX files.

  python -m last_jax.data.make_mnist_subset --folder=IDX_FOLDER --out=FILE

The same files give the same bytes every time (with the same zlib: another may compress the same arrays differently).
"""

import argparse
import os
from collections.abc import Sequence

from last_jax.data.mnist import ALL_DIGITS, DigitImages, mnist_images, stratified
from last_jax.io import save_npz

TRAIN_PER_DIGIT = 1000
TEST_PER_DIGIT = 200
SEED = 0


def make_subset(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
  """Write the subset: images `[n, 28, 28]` and digits `[n]` for train and test, uint8, in the order of the files.

  Args:
    folder: folder with the four IDX files.
    out: npz file to write.
  """
  train, test = mnist_images(folder=folder)
  train, test = _choose(train, TRAIN_PER_DIGIT), _choose(test, TEST_PER_DIGIT)
  save_npz(out, train_images=train.images, train_digits=train.digits, test_images=test.images, test_digits=test.digits)


def _choose(source: DigitImages, per_digit: int) -> DigitImages:
  chosen = stratified(source.digits, ALL_DIGITS, per_digit, SEED)
  return DigitImages(source.images[chosen], source.digits[chosen])


def main(arguments: Sequence[str] | None = None) -> None:
  """Run the command."""
  parser = argparse.ArgumentParser(description="Make the subset of MNIST that is shipped with last_jax.")
  parser.add_argument("--folder", required=True, help="folder with the four IDX files of MNIST, .gz or raw")
  parser.add_argument("--out", required=True, help="npz file to write")
  options = parser.parse_args(arguments)
  make_subset(options.folder, options.out)
  print(f"wrote {options.out}: {os.path.getsize(options.out)} bytes")


if __name__ == "__main__":
  main()
