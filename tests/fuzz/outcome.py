"""What a call with an odd argument comes to."""

import pathlib
import re
import traceback
import warnings
from typing import NamedTuple

import last_jax

_PACKAGE = str(pathlib.Path(last_jax.__file__).parent)
_OWN = str(pathlib.Path(__file__).parents[1])


class Outcome(NamedTuple):
  """ "fine"; "named", an error that names the argument; "unnamed"; or "raw", an error of JAX or NumPy itself."""

  kind: str
  text: str = ""


def outcome_of(call, names):
  """Return what calling comes to; `names` are those of the odd arguments, any of which a message may name."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
      call()
    except Exception as error:
      return _classify(error, names)
  return Outcome("fine")


def _classify(error, names):
  message = "\n".join([str(error), *getattr(error, "__notes__", ())])
  where = traceback.extract_tb(error.__traceback__)[-1].filename
  text = f"{type(error).__name__}: {message[:300]}"
  named = any(re.search(rf"(?<![A-Za-z_]){re.escape(name)}(?![A-Za-z_])", message) for name in names)
  # What a function of the caller's raises is the caller's own, whatever it is: a note says which function that was.
  from_caller = "function of the caller's" in message
  if named and (from_caller or (isinstance(error, (TypeError, ValueError)) and where.startswith((_PACKAGE, _OWN)))):
    return Outcome("named", text)
  return Outcome("unnamed" if where.startswith((_PACKAGE, _OWN)) else "raw", f"{text} [{where}]")
