"""A student in NumPy, of a linear model, that learns from a lesson file:  python examples/numpy_student.py FILE"""

import json
import sys

import numpy as np

GRADIENTS = {  # Of the losses in the outputs z, with labels y: told["loss"]["gradient"].
  "squared_error": lambda z, y: z - y,
  "sigmoid_cross_entropy": lambda z, y: 1 / (1 + np.exp(-z)) - y,
  "softmax_cross_entropy": lambda z, y: y.sum(1, keepdims=True) * np.exp(z) / np.exp(z).sum(1, keepdims=True) - y,
}
file = dict(np.load(sys.argv[1]))
told = json.loads(file["__header__"].tobytes())["static"]
index, rule, reached = file["index"], told["optimizer"], {}
one_hot = np.eye(told["num_outputs"], dtype="f")  # Labels of few classes are stored as these and their numbers.
label = file["label"] if "label" in file else (file["label_value"][..., None] * one_hot[file["label_class"]]).sum(-2)
label = label if told["order"] == "as listed" else label[index]  # Those that stay are one for each example.

for source, labels in {"lessons": label, "true labels": file["truth"][index]}.items():
  w = reached[source] = {name: file[f"init/{name}"].astype(float) for name in told["model"]["parameters"]}
  v = dict.fromkeys(w, 0.0)
  for x, y, rate in zip(file["x"][index], labels, file["learning_rate"], strict=True):
    u = GRADIENTS[told["loss"]["name"]](x @ w["weights"] + w.get("bias", 0.0), y) / len(x)
    gradient = {"weights": x.T @ u, "bias": u.sum(0)}
    for k in w:
      g = gradient[k] + rule["weight_decay"] * w[k] * (k in rule["decayed"])
      v[k] = rule["momentum"] * v[k] + g
      w[k] -= rate * (g + rule["momentum"] * v[k] if rule["nesterov"] else v[k])
  final, target = (sum(np.sum((w[k] - file[f"{to}/{k}"]) ** 2) for k in w) ** 0.5 for to in ("final", "target"))
  print(f"{source}: {final:.1e} from where the lessons lead, {target:.5f} from w*")
