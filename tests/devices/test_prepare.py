"""Settings of a CPU and the compilation cache, in new processes: they must be made before JAX starts."""

import os
import subprocess
import sys

import jax
import pytest

import last_jax as last


def run(code, **environment):
  """Return what a new process prints."""
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


def test_the_users_own_flags_win():
  code = "import os, jax, last_jax as last; last.devices.prepare(); print(jax.device_count(), os.environ['XLA_FLAGS'])"
  flags = "--xla_cpu_experimental_ynn_fusion_type= --xla_backend_extra_options=xla_cpu_disable_slp_vectorizer"
  assert run(code, XLA_FLAGS=flags, JAX_NUM_CPU_DEVICES="2") == f"2 {flags}"


@pytest.mark.slow
def test_devices_do_not_deadlock():
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


NAME = "last_jax_compilation_cache"
ENTRY = f"jit_f-{'0' * 64}-cache"  # The name of an entry that JAX would write.
ENABLE = "import jax, last_jax as last; last.devices.enable_compilation_cache(); "
COMPILE = (
  "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0); "
  "jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jax.numpy.sin(y) @ y, x))(jax.numpy.eye(50)); "
  "print(jax.config.jax_compilation_cache_dir)"
)


def write_old(path):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(b"?")
  os.utime(path, (0, 0))
  return path


def entries(folder):
  return {file.name for file in folder.iterdir() if file.name.endswith("-cache")}


@pytest.mark.slow
def test_compiled_programs_are_stored_in_the_users_cache_folder(tmp_path):
  folder = tmp_path / NAME
  assert run(ENABLE + COMPILE, XDG_CACHE_HOME=str(tmp_path)) == str(folder)
  before = entries(folder)
  assert len(before) > 0
  old = [write_old(folder / ENTRY), write_old(folder / ENTRY.replace("-cache", "-atime"))]
  assert run(ENABLE + COMPILE, XDG_CACHE_HOME=str(tmp_path)) == str(folder)
  assert entries(folder) == before  # Nothing is compiled a second time.
  assert not any(file.exists() for file in old)


@pytest.mark.slow
def test_nothing_is_deleted_that_the_cache_did_not_write(tmp_path):
  foreign = [write_old(tmp_path / name) for name in ("thesis.tex", ENTRY, "notes-cache", f"{NAME}.txt")]
  code = f"import jax, last_jax as last; last.devices.enable_compilation_cache({str(tmp_path)!r}); " + COMPILE
  assert run(code) == str(tmp_path / NAME)
  more = ("thesis.tex", "notes-cache", "-cache", "jit_f-0123-cache", f"{ENTRY}.bak", f"folder/{ENTRY}")
  foreign += [write_old(tmp_path / NAME / name) for name in more]
  link = tmp_path / NAME / ENTRY
  link.symlink_to(tmp_path / "thesis.tex")
  assert run(code) == str(tmp_path / NAME)
  assert all(file.exists() for file in [*foreign, link])


@pytest.mark.slow
def test_nothing_is_deleted_from_a_folder_that_the_cache_did_not_make(tmp_path):
  old = write_old(tmp_path / NAME / ENTRY)
  for tag in (None, "Signature: 8a477f597d28d172789f06886806bc55"):  # That of another program.
    if tag is not None:
      (tmp_path / NAME / "CACHEDIR.TAG").write_text(tag)
    assert run(ENABLE + COMPILE, XDG_CACHE_HOME=str(tmp_path)) == str(tmp_path / NAME)
    assert old.exists()
    assert len(entries(tmp_path / NAME)) > 1


@pytest.mark.slow
def test_the_cache_can_be_enabled_after_something_was_compiled(tmp_path):
  code = ENABLE.replace("; ", "; jax.numpy.sin(1.0).block_until_ready(); ", 1) + COMPILE
  assert run(code, XDG_CACHE_HOME=str(tmp_path)) == str(tmp_path / NAME)
  assert len(entries(tmp_path / NAME)) > 0


