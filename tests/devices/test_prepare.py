"""Setting up a CPU, in processes of their own: it has to happen before JAX starts."""

import os
import subprocess
import sys

import jax
import pytest

import last_jax as last


def run(code, **environment):
  """What a new process prints."""
  given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  done = subprocess.run(
    [sys.executable, "-c", code], env=given | environment, check=True, capture_output=True, text=True
  )
  return done.stdout.strip()


def test_devices_and_flag_are_set_before_jax_starts():
  code = (
    "import os, jax, last_jax as last; last.prepare_cpu(3); "
    "print(jax.device_count(), float(jax.numpy.ones((500, 24)).sum()), os.environ['XLA_FLAGS'])"
  )
  assert run(code) == "3 12000.0 --xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"


def test_what_the_user_has_chosen_is_kept():
  code = "import os, jax, last_jax as last; last.prepare_cpu(); print(jax.device_count(), os.environ['XLA_FLAGS'])"
  flags = "--xla_cpu_experimental_ynn_fusion_type="
  assert run(code, XLA_FLAGS=flags, JAX_NUM_CPU_DEVICES="2") == f"2 {flags}"


def test_a_release_that_may_not_know_the_flag_is_left_alone():
  code = (
    "import os, last_jax as last; from last_jax import devices; devices._KNOWN_RELEASES = ('0.0.',); "
    "last.prepare_cpu(); print(os.environ.get('XLA_FLAGS'))"
  )
  assert run(code) == "None"


def test_once_jax_has_started_devices_stay_as_they_are(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
  count = jax.device_count()
  last.prepare_cpu(count + 1)
  assert jax.device_count() == count


def test_a_number_of_devices_that_makes_no_sense_is_refused():
  with pytest.raises(ValueError, match="devices must be a whole number of at least 1"):
    last.prepare_cpu(0)
