"""The tangent kernel, against forming the Jacobian, and against neural_tangents.

neural_tangents has no release for the versions of JAX that this package needs. `--neural_tangents=PYTHON` names the
interpreter of an environment that has it, which then does its part:

    pip install neural-tangents jax==0.4.20 jaxlib==0.4.20 'tf2jax<0.3.6' 'numpy<2' 'scipy<1.13'
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from benchmarks import baselines, equality, harness, networks
from benchmarks.cases import Case
from benchmarks.equality import Tolerance
from benchmarks.harness import Job, Options
from benchmarks.networks import Network, fully_connected
from benchmarks.records import Measurement, Target
from benchmarks.workers import Workers, start

JACOBIAN = "jax.jacrev and a product"
NEURAL_TANGENTS = "neural_tangents, structured derivatives"
_KERNEL_TOLERANCES = {np.float32: Tolerance(1e-5), np.float64: Tolerance(1e-10)}


def _kernel_of_jacobian(apply_fn: Callable[..., Any], params: Any, x: Any) -> Any:
  rows = networks.flat_jacobian(apply_fn, params, x)
  return (rows @ rows.T).reshape(len(x), -1, len(x), len(rows) // len(x))


def _kernel_by_examples(apply_fn: Callable[..., Any], params: Any, x: Any) -> Any:
  """Return the same with the Jacobian of each example by itself, and products of each leaf."""
  jacobian = jax.vmap(lambda one: jax.jacrev(lambda params: apply_fn(params, one[None])[0])(params))(x)
  parts = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jacobian)]
  return sum(jnp.einsum("ikp,jlp->ikjl", part, part) for part in parts)


class _Repeated(harness.Program):
  """A program that is called several times: one call is too short for the clock, and the first finds cold caches."""

  times = 20

  def __call__(self) -> Any:
    """Return the last value."""
    for _ in range(self.times):
      value = jax.block_until_ready(super().__call__())
    return value


@dataclasses.dataclass(frozen=True)
class KernelJob(Job):
  """`last.tangent_kernel` against forming the Jacobian.

  Attributes:
    network: its outputs' kernel.
    examples: in the batch.
    tiny: the network of a tiny run, with 3 examples.
  """

  network: Network
  examples: int
  tiny: Network

  def measure(self, options: Options) -> list[Measurement]:
    """Time the kernel of all outputs of a batch with themselves."""
    network, examples = (self.tiny, 3) if options.tiny else (self.network, self.examples)
    case = networks.draw(options.seed, network, batch_size=examples, steps=1, pool=examples)
    ways = {JACOBIAN: _kernel_of_jacobian, f"{JACOBIAN}, by examples and leaves": _kernel_by_examples}

    def program(kernel: Callable[..., Any], dtype: Any = np.float32, kind: Any = harness.Program) -> harness.Program:
      own, learner = case.astype(dtype), network.make()
      return kind(functools.partial(kernel, learner.apply), own.target, jnp.asarray(own.x))

    def check(kernel: Callable[..., Any]) -> dict[str, float]:
      found: dict[str, float] = {}
      for dtype, tolerance in _KERNEL_TOLERANCES.items():
        name = f"kernel ({np.dtype(dtype)})"
        with jax.enable_x64(dtype is np.float64):
          ours, theirs = ({name: program(each, dtype)()} for each in (last.tangent_kernel, kernel))
          found |= equality.check_equal(ours, theirs, tolerance)
      return found

    sides = [harness.Side(name, program(kernel), functools.partial(check, kernel)) for name, kernel in ways.items()]
    mine = harness.Side("last.tangent_kernel", program(last.tangent_kernel, kind=_Repeated), units=_Repeated.times)
    others = [harness.Baseline(JACOBIAN, sides)]
    with contextlib.ExitStack() as open_:
      if options.neural_tangents is not None:
        folder = pathlib.Path(open_.enter_context(tempfile.TemporaryDirectory()))
        worker = open_.enter_context(_start(options.neural_tangents, case, folder))

        def check_theirs() -> dict[str, float]:
          found, theirs = {"kernel": program(last.tangent_kernel)()}, {"kernel": worker.result()}
          return equality.check_equal(found, theirs, _KERNEL_TOLERANCES[np.float32])

        side = harness.Side(NEURAL_TANGENTS, worker.work, check_theirs, _Repeated.times)
        others.append(harness.Baseline(NEURAL_TANGENTS, [side], Target(1.0)))
      return [harness.measure(options, self, case, "kernel", mine, others)]


def _start(python: str, case: Case, folder: pathlib.Path) -> contextlib.AbstractContextManager[Workers]:
  """Start the process of the other library, with the case in a file."""
  layers = [case.target[f"layer_{i}"] for i in range(len(case.target))]
  arrays = {f"{name}_{i}": layer[name] for i, layer in enumerate(layers) for name in ("weights", "bias")}
  np.savez(folder / "case.npz", x=case.x, **arrays)
  script = pathlib.Path(baselines.__file__).parent / "neural_tangents_kernel.py"
  command = [python, str(script), str(folder / "case.npz"), str(folder / "kernel.npy"), str(_Repeated.times)]
  # Its JAX may not know the flags that ours was started with.
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  return start([command], folder / "kernel.npy", environment)


JOBS: tuple[Job, ...] = (
  KernelJob(
    "tangent_kernel", "the tangent kernel of 784-128-10, 32 examples", fully_connected(784, 128, 10), 32,
    fully_connected(12, 6, 4),
  ),
)  # fmt: skip
