"""Processes of one run find each other, compare settings, and notice a loss: here over sockets of this process."""

import concurrent.futures
import contextlib
import os
import socket
import time

import pytest

from last_jax.partners import meeting, tunnel, watch

SETTINGS = {"--seed": 0, "--radius": [0.5, 1.0]}


def hello(number, count=2, **settings):
  return {"process": number, "processes": count, "settings": SETTINGS | settings}


def soon(seconds=10.0):
  return time.monotonic() + seconds


@pytest.fixture
def server():
  with socket.create_server(("localhost", 0)) as listening:
    yield listening


@pytest.fixture
def pool():
  with concurrent.futures.ThreadPoolExecutor() as threads:
    yield threads


def join(server, greeting, seconds=10.0):
  return meeting.join("localhost", server.getsockname()[1], greeting, soon(seconds))


def close(others):
  for connection in others.values():
    connection.close()


def test_all_processes_learn_one_port(server, pool):
  joining = [pool.submit(join, server, hello(number, 3)) for number in (2, 1)]
  others, port = meeting.gather(server, hello(0, 3), soon())
  assert set(others) == {1, 2}
  for each in joining:
    connection, told = each.result()
    assert told == port > 0
    connection.close()
  close(others)


@pytest.mark.parametrize(
  ("other", "words"),
  [
    (hello(1, **{"--seed": 1}), "--seed is 0 in process 0 and 1 in process 1"),
    (hello(1, **{"--radius": [0.5]}), "--radius is [0.5, 1.0] in process 0 and [0.5] in process 1"),
    (hello(1, **{"--episodes": 3}), "--episodes is None in process 0 and 3 in process 1"),
    (hello(1, 3), "num_processes is 2 in process 0 and 3 in process 1"),
  ],
)
def test_both_sides_name_a_setting_that_differs(server, pool, other, words):
  joining = pool.submit(join, server, other)
  with pytest.raises(meeting.Lost) as found:
    meeting.gather(server, hello(0), soon())
  assert words in str(found.value)
  with pytest.raises(meeting.Lost) as told:
    joining.result()
  assert str(told.value) == str(found.value)


def test_a_process_that_never_comes_is_named_to_all(server, pool):
  joining = pool.submit(join, server, hello(1, 4))
  with pytest.raises(meeting.Lost, match="process 2, 3 of 4 did not come"):
    meeting.gather(server, hello(0, 4), soon(1.0))
  with pytest.raises(meeting.Lost, match="process 2, 3 of 4 did not come"):
    joining.result()


def test_a_first_process_that_never_comes_or_never_answers(server):
  with pytest.raises(meeting.Lost, match="not all of 2 processes came"):
    join(server, hello(1), 0.3)
  server.close()
  with pytest.raises(meeting.Lost, match="process 0 was not found"):
    meeting.join("localhost", meeting_port(), hello(1), soon(0.3))


def meeting_port():
  with socket.create_server(("localhost", 0)) as free:
    return free.getsockname()[1]


def test_a_second_process_of_a_number_is_refused_and_the_first_stays(server, pool):
  joining = [pool.submit(join, server, hello(1, 3)) for _ in "ab"]
  gathering = pool.submit(meeting.gather, server, hello(0, 3), soon())
  (refused,), _ = concurrent.futures.wait(joining, return_when="FIRST_COMPLETED")
  with pytest.raises(meeting.Lost, match="process 1 is in this run already"):
    refused.result()
  third = pool.submit(join, server, hello(2, 3))
  others, _ = gathering.result()
  connections = [each.result()[0] for each in (*joining, third) if each is not refused]
  assert len(connections) == len(others) == 2
  close(others)
  close(dict(enumerate(connections)))


def test_a_process_that_went_may_come_again_and_strangers_are_ignored(server, pool, monkeypatch):
  monkeypatch.setattr(meeting, "HELLO_SECONDS", 0.2)
  address = server.getsockname()[:2]
  gathering = pool.submit(meeting.gather, server, hello(0, 3), soon())
  for text in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"process": "1"}\n', b"\xff\n", b""):
    with socket.create_connection(address) as stranger:
      stranger.sendall(text)
  with socket.create_connection(address) as short_lived:
    meeting._send(short_lived, meeting.json.dumps(hello(1, 3)))
    time.sleep(0.5)
  joining = [pool.submit(join, server, hello(number, 3)) for number in (1, 2)]
  others, _ = gathering.result()
  close({place: each.result()[0] for place, each in enumerate(joining)})
  close(others)


def test_what_is_no_first_process_is_recognized(server, pool):
  joining = pool.submit(join, server, hello(1))
  connection, _ = server.accept()
  with connection:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(meeting.Lost, match="is not process 0 of such a run"):
      joining.result()


