"""Objects from text: each form gives what the library's own functions give, anything else an error with the forms."""

import jax
import numpy as np
import pytest

import last_jax as last
from last_jax import constraints, outputs, rewards
from last_jax.tools import specs


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("none", constraints.none()),
    ("one_hot", constraints.one_hot()),
    ("simplex", constraints.simplex()),
    ("simplex:max_nonzero=3", constraints.simplex(max_nonzero=3)),
    ("simplex:0.5:inf", constraints.simplex(0.5, float("inf"))),
    ("magnitude:2", constraints.magnitude(2.0)),
    ("magnitude:2:1:prediction", constraints.magnitude(2.0, 1, "prediction")),
  ],
)
def test_constraints(text, expected):
  assert specs.constraint(text) == expected


@pytest.mark.parametrize(
  "text",
  ["sphere", "magnitude", "none:1", "simplex:", "magnitude:1:3", "magnitude:1:2:origin:0", "simplex:max_nonzero=0",
   "simplex:max_nonzero=2:1", "simplex:max_nonzero="],
)  # fmt: skip
def test_other_constraints_are_refused(text):
  with pytest.raises(ValueError, match=r"forms|number|p must|around"):
    specs.constraint(text)


@pytest.mark.parametrize(
  ("read", "text", "expected"),
  [
    (specs.output, "free", outputs.free()),
    (specs.output, "residue:0.25:free", outputs.residue(0.25, outputs.free())),
    (specs.output, "residue:0.25", outputs.residue(0.25)),
    (specs.reward, "loss", rewards.loss()),
    (specs.reward, "steps:0.9", rewards.steps(0.9)),
    (specs.actions, "binary", outputs.actions(outputs.BINARY)),
    (specs.actions, "mixtures:0.5,1", outputs.mixtures([0.5, 1.0])),
  ],
)
def test_settings_of_training(read, text, expected):
  found = read(text)
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  with pytest.raises(ValueError, match="forms"):
    read("nonsense")


@pytest.mark.parametrize(
  ("y", "name"),
  [
    (np.array([0, 1, 1]), "logistic"),
    (np.array([0, 1, 2]), "softmax"),
    (np.array([0.5, 1.0, 2.0]), "least_squares"),
  ],
)
def test_the_learner_fits_the_data(y, name):
  dataset = last.Dataset(last.Pool(np.eye(3), y))
  assert specs.default_learner(dataset.train) == name
  learner = specs.learner(name, dataset, learning_rate=0.1)
  assert learner.num_outputs(dataset.train.x) == (3 if name == "softmax" else 1)
  last.learners.check_learns_from(learner, dataset.train)
