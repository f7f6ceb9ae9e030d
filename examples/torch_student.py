"""A student in PyTorch, linear or a network, that learns from a lesson file:  python examples/torch_student.py FILE"""

import json
import sys

import numpy as np
import torch

LOSSES = {  # Of outputs z [m, K] with labels y, summed: told["loss"]["formula"].
  "squared_error": lambda z, y: ((z - y) ** 2).sum() / 2,
  "sigmoid_cross_entropy": lambda z, y: (torch.nn.functional.softplus(z) - y * z).sum(),
  "softmax_cross_entropy": lambda z, y: -(y * torch.log_softmax(z, 1)).sum(),  # Labels need not sum to one.
}
file = dict(np.load(sys.argv[1]))
told = json.loads(file["__header__"].tobytes())["static"]
index, rule, reached = file["index"], told["optimizer"], {}
one_hot = np.eye(told["num_outputs"], dtype="f")  # Labels of few classes are stored as these and their numbers.
label = file["label"] if "label" in file else (file["label_value"][..., None] * one_hot[file["label_class"]]).sum(-2)
label = label if told["order"] == "as listed" else label[index]  # Those that stay are one for each example.

for source, labels in {"lessons": label, "true labels": file["truth"][index]}.items():
  params = {name: torch.tensor(file[f"init/{name}"], requires_grad=True) for name in told["model"]["parameters"]}
  groups = [{"params": [params[k]], "weight_decay": rule["weight_decay"] * (k in rule["decayed"])} for k in params]
  # Each parameter is a group of its own, as PyTorch would decay biases too.
  optimizer = torch.optim.SGD(groups, momentum=rule["momentum"], nesterov=rule["nesterov"])
  for x, y, rate in zip(file["x"][index], labels, file["learning_rate"], strict=True):
    z = torch.tensor(x)
    for i, layer in enumerate(told["model"]["layers"]):
      z = getattr(torch.nn.functional, told["model"]["activation"])(z) if i else z
      z = z @ params[layer["weights"]] + params.get(layer["bias"], 0.0)
    optimizer.zero_grad()
    (LOSSES[told["loss"]["name"]](z, torch.tensor(y)) / len(x)).backward()
    for group in optimizer.param_groups:
      group["lr"] = float(rate)
    optimizer.step()
  w = reached[source] = {name: leaf.detach().numpy() for name, leaf in params.items()}
  final, target = (sum(np.sum((w[k] - file[f"{to}/{k}"]) ** 2) for k in w) ** 0.5 for to in ("final", "target"))
  print(f"{source}: {final:.1e} from where the lessons lead, {target:.5f} from w*")
