"""Handwritten digits: the subset shipped with the package, or the full MNIST from its original files."""

import importlib.resources
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from last_jax import fields
from last_jax.base import Dataset, Pool
from last_jax.checks import check_array, check_between, check_count, check_positive
from last_jax.data.idx import read_idx
from last_jax.io import read_arrays

SUBSET_NAME = "mnist_subset.npz"
ALL_DIGITS = tuple(range(10))


@fields.documented
class DigitImages(NamedTuple):
  """Scanned images and their digits.

  Attributes:
    images: `[n, 28, 28]` uint8, 0 for paper and 255 for ink.
    digits: `[n]` uint8, 0 to 9.
  """

  images: np.ndarray
  digits: np.ndarray


def mnist(
  digits: Sequence[int] = (3, 5),
  *,
  folder: str | os.PathLike[str] | None = None,
  num_features: int | None = 24,
  feature_scale: float = 1.0,
  feature_seed: int = 0,
  centred: bool = False,
  train_per_digit: int | None = None,
  seed: int = 0,
) -> Dataset:
  """Classification of some of the ten digits, by default of 24 random features of them.

  Args:
    digits: the digits to tell apart; digit `digits[k]` is class k.
    folder: folder with the four IDX files of MNIST, `.gz` or raw; None for the subset shipped with the package, which
      has 1,000 training and 200 test images of each digit.
    num_features: random features per image (see `random_features`); None for the images themselves.
    feature_scale: standard deviation of the entries of the feature matrix.
    feature_seed: seed of the feature matrix.
    centred: whether pixels are in [-1, 1], in place of [0, 1].
    train_per_digit: training images of each digit, chosen at random; None for all.
    seed: seed of that choice, which for each digit is independent of the other digits.

  Returns:
    Train and test pools in the order of the files, with x `[n, num_features]`, or `[n, 28, 28, 1]` with pixels in
    [0, 1] (or [-1, 1]), and class ids y `[n]`.
  """
  digits = _check_digits(digits, least=2)
  check_count("seed", seed, least=0)
  if num_features is not None:
    num_features = check_count("num_features", num_features)
    feature_scale = check_positive("feature_scale", feature_scale)
    feature_seed = check_count("feature_seed", feature_seed, least=0, most=None)
  train, test = mnist_images(digits, folder=folder)
  if train_per_digit is not None:
    check_count("train_per_digit", train_per_digit)
    chosen = stratified(train.digits, digits, train_per_digit, seed, name="train_per_digit")
    train = DigitImages(train.images[chosen], train.digits[chosen])

  class_of = np.zeros(len(ALL_DIGITS), np.int32)
  class_of[list(digits)] = np.arange(len(digits))
  names = [str(digit) for digit in digits]

  def pool(source: DigitImages) -> Pool:
    pixels = _unit_pixels(source.images)
    pixels = 2 * pixels - 1 if centred else pixels
    if num_features is None:
      return Pool(pixels[..., None], class_of[source.digits], classes=names)
    features = _project(pixels, num_features, feature_scale, feature_seed)
    return Pool(features, class_of[source.digits], classes=names)

  return Dataset(pool(train), pool(test))


def mnist_images(
  digits: Sequence[int] = ALL_DIGITS, *, folder: str | os.PathLike[str] | None = None
) -> tuple[DigitImages, DigitImages]:
  """Return the training and the test images of some digits, unchanged and in the order of the files.

  Args:
    digits: the digits wanted.
    folder: as for `mnist`.

  Returns:
    Train and test, each with images `[n, 28, 28]` (uint8) and digits `[n]` (uint8, 0 to 9).
  """
  digits = _check_digits(digits)
  train, test = _read_subset() if folder is None else _read_folder(pathlib.Path(folder))
  return _only(train, digits, "training"), _only(test, digits, "test")


