"""Examples from tables of other libraries, names of classes, and results as tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import last_jax as last
from tests.compilations import counted

KEY = jax.random.key(0)
SPECIES = ["setosa", "versicolor", "virginica"]
FRAME = pandas.DataFrame(
  {
    "length": [5.1, 4.9, 6.3, 5.8, 7.1],
    "species": ["virginica", "setosa", "versicolor", "setosa", "virginica"],
    "count": [1, 2, 3, 4, 6],
    "old": [True, False, True, True, False],
  }
)


def some_pool(classes=None):
  x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
  return last.Pool(x, np.arange(12) % 3, classes=classes)


def taught(keys=KEY, **settings):
  learner, pool = last.learners.softmax(3, 3, learning_rate=0.1), some_pool(SPECIES)
  teach = last.teach_many if keys.ndim else last.teach
  return teach(keys, learner, last.teachers.sgd(), pool, target=learner.init(jax.random.key(1)), **settings)


class TestClasses:
  def test_names_become_ids_in_alphabetical_order(self):
    pool = last.Pool(np.eye(4), ["b", "a", "c", "a"])
    np.testing.assert_array_equal(pool.y, [1, 0, 2, 0])
    assert pool.y.dtype == jnp.int32
    assert pool.classes == ("a", "b", "c")
    assert repr(pool) == "Pool(x=float32[4, 4], y=int32[4], classes=a, b, c)"

  @pytest.mark.parametrize("y", [np.array(["b", "a"]), np.array(["b", "a"], object), ("b", "a")])
  def test_given_names_keep_their_order(self, y):
    pool = last.Pool(np.eye(2), y, classes=["c", "b", "a"])
    np.testing.assert_array_equal(pool.y, [1, 2])
    assert pool.classes == ("c", "b", "a")

  def test_names_of_ids_and_of_label_vectors(self):
    assert last.Pool(np.eye(2), [1, 0], classes=("no", "yes")).classes == ("no", "yes")
    assert last.Pool(np.eye(2), np.eye(2), classes=("no", "yes")).classes == ("no", "yes")
    assert last.Pool(np.eye(2), [[0.2], [0.7]], classes=("no", "yes")).classes == ("no", "yes")
    assert last.Pool(np.eye(2), [1, 0]).classes is None

  @pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
      (["a", "d"], ["a", "b"], "'d', which is none of the classes a, b"),
      ([0, 2], ["a", "b"], "2 names, of the ids from 0 to 1, but y has ids from 0 to 2"),
      ([-1, 0], ["a", "b"], "from -1 to 0"),
      ([0.5, 0.0], ["a", "b"], "classes must be names of class ids"),
      (np.ones((2, 3)), ["a", "b"], "there are 2"),
      ([0, 1], ["a", "a"], "each once"),
      ([0, 1], "ab", "different names"),
      ([0, 1], [3, 5], "different names"),
    ],
  )
  def test_names_that_do_not_fit(self, y, classes, message):
    with pytest.raises(ValueError, match=message):
      last.Pool(np.eye(2), y, classes=classes)

  def test_names_do_not_compile_again_and_do_not_stray(self):
    double = jax.jit(lambda pool: jax.tree.map(lambda leaf: 2 * leaf, pool))
    first = double(some_pool(SPECIES))
    with counted() as programs:
      second, third = double(some_pool(["a", "b", "c"])), double(some_pool())
    assert not programs.names
    assert first.classes is second.classes is third.classes is None
    copy = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), some_pool(SPECIES))
    assert copy.classes == tuple(SPECIES)
    assert jax.tree.structure(copy) == jax.tree.structure(some_pool())

  def test_the_test_pool_has_the_same_classes(self):
    learner = last.learners.softmax(2, 3, learning_rate=0.1)
    pool, x = last.Pool(np.eye(3, 2), ["a", "b", "c"]), np.eye(2)
    with pytest.raises(ValueError, match=r"test must have the classes of the pool.*classes=pool\.classes"):
      last.Problem(learner, pool, test=last.Pool(x, ["a", "c"]))
    problem = last.Problem(learner, pool, test=last.Pool(x, ["a", "c"], classes=pool.classes))
    np.testing.assert_array_equal(problem.test_truth, np.eye(3)[[0, 2]])
    assert problem.pool.classes == problem.without_target().pool.classes == ("a", "b", "c")


class TestFromFrame:
  def test_features_and_label_by_name(self):
    pool = last.Pool.from_frame(FRAME, label="species")
    np.testing.assert_allclose(pool.x, FRAME[["length", "count", "old"]].to_numpy(float), rtol=1e-6)
    assert [pool.classes[i] for i in np.asarray(pool.y)] == list(FRAME["species"])
    pool = last.Pool.from_frame(FRAME, label="count", features=["length"])
    np.testing.assert_array_equal(pool.y, FRAME["count"])
    assert pool.x.shape == (5, 1)
    assert pool.classes is None
    assert last.Pool.from_frame(FRAME, label="length", features=["old"]).y.dtype == jnp.float32

  def test_float64_is_kept(self, x64):
    pool = last.Pool.from_frame(FRAME, label="species")
    np.testing.assert_array_equal(pool.x[:, 0], FRAME["length"])

  def test_categories_keep_their_order(self):
    order = ["virginica", "setosa", "versicolor", "lost"]
    frame = FRAME.assign(species=pandas.Categorical(FRAME["species"], order))
    pool = last.Pool.from_frame(frame, label="species", features=["count"])
    np.testing.assert_array_equal(pool.y, [0, 1, 2, 1, 0])
    assert pool.classes == tuple(order)

  def test_columns_of_numbers_that_may_be_missing(self):
    frame = FRAME.assign(count=FRAME["count"].astype("Int64"), length=FRAME["length"].astype("Float64"))
    pool = last.Pool.from_frame(frame, label="count", features=["length"])
    np.testing.assert_array_equal(pool.y, FRAME["count"])
    np.testing.assert_allclose(pool.x[:, 0], FRAME["length"], rtol=1e-6)

  @pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
      ({}, {"label": "kind"}, "label: there is no column 'kind', only length, species, count, old"),
      ({}, {"label": "count", "features": ["size"]}, "features: there is no column 'size'"),
      ({}, {"label": "count", "features": ["count"]}, "features must not hold the label column 'count'"),
      ({}, {"label": "count", "features": []}, "at least one column"),
      ({"length": [1.0, 2.0, np.nan, np.nan, 3.0]}, {"label": "species"}, "column 'length'.*2 values.*first in row 2"),
      ({"species": ["a", None, "b", "c", "d"]}, {"label": "species"}, "column 'species'.*1 values.*first in row 1"),
    ],
  )
  def test_errors_name_the_column(self, change, arguments, message):
    with pytest.raises(ValueError, match=message):
      last.Pool.from_frame(FRAME.assign(**change), **arguments)

  def test_errors_of_types(self):
    with pytest.raises(TypeError, match="column 'species' must hold numbers, but it holds 'virginica'"):
      last.Pool.from_frame(FRAME, label="count")
    with pytest.raises(TypeError, match="column 'species' must hold numbers"):
      last.Pool.from_frame(FRAME.assign(species=FRAME["species"].astype("category")), label="count")
    with pytest.raises(TypeError, match=r"write \['length'\]"):
      last.Pool.from_frame(FRAME, label="count", features="length")
    with pytest.raises(TypeError, match="frame must be a data frame"):
      last.Pool.from_frame(np.eye(3), label=0)
    with pytest.raises(ValueError, match="two columns 'length'"):
      last.Pool.from_frame(FRAME[["length", "length", "count"]], label="count")


class TestFromBunch:
  @pytest.mark.parametrize("as_frame", [False, True])
  def test_sets_of_scikit_learn(self, as_frame):
    datasets = pytest.importorskip("sklearn.datasets")
    iris, diabetes = datasets.load_iris(as_frame=as_frame), datasets.load_diabetes(as_frame=as_frame)
    pool = last.Pool.from_bunch(iris)
    np.testing.assert_allclose(pool.x, np.asarray(iris.data), rtol=1e-6)
    np.testing.assert_array_equal(pool.y, np.asarray(iris.target))
    assert pool.classes == tuple(SPECIES)
    pool = last.Pool.from_bunch(diabetes)
    assert pool.y.dtype == jnp.float32
    assert pool.classes is None

  def test_names_that_are_numbers_and_names_of_columns(self):
    utils = pytest.importorskip("sklearn.utils")
    digits = utils.Bunch(data=np.eye(3), target=np.arange(3), target_names=np.arange(3) + 7)
    assert last.Pool.from_bunch(digits).classes == ("7", "8", "9")
    species = pandas.Series(["b", "a", "b"], dtype="category")
    openml = utils.Bunch(data=FRAME[["length", "count"]][:3], target=species, target_names=["class"])
    assert last.Pool.from_bunch(openml).classes == ("a", "b")

  def test_errors(self):
    sparse, utils = pytest.importorskip("scipy.sparse"), pytest.importorskip("sklearn.utils")
    with pytest.raises(TypeError, match="toarray"):
      last.Pool.from_bunch(utils.Bunch(data=sparse.eye(3).tocsr(), target=np.arange(3)))
    with pytest.raises(TypeError, match="ndarray has no target"):
      last.Pool.from_bunch(np.eye(3))


class TestFromTorch:
  def test_a_tensor_dataset_and_a_part_of_it(self):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(12.0).reshape(6, 2).requires_grad_(), torch.tensor([0, 1, 1, 0, 1, 0])
    dataset = torch.utils.data.TensorDataset(x, y)
    pool = last.Pool.from_torch(dataset)
    np.testing.assert_array_equal(pool.x, np.arange(12.0).reshape(6, 2))
    np.testing.assert_array_equal(pool.y, [0, 1, 1, 0, 1, 0])
    part = last.Pool.from_torch(torch.utils.data.Subset(dataset, [4, 0]))
    np.testing.assert_array_equal(part.x, pool.x[np.array([4, 0])])
    np.testing.assert_array_equal(part.y, [1, 0])

  def test_a_dataset_with_names(self):
    class Images:
      classes = ("cat", "dog")

      def __len__(self):
        return 3

      def __getitem__(self, place):
        return np.full((2, 2), place + 1.0), place % 2

    pool = last.Pool.from_torch(Images())
    assert pool.x.shape == (3, 2, 2)
    assert pool.classes == ("cat", "dog")

  def test_errors(self):
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"pairs \(x, y\)"):
      last.Pool.from_torch(torch.utils.data.TensorDataset(torch.ones(3, 2)))
    with pytest.raises(ValueError, match=r"pairs \(x, y\)"):
      last.Pool.from_torch([torch.ones(2)])
    with pytest.raises(TypeError, match="data set of torch, but it is a int"):
      last.Pool.from_torch(3)


class TestToFrame:
  @pytest.mark.slow
  def test_one_student(self):
    result = taught(steps=4, record_every=2)
    frame = result.to_frame()
    assert list(frame.columns) == ["step", "metric", "value"]
    wide = frame.pivot(index="step", columns="metric", values="value")
    np.testing.assert_array_equal(wide.index, [0, 2, 4])
    assert list(wide.columns) == ["distance", "objective"]
    np.testing.assert_array_equal(wide["distance"], result.distance)
    np.testing.assert_array_equal(wide["objective"], result.objective)

  def test_many_students_and_probes(self):
    keys = jax.random.split(KEY, 3)
    result = taught(
      keys, steps=4, metrics="distance", probe=lambda w: {"norm": jnp.sum(w["bias"] ** 2), "b": w["bias"]}
    )
    frame = result.to_frame()
    assert list(frame.columns) == ["student", "step", "metric", "value"]
    assert set(frame["metric"]) == {"distance", "probe/norm", "probe/b[0]", "probe/b[1]", "probe/b[2]"}
    wide = frame.pivot(index="student", columns=["metric", "step"], values="value")
    np.testing.assert_array_equal(wide["distance"], result.distance)
    np.testing.assert_array_equal(wide["probe/b[1]"], result.probe["b"][:, :, 1])

  def test_lessons_have_names_of_classes(self):
    result = taught(jax.random.split(KEY, 2), steps=3, batch_size=2, lessons=True)
    frame = result.lessons.to_frame(SPECIES)
    assert list(frame.columns) == ["student", "step", "place", "example", "class", "label"]
    assert len(frame) == 2 * 3 * 2 * 3
    for row in frame.itertuples(index=False):
      lesson = row.student, row.step, row.place
      assert row.example == result.lessons.index[lesson]
      assert row.label == result.lessons.label[lesson][SPECIES.index(row[4])]
    one = jax.tree.map(lambda leaf: leaf[0], result.lessons).to_frame()
    assert list(one.columns) == ["step", "place", "example", "class", "label"]
    assert set(one["class"]) == {0, 1, 2}

  def test_errors(self, monkeypatch):
    result = taught(steps=2, lessons=True)
    with pytest.raises(ValueError, match="classes must hold 3 names"):
      result.lessons.to_frame(["a", "b"])
    with pytest.raises(ValueError, match="taken apart"):
      jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], result.records).to_frame()
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="to_frame needs pandas"):
      result.to_frame()
