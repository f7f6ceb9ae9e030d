"""Parameters from a file's arrays: the learner's own structure, or a message that says what it is."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax.data.params import params_from_arrays

LEARNER = last.learners.mlp((3, 4, 2), learning_rate=0.1)
SHAPES = jax.eval_shape(LEARNER.init, jax.random.key(0))


def arrays_of(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def test_flat_and_by_leaf_give_the_parameters_back():
  params = LEARNER.init(jax.random.key(1))
  for arrays in (np.asarray(ravel_pytree(params)[0]), arrays_of(params)):
    found = params_from_arrays(SHAPES, arrays, "target")
    assert jax.tree.structure(found) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_the_learner_decides_on_the_dtype():
  found = params_from_arrays(SHAPES, np.arange(26), "init")
  assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype("float32")}


def test_other_containers_than_dicts():
  template = (np.zeros(2), [np.zeros((1, 2))])
  found = params_from_arrays(template, {"1/0": np.array([[3.0, 4.0]]), "0": np.array([1.0, 2.0])}, "init")
  assert isinstance(found, tuple)
  np.testing.assert_array_equal(found[1][0], [[3.0, 4.0]])
  bare = params_from_arrays(np.zeros((2, 2)), np.arange(4.0), "init")
  np.testing.assert_array_equal(bare, [[0, 1], [2, 3]])


@pytest.mark.parametrize("flat", [np.zeros(25), np.zeros(27), np.zeros((26, 1)), np.zeros(())])
def test_flat_of_another_size(flat):
  with pytest.raises(ValueError, match=r"target has shape .* 26 numbers: .*layer_0/weights \[3, 4\]"):
    params_from_arrays(SHAPES, flat, "target")


def test_leaves_that_do_not_fit():
  arrays = arrays_of(LEARNER.init(jax.random.key(1)))
  with pytest.raises(ValueError, match=r"init lacks layer_0/bias: the learner's parameters are layer_0/bias \[4\]"):
    params_from_arrays(SHAPES, {key: value for key, value in arrays.items() if key != "layer_0/bias"}, "init")
  with pytest.raises(ValueError, match="init has the unknown layer_2/bias"):
    params_from_arrays(SHAPES, arrays | {"layer_2/bias": np.zeros(2)}, "init")
  with pytest.raises(ValueError, match=r"init/layer_1/weights has shape \[2, 4\]"):
    params_from_arrays(SHAPES, arrays | {"layer_1/weights": np.zeros((2, 4))}, "init")
