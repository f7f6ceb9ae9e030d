"""All figures, in the order of the page. To add one: write an entry in a module, then list its name and module here."""

from last_jax.reproduction import auxiliary, black_box, greedy, labels, networks, omniscient, theorems
from last_jax.reproduction.config import Figure

ORDER = (
  "lsr", "lr_half_moons", "lr_gaussian", "lr_mnist_35", "labels_half_moons", "mlp_mnist_35", "mlp_mnist_79",
  "examples_linear", "examples_mlp", "omniscient_linear", "omniscient_mlp", "action_space", "black_box_linear",
  "theory", "auxiliary_channel",
)  # fmt: skip
_MODULES = (greedy, labels, networks, omniscient, black_box, theorems, auxiliary)
_ALL = {figure.name: figure for module in _MODULES for figure in module.FIGURES}
FIGURES: dict[str, Figure] = {name: _ALL[name] for name in ORDER}
