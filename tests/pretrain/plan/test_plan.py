"""`--dry_run --plan`: which machines there are, what is tried, what is printed, and the command itself."""

import dataclasses
import os
import subprocess
import sys

import jax
import pytest

from data.errors import ConfigError
from pretrain import main
from pretrain.mesh import chips
from pretrain.ops import triton_call
from pretrain.plan import __main__ as child
from pretrain.plan import forecast, make, report, search, targets
from pretrain.plan.forecast import Forecast
from tests.pretrain.small_run import get_config

CHIP = chips.Chip("host", "NVIDIA H100", hbm_bytes=1000.0, bandwidth=1e9, link_bandwidth=1e9, platform="cpu")


def target(number=8, chip=CHIP):
  return targets.Target("host", chip, jax.devices()[:number])


@pytest.mark.parametrize(
  ("name", "platform", "devices"),
  [
    ("v5e:2x4", "tpu", 8),
    ("v6e:16x16", "tpu", 256),
    ("v5p:2x2x4", "tpu", 16),
    ("v5p:4x4x4", "tpu", 64),
    ("h100", "cuda", 1),
    ("h200:8", "cuda", 8),
    ("a100:24", "cuda", 24),
    ("cpu:3", "cpu", 3),
    ("cpu", "cpu", 1),
  ],
)
def test_machines_that_can_be_planned_for(name, platform, devices):
  spec = chips.parse(name)
  assert (spec.platform, spec.devices) == (platform, devices)
  assert (spec.chip is None) == (platform == "cpu")


@pytest.mark.parametrize(
  "name",
  ["v5e", "v5e:", "v5e:2x3", "v5e:2x2x2", "v5p:2x4", "v5p:3x4x4", "v5p:0x4x4", "h100:12", "h100:0"]
  + ["h100:2x8", "cpu:0", "cpu:513", "cpu:", "b300:8", ":8"],
)
def test_others_are_one_line_with_those_that_there_are(name, capsys):
  with pytest.raises(SystemExit) as ended:
    main.main(["--config=configs/bert_tiny.py", "--dry_run", f"--plan={name}"])
  (line,) = capsys.readouterr().err.splitlines()
  assert ended.value.code == 2
  assert name in line and "v5p:AxBxC (2x2x1" in line and "h200:N" in line and "cpu:N" in line


def test_a_plan_is_a_dry_run(capsys):
  with pytest.raises(SystemExit) as ended:
    main.main(["--config=configs/bert_tiny.py", "--plan=cpu:2"])
  assert ended.value.code == 2
  assert capsys.readouterr().err == "error: --plan=cpu:2: only a dry run makes a plan; add\n  --dry_run\n"


def small(**fields):
  config = get_config("mlm")
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
  return config


def test_meshes_are_the_configs_own_and_one_other():
  assert search.meshes(small(), target()) == [
    {"data": 8, "fsdp": 1, "tensor": 1},
    {"data": 1, "fsdp": 8, "tensor": 1},
  ]
  assert search.meshes(small(mesh__data=1, mesh__fsdp=-1), target())[1]["data"] == 8
  assert len(search.meshes(small(), target(1))) == 1


