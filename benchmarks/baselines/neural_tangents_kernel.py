"""The kernel of a network by neural_tangents: a script for an environment of its own, which has an older JAX.

    python neural_tangents_kernel.py CASE.npz KERNEL.npy TIMES

The case holds x [n, d] and, for each layer i, weights_i and bias_i; layers are joined by ReLU. After every line of the
standard input the kernel [n, K, n, K] is computed TIMES times, and "done" printed; the line "save" writes it, too.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np


def main(case: str, result: str, times: str) -> None:
  """Follow the lines on the standard input."""
  arrays = np.load(case)
  x = jnp.asarray(arrays["x"])
  count = sum(name.startswith("weights_") for name in arrays)
  params = [(jnp.asarray(arrays[f"weights_{i}"]), jnp.asarray(arrays[f"bias_{i}"])) for i in range(count)]

  def apply(params: Any, x: Any) -> Any:
    for weights, bias in params[:-1]:
      x = jax.nn.relu(x @ weights + bias)
    return x @ params[-1][0] + params[-1][1]

  kernel = nt.empirical_ntk_fn(
    apply, trace_axes=(), vmap_axes=0, implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES
  )
  compiled = jax.jit(lambda x, params: kernel(x, None, params))
  for line in sys.stdin:
    for _ in range(int(times)):
      value = jax.block_until_ready(compiled(x, params))  # [n, n, K, K]
    if line.strip() == "save":
      np.save(result, np.transpose(value, (0, 2, 1, 3)))
    print("done", flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
