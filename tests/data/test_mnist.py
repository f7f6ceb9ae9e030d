"""The packaged digits, IDX files as those of MNIST, and random features."""

import gzip
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from last_jax import data
from last_jax.data import make_mnist_subset
from tests.data.samples import MNIST_FILES, mnist_arrays, write_mnist

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUBSET = ROOT / "last_jax" / "data" / "mnist_subset.npz"


@pytest.fixture(scope="module")
def enough(tmp_path_factory):
  """A folder of IDX files with enough images of each digit to make the packaged subset from, and its arrays."""
  arrays = mnist_arrays(train=10_300, test=2_100)
  return write_mnist(tmp_path_factory.mktemp("mnist") / "idx", arrays), arrays


@pytest.fixture(scope="module")
def shipped():
  return data.mnist_images()


class TestFolder:
  def test_raw_and_compressed_are_equal(self, tmp_path):
    arrays = mnist_arrays()
    for compress in (False, True):
      folder = write_mnist(tmp_path / str(compress), arrays, compress)
      train, test = data.mnist_images(folder=folder)
      for found, name in zip((*train, *test), MNIST_FILES, strict=True):
        np.testing.assert_array_equal(found, arrays[name])

  def test_a_mixture_of_raw_and_compressed_will_do(self, tmp_path):
    folder = write_mnist(tmp_path, mnist_arrays(), compress=True)
    (folder / MNIST_FILES[1]).write_bytes(gzip.decompress((folder / f"{MNIST_FILES[1]}.gz").read_bytes()))
    (folder / f"{MNIST_FILES[1]}.gz").unlink()
    assert len(data.mnist_images(folder=str(folder))[0].images) == 20

  @pytest.mark.parametrize("name", MNIST_FILES)
  def test_missing_file_is_named(self, tmp_path, name):
    folder = write_mnist(tmp_path, mnist_arrays(), compress=False)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"must hold {name} or {name}\.gz"):
      data.mnist(folder=folder)

  def test_missing_folder_is_named(self, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
      data.mnist(folder=tmp_path / "nowhere")

  @pytest.mark.parametrize(
    ("name", "array", "message"),
    [
      (
        MNIST_FILES[0],
        np.zeros((20, 27, 28), np.uint8),
        r"must hold uint8 \[n, 28, 28\], but holds uint8 \[20, 27, 28\]",
      ),
      (MNIST_FILES[0], np.zeros((20, 28, 28), np.int8), r"must hold uint8 \[n, 28, 28\], but holds int8"),
      (MNIST_FILES[0], np.zeros((20, 784), np.uint8), r"must hold uint8 \[n, 28, 28\], but holds uint8 \[20, 784\]"),
      (MNIST_FILES[1], np.zeros((20, 1), np.uint8), r"must hold uint8 \[n\], but holds uint8 \[20, 1\]"),
      (MNIST_FILES[1], np.zeros(20, np.int32), r"must hold uint8 \[n\], but holds int32"),
      (MNIST_FILES[3], np.zeros(9, np.uint8), "holds 10 images, but .* holds 9 labels"),
      (MNIST_FILES[1], np.full(20, 10, np.uint8), "must hold digits from 0 to 9, but holds a 10"),
      (MNIST_FILES[3], np.full(10, 3, np.uint8), r"there are no test images of the digits \[5\]"),
    ],
  )
  def test_files_that_are_not_mnist_are_refused(self, tmp_path, name, array, message):
    folder = write_mnist(tmp_path, {**mnist_arrays(), name: array}, compress=False)
    with pytest.raises(ValueError, match=message):
      data.mnist(folder=folder)


class TestSubset:
  def test_has_the_promised_images(self, shipped):
    for source, per_digit in zip(shipped, (1000, 200), strict=True):
      assert source.images.shape == (10 * per_digit, 28, 28)
      assert source.images.dtype == source.digits.dtype == np.uint8
      assert np.bincount(source.digits).tolist() == [per_digit] * 10

  def test_no_image_occurs_twice(self, shipped):
    images = [image.tobytes() for source in shipped for image in source.images]
    assert len(set(images)) == len(images) == 12000

  def test_is_small_and_has_no_pickle(self):
    assert SUBSET.stat().st_size < 2_200_000
    with np.load(SUBSET, allow_pickle=False) as archive:
      assert sorted(archive) == ["test_digits", "test_images", "train_digits", "train_images"]
      assert all(archive[name].dtype == np.uint8 for name in archive)

  def test_making_one_gives_a_true_subset_in_the_order_of_the_files(self, enough, tmp_path, capsys):
    folder, arrays = enough
    made = [tmp_path / name for name in ("once.npz", "twice.npz")]
    for path in made:
      make_mnist_subset.main([f"--folder={folder}", f"--out={path}"])
      assert str(path) in capsys.readouterr().out
    assert made[0].read_bytes() == made[1].read_bytes()
    with np.load(made[0], allow_pickle=False) as archive:
      for part, per_digit, names in (("train", 1000, MNIST_FILES[:2]), ("test", 200, MNIST_FILES[2:])):
        images, digits = archive[f"{part}_images"], archive[f"{part}_digits"]
        assert np.bincount(digits).tolist() == [per_digit] * 10
        place = {image.tobytes(): i for i, image in enumerate(arrays[names[0]])}
        places = [place[image.tobytes()] for image in images]
        np.testing.assert_array_equal(digits, arrays[names[1]][places])
        assert np.all(np.diff(places) > 0)
        # Chosen from all of the file, not from its beginning.
        assert 0.48 < np.mean(places) / len(arrays[names[1]]) < 0.52

  def test_too_small_a_source_is_refused(self, tmp_path):
    folder = write_mnist(tmp_path, mnist_arrays(), compress=False)
    with pytest.raises(ValueError, match="per_digit must be at most 2, the images there are of 0, but it is 1000"):
      make_mnist_subset.make_subset(folder, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()

  def test_attribution_goes_with_it(self):
    text = (SUBSET.parent / "MNIST_ATTRIBUTION.md").read_text(encoding="utf-8")
    for words in ("LeCun", "Cortes", "CC BY-SA 3.0", "make_mnist_subset"):
      assert words in text


class TestMnist:
  def test_default_is_24_features_of_threes_and_fives(self, shipped):
    train, test, target, init = data.mnist()
    assert train.x.shape == (2000, 24)
    assert test.x.shape == (400, 24)
    assert target is None
    assert init is None
    for pool, source in zip((train, test), shipped, strict=True):
      chosen = np.isin(source.digits, (3, 5))
      np.testing.assert_array_equal(pool.y, source.digits[chosen] == 5)
      matrix = np.random.default_rng(0).standard_normal((784, 24))
      expected = source.images[chosen].reshape(-1, 784) / 255 @ matrix
      np.testing.assert_allclose(pool.x, expected, rtol=1e-4, atol=1e-4)

  def test_classes_follow_the_order_of_the_digits(self):
    one, other = data.mnist((3, 5)).train, data.mnist((5, 3)).train
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, 1 - np.asarray(other.y))
    assert jnp.issubdtype(one.y.dtype, jnp.integer)
    train = data.mnist((9, 0, 4), train_per_digit=5).train
    assert np.bincount(train.y).tolist() == [5, 5, 5]

  def test_images_have_unit_pixels_and_one_channel(self, shipped):
    pool = data.mnist((0, 1), num_features=None).test
    assert pool.x.shape == (400, 28, 28, 1)
    assert (float(pool.x.min()), float(pool.x.max())) == (0.0, 1.0)
    chosen = np.isin(shipped[1].digits, (0, 1))
    np.testing.assert_array_equal(np.round(np.asarray(pool.x[..., 0]) * 255), shipped[1].images[chosen])

  def test_train_per_digit_is_a_stratified_random_subset(self):
    whole = data.mnist((3, 5)).train
    place = {row.tobytes(): i for i, row in enumerate(np.asarray(whole.x))}
    chosen = {}
    for seed in (0, 1):
      small = data.mnist((3, 5), train_per_digit=100, seed=seed)
      assert np.bincount(small.train.y).tolist() == [100, 100]
      assert len(small.test) == 400
      chosen[seed] = [place[row.tobytes()] for row in np.asarray(small.train.x)]
      assert len(set(chosen[seed])) == 200
      np.testing.assert_array_equal(small.train.y, np.asarray(whole.y)[chosen[seed]])
      assert 0.4 < np.mean(chosen[seed]) / len(whole) < 0.6
    assert len(set(chosen[0]) & set(chosen[1])) < 60  # By chance about 20.
    again = data.mnist((3, 5), train_per_digit=100, seed=1).train
    assert [place[row.tobytes()] for row in np.asarray(again.x)] == chosen[1]

  def test_choice_of_a_digit_does_not_depend_on_the_others(self):
    threes = [
      {row.tobytes() for row, y in zip(np.asarray(pool.x), pool.y, strict=True) if y == digits.index(3)}
      for digits in ((3, 5), (8, 3))
      for pool in [data.mnist(digits, train_per_digit=20).train]
    ]
    assert threes[0] == threes[1]

  def test_files_of_a_folder_take_the_place_of_the_subset(self, tmp_path):
    arrays = mnist_arrays(train=60, test=30)
    train, test, *_ = data.mnist((3, 5), folder=write_mnist(tmp_path / "idx", arrays), num_features=None)
    for pool, (images, digits) in zip((train, test), (MNIST_FILES[:2], MNIST_FILES[2:]), strict=True):
      chosen = np.isin(arrays[digits], (3, 5))
      np.testing.assert_array_equal(pool.y, arrays[digits][chosen] == 5)
      np.testing.assert_array_equal(np.round(np.asarray(pool.x[..., 0]) * 255), arrays[images][chosen])

  def test_digits_are_told_apart_by_their_features(self):
    # A least squares classifier, as a check that images and labels belong together.
    train, test, *_ = data.mnist()
    x, y = np.asarray(train.x, float), 2.0 * np.asarray(train.y) - 1
    weights = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
    scores = np.column_stack([np.asarray(test.x, float), np.ones(len(test))]) @ weights
    assert np.mean((scores > 0) == np.asarray(test.y)) > 0.8

  @pytest.mark.parametrize(
    ("arguments", "message"),
    [
      ({"digits": (3,)}, "digits must hold at least 2 different digits"),
      ({"digits": ()}, "digits must hold at least 2 different digits"),
      ({"digits": (3, 3)}, "digits must hold at least 2 different digits, each once"),
      ({"digits": (3, 10)}, "digits must lie between 0 and 9, but it is 10"),
      ({"digits": (-1, 3)}, "digits must be a whole number of at least 0, but it is -1"),
      ({"digits": (3, 5.5)}, "digits must be a whole number"),
      ({"num_features": 0}, "num_features must be a whole number of at least 1"),
      ({"feature_scale": 0.0}, "feature_scale must be a positive number, but it is 0"),
      ({"feature_scale": -1.0}, "feature_scale must be a positive number"),
      ({"feature_scale": float("nan")}, "feature_scale must be a positive number"),
      ({"feature_seed": -1}, "feature_seed must be a whole number of at least 0"),
      ({"train_per_digit": 0}, "train_per_digit must be a whole number of at least 1"),
      ({"train_per_digit": 1001}, "train_per_digit must be at most 1000, the images there are of 3, but it is 1001"),
      ({"seed": -1}, "seed must be a whole number of at least 0"),
    ],
  )
  def test_bad_argument_is_named(self, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
      data.mnist(**arguments)

  def test_images_of_one_digit(self, shipped):
    train, test = data.mnist_images((7,))
    assert set(train.digits) == set(test.digits) == {7}
    np.testing.assert_array_equal(test.images, shipped[1].images[shipped[1].digits == 7])


class TestRandomFeatures:
  def test_matrix_has_independent_normal_entries_of_the_scale(self):
    matrix = data.random_features(np.eye(784), 64, 0.3, 5)
    np.testing.assert_allclose(matrix.std(), 0.3, rtol=0.02)
    np.testing.assert_allclose(matrix.mean(), 0, atol=0.01)
    np.testing.assert_allclose(np.mean(matrix**4) / np.mean(matrix**2) ** 2, 3, rtol=0.05)
    np.testing.assert_allclose(matrix.T @ matrix / 784, 0.09 * np.eye(64), atol=0.02)

  def test_matrix_is_fixed_by_the_seed_and_scales(self):
    one = data.random_features(np.eye(6), 3, 1.0, 1)
    np.testing.assert_array_equal(one, data.random_features(np.eye(6), 3, 1.0, 1))
    np.testing.assert_allclose(data.random_features(np.eye(6), 3, 0.1, 1), 0.1 * one, rtol=1e-12)
    assert not np.isclose(one, data.random_features(np.eye(6), 3, 1.0, 2)).any()

  def test_bytes_are_pixels_and_floats_are_taken_as_they_are(self):
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    before = images.copy()
    features = data.random_features(images, 2)
    assert features.shape == (5, 2)
    np.testing.assert_allclose(features, data.random_features(images / 255, 2), rtol=1e-12)
    np.testing.assert_allclose(255 * features, data.random_features(images.astype(float), 2), rtol=1e-12)
    np.testing.assert_array_equal(images, before)

  def test_other_images_are_refused(self):
    with pytest.raises(TypeError, match="images must be uint8 or floats, but their dtype is int64"):
      data.random_features(np.ones((2, 3), np.int64), 2)
    with pytest.raises(ValueError, match=r"images must have shape \[n, ...\], but their shape is \(3,\)"):
      data.random_features(np.ones(3), 2)


def test_centred_pixels_are_between_minus_one_and_one(shipped):
  """With the same projections, features differ by the sum of each column: (2 p - 1) A = 2 p A - 1 A."""
  plain, centred = (data.mnist((3, 5), centred=value) for value in (False, True))
  np.testing.assert_array_equal(plain.train.y, centred.train.y)
  shift = 2 * np.asarray(plain.train.x) - np.asarray(centred.train.x)
  np.testing.assert_allclose(shift, np.broadcast_to(shift[:1], shift.shape), atol=1e-3)
  assert np.abs(shift[0]).max() > 1