def test_weights_are_cut_within_a_node():
  devices = [dataclasses.replace(Device(), id=number, process_index=number // 8) for number in range(16)]
  nodes = targets.Target("h100:16", dataclasses.replace(CHIP, network_bandwidth=1.0), devices)
  assert search.meshes(small(), nodes)[1] == {"data": 2, "fsdp": 8, "tensor": 1}
  slice_ = targets.Target("v5e:4x4", CHIP, devices)
  assert search.meshes(small(), slice_)[1] == {"data": 1, "fsdp": 16, "tensor": 1}


@dataclasses.dataclass(frozen=True)
class Device:
  id: int = 0
  process_index: int = 0


def test_microbatches_are_those_that_the_batch_allows():
  config = small(train__batch_size=48, objectives__mlm__weight=1.0)
  mesh = {"data": 2, "fsdp": 1, "tensor": 1}
  assert search.choices(config, mesh, target(2)) == {24: 1, 12: 2, 8: 3, 6: 4, 4: 6, 3: 8, 2: 12, 1: 24}


def compilers(per_row, fixed, *, formula_per_row=None, seconds=1.0):
  """A world in which a step takes `fixed + per_row * rows` bytes and the formula believes otherwise."""
  asked = []

  def describe(config):
    mesh = search.resolved(config, 8)
    rows = config.train.batch_size // config.train.microbatches // (mesh["data"] * mesh["fsdp"])
    believed = (formula_per_row or per_row) * rows
    formula = {"state": fixed / 2, "gradients": fixed / 2, "activations": believed, "vocabulary logits": 0.0}
    state = {"parameters": 1, "optimizer": 2}
    of = {"microbatches": config.train.microbatches, "state": state, "formula": formula}
    return Forecast("host", "d", 8, mesh, rows, 32, {}, fits=False, **of)

  def forecast(config):
    found = describe(config)
    asked.append((found.mesh["fsdp"], found.rows))
    total = fixed + per_row * found.rows
    sizes = {"temporaries": per_row * found.rows, "total": total}
    slower = seconds * (1 if found.mesh["fsdp"] == 1 else 1.5)
    return dataclasses.replace(found, bytes=sizes, fits=total <= 1000, seconds=slower)

  return search.Compilers(describe, forecast), asked


def tries(config, made):
  return list(search.search(config, target(), made[0], lambda item: None))


def test_a_batch_that_fits_at_once_is_compiled_once_a_mesh():
  made = compilers(per_row=10, fixed=100)
  found = tries(small(train__batch_size=256), made)
  assert made[1] == [(1, 32), (8, 32)]
  chosen = search.best(found)
  assert chosen is not None and chosen.forecast.mesh["data"] == 8
  text = report.compiled_plan(target(), found, chosen, "cpu")
  assert "--config.mesh.data=8 --config.mesh.fsdp=1" in text
  assert "largest microbatch that fits: 32 rows a device, the whole batch at once" in text


@pytest.mark.parametrize("believed", [5, 20, 100])
def test_the_largest_microbatch_is_found_whatever_the_formula_believes(believed):
  made = compilers(per_row=20, fixed=100, formula_per_row=believed)
  found = tries(small(train__batch_size=1024), made)
  fitting = {item.forecast.mesh["data"]: item.forecast.rows for item in found if item.forecast.fits}
  assert fitting == {8: 32, 1: 32}  # 900 bytes for rows: 45, and 32 is the largest that divides
  assert len(made[1]) <= 2 * search.MOST_OF_A_MESH
  chosen = search.best(found)
  assert chosen is not None and chosen.config.train.microbatches == 4
  text = report.compiled_plan(target(), found, chosen, "cpu")
  assert "largest microbatch that fits: 32 rows a device; " in text


def test_the_config_as_it_is_stands_first_and_the_hopeless_is_not_compiled():
  made = compilers(per_row=20, fixed=100)
  found = tries(small(train__batch_size=1024), made)
  assert not found[0].is_compiled and found[0].forecast.rows == 128
  assert "by the formula alone" in report.row(found[0]) and "~" in report.row(found[0])
  assert (1, 128) not in made[1]


def test_nothing_fits():
  made = compilers(per_row=2000, fixed=100)
  assert search.best(tries(small(train__batch_size=256), made)) is None


def test_a_step_waits_for_what_nothing_runs_beside():
  found = Forecast("t", "d", 1, {}, 1, 1, {}, fits=True, seconds=1.0, link_seconds=0.5, waited_seconds=0.2)
  assert found.step_seconds == pytest.approx(1.2)
  assert dataclasses.replace(found, link_seconds=2.0).step_seconds == pytest.approx(2.0)


def test_the_end_of_the_run_is_steps_times_seconds():
  config = small(train__total_steps=7200, train__batch_size=64, data__length=32)
  lines = report.to_the_end(config, 2.0, 8)
  assert lines["hours"] == "4.0" and lines["chip-hours"] == "32.0"
  assert lines["tokens/s"] == "1,024, 128 per device"
  assert lines["steps"] == "7,200 of 2,048 tokens"
  # Half of the run at half of the rows: three quarters of the time.
  config.train.update({"microbatches": 2, "batch_size_start": 32, "batch_warmup_steps": 3600})
  lines = report.to_the_end(config, 2.0, 8)
  assert lines["hours"] == "3.0" and lines["steps"].startswith("7,200 of 1,024 to 2,048 (after 3,600")


def test_formulas_where_no_compiler_is_installed(monkeypatch, capsys):
  monkeypatch.setattr(chips, "is_installed", lambda platform: False)
  make.print_plan(small(model__attention="triton"), chips.parse("h200:8"), name="mlm")
  printed = capsys.readouterr().out
  for part in ("by formula", "8 x NVIDIA H200", "chip-hours", "pip install -r requirements-plan.txt"):
    assert part in printed, part


@pytest.mark.parametrize(
  ("asked", "cudnn", "triton", "becomes"),
  [
    ("auto", False, False, "plain"),
    ("auto", False, True, "auto"),  # which takes the Triton kernels
    ("cudnn", False, True, "triton"),
    ("cudnn", False, False, "plain"),
    ("auto", True, False, "auto"),
    ("plain", False, False, "plain"),
  ],
)
def test_cudnns_attention_is_compiled_only_where_it_is_installed(asked, cudnn, triton, becomes, monkeypatch):
  gpu = targets.Target("h100", dataclasses.replace(CHIP, platform="cuda"), jax.devices()[:1])
  monkeypatch.setattr(chips, "is_installed", lambda what: cudnn)
  monkeypatch.setattr(triton_call, "is_installed", lambda: triton)
  config, note = forecast.without_cudnn(small(model__attention=asked), gpu)
  assert config.model.attention == becomes
  assert ("nvidia-cudnn-cu12" in note) == (becomes != asked)


def test_what_the_devices_do_not_allow_is_refused():
  with pytest.raises(ConfigError, match=r"mesh\.data=3"):
    make.print_plan(small(mesh__data=3), chips.parse("cpu:8"), name="mlm")


@pytest.mark.parametrize(("name", "count"), [("cpu:3", 3), ("v5e:2x4", 8)])
def test_the_environment_of_the_child(name, count, monkeypatch):
  monkeypatch.setattr(chips, "is_installed", lambda platform: False)
  monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=5 --xla_other=1")
  monkeypatch.setenv("JAX_PLATFORMS", "tpu")
  monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
  child.set_environment(chips.parse(name))
  flag = f"--xla_force_host_platform_device_count={count}"
  assert os.environ["XLA_FLAGS"].split() == ["--xla_other=1", flag]
  assert os.environ["JAX_PLATFORMS"] == "cpu"
  monkeypatch.setattr(chips, "is_installed", lambda platform: True)
  child.set_environment(chips.parse("v5e:2x4"))
  assert os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize(
  ("machine", "described", "largest"),
  [
    ("cpu:1", "1 x cpu", "8 rows a device"),
    pytest.param("v5e:2x4", "8 x TPU v5 lite, 2 hosts", "1 row a device", marks=pytest.mark.nightly),
    pytest.param("h100:8", "8 x NVIDIA H100", "1 row a device", marks=pytest.mark.nightly),
  ],
)
def test_the_command_prints_a_plan_and_writes_nothing(tmp_path, machine, described, largest):
  platform = chips.parse(machine).platform
  if not targets.is_installed(platform):
    pytest.skip(f"the compiler of {platform} is not installed (requirements-plan.txt)")
  command = [sys.executable, "-m", "pretrain.main", "--config=tests/pretrain/small_run.py:mlm", "--dry_run"]
  command += [f"--workdir={tmp_path / 'run'}", f"--plan={machine}"]
  kept = {} if platform == "cpu" else {"XLA_FLAGS": ""}  # compilers of others want none of the tests' flags
  done = subprocess.run(command, capture_output=True, text=True, env=os.environ | kept)
  assert done.returncode == 0, done.stderr
  for part in (
    f"plan of small_run_mlm for {machine}: {described}",
    "recommended: --config.mesh.",
    "optimizer state",
    "temporaries",
    ": fits",
    f"largest microbatch that fits: {largest}",
    "communication in a step",
    "method",
    "tokens/s",
    "chip-hours",
    "nothing was run or written",
  ):
    assert part in done.stdout, part
  assert not list(tmp_path.iterdir())


def test_a_config_is_held_against_the_planned_devices(capsys):
  arguments = [
    "--config=tests/pretrain/small_run.py:mlm",
    "--config.mesh.data=4",
    "--dry_run",
    "--plan=cpu:2",
  ]
  with pytest.raises(SystemExit) as ended:
    main.main(arguments)
  assert ended.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert "mesh.data=4, mesh.fsdp=1, mesh.tensor=1: the product must be the number of devices, 2" in line


@pytest.mark.parametrize("code", [1, 2])
def test_an_error_of_the_child_is_the_commands_own(code, monkeypatch, capsys):
  monkeypatch.setattr(main.command, "run_child", lambda arguments, relay: (code, "the compiler ended"))
  assert main.main(["--config=tests/pretrain/small_run.py:mlm", "--dry_run", "--plan=cpu:2"]) == code
  assert capsys.readouterr().err == "error: the compiler ended\n"
