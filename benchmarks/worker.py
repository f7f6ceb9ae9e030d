"""One of the processes of `jobs/processes.py`: teaches its share of the students when it is told to."""

import os
import sys

import jax
import numpy as np

import last_jax as last
from benchmarks import ours, problems
from benchmarks.problems import METHODS, Sizes


def main(file: str, *words: str) -> None:
  """Sets itself up on one core, and then obeys.

  Args:
    file: where to save results.
    words: the numbers of `Sizes`, the seed, the core, the first process's address, how many there are, and which it is.
  """
  *numbers, seed, core = map(int, words[:-3])
  address, (count, place) = words[-3], map(int, words[-2:])
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {core})
  several = (address, count, place) if count > 1 else ()
  last.devices.prepare("cpu", 1, *several)
  problem = problems.draw(Sizes(*numbers), seed)
  teach = ours.teach(problem, METHODS["greedy"])
  for line in sys.stdin:
    result = jax.block_until_ready(teach())
    if line.strip() == "save":
      distance = last.devices.gather(result.distance)
      if last.devices.is_first():
        np.save(file, distance)
    print("done", flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
