"""Setting up a CPU, in processes of their own: it has to happen before JAX starts."""

import os
import subprocess
import sys

import jax
import pytest

import last_jax as last


def run(code, **environment):
  """What a new process prints."""
  given = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
  done = subprocess.run(
    [sys.executable, "-c", code], env=given | environment, check=True, capture_output=True, text=True, timeout=200
  )
  return done.stdout.strip()


@pytest.mark.parametrize(("cores", "whole"), [(3, " --xla_disable_hlo_passes=cpu-parallel-task-assigner"), (4, "")])
def test_devices_and_flags_are_set_before_jax_starts(cores, whole):
  """Operations are divided among threads only where there are more cores than devices."""
  code = (
    "import os, jax, last_jax as last; "
    f"last.devices.num_cores = lambda: {cores}; last.devices.prepare(devices=3); "
    "print(jax.device_count(), float(jax.numpy.ones((500, 24)).sum()), os.environ['XLA_FLAGS'])"
  )
  assert run(code) == (
    "3 12000.0 --xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT "
    f"--xla_backend_extra_options=xla_cpu_disable_loop_unrolling{whole}"
  )


def test_what_the_user_has_chosen_is_kept():
  code = "import os, jax, last_jax as last; last.devices.prepare(); print(jax.device_count(), os.environ['XLA_FLAGS'])"
  flags = "--xla_cpu_experimental_ynn_fusion_type= --xla_backend_extra_options=xla_cpu_disable_slp_vectorizer"
  assert run(code, XLA_FLAGS=flags, JAX_NUM_CPU_DEVICES="2") == f"2 {flags}"


def test_devices_do_not_wait_for_each_other_for_ever():
  """The labels of a large batch need eigenvalues, for which JAX takes threads of the pool that devices run in."""
  code = """if True:
    import jax, numpy as np, last_jax as last
    last.devices.prepare(devices=2)
    learner = last.learners.logistic(4, learning_rate=0.1)
    pool = last.Pool(np.random.default_rng(0).normal(size=(99, 4)), np.arange(99) % 2)
    teacher = last.teachers.greedy(last.constraints.simplex())
    keys, target = jax.random.split(jax.random.key(0), 8), learner.init(jax.random.key(1))
    result = last.teach_many(
      keys, learner, teacher, pool, target=target, steps=2, batch_size=64, metrics=(), mesh=last.devices.mesh()
    )
    print(result.params["bias"].shape)
  """
  assert run(code) == "(8, 1)"


CACHE = (
  "import jax, last_jax as last; last.devices.keep_compiled(); "
  "jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jax.numpy.sin(y) @ y, x))(jax.numpy.eye(50)); "
  "print(jax.config.jax_compilation_cache_dir)"
)


def test_what_is_compiled_is_kept_in_the_users_cache_folder(tmp_path):
  old = tmp_path / "last_jax" / "old-cache"
  old.parent.mkdir()
  old.write_bytes(b"?")
  os.utime(old, (0, 0))
  given = {"XDG_CACHE_HOME": str(tmp_path)}
  code = CACHE.replace("keep_compiled(); ", "keep_compiled(); jax.config.update(MIN, 0); ").replace(
    "MIN", "'jax_persistent_cache_min_compile_time_secs'"
  )
  assert run(code, **given) == str(tmp_path / "last_jax")
  assert any(file.name.endswith("-cache") for file in old.parent.iterdir())
  assert not old.exists()  # Nobody asked for it for a month.


def test_the_users_own_choice_of_a_cache_is_kept(tmp_path):
  given = {"XDG_CACHE_HOME": str(tmp_path / "usual"), "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
  assert run(CACHE, **given) == str(tmp_path / "own")
  assert not (tmp_path / "usual").exists()


def test_without_a_place_to_write_everything_works(tmp_path):
  (tmp_path / "file").write_text("not a folder")
  assert run(CACHE, XDG_CACHE_HOME=str(tmp_path / "file")) == "None"


def test_a_release_that_may_not_know_the_flag_is_left_alone():
  code = (
    "import os, last_jax as last; from last_jax import devices; devices._KNOWN_RELEASES = ('0.0.',); "
    "last.devices.prepare(); print(os.environ.get('XLA_FLAGS'))"
  )
  assert run(code) == "None"


def test_once_jax_has_started_devices_stay_as_they_are(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
  count = jax.device_count()
  last.devices.prepare(devices=count + 1)
  assert jax.device_count() == count


def test_a_number_of_devices_that_makes_no_sense_is_refused():
  with pytest.raises(ValueError, match="devices must be a whole number of at least 1"):
    last.devices.prepare(devices=0)
