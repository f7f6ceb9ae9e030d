"""Tests of the original MNIST are collected only where its files are available."""

from tests.data.samples import full_mnist

collect_ignore = [] if full_mnist() else ["test_full_mnist.py"]
