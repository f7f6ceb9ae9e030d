"""Tables of names with a line each: what a command can be given, in the words of the docstrings."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import last_jax.data as data
from last_jax import constraints, learners, teachers


def first_sentence(function: Callable[..., Any]) -> str:
  """Return what the docstring of a function begins with, without references to its arguments."""
  text = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
  text = re.split(r"(?<=[^.])\. |;", text, maxsplit=1)[0]
  return text.replace("`", "").rstrip(".") + "."


LEARNERS: dict[str, str] = {
  "logistic": first_sentence(learners.logistic),
  "margin": "Logistic regression with labels -1 and +1, and any number between or beyond.",
  "softmax": first_sentence(learners.softmax),
  "least_squares": first_sentence(learners.least_squares),
  "mlp": first_sentence(learners.mlp),
}

# The forms in which --constraint is given. In all of them words in capitals stand for something else.
CONSTRAINTS: dict[str, str] = {
  "none": first_sentence(constraints.none),
  "one_hot": first_sentence(constraints.one_hot),
  "simplex": "Soft labels: mixtures of the class labels.",
  "simplex:RADIUS": "Those of them within RADIUS of the truth.",
  "simplex:max_nonzero=K": "Those of them with at most K classes in a label.",
  "magnitude:RADIUS": "Labels within RADIUS of the truth.",
  "magnitude:RADIUS:P": "The same in the norm P: 1, 2 or inf.",
  "magnitude:RADIUS:P:AROUND": "The same; AROUND is truth, or prediction: of what the student says itself.",
}

TEACHERS: dict[str, str] = {
  name: first_sentence(getattr(teachers, name))
  for name in (
    "sgd", "imt", "greedy", "mixed", "planner", "label_smoothing", "distillation", "self_training", "policy"
  )
} | {"self_training_hard": "Labels of the class that the student itself predicts before the step."}  # fmt: skip

DATASETS: dict[str, str] = {
  name: first_sentence(getattr(data, name)) for name in ("half_moons", "gaussian", "regression", "mnist")
}

# Sets that come with scikit-learn: `sklearn.datasets.load_NAME`.
SKLEARN_SETS: dict[str, str] = {
  "iris": "150 flowers of 3 species, 4 measurements.",
  "wine": "178 wines of 3 growers, 13 measurements.",
  "digits": "1,797 handwritten digits, 8 x 8 pixels.",
  "breast_cancer": "569 tumours, malignant or benign, 30 measurements.",
  "diabetes": "442 patients, 10 measurements; the label is a number, the progress of the disease.",
}

FILES: dict[str, str] = {
  "FILE.csv": "A table with a row for each example; --label names the column of labels.",
  "FILE.parquet": "The same as a parquet file.",
  "FILE.npz": "Arrays x and y, and optionally x_test, y_test, classes, target, init.",
}


def listing(tables: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
  """Return lines of text: each table with its title, and a line for each name."""
  width = max(len(name) for table in tables.values() for name in table)
  lines: list[str] = []
  for title, table in tables.items():
    lines += [title, *(f"  {name:<{width}}  {text}" for name, text in table.items()), ""]
  return lines[:-1]
