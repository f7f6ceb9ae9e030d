"""A student in scikit-learn that learns from a lesson file:  python examples/sklearn_student.py FILE

`partial_fit` follows lessons of one example, one output and no momentum exactly: with a sample weight s, a step is
w = (1 - eta0 alpha) w - eta0 s g, b = b - eta0 s g. SGDRegressor has our loss. SGDClassifier takes classes, where g is
p - class; a soft label y is class 1 with s = (y - p) / (1 - p) if y > p, and else class 0 with s = (p - y) / p.
"""

import json
import sys

import numpy as np
from sklearn.linear_model import SGDClassifier, SGDRegressor

file = dict(np.load(sys.argv[1]))
told = json.loads(file["__header__"].tobytes())["static"]
index, rule, reached = file["index"], told["optimizer"], {}
label = (
  file["label"] if told["order"] == "as listed" else file["label"][index]
)  # Those that stay are one for each example.
assert (told["batch_size"], told["num_outputs"], rule["momentum"]) == (1, 1, 0), "scikit-learn cannot follow these"
kind, loss, first = {
  "squared_error": (SGDRegressor, "squared_error", {}),
  "sigmoid_cross_entropy": (SGDClassifier, "log_loss", {"classes": [0, 1]}),
}[told["loss"]["name"]]

for source, labels in {"lessons": label, "true labels": file["truth"][index]}.items():
  model = kind(loss=loss, alpha=rule["weight_decay"], learning_rate="constant", eta0=1.0)
  model.partial_fit(0.0 * file["x"][:1], [0], **first)  # Makes coef_ and intercept_.
  model.coef_[...], model.intercept_[...] = file["init/weights"][:, 0], file["init/bias"]
  for x, y, rate in zip(file["x"][index], labels[:, :, 0], file["learning_rate"], strict=True):
    model.set_params(eta0=float(rate))
    if kind is SGDRegressor:
      model.partial_fit(x, y)
    else:
      p = model.predict_proba(x)[:, 1]
      model.partial_fit(x, y > p, sample_weight=np.where(y > p, (y - p) / (1 - p), (p - y) / p))
  w = reached[source] = {"weights": model.coef_.reshape(-1, 1), "bias": model.intercept_}
  final, target = (sum(np.sum((w[k] - file[f"{to}/{k}"]) ** 2) for k in w) ** 0.5 for to in ("final", "target"))
  print(f"{source}: {final:.1e} from where the lessons lead, {target:.5f} from w*")
