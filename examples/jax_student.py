"""A student in plain JAX, linear or a network, that learns from a lesson file:  python examples/jax_student.py FILE"""

import json
import sys

import jax
import numpy as np

LOSSES = {  # Of outputs z [m, K] with labels y, summed: told["loss"]["formula"].
  "squared_error": lambda z, y: ((z - y) ** 2).sum() / 2,
  "sigmoid_cross_entropy": lambda z, y: (jax.nn.softplus(z) - y * z).sum(),
  "softmax_cross_entropy": lambda z, y: -(y * jax.nn.log_softmax(z)).sum(),
}
file = dict(np.load(sys.argv[1]))
told = json.loads(file["__header__"].tobytes())["static"]
index, rates, rule, reached = file["index"], file["learning_rate"], told["optimizer"], {}
one_hot = np.eye(told["num_outputs"], dtype="f")  # Labels of few classes are stored as these and their numbers.
label = file["label"] if "label" in file else (file["label_value"][..., None] * one_hot[file["label_class"]]).sum(-2)
label = label if told["order"] == "as listed" else label[index]  # Those that stay are one for each example.


def step(state, lesson):
  def loss(w, z):
    for i, layer in enumerate(told["model"]["layers"]):
      z = getattr(jax.nn, told["model"]["activation"])(z) if i else z
      z = z @ w[layer["weights"]] + (w[layer["bias"]][None] if layer["bias"] else 0.0)
    return LOSSES[told["loss"]["name"]](z, y) / len(z)

  (w, v), (x, y, rate), mu = state, lesson, rule["momentum"]
  g = {k: g + (k in rule["decayed"]) * rule["weight_decay"] * w[k] for k, g in jax.grad(loss)(w, x).items()}
  v = {k: mu * v[k] + g[k] for k in w}
  return ({k: w[k] - rate * (g[k] + mu * v[k] if rule["nesterov"] else v[k]) for k in w}, v), None


for source, labels in {"lessons": label, "true labels": file["truth"][index]}.items():
  w = {k: file[f"init/{k}"] for k in told["model"]["parameters"]}
  w = reached[source] = jax.lax.scan(step, (w, {k: 0 * w[k] for k in w}), (file["x"][index], labels, rates))[0][0]
  final, target = (sum(np.sum((w[k] - file[f"{to}/{k}"]) ** 2) for k in w) ** 0.5 for to in ("final", "target"))
  print(f"{source}: {final:.1e} from where the lessons lead, {target:.5f} from w*")
