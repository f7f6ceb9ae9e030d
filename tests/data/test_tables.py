"""Tables in csv files, held-out examples, and inputs of equal scale."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data

PLANTS = "length,width,species\n5.1,3,setosa\n6.3,2.5,virginica\n\n4.9,3,setosa\n"


def write(folder, text, encoding="utf-8"):
  (folder / "plants.csv").write_bytes(text.encode(encoding))
  return folder / "plants.csv"


class TestLoadCsv:
  @pytest.mark.parametrize("delimiter", [",", ";", "\t", ", "])
  @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
  def test_the_last_column_is_the_label(self, tmp_path, delimiter, encoding):
    pool = data.load_csv(write(tmp_path, PLANTS.replace(",", delimiter).replace("\n", "\r\n"), encoding))
    np.testing.assert_array_equal(pool.x, np.array([[5.1, 3], [6.3, 2.5], [4.9, 3]], np.float32))
    np.testing.assert_array_equal(pool.y, [0, 1, 0])
    assert pool.classes == ("setosa", "virginica")

  def test_columns_by_name(self, tmp_path):
    path = write(tmp_path, PLANTS)
    pool = data.load_csv(path, label="width", features=["length"])
    assert pool.y.dtype == jnp.float32
    np.testing.assert_array_equal(pool.y, [3, 2.5, 3])
    assert pool.x.shape == (3, 1)
    ids = data.load_csv(write(tmp_path, 'a,"b, c"\n1.5,2\n-1e3,0\n'), label="b, c")
    np.testing.assert_array_equal(ids.y, [2, 0])
    assert jnp.issubdtype(ids.y.dtype, jnp.integer)

  def test_without_names(self, tmp_path):
    path = write(tmp_path, "5.1,setosa,3\n4.9,virginica,2\n")
    np.testing.assert_array_equal(data.load_csv(path, label="2").x, np.array([[5.1, 3], [4.9, 2]], np.float32))

  def test_what_another_program_writes(self, tmp_path, x64):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(50, 3)), draw.normal(size=50)
    with open(tmp_path / "a.csv", "w", newline="") as stream:
      csv.writer(stream).writerows([["a", "b", "c", "y"], *np.column_stack([x, y]).tolist()])
    pool = data.load_csv(tmp_path / "a.csv")
    np.testing.assert_array_equal(pool.x, x)
    np.testing.assert_array_equal(pool.y, y)

  @pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
      (PLANTS, {"label": "kind"}, "label: there is no column 'kind', only length, width, species"),
      (PLANTS, {"label": "width"}, "column 'species' must hold numbers, but it holds 'setosa'"),
      ("a,b\n1,2\n3\n", {}, "line 3: there are 1 values, but 2 columns"),
      ("a,b\n1,2\n,3\n", {}, "line 3: column 'a' is empty"),
      ("a,b\n1,2\n\n,\n", {}, "line 4: column 'a' is empty"),
      ("a,b\n1,2\n2,3\n?,3\n", {}, r"line 4: column 'a' holds '\?' among numbers"),
      ("a,a\n1,2\n", {}, "two columns 'a'"),
      ("a,b\n", {}, "no examples"),
      ("", {}, "is empty"),
      ("a,b\n1,nan\n", {"label": "a"}, "column 'b' must be complete"),
    ],
  )
  def test_errors_name_the_file_and_the_place(self, tmp_path, text, arguments, message):
    with pytest.raises(ValueError, match=rf"plants\.csv.*{message}"):
      data.load_csv(write(tmp_path, text), **arguments)

  def test_files_that_are_no_text(self, tmp_path):
    with pytest.raises(ValueError, match=r"plants\.csv is not a csv file"):
      data.load_csv(write(tmp_path, "é,b\n1,2\n", "latin-1"))
    with pytest.raises(FileNotFoundError):
      data.load_csv(tmp_path / "absent.csv")


def some_pool(n=20):
  x = np.random.default_rng(0).normal(3.0, 10.0, (n, 3))
  x[:, 1] = 0.1
  return last.Pool(x, np.arange(n) % 2, classes=["no", "yes"])


class TestSplit:
  @pytest.mark.parametrize(("share", "size"), [(0.25, 5), (0.0, 1), (0.5, 10), (1.0, 19)])
  def test_each_example_is_on_one_side(self, share, size):
    pool = some_pool()
    dataset = data.split(pool, share, seed=1)
    assert len(dataset.test) == size
    rows = [np.flatnonzero((np.asarray(pool.x)[:, None] == np.asarray(part.x)).all(2).any(1)) for part in dataset[:2]]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(20))
    for part, row in zip(dataset[:2], rows, strict=True):
      np.testing.assert_array_equal(part.x, pool.x[row])
      np.testing.assert_array_equal(part.y, pool.y[row])
      assert part.classes == ("no", "yes")

  def test_the_seed_decides(self):
    first, again, other = (data.split(some_pool(), 0.3, seed=seed).test for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x, again.x)
    assert (first.x != other.x).any()

  def test_errors(self):
    with pytest.raises(ValueError, match="share must lie between 0 and 1"):
      data.split(some_pool(), 1.5)
    with pytest.raises(ValueError, match="at least 2 examples"):
      data.split(some_pool(1), 0.5)


class TestStandardize:
  def test_moments_are_those_of_the_training_examples(self):
    dataset = data.split(some_pool(), 0.25)
    scaled = data.standardize(dataset)
    x = np.asarray(dataset.train.x, np.float64)
    for before, after in zip(dataset[:2], scaled[:2], strict=True):
      expected = (np.asarray(before.x, np.float64) - x.mean(0))[:, [0, 2]] / x.std(0)[[0, 2]]
      np.testing.assert_allclose(after.x[:, [0, 2]], expected, rtol=1e-5, atol=1e-6)
      np.testing.assert_array_equal(after.x[:, 1], 0)  # Constant, up to rounding.
      np.testing.assert_array_equal(after.y, before.y)
      assert after.classes == before.classes
      assert after.x.dtype == before.x.dtype

  def test_parameters_are_for_inputs_as_they_are(self):
    with pytest.raises(ValueError, match="no target"):
      data.standardize(last.Dataset(some_pool(), target=np.zeros(4)))
