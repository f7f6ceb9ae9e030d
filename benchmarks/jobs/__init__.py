"""All jobs, by name. A new job goes into the JOBS of its module; a new module is added here."""

from benchmarks.harness import Job
from benchmarks.jobs import (
  calls,
  mlp,
  networks,
  plain,
  processes,
  selection,
  sweeps,
  teaching,
  training,
  training_sweeps,
)

JOBS: dict[str, Job] = {
  job.name: job
  for module in (teaching, calls, mlp, networks, selection, training, sweeps, training_sweeps, processes, plain)
  for job in module.JOBS
}
