"""Files: pytrees and arrays in npz archives, without pickle; every file is written whole or not at all.

last.save("state.npz", state)
state = last.load("state.npz", like=state)
"""

from last_jax.io.npz import read_arrays, replaced, save_npz
from last_jax.io.trees import load, read, register_kind, save

__all__ = ["load", "read", "read_arrays", "register_kind", "replaced", "save", "save_npz"]
