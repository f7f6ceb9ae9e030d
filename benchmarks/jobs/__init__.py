"""All jobs, by name. A new job goes into the JOBS of its module; a new module is added here."""

from benchmarks.harness import Job
from benchmarks.jobs import (
  calls,
  kernels,
  mlp,
  networks,
  plain,
  processes,
  selection,
  solver,
  sweep_calls,
  sweeps,
  teaching,
  training,
  training_sweeps,
)

_MODULES = (
  teaching, calls, mlp, solver, networks, kernels, selection, training, sweeps, sweep_calls, training_sweeps, processes,
  plain,
)  # fmt: skip

JOBS: dict[str, Job] = {job.name: job for module in _MODULES for job in module.JOBS}
