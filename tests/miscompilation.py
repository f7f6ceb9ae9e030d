"""Reproduction, in pure JAX, of an XLA miscompilation that `last_jax.fitting` works around. Not a test of ours.

  python tests/miscompilation.py [COMPILATIONS]

Compiles one program again and again, and counts the compilations that return NaN. The program is the softmax of a
matrix product with zeros, which is finite whatever the inputs. With the zeros as a constant of the program some
compilations return NaN, each of them in every run, although the optimized HLO is the same text; with the zeros as an
argument none does.

Measured with jaxlib 0.10.2 on an x86 CPU, 300 compilations each: 24 return NaN with the constant, 0 with the argument,
0 with the constant and XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT. Without
that flag, XLA hands the product, the maximum over each row and the subtraction to YNNPACK as one fusion
(`__ynn_fusion`) with the constant broadcast inside it; with it, only the product. Other constants and float32 show the
same; 100 examples instead of 1,797 do not (0 of 80).
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

EXAMPLES, FEATURES, CLASSES = 1797, 64, 10


def with_constant(x):
  return jax.nn.softmax(x @ jnp.zeros((FEATURES, CLASSES)))


def with_argument(x, zeros):
  return jax.nn.softmax(x @ zeros)


def count_nan(function, arguments, compilations):
  """Number of compilations whose result is not finite. Raises if runs of one compiled program differ."""
  count = 0
  for _ in range(compilations):
    jax.clear_caches()
    compiled = jax.jit(lambda *arguments: function(*arguments)).lower(*arguments).compile()
    finite = {bool(np.isfinite(compiled(*arguments)).all()) for _ in range(3)}
    if len(finite) > 1:
      raise AssertionError("the runs of one compiled program differ: the fault is not in the compilation")
    count += not finite.pop()
  return count


def main(compilations):
  x = jnp.asarray(np.random.default_rng(0).uniform(size=(EXAMPLES, FEATURES)))
  zeros = jnp.zeros((FEATURES, CLASSES))
  print(f"jaxlib {jax.lib.__version__}, {jax.default_backend()}, {compilations} compilations each")
  print(f"zeros as a constant: {count_nan(with_constant, (x,), compilations)} return NaN")
  print(f"zeros as an argument: {count_nan(with_argument, (x, zeros), compilations)} return NaN")


if __name__ == "__main__":
  main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
