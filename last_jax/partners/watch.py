"""Watching the other processes: a thread that says that this one is alive, and ends it when another is lost."""

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Mapping

from last_jax.partners.meeting import HELLO_SECONDS, read_hello, refuse, twice

SILENT_SECONDS = 45  # After which a silent process counts as lost. JAX's own limit must be longer.
_PULSE_SECONDS = 5
_FAILED = 1  # Exit status.


class Watch(threading.Thread):
  """Tells the others that this process is alive, and ends it when one of them is lost."""

  def __init__(self, number: int, others: Mapping[int, socket.socket], server: socket.socket | None):
    super().__init__(name="last_jax partners", daemon=True)
    self.number = number
    self.left: dict[int, int] = {}  # Exit statuses of those that have finished.
    self.all_left: threading.Event = threading.Event()
    self.has_ended: bool = False
    self._others, self._server = dict(others), server
    self._heard = dict.fromkeys(others, time.monotonic())
    self._text = dict.fromkeys(others, b"")
    self._failing = threading.Lock()
    self._sending = threading.Lock()
    if not others:
      self.all_left.set()

  def send(self, line: str) -> None:
    """Send a line to all others."""
    with self._sending:
      for connection in self._others.values():
        try:
          connection.settimeout(1)
          connection.sendall(line.encode() + b"\n")
        except OSError:  # It is gone, or stopped: `run` notices.
          pass

  def leave(self, status: int) -> None:
    """Say that this process has finished."""
    self.has_ended = True
    self.send(f"end {status}")

  def run(self) -> None:
    """Watch the others until all have finished, or this process ends."""
    with selectors.DefaultSelector() as selector:
      for number, connection in self._others.items():
        selector.register(connection, selectors.EVENT_READ, number)
      if self._server is not None:
        self._server.settimeout(HELLO_SECONDS)
        selector.register(self._server, selectors.EVENT_READ, None)
      pulse = checked = time.monotonic()
      while not self.all_left.is_set():
        for key, _ in selector.select(_PULSE_SECONDS / 5):
          if key.data is None:
            self._answer()
          elif not self._receive(key.data):
            selector.unregister(key.fileobj)
        now = time.monotonic()
        if now - checked > SILENT_SECONDS / 2:  # This process was stopped itself: what the others sent is not read yet.
          self._heard = dict.fromkeys(self._others, now)
        checked = now
        if now - pulse >= _PULSE_SECONDS:
          self.send(".")
          pulse = now
        for number, heard in self._heard.items():
          if number not in self.left and now - heard > SILENT_SECONDS:
            self._fail(f"process {number} of this run was lost: it has been silent for {SILENT_SECONDS} s")

  def _receive(self, number: int) -> bool:
    """Read what another process has sent; return whether it is still connected."""
    connection = self._others[number]
    try:
      received = connection.recv(4096)
    except (TimeoutError, BlockingIOError):
      return True
    except OSError:
      received = b""
    if not received:
      if number not in self.left:
        self._fail(f"process {number} of this run was lost")
      return False
    self._heard[number] = time.monotonic()
    *lines, self._text[number] = (self._text[number] + received).split(b"\n")
    for line in lines:
      word, _, text = line.decode(errors="replace").partition(" ")
      if word == "end":
        self.left[number] = int(text)
        if len(self.left) == len(self._others):
          self.all_left.set()
      elif word == "fail":
        self._fail(text)
    return True

  def _answer(self) -> None:
    """Refuse a process that comes while the run is under way."""
    assert self._server is not None
    try:
      connection, _ = self._server.accept()
    except OSError:
      return
    hello = read_hello(connection)
    if hello is None:
      connection.close()
    else:
      refuse(connection, twice(hello["process"]))

  def _fail(self, reason: str) -> None:
    """Show why, tell the others, and end this process: its main thread may wait for the lost one in XLA, for ever."""
    self._failing.acquire()  # For good.
    sys.stderr.write(f"error: {reason}; saved states stay\n")
    sys.stderr.flush()
    self.send(f"fail {reason}")
    os._exit(_FAILED)
