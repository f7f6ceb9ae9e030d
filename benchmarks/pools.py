"""Digits to compare teachers on."""

import numpy as np
from absl import app

import last_jax as last


def load(data: str, network: str, folder: str | None = None) -> tuple[last.Pool, last.Pool]:
  """Return examples to teach from and to test on, pixels in [0, 1]; for CNNs images, of MNIST with 14 x 14 pixels."""
  if data == "digits":
    from sklearn import datasets

    found = datasets.load_digits()
    x, y, train = (found.data / 16).astype(np.float32), found.target, 1297
  else:
    if folder is None:
      raise app.UsageError("--data=mnist needs --mnist_folder")
    images, classes = last.data.mnist_images(folder=folder)[0]
    x, y, train = np.asarray(images[:7000], np.float32).reshape(7000, -1), classes[:7000], 5000
    x = x / max(1.0, float(x.max()))
  order = np.random.default_rng(0).permutation(len(x))
  x, y = x[order], np.asarray(y, np.int32)[order]
  if network == "cnn":
    side = round(x.shape[1] ** 0.5)
    x = x.reshape(-1, side, side, 1)
    if data == "mnist":  # Labels of convolutions cost as their positions.
      x = x.reshape(-1, side // 2, 2, side // 2, 2, 1).mean((2, 4))
  return last.Pool(x[:train], y[:train]), last.Pool(x[train:], y[train:])
