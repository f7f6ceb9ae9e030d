"""Counts of compiled programs, by JAX's own public events."""

import contextlib

import jax

# One for each program that is lowered, whether or not the compiler's disk cache has it.
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


class Counter:
  """The programs compiled since it was made: their names, as JAX calls them, and their number."""

  def __init__(self):
    self.names = []

  @property
  def count(self):
    return len(self.names)

  def __call__(self, event, duration, **details):
    if event == _LOWERED:
      self.names.append(details.get("fun_name"))


@contextlib.contextmanager
def counted():
  """Count the programs that are compiled inside: `with counted() as programs: ...; programs.count`."""
  counter = Counter()
  jax.monitoring.register_event_duration_secs_listener(counter)
  try:
    yield counter
  finally:
    jax.monitoring.unregister_event_duration_listener(counter)


def assert_compiled_once(call, arguments):
  """Call a function with each of several arguments; all but the first must find every program compiled."""
  first, *others = arguments
  call(first)
  with counted() as programs:
    for argument in others:
      call(argument)
  assert not programs.names, f"compiled again: {programs.names}"
