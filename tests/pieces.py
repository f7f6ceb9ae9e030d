"""Teaching in one call and in pieces, compared bit by bit. test_pieces.py runs it in processes of their own.

python -m tests.pieces [--prepare] [--files] [--seven] [--batch_size=M] [--record_every=N] CASE...
"""

import argparse
import itertools
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last

# Few lengths, since each is a program of its own, and uneven: none divides the 16 steps between two renewals of tracked
# outputs. No single steps, also not between the records of every seventh: XLA inlines a loop of one iteration into the
# program around it, and may round it in another way.
STEPS = 37
THREE = (17, 3, 17)
SEVEN = (3, 5, 3, 13, 5, 3, 5)
STUDENTS = 3
FAR = 3e4

_DRAW = np.random.default_rng(0)
_X = _DRAW.normal(size=(50, 4)).astype(np.float32)
_CLASSES = np.arange(50) % 3
_NONE, _SIMPLEX, _BALL = last.constraints.none(), last.constraints.simplex(), last.constraints.magnitude(0.7)

_SETTINGS = {"learning_rate": 0.05, "weight_decay": 1e-3}
LEARNERS = {
  "least_squares": lambda: (last.learners.least_squares(4, **_SETTINGS), _X @ np.array([1, -2, 0.5, 0], np.float32)),
  "logistic": lambda: (last.learners.logistic(4, **_SETTINGS), (_X[:, 0] > 0).astype(int)),
  "softmax": lambda: (last.learners.softmax(4, 3, momentum=0.9, **_SETTINGS), _CLASSES),
  "mlp": lambda: (last.learners.mlp((4, 5, 3), activation="tanh", **_SETTINGS), _CLASSES),
}
TEACHERS = {
  "sgd": lambda problem: last.teachers.sgd(),
  "label_smoothing": lambda problem: last.teachers.label_smoothing(0.8),
  "self_training": lambda problem: last.teachers.self_training(),
  "distillation": lambda problem: last.teachers.distillation(
    jax.tree_util.Partial(problem.learner.apply, problem.target), 2.0
  ),
  "imt": lambda problem: last.teachers.imt(),
  "shortlist": lambda problem: last.teachers.imt(shortlist=6),
  "theorem_1": lambda problem: last.teachers.theorem_1(0.1),
  "theorem_2": lambda problem: last.teachers.theorem_2(),
  "theorem_3": lambda problem: last.teachers.theorem_3(0.5, hessian_size=20),
  "greedy": lambda problem: last.teachers.greedy(_SIMPLEX),
  "greedy_none": lambda problem: last.teachers.greedy(_NONE),
  "greedy_one_hot": lambda problem: last.teachers.greedy(last.constraints.one_hot()),
  "greedy_ball": lambda problem: last.teachers.greedy(_BALL),
  "mixed": lambda problem: last.teachers.mixed(_BALL),
  "joint": lambda problem: last.teachers.mixed(_NONE, joint=True),
  "planner": lambda problem: last.teachers.planner(2, _SIMPLEX),
  "policy": lambda problem: last.teachers.policy(_policy(problem)),
}


def _key():
  return jax.random.key(0)  # Not at the top: importing this file must not start JAX.


def _policy(problem):
  students = jax.vmap(problem.learner.init)(jax.random.split(_key(), 20))
  output = last.outputs.simplex() if problem.learner.loss.classification else last.outputs.free()
  return last.teachers.make_policy(_key(), problem, students, output=output, hidden=(8,))


def make_problem(kind):
  learner, y = LEARNERS[kind]()
  target = jax.tree.map(lambda leaf: leaf + 0.5, learner.init(jax.random.key(1)))
  return last.Problem(learner, last.Pool(_X, y), target=target, tolerance=0.1)


def states_of(problem, teacher):
  """Starts of one student and of many, near and far."""
  shapes = jax.eval_shape(problem.learner.init, _key())
  draw = np.random.default_rng(1)
  for many, far in itertools.product((False, True), (False, True)):
    lead = (STUDENTS,) if many else ()
    key = jax.random.split(_key(), STUDENTS) if many else _key()
    params = None
    if far:
      params = jax.tree.map(lambda leaf, lead=lead: _signs(draw, (*lead, *leaf.shape), leaf.dtype), shapes)
    yield f"{'many' if many else 'one'}, {'far' if far else 'near'}", last.init(key, problem, teacher, params)


