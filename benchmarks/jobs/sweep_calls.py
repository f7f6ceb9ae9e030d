"""A sweep over rates and radii by one call of `last.sweep`, against one `teach_many` of as many students."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from benchmarks import cases, equality, harness
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT
from benchmarks.records import Measurement, Target

_TINY = {"students": 3, "steps": 5, "pool": 20, "features": 3}


@dataclasses.dataclass(frozen=True)
class SweepCallJob(Job):
  """Logistic students with greedy labels in a ball inside the simplex, at every rate and radius.

  Attributes:
    sizes: of the case; `students` is the number of seeds of a setting.
    rates: number of learning rates, up to the case's own.
    radii: of the ball. The case's own setting is the last of both.
    target: the aim, beside all students at the last setting.
  """

  sizes: Mapping[str, int]
  rates: int
  radii: tuple[float, ...]
  target: Target

  def measure(self, options: Options) -> list[Measurement]:
    """Time both calls as users write them, until results are on the host; every setting is checked first."""
    case = cases.draw_linear(options.seed, **(_TINY if options.tiny else self.sizes))
    rates = np.geomspace(case.learning_rate / 100, case.learning_rate, 2 if options.tiny else self.rates)
    seeds, settings = case.sizes["students"], len(rates) * len(self.radii)
    learners: dict[Any, last.learners.Learner] = {rate: _learner(case, rate) for rate in rates.tolist()}
    teachers: dict[Any, last.Teacher] = {
      radius: last.teachers.greedy(last.constraints.simplex(radius)) for radius in self.radii
    }
    keys = jax.random.split(jax.random.key(case.seed), seeds)
    pool = last.Pool(jnp.asarray(case.x), jnp.asarray(case.y))
    target, init = _on_device((case.target, case.init))
    given: dict[str, Any] = {"target": target, "steps": case.sizes["steps"], "metrics": ("distance",)}
    given["mesh"] = last.devices.mesh()
    many_keys, many_init = keys[jnp.arange(settings * seeds) % seeds], _repeat(init, settings)

    def sweep() -> last.Sweep:
      return last.sweep(keys, learners, teachers, pool, init=init, **given)

    def one_call() -> last.Result:
      learner, teacher = list(learners.values())[-1], list(teachers.values())[-1]
      return last.devices.gather(last.teach_many(many_keys, learner, teacher, pool, init=many_init, **given))

    def check() -> dict[str, float]:
      swept = sweep()
      differences = [
        equality.check_equal(
          {"distance": swept[rate, radius].distance},
          {"distance": last.teach_many(keys, learners[rate], teachers[radius], pool, init=init, **given).distance},
          equality.FLOAT32,
        )
        for rate, radius in swept.results
      ]
      last_of_all = {"distance": np.asarray(swept.distance)[-1, -1]}
      expected = {"distance": np.asarray(one_call().distance)[-seeds:]}
      differences.append(equality.check_equal(last_of_all, expected, equality.FLOAT32))
      return {"distance": max(each["distance"] for each in differences)}

    units = case.work * settings
    mine = harness.Side("last_jax", sweep, units=units)
    other = harness.Side("teach_many", one_call, check, units)
    case, sizes = case.with_sizes(students=settings * seeds), {"rates": len(rates), "radii": len(self.radii)}
    baseline = harness.Baseline("one teach_many", [other], self.target)
    return [harness.measure(options, self, case, UNIT, mine, [baseline], sizes=sizes | {"seeds": seeds})]


def _learner(case: cases.Case, rate: float) -> last.learners.Learner:
  return last.learners.logistic(case.x.shape[1], learning_rate=rate, weight_decay=case.weight_decay)


def _on_device(tree: Any) -> Any:
  return jax.tree.map(jnp.asarray, tree)


def _repeat(tree: Any, times: int) -> Any:
  return jax.tree.map(lambda leaf: jnp.tile(leaf, (times,) + (1,) * (leaf.ndim - 1)), tree)


JOBS: tuple[Job, ...] = (
  SweepCallJob(
    "sweep_call",
    "20 rates x 3 radii x 50 seeds by one call of `sweep`, logistic, greedy labels, distance at every step",
    {"students": 50, "steps": 1000},
    rates=20,
    radii=(0.1, 0.3, 1.0),
    target=Target(1.1, slower=True),
  ),
)
