"""One of the processes of `jobs/processes.py` or `jobs/plain.py`: teaches its share of the students on command."""

import json
import os
import sys

import jax
import numpy as np

import last_jax as last
from benchmarks import cases, ours
from benchmarks.cases import STRATEGIES


def main(file: str, sizes: str, seed: str, core: str, address: str, count: str, place: str) -> None:
  """Set up on one core, and then follow the commands on the standard input.

  Args:
    file: for the results.
    sizes: of the case, as JSON.
    seed: likewise.
    core: the core to run on; "all" for a process in which nothing is prepared.
    address: HOST:PORT of the first process.
    count: number of processes.
    place: the number of this process, from 0.
  """
  if core != "all":
    if hasattr(os, "sched_setaffinity"):
      os.sched_setaffinity(0, {int(core)})
    several = (address, int(count), int(place)) if int(count) > 1 else ()
    last.devices.prepare("cpu", 1, *several)
  teach = ours.teach(cases.draw_linear(int(seed), **json.loads(sizes)), ours.make_teacher(STRATEGIES["greedy"]))
  for line in sys.stdin:
    result = jax.block_until_ready(teach())
    if line.strip() == "save":
      distance = last.devices.gather(result.distance)
      if last.devices.is_first():
        np.save(file, distance)
    print("done", flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