def _signs(draw, shape, dtype):
  return jnp.asarray(FAR * draw.choice([-1, 1], size=shape), dtype)


def bits(tree):
  """All numbers of a tree, NaN included, as they are in memory."""

  def raw(leaf):
    leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return np.asarray(leaf).tobytes()

  return [raw(leaf) for leaf in jax.tree.leaves(tree)]


def run_in_pieces(state, problem, teacher, pieces, between=lambda state: state, **settings):
  """Run piece by piece; records of the pieces are concatenated along their own axis."""
  axis = state.key.ndim
  records = []
  for steps in pieces:
    state, record = last.run(state, problem, teacher, steps=steps, **settings)
    records.append(record)
    state = between(state)
  return state, jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *records)


def teach_in_one_call(start, problem, teacher, **settings):
  """The end of `teach`, and its records without that of the start."""
  teach = last.teach_many if start.key.ndim else last.teach
  result = teach(
    start.key,
    problem.learner,
    teacher,
    problem.pool,
    target=problem.target,
    tolerance=problem.tolerance,
    init=start.params,
    steps=STEPS,
    **settings,
  )
  records = result.records._asdict()
  rest = {name: records[name][..., 1:] for name in ("step", "distance", "objective", "diverged")}
  return result.state, result.records._replace(**rest)


def differences(kind, name, batch_size=1, record_every=1, cuts=(THREE,), between=lambda state: state):
  """Descriptions of all runs in pieces that are not, to the bit, `teach` in one call."""
  problem = make_problem(kind)
  teacher = TEACHERS[name](problem)
  settings = {"batch_size": batch_size, "record_every": record_every, "lessons": True}
  found = []
  for start_name, start in states_of(problem, teacher):
    whole, records = teach_in_one_call(start, problem, teacher, **settings)
    for pieces in cuts:
      state, record = run_in_pieces(start, problem, teacher, pieces, between, **settings)
      shown = (record.lessons, record.certificate), (records.lessons, records.certificate)
      case = f"{kind}/{name}, batch {batch_size}, {start_name}, record_every {record_every}, pieces {pieces}"
      if bits(state) != bits(whole):
        found.append(f"{case}: another state")
      elif bits(shown[0]) != bits(shown[1]):
        found.append(f"{case}: other lessons")
      elif record_every == 1 and bits(record) != bits(records):
        found.append(f"{case}: other records")
  return found


# Every teacher with one learner, and learners of other kinds with teachers that treat them differently.
CASES = [
  *(f"logistic/{name}" for name in TEACHERS),
  *(f"least_squares/{name}" for name in ("greedy_none", "imt", "joint")),
  *(f"softmax/{name}" for name in ("greedy", "greedy_none", "imt", "mixed")),
  *(f"mlp/{name}" for name in ("sgd", "greedy", "imt", "shortlist")),
]


def through_a_file(state):
  """Save a state and load it."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "state.npz"
    last.save(path, state)
    return last.load(path, like=state)


def main():
  """Print all differences of some cases."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--prepare", action="store_true", help="choose devices and compiler settings as commands do")
  parser.add_argument("--files", action="store_true", help="save and load the state between pieces")
  parser.add_argument("--seven", action="store_true", help="seven pieces in place of three")
  parser.add_argument("--batch_size", type=int, default=1)
  parser.add_argument("--record_every", type=int, default=1)
  parser.add_argument("cases", nargs="+")
  chosen = parser.parse_args()
  if chosen.prepare:
    last.devices.prepare("cpu")
  settings = {"batch_size": chosen.batch_size, "record_every": chosen.record_every}
  if chosen.files:
    settings["between"] = through_a_file
  if chosen.seven:
    settings["cuts"] = (SEVEN,)
  found = [line for case in chosen.cases for line in differences(*case.split("/"), **settings)]
  print(*found, sep="\n")
  return 1 if found else 0


if __name__ == "__main__":
  sys.exit(main())
