"""All figures, in the order of the page. To add one: write an entry in a module, then list its name and module here."""

from last_jax.reproduction import (
  auxiliary,
  black_box,
  curriculum,
  greedy,
  labels,
  margins,
  networks,
  omniscient,
  theorems,
  validation,
  variants,
)
from last_jax.reproduction.config import Figure

ORDER = (
  "lsr", "lr_half_moons", "lr_gaussian", "lr_mnist_35", "labels_half_moons", "mlp_mnist_35", "mlp_mnist_79",
  "examples_linear", "examples_mlp", "easy_to_hard", "label_sets", "soft_labels", "layer_weights", "planning",
  "omniscient_linear", "omniscient_mlp", "action_space", "black_box_linear", "theory", "large_margin",
  "validation_loss", "auxiliary_channel",
)  # fmt: skip
_MODULES = (
  greedy, labels, networks, curriculum, variants, omniscient, black_box, theorems, margins, validation, auxiliary,
)  # fmt: skip
_ALL = {figure.name: figure for module in _MODULES for figure in module.FIGURES}
FIGURES: dict[str, Figure] = {name: _ALL[name] for name in ORDER}