def test_a_port_that_is_taken_is_said(server):
  taken = meeting.listen(0)
  with taken, pytest.raises(meeting.Lost, match="process 0 cannot listen on port"):
    meeting.listen(taken.getsockname()[1])


class Ended(BaseException):
  """In place of the end of this process."""


class Watch(watch.Watch):
  """One that ends alone."""

  def run(self):
    with contextlib.suppress(Ended):
      super().run()


class Exits(list):
  """The exit statuses asked for."""

  def __call__(self, status):
    self.append(status)
    raise Ended

  def wait(self):
    deadline = soon()
    while not self and time.monotonic() < deadline:
      time.sleep(0.01)
    return list(self)


@pytest.fixture
def exits(monkeypatch):
  found = Exits()
  monkeypatch.setattr(os, "_exit", found)
  monkeypatch.setattr(watch, "_PULSE_SECONDS", 0.05)
  return found


@pytest.fixture
def watching():
  """A function that returns a thread that watches, and the other ends of its connections."""
  with contextlib.ExitStack() as open_:

    def start(count=1, server=None):
      pairs = [[open_.enter_context(end) for end in socket.socketpair()] for _ in range(count)]
      thread = Watch(0, {place + 1: mine for place, (mine, _) in enumerate(pairs)}, server)
      open_.callback(thread.join, 10)
      open_.callback(lambda: [thread.left.update({place: 0}) for place in range(1, count + 1)])
      open_.callback(thread.all_left.set)
      thread.start()
      return thread, [theirs for _, theirs in pairs]

    yield start


def test_a_connection_that_ends_ends_this_process_and_tells_the_others(watching, exits, capfd):
  _, (lost, other) = watching(2)
  lost.close()
  assert exits.wait() == [1]
  assert capfd.readouterr().err == "error: process 1 of this run was lost; saved states stay\n"
  time.sleep(0.1)
  assert b"fail process 1 of this run was lost\n" in other.recv(4096)
  other.close()


@pytest.mark.slow
def test_a_silent_process_counts_as_lost(watching, exits, capfd, monkeypatch):
  monkeypatch.setattr(watch, "SILENT_SECONDS", 0.6)
  _, (silent,) = watching()
  begin = time.monotonic()
  while time.monotonic() < begin + 1.2:  # It is not, while it sends.
    silent.sendall(b".\n")
    time.sleep(0.05)
    assert not exits
  assert exits.wait() == [1]
  assert "process 1 of this run was lost: it has been silent for 0.6 s" in capfd.readouterr().err
  silent.close()


def test_what_another_process_reports_is_shown(watching, exits, capfd):
  _, (other,) = watching()
  other.sendall(b".\n.\nfail process 7 of this run ")
  time.sleep(0.1)
  other.sendall(b"was lost\n")
  assert exits.wait() == [1]
  assert capfd.readouterr().err == "error: process 7 of this run was lost; saved states stay\n"
  other.close()


def test_processes_that_finish_in_order_are_not_lost(watching, exits, monkeypatch):
  monkeypatch.setattr(watch, "SILENT_SECONDS", 0.3)
  thread, others = watching(2)
  for status, other in enumerate(others):
    assert not thread.all_left.is_set()
    other.sendall(f"end {status}\n".encode())
    other.close()
    time.sleep(0.1)
  assert thread.all_left.wait(10)
  assert thread.left == {1: 0, 2: 1}
  time.sleep(0.5)
  assert not exits


def test_a_process_without_others_has_none_to_wait_for():
  assert watch.Watch(0, {}, None).all_left.is_set()


def test_a_late_second_process_is_refused_while_a_run_is_under_way(watching, exits):
  server = meeting.listen(0)
  watching(server=server)
  with server, pytest.raises(meeting.Lost, match="process 1 is in this run already"):
    meeting.join("localhost", server.getsockname()[1], hello(1), soon())
  assert not exits


@pytest.mark.parametrize("in_order", [False, True])
def test_the_end_of_a_forwarded_connection_shows_only_after_an_end_in_order(server, in_order):
  host, port = server.getsockname()[:2]
  left = []
  with socket.create_connection(tunnel.forward(host, port, lambda: bool(left)).split(":")) as near:
    far, _ = server.accept()
    near.sendall(b"question")
    assert far.recv(100) == b"question"
    far.sendall(b"answer")
    assert near.recv(100) == b"answer"
    far.close()
    near.settimeout(0.5)
    with pytest.raises(TimeoutError):
      near.recv(100)
    left += [0] * in_order
    if in_order:
      near.settimeout(5)
      assert near.recv(100) == b""
