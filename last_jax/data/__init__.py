"""Where examples come from: synthetic sets, MNIST and npz files, each as a `last_jax.types.Dataset`."""

from last_jax.data.files import load_npz, save_npz
from last_jax.data.mnist import mnist, mnist_images, random_features
from last_jax.data.synthetic import gaussian, half_moons, regression

__all__ = [
  "gaussian",
  "half_moons",
  "load_npz",
  "mnist",
  "mnist_images",
  "random_features",
  "regression",
  "save_npz",
]
