"""Sources of examples: synthetic sets, MNIST and npz and csv files, each as a `last_jax.base.Dataset`."""

from last_jax.data.files import load_npz
from last_jax.data.mnist import mnist, mnist_images, random_features
from last_jax.data.synthetic import gaussian, half_moons, regression
from last_jax.data.tables import load_csv, split, standardize
from last_jax.io import save_npz

__all__ = [
  "gaussian",
  "half_moons",
  "load_csv",
  "load_npz",
  "mnist",
  "mnist_images",
  "random_features",
  "regression",
  "save_npz",
  "split",
  "standardize",
]
