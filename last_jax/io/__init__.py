"""Files: pytrees and arrays in npz archives, without pickle; every file is written whole or not at all.

last.save("state.npz", state)
state = last.load("state.npz", like=state)
"""

from last_jax.io.files import naming_file, opened, read_json, remove_temporaries, replaced, replaced_together
from last_jax.io.npz import read_arrays, save_npz
from last_jax.io.trees import load, read, register_kind, save

__all__ = [
  "load",
  "naming_file",
  "opened",
  "read",
  "read_arrays",
  "read_json",
  "register_kind",
  "remove_temporaries",
  "replaced",
  "replaced_together",
  "save",
  "save_npz",
]
