"""A student in NumPy that knows nothing but a lesson file: the oracle of the tests of curricula."""

import json

import numpy as np

GRADIENTS = {
  "squared_error": lambda z, y: z - y,
  "sigmoid_cross_entropy": lambda z, y: 1 / (1 + np.exp(-z)) - y,
  "softmax_cross_entropy": lambda z, y: y.sum(1, keepdims=True) * softmax(z) - y,
  "margin_logistic": lambda z, y: -y / (1 + np.exp(y * z)),
}


def softmax(z):
  shares = np.exp(z - z.max(1, keepdims=True))
  return shares / shares.sum(1, keepdims=True)


def read(path):
  """Return the arrays of a file and its facts."""
  with np.load(path, allow_pickle=False) as archive:
    arrays = dict(archive)
  return arrays, json.loads(arrays["__header__"].tobytes())["static"]


def labels_of(arrays, facts, teacher=""):
  """Return the labels of each step, `[..., steps, m, K]`."""
  before = f"{teacher}/" if teacher else ""
  if f"{before}label" in arrays:
    label = arrays[f"{before}label"]
  else:
    values = arrays[f"{before}label_value"]
    label = np.zeros((*values.shape[:-1], facts["num_outputs"]), values.dtype)
    np.put_along_axis(label, arrays[f"{before}label_class"], values, -1)
  return label[arrays[f"{before}index"]] if facts["labels"] == "one for each example of the pool" else label


def follow(path, x=None, student=(), teacher=""):
  """Return where a linear student ends that follows the lessons, weights and bias, in float64."""
  arrays, facts = read(path)
  x = arrays["x"] if x is None else np.asarray(x)
  before = f"{teacher}/" if teacher else ""
  params = {name: arrays[f"init/{name}"][student].astype(float) for name in facts["model"]["parameters"]}
  index, label = arrays[f"{before}index"][student], labels_of(arrays, facts, teacher)[student]
  optimizer = facts["optimizer"]
  velocity = dict.fromkeys(params, 0.0)
  for rows, y, rate in zip(index, label, arrays["learning_rate"], strict=True):
    outputs = x[rows] @ params["weights"] + params.get("bias", 0.0)
    u = GRADIENTS[facts["loss"]["name"]](outputs, y) / len(rows)
    for name, g in {"weights": x[rows].T @ u, "bias": u.sum(0)}.items():
      if name in params:
        g = g + optimizer["weight_decay"] * params[name] * (name in optimizer["decayed"])
        velocity[name] = optimizer["momentum"] * velocity[name] + g
        params[name] = params[name] - rate * (
          g + optimizer["momentum"] * velocity[name] if optimizer["nesterov"] else velocity[name]
        )
  return params
