"""Stopping a command by Ctrl-C or SIGTERM, so that it saves; several processes stop together, at the same step."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from last_jax import devices

INTERRUPTED = 128 + signal.SIGINT  # Exit status; after SIGTERM it is 143.


class Stopped(KeyboardInterrupt):
  """A signal asks the command to stop."""

  def __init__(self, number: int):
    super().__init__()
    self.status: int = 128 + number


def status_of(error: BaseException) -> int:
  """Return the exit status of a command that a `KeyboardInterrupt` has ended."""
  return error.status if isinstance(error, Stopped) else INTERRUPTED


class _Asked:
  """The signal that has come while the processes work together, 0 for none."""

  number = 0
  is_noted = False  # Rather than raised at once.


@contextlib.contextmanager
def by_signals() -> Iterator[None]:
  """Raise `Stopped` inside at Ctrl-C and SIGTERM, unless the process ignores them."""
  usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  taken = {number: handler for number, handler in usual.items() if signal.getsignal(number) == handler}
  for number in taken:
    signal.signal(number, _receive)
  try:
    yield
  finally:
    _Asked.number = 0
    for number, handler in taken.items():
      signal.signal(number, handler)


def _receive(number: int, _: object) -> None:
  if not _Asked.is_noted or _Asked.number:  # The second one does not wait.
    raise Stopped(number)
  _Asked.number = number


@contextlib.contextmanager
def together() -> Iterator[None]:
  """In a run of several processes, take note of signals inside, until all processes call `agree`."""
  _Asked.is_noted = jax.process_count() > 1
  try:
    yield
  finally:
    _Asked.is_noted = False


def agree(save: bool) -> tuple[bool, Stopped | None]:
  """Return whether to save, and `Stopped` to be raised afterwards if any process was asked to stop.

  In a run of several processes all must call it: the first decides about saving, and whoever was asked about stopping.
  In a run of one process, signals raise `Stopped` themselves.
  """
  told = devices.from_all(np.array([save, _Asked.number], np.int32))
  number = int(told[:, 1].max())
  return bool(told[0, 0]) or number > 0, Stopped(number) if number else None
