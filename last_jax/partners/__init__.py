"""The processes of one run: they find each other, compare their settings, and notice when one is gone.

JAX connects processes too, but when one is missing, comes twice or dies, it ends the others with a stack trace, after
minutes or never. Here they first meet at the coordinator's address, over TCP: the first process listens there, and the
others stay connected with it while they run. JAX's own service has a port of its own. A process that is lost ends the
others with one line.

Messages are lines. To begin with, each process sends its number and settings as JSON and receives JAX's port or an
error. Then follow, in both directions, "." (alive), "end STATUS" (finished in order), or "fail TEXT".
"""

import atexit
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from last_jax.partners.meeting import CONNECT_SECONDS, Lost, gather, join, listen
from last_jax.partners.tunnel import forward
from last_jax.partners.watch import SILENT_SECONDS, Watch

__all__ = ["CONNECT_SECONDS", "SILENT_SECONDS", "Address", "Lost", "fail", "finish", "meet"]

_LEAVE_SECONDS = 300  # For the others to finish.


class Address(NamedTuple):
  """Where JAX's service of the run is: as this process connects to it, and as the first process serves it."""

  connect: str
  bind: str


_watch: Watch | None = None


def meet(address: str, count: int, number: int, settings: Mapping[str, Any]) -> Address:
  """Connect with all processes of the run, and from then on end this one when another is lost.

  Args:
    address: HOST:PORT of the first process.
    count: the number of processes.
    number: the number of this one, from 0.
    settings: what must be the same in all processes: names and JSON values.

  Raises:
    Lost: some did not come, came twice, or have other settings.
  """
  global _watch
  host, _, port = address.rpartition(":")
  hello = {"process": number, "processes": count, "settings": json.loads(json.dumps(dict(settings)))}
  deadline = time.monotonic() + CONNECT_SECONDS
  if number == 0:
    server = listen(int(port))
    try:
      others, jax_port = gather(server, hello, deadline)
    except BaseException:
      server.close()
      raise
    _watch, place = Watch(0, others, server), f"127.0.0.1:{jax_port}"
  else:
    first, jax_port = join(host.strip("[]"), int(port), hello, deadline)
    _watch = watch = Watch(number, {0: first}, None)
    place = forward(host.strip("[]"), jax_port, lambda: 0 in watch.left)
  _watch.start()
  atexit.register(_leave)  # Runs before JAX waits for the others, since JAX registered that earlier.
  return Address(place, f"[::]:{jax_port}")


def finish(status: int) -> bool:
  """Wait until all processes have finished; return whether all of them, and this one, did so with the status 0."""
  if _watch is None:
    return status == 0
  _watch.leave(status)
  return _watch.all_left.wait(_LEAVE_SECONDS) and not any((status, *_watch.left.values()))


def _leave() -> None:
  """Tell the others that this process ends in order, if it was not told yet."""
  if _watch is not None and not _watch.has_ended:
    _watch.leave(0)


def fail() -> None:
  """Tell the others that this process ends after an error, which it has shown."""
  if _watch is not None:
    _watch.send(f"fail process {_watch.number} of this run ended early, and shows why")