def random_features(images: Any, num_features: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
  """Multiply flattened images by a random matrix with entries from N(0, scale^2).

  Args:
    images: `[n, ...]`; uint8 are pixels from 0 to 255 and are first scaled to [0, 1], floats are used unchanged.
    num_features: columns of the matrix.
    scale: standard deviation of its entries.
    seed: seed of the matrix: the same seed and sizes give the same matrix, up to the scale.

  Returns:
    Features `[n, num_features]`.
  """
  num_features = check_count("num_features", num_features)
  scale = check_positive("scale", scale)
  seed = check_count("seed", seed, least=0, most=None)
  pixels = _unit_pixels(images)
  if pixels.ndim < 2:
    raise ValueError(f"images must have shape [n, ...], but their shape is {pixels.shape}")
  return _project(pixels, num_features, scale, seed)


def _project(pixels: np.ndarray, num_features: int, scale: float, seed: int) -> np.ndarray:
  flat = pixels.reshape(len(pixels), -1)
  return flat @ (scale * np.random.default_rng(seed).standard_normal((flat.shape[1], num_features)))


def stratified(
  labels: np.ndarray, digits: Sequence[int], per_digit: int, seed: int, *, name: str = "per_digit"
) -> np.ndarray:
  """Return the positions in `labels [n]` of `per_digit` random examples of each digit, in ascending order.

  Errors call `per_digit` by `name`.
  """
  chosen = []
  for digit in digits:
    candidates = np.flatnonzero(labels == digit)
    if len(candidates) < per_digit:
      raise ValueError(
        f"{name} must be at most {len(candidates)}, the images there are of {digit}, but it is {per_digit}"
      )
    # One generator per digit: the choice must not depend on the other digits.
    chosen.append(np.random.default_rng([seed, digit]).choice(candidates, per_digit, replace=False))
  return np.sort(np.concatenate(chosen))


def _check_digits(digits: Sequence[int], least: int = 1) -> tuple[int, ...]:
  for digit in digits:
    check_count("each of digits", digit, least=0)
    check_between("each of digits", digit, 0, 9)
  checked = tuple(int(digit) for digit in digits)
  if len(checked) < least or len(set(checked)) < len(checked):
    raise ValueError(f"digits must hold at least {least} different digits, each once, but it is {digits!r}")
  return checked


def _unit_pixels(images: Any) -> np.ndarray:
  """Return pixels in float64, uint8 scaled to [0, 1]; `Pool` rounds them to JAX's own precision."""
  pixels = np.asarray(check_array("images", images))
  if not pixels.size:
    raise ValueError(f"images must hold at least one number, but their shape is {pixels.shape}")
  if pixels.dtype == np.uint8:
    return pixels / 255.0
  if not np.issubdtype(pixels.dtype, np.floating):
    raise TypeError(f"images must be uint8 or floats, but their dtype is {pixels.dtype}")
  return pixels.astype(np.float64)


def _only(source: DigitImages, digits: tuple[int, ...], name: str) -> DigitImages:
  """Return the examples of the given digits, in their order."""
  missing = sorted(set(digits) - set(source.digits.tolist()))
  if missing:
    raise ValueError(f"there are no {name} images of the digits {missing}")
  wanted = np.isin(source.digits, digits)
  return DigitImages(source.images[wanted], source.digits[wanted])


def _read_subset() -> tuple[DigitImages, DigitImages]:
  with importlib.resources.as_file(importlib.resources.files(__package__) / SUBSET_NAME) as path:
    arrays = read_arrays(path)
  return (
    DigitImages(arrays["train_images"], arrays["train_digits"]),
    DigitImages(arrays["test_images"], arrays["test_digits"]),
  )


def _read_folder(folder: pathlib.Path) -> tuple[DigitImages, DigitImages]:
  return _read_pair(folder, "train"), _read_pair(folder, "t10k")


def _read_pair(folder: pathlib.Path, prefix: str) -> DigitImages:
  """Read and check one pair of IDX files, images and labels."""
  images_path = _find(folder, f"{prefix}-images-idx3-ubyte")
  labels_path = _find(folder, f"{prefix}-labels-idx1-ubyte")
  images, labels = read_idx(images_path), read_idx(labels_path)
  if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
    raise ValueError(f"{images_path} must hold uint8 [n, 28, 28], but holds {images.dtype} {list(images.shape)}")
  if labels.dtype != np.uint8 or labels.ndim != 1:
    raise ValueError(f"{labels_path} must hold uint8 [n], but holds {labels.dtype} {list(labels.shape)}")
  if len(images) != len(labels):
    raise ValueError(f"{images_path} holds {len(images)} images, but {labels_path} holds {len(labels)} labels")
  if labels.max(initial=0) > 9:
    raise ValueError(f"{labels_path} must hold digits from 0 to 9, but holds a {labels.max()}")
  return DigitImages(images, labels)


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
  # Raw before compressed: it is faster to read.
  for candidate in (folder / name, folder / f"{name}.gz"):
    if candidate.is_file():
      return candidate
  raise FileNotFoundError(f"folder {folder} must hold {name} or {name}.gz, but has neither")
