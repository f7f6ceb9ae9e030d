"""The way of JAX's connection to its service: through this process, which can hide that the connection has ended."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

_CONNECT_SECONDS = 30
_HIDDEN_SECONDS = 60  # At most: longer than `watch` takes to end the process.


def forward(host: str, port: int, has_left: Callable[[], bool]) -> str:
  """Return an address of this machine whose connections are forwarded to the host.

  When the first process dies, JAX would end this one with a stack trace as soon as its connection closes, before
  `watch` can say what happened. So the end of a connection is forwarded only once `has_left` says that the first
  process has finished in order.
  """
  server = socket.create_server(("127.0.0.1", 0))

  def serve() -> None:
    while True:
      near, _ = server.accept()
      try:
        far = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
      except OSError:  # JAX tries again.
        near.close()
        continue
      far.settimeout(None)
      for source, sink in ((near, far), (far, near)):
        threading.Thread(target=_pump, args=(source, sink, has_left if source is far else None), daemon=True).start()

  threading.Thread(target=serve, daemon=True).start()
  return f"127.0.0.1:{server.getsockname()[1]}"


def _pump(source: socket.socket, sink: socket.socket, has_left: Callable[[], bool] | None) -> None:
  with contextlib.suppress(OSError):
    while received := source.recv(65536):
      sink.sendall(received)
  deadline = time.monotonic() + _HIDDEN_SECONDS
  while has_left is not None and not has_left() and time.monotonic() < deadline:
    time.sleep(0.1)
  for connection in (source, sink):
    with contextlib.suppress(OSError):
      connection.shutdown(socket.SHUT_RDWR)
