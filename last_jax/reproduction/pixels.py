"""A learned teacher that sees the images, whose students see 24 features of them: a CNN that labels pixels."""

from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from last_jax import data, learners
from last_jax.base import Array, Params, Pool
from last_jax.problem import Problem
from last_jax.reproduction.config import Size
from last_jax.reproduction.problems import WEIGHT_DECAY

_FEATURES, _SIDE = 24, 14  # Of an example: features, then pixels.


class Cnn(nn.Module):
  """Labels p + gain (q - p): from the student's prediction p beyond that of a CNN, q. For two classes.

  The CNN adds the truth to what it finds in the image, as evidence for a class; at first there is the truth alone. It
  needs features as they are (`standardize=False`).
  """

  prior: float = 4.0  # The evidence of the truth, at first.

  @nn.compact
  def __call__(self, features: Mapping[str, Array]) -> Array:
    """`[m, 24 + 14 * 14]`, ... -> `[m, 2]`, what is added to the truth; its sum is 0."""
    truth, prediction = features["label"][:, :1], features["prediction"][:, :1]
    x = features["x"][:, _FEATURES:].reshape(-1, _SIDE, _SIDE, 1)
    for channels in (8, 16):
      # A convolution, as one product: those of many teachers at once, each with weights of its own, are slow on a CPU.
      x = nn.relu(nn.Dense(channels)(patches(x)))
    zeros = nn.initializers.zeros
    evidence = nn.Dense(1, kernel_init=zeros)(x.reshape(x.shape[0], -1))
    evidence += (self.prior + self.param("trust", zeros, ())) * (2 * truth - 1)
    gain = jnp.exp(self.param("gain", zeros, ()))
    shift = prediction - truth + gain * (nn.sigmoid(evidence) - prediction)
    return jnp.concatenate([shift, -shift], -1)


def patches(x: Array) -> Array:
  """Return the 3 × 3 pixels around every second one, beyond the edge zeros: `[m, s, s, c] -> [m, s/2, s/2, 9 c]`."""
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  end = 2 * ((x.shape[1] + 1) // 2) - 1
  found = [padded[:, i : i + end : 2, j : j + end : 2] for i in range(3) for j in range(3)]
  return jnp.concatenate(found, -1)


def with_pixels(problem: Problem, size: Size, learning_rate: float) -> Problem:
  """Return the problem of the same students with examples that hold pixels too, `[n, 24 + 14 * 14]`, for teachers.

  Args:
    problem: `problems.softmax_on_two_digits`.
    size: of the figure.
    learning_rate: of the problem.
  """
  images = data.mnist((3, 5), folder=size.mnist_folder, num_features=None, train_per_digit=size.pick(20, 500, 500))
  learner = learners.from_apply(
    problem.learner.init, apply_to_features, "softmax_cross_entropy", learning_rate=learning_rate,
    weight_decay=WEIGHT_DECAY,
  )  # fmt: skip
  assert images.test is not None
  assert problem.test is not None
  pool, test = _join(problem.pool, images.train), _join(problem.test, images.test)
  return Problem(learner, pool, target=problem.target, test=test)


def apply_to_features(params: Params, x: Array) -> Array:
  """Return the student's outputs, which do not depend on the pixels: `[m, 24 + 14 * 14] -> [m, 2]`."""
  return x[:, :_FEATURES] @ params["weights"]


def _join(features: Pool, images: Pool) -> Pool:
  assert np.array_equal(features.y, images.y), "the same images in the same order"
  pixels = np.asarray(images.x).reshape(-1, _SIDE, 2, _SIDE, 2).mean((2, 4)).reshape(len(images), -1)
  return Pool(np.concatenate([np.asarray(features.x), pixels], 1), features.y)
