"""Finding each other: the first process waits for the others, and compares their settings with its own."""

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

CONNECT_SECONDS = 80  # For all processes to come.
HELLO_SECONDS = 5  # For a line from who connects: anybody may.
_MOST_BYTES = 2**20  # Of a line.


class Lost(RuntimeError):
  """The processes did not find each other, or have different settings."""


def listen(port: int) -> socket.socket:
  """Return a socket that listens on all addresses of this machine."""
  try:
    if socket.has_dualstack_ipv6():
      return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
  except (OSError, OverflowError) as error:
    raise Lost(f"process 0 cannot listen on port {port}: {error}; does another process 0 run there?") from error


def gather(server: socket.socket, own: Mapping[str, Any], deadline: float) -> tuple[dict[int, socket.socket], int]:
  """Accept all other processes. Return their connections, and a port for JAX's service."""
  others: dict[int, socket.socket] = {}
  expected = set(range(1, own["processes"]))
  try:
    while set(others) != expected:
      server.settimeout(0.2)
      try:
        connection, _ = server.accept()
      except TimeoutError:
        if time.monotonic() > deadline:
          missing = ", ".join(map(str, sorted(expected - set(others))))
          raise Lost(f"process {missing} of {own['processes']} did not come within {CONNECT_SECONDS} s") from None
        continue
      hello = read_hello(connection)
      for number in [number for number, each in others.items() if _is_closed(each)]:  # It may come again.
        others.pop(number).close()
      if hello is None:  # Not a process of ours.
        connection.close()
      elif hello["process"] in (0, *others):
        refuse(connection, twice(hello["process"]))
      elif difference := _difference(own, hello):
        refuse(connection, difference)
        raise Lost(difference)
      else:
        others[hello["process"]] = connection
    with socket.create_server(("", 0)) as free:
      jax_port = int(free.getsockname()[1])
    for number, connection in others.items():
      try:
        _send(connection, json.dumps({"port": jax_port}))
      except OSError as error:
        raise Lost(f"process {number} came and ended: {error}") from error
  except BaseException as error:
    for connection in others.values():
      refuse(connection, str(error) if isinstance(error, Lost) else "process 0 has ended")
    raise
  return others, jax_port


def join(host: str, port: int, hello: Mapping[str, Any], deadline: float) -> tuple[socket.socket, int]:
  """Connect to the first process. Return the connection and the port of JAX's service."""
  last: Exception | None = None
  while (left := deadline - time.monotonic()) > 0:
    try:
      connection = socket.create_connection((host, port), timeout=left)
    except (OSError, OverflowError) as error:  # It has not started yet.
      last = error
      time.sleep(min(0.2, max(0.0, left)))
      continue
    try:
      return connection, _ask(connection, hello, deadline)
    except BaseException:
      connection.close()
      raise
  raise Lost(f"process 0 was not found within {CONNECT_SECONDS} s: {last}")


def _ask(connection: socket.socket, hello: Mapping[str, Any], deadline: float) -> int:
  """Return the port of JAX's service, as the first process says."""
  try:
    _send(connection, json.dumps(hello))
    answer = json.loads(_read_line(connection, deadline))
    known = isinstance(answer, dict) and ("port" in answer or "error" in answer)
  except TimeoutError:
    raise Lost(f"not all of {hello['processes']} processes came within {CONNECT_SECONDS} s") from None
  except (OSError, ValueError):
    known = False
  if not known:
    raise Lost("what answers there is not process 0 of such a run, or it has just ended")
  if "error" in answer:
    raise Lost(str(answer["error"]))
  return int(answer["port"])


def _difference(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
  """Return how the settings of two processes differ, or ""."""
  pairs = {"num_processes": (own["processes"], other["processes"])}
  mine, theirs = own["settings"], other["settings"]
  pairs |= {name: (mine.get(name), theirs.get(name)) for name in dict.fromkeys([*mine, *theirs])}
  found = [
    f"{name} is {one!r} in process 0 and {two!r} in process {other['process']}"
    for name, (one, two) in pairs.items()
    if one != two
  ]
  return "all processes need the same settings, but " + ", and ".join(found) if found else ""


def twice(number: int) -> str:
  """Return what is told to a process whose number is taken."""
  return f"process {number} is in this run already: each needs its own process_id"


def read_hello(connection: socket.socket) -> dict[str, Any] | None:
  """Return how a process presents itself, or None where it is none of such a run."""
  try:
    hello = json.loads(_read_line(connection, time.monotonic() + HELLO_SECONDS))
    number, count, settings = hello["process"], hello["processes"], hello["settings"]
  except (OSError, ValueError, KeyError, TypeError):
    return None
  known = isinstance(number, int) and isinstance(count, int) and isinstance(settings, dict)
  return hello if known else None


def _read_line(connection: socket.socket, deadline: float) -> str:
  """Read one line, and nothing after it."""
  line = b""
  while not line.endswith(b"\n"):
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    byte = connection.recv(1)
    if not byte or len(line) > _MOST_BYTES:
      raise ConnectionError("the connection ended within a line")
    line += byte
  return line.decode()


def _send(connection: socket.socket, line: str) -> None:
  connection.settimeout(HELLO_SECONDS)
  connection.sendall(line.encode() + b"\n")


def refuse(connection: socket.socket, reason: str) -> None:
  """Say why a process cannot take part, and close its connection."""
  with contextlib.suppress(OSError):
    _send(connection, json.dumps({"error": reason}))
  connection.close()


def _is_closed(connection: socket.socket) -> bool:
  """Return whether a process that waits for its answer, and so sends nothing, has gone."""
  connection.settimeout(0)
  try:
    return not connection.recv(1, socket.MSG_PEEK)
  except BlockingIOError:
    return False
  except OSError:
    return True