@pytest.mark.slow
def test_the_users_own_cache_is_used_and_left_alone(tmp_path):
  old = write_old(tmp_path / "own" / ENTRY)
  given = {"XDG_CACHE_HOME": str(tmp_path / "usual"), "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
  assert run(ENABLE + COMPILE, **given) == str(tmp_path / "own")
  assert not (tmp_path / "usual").exists()
  assert old.exists()


def test_without_a_place_to_write_there_is_no_cache(tmp_path):
  (tmp_path / "file").write_text("not a folder")
  assert run(ENABLE + COMPILE, XDG_CACHE_HOME=str(tmp_path / "file")) == "None"


def test_a_release_that_may_not_know_the_flag_is_left_alone():
  code = (
    "import os, last_jax as last; from last_jax import compiler; compiler._KNOWN_RELEASES = ('0.0.',); "
    "last.devices.prepare(); print(os.environ.get('XLA_FLAGS'))"
  )
  assert run(code) == "None"


PLAIN = """if True:
  import jax, numpy as np, last_jax as last
  from last_jax import compiler, loop
  used = []
  known = jax.jit
  def jit(function, **settings):
    compiled = known(function, **settings)
    if "compiler_options" not in settings:
      return compiled
    return lambda *arguments, **more: (used.append(settings["compiler_options"]), compiled(*arguments, **more))[1]
  jax.jit = jit
  loop._teach_many_compiled = compiler.jit_for_small_steps(loop._teach_many, ("plan", "mesh"))
  jax.jit = known
  learner = last.learners.logistic({features}, learning_rate=0.1)
  pool = last.Pool(np.random.default_rng(0).normal(size=(99, {features})), np.arange(99) % 2)
  teacher = last.teachers.greedy(last.constraints.simplex())
  keys, target = jax.random.split(jax.random.key(0), 8), learner.init(jax.random.key(1))
  def teach(keys):
    return last.teach_many(keys, learner, teacher, pool, target=target, steps=20, metrics="distance").distance
  own = teach(keys)
  count = len(used)
  # As part of a program of the caller's, whether its arguments are traced or constants; under vmap; differentiated.
  mapped = jax.vmap(teach)(keys.reshape(2, 4)).reshape(own.shape)
  for other in (jax.jit(teach)(keys), jax.jit(lambda: teach(keys))(), mapped):
    np.testing.assert_allclose(own, other, rtol=1e-5)
  slope = jax.grad(lambda target: last.teach_many(
    keys, learner, teacher, pool, target=target, steps=3, metrics="distance").distance.sum())(target)
  print(count, len(used), all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("features", "counts"), [(24, "1 1 True"), (64, "0 0 True")])
def test_small_steps_have_compiler_options_only_in_programs_of_their_own(features, counts):
  assert run(PLAIN.format(features=features)) == counts


@pytest.mark.slow
def test_flags_of_the_user_or_of_prepare_decide_instead_of_options():
  prepared = "import last_jax as last; last.devices.prepare(devices=1)\n" + PLAIN.format(features=24)
  assert run(prepared) == "0 0 True"
  assert run(PLAIN.format(features=24), XLA_FLAGS="--xla_backend_optimization_level=0") == "0 0 True"


@pytest.mark.slow
def test_a_command_divides_the_cpu_before_jax_starts(tmp_path):
  code = (
    "import jax, last_jax as last; from launch import teach; last.devices.num_cores = lambda: 2; "
    f"teach.main(['teach', '--out={tmp_path}', '--students=2', '--steps=1']); print(); print(jax.device_count())"
  )
  assert run(code).splitlines()[-1] == "2"


class TestAfterJaxHasStarted:
  @pytest.mark.parametrize(
    "settings",
    [
      {"devices": 2},
      {"platform": "cuda"},
      {"platform": "tpu", "devices": 1},
      {"coordinator": "localhost:1", "num_processes": 2, "process_id": 0},
    ],
  )
  def test_other_settings_are_refused(self, settings):
    before = os.environ.get("XLA_FLAGS"), jax.config.jax_platforms, jax.config.jax_num_cpu_devices
    message = r"comes too late: JAX has started with 1 device on platform 'cpu' in 1 process; call it before"
    with pytest.raises(ValueError, match=message) as raised:
      last.devices.prepare(**settings)
    assert all(f"{name}={value!r}" in str(raised.value) for name, value in settings.items())
    assert (os.environ.get("XLA_FLAGS"), jax.config.jax_platforms, jax.config.jax_num_cpu_devices) == before

  @pytest.mark.parametrize("settings", [{}, {"devices": 1}, {"platform": "cpu"}, {"platform": "cpu", "devices": 1}])
  def test_the_same_settings_are_accepted(self, settings):
    last.devices.prepare(**settings)
    assert jax.device_count() == 1

  def test_is_known(self):
    assert last.devices.has_started()
    code = (
      "import jax, last_jax as last; before = last.devices.has_started(); last.devices.prepare(devices=2); "
      "between = last.devices.has_started(); print(before, between, jax.device_count(), last.devices.has_started())"
    )
    assert run(code) == "False False 2 True"


def test_a_number_of_devices_that_makes_no_sense_is_refused():
  with pytest.raises(ValueError, match="devices must be a whole number of at least 1"):
    last.devices.prepare(devices=0)
