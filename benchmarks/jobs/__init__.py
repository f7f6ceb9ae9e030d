"""All jobs, by name. To add one, give its module's JOBS another entry; a new module's are added here."""

from benchmarks.jobs import mlp, processes, sweeps, teaching, training, training_sweeps
from benchmarks.jobs.base import Job, Settings

JOBS: dict[str, Job] = {
  job.name: job for module in (teaching, mlp, training, sweeps, training_sweeps, processes) for job in module.JOBS
}

__all__ = ["JOBS", "Job", "Settings"]
