"""What a forecast says of a step for the eight fake devices; refusals and searches by themselves."""

import dataclasses
from unittest import mock

import jax
import pytest

from data.errors import ConfigError
from pretrain.mesh import chips
from pretrain.plan import flops, roofline, targets
from pretrain.plan import forecast as module
from pretrain.plan.forecast import (
  Forecast,
  forecast,
  largest_rows,
  lower_step,
  memory,
  needed_bytes,
  planned_run,
)
from pretrain.plan.program import parse
from tests.pretrain.plan.tpu_process import output_of
from tests.pretrain.small_run import get_config

HOST = chips.Chip("host", "NVIDIA H100", 1e9, 1e9, 1e9, platform="cpu")


def host_target():
  return targets.Target("host", HOST, jax.devices())


@pytest.fixture(scope="module")
def step():
  """(config, compiled step) of a small recipe on a mesh of 4 x 2."""
  config = get_config("mlm")
  # All positions are read: of its one layer the formula, which knows no pruning, counts all.
  config.update_from_flattened_dict({"mesh.data": 4, "mesh.fsdp": 2, "objectives.mlm.positions": "all"})
  run = planned_run(config, host_target())
  assert run.config.model.dtype == "float32"  # as the config says; only 'auto' is resolved
  return config, lower_step(run).compile()


def forecast_of(step, monkeypatch, chip=HOST):
  """`forecast` without compiling again."""
  config, compiled = step
  monkeypatch.setattr(module, "lower_step", lambda run: mock.Mock(compile=lambda options: compiled))
  return forecast(config, targets.Target("host", chip, jax.devices()))


def test_a_step_for_eight_devices(step, monkeypatch):
  found = forecast_of(step, monkeypatch)
  assert (found.devices, found.rows, found.length) == (8, 1, 32)
  assert found.mesh == {"data": 4, "fsdp": 2, "tensor": 1}
  sizes = found.bytes
  assert sizes["total"] == sizes["arguments"] + sizes["outputs"] - sizes["aliased"] + sizes["temporaries"]
  assert found.fits
  assert abs(sum(found.parts.values()) - 1) < 1e-6
  assert {"attention", "layers", "heads", "update"} <= set(found.parts)
  assert any(name.startswith("all-reduce over data") for name in found.collectives)
  assert found.seconds > 0 and found.link_seconds > 0 and found.unknown_loops == ()
  assert not forecast_of(step, monkeypatch, dataclasses.replace(HOST, hbm_bytes=1000)).fits


@pytest.mark.parametrize(("platform", "temporaries"), [("cpu", 900), ("cuda", 900), ("tpu", 620)])
def test_temporaries_of_a_tpu_are_what_its_peak_has_beside_the_arguments(platform, temporaries):
  sizes = {"argument": 100, "output": 90, "alias": 80, "temp": 900}
  analysis = mock.Mock(
    peak_memory_in_bytes=730, **{f"{kind}_size_in_bytes": size for kind, size in sizes.items()}
  )
  found = memory(mock.Mock(memory_analysis=lambda: analysis), platform)
  kinds = {"arguments": 100, "outputs": 90, "aliased": 80}
  assert found == kinds | {"temporaries": temporaries, "total": 110 + temporaries}


def test_the_products_of_a_step_are_those_of_the_formula(step):
  config, compiled = step
  formula = flops.training_flops_per_token(config.to_dict()) * 8 * 32
  assert roofline.total_flops(parse(compiled.as_text())) * 8 == pytest.approx(formula, rel=0.07)


def test_what_the_compiler_refuses_does_not_fit(step, monkeypatch):
  refused = mock.Mock(
    compile=mock.Mock(side_effect=RuntimeError("RESOURCE_EXHAUSTED: Used 2.00G of 1.00G hbm"))
  )
  monkeypatch.setattr(module, "lower_step", lambda run: refused)
  found = forecast(step[0], host_target())
  assert not found.fits and found.bytes == {"total": 2 << 30}


@pytest.mark.parametrize(
  ("message", "needed"),
  [
    ("RESOURCE_EXHAUSTED: ... Used 18.60G of 15.75G hbm. Exceeded ...", int(18.6 * 2**30)),
    (
      "RESOURCE_EXHAUSTED: memory required for HLO temporaries (512.00M) exceeds available HBM (15.75G)",
      512 << 20,
    ),
    ("RESOURCE_EXHAUSTED: out of semaphores", None),
    ("INVALID_ARGUMENT: Used 1G of 2G", None),
  ],
)
def test_what_a_refused_program_would_have_needed(message, needed):
  assert needed_bytes(message) == needed


def searched(limit, per_row, constant, multiple):
  asked = []

  def forecast_of(rows):
    asked.append(rows)
    total = constant + per_row * rows
    return Forecast("t", "d", 1, {}, rows, 512, {"total": total}, fits=total <= limit)

  return largest_rows(forecast_of, multiple=multiple, limit=limit), asked


@pytest.mark.parametrize("limit", [1_000, 1_599, 1_600, 12_345])
def test_the_largest_microbatch_is_found_in_few_compilations(limit):
  found, asked = searched(limit, per_row=10, constant=200, multiple=8)
  assert found.fits and found.rows == (limit - 200) // 10 // 8 * 8
  assert len(asked) <= 5 and len(set(asked)) == len(asked)


def test_a_target_on_which_nothing_fits():
  found, asked = searched(100, per_row=10, constant=200, multiple=8)
  assert not found.fits and asked == [8]


@pytest.mark.parametrize("name", ["v9:2x2", "v5e", "v5e:2", "h100:2x2", ""])
def test_a_target_that_is_none_is_refused_in_a_line(name):
  with pytest.raises(ConfigError, match="is not a known machine; expected v5e:SHAPE"):
    targets.describe(name)


@pytest.mark.parametrize(("name", "package"), [("v5e:2x2", "libtpu"), ("h100", "jax-cuda12-plugin")])
def test_what_is_not_installed_is_named(name, package, monkeypatch):
  monkeypatch.setattr(targets, "is_installed", lambda platform: False)
  with pytest.raises(ConfigError, match=f"{name}: its compiler {package} is not installed; "):
    targets.describe(name)


def test_peaks_and_clocks_agree():
  units = {"v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2}
  for name, count in units.items():
    chip = chips.CHIPS[name]
    assert chip.peak_flops == pytest.approx(2 * count * chip.clock, rel=0.01)


def test_a_product_on_a_tpu_is_near_its_peak():
  printed = output_of(
    "import jax, jax.numpy as jnp",
    "from jax.sharding import SingleDeviceSharding as On",
    "from pretrain.plan import costs, targets",
    "from pretrain.plan.program import parse",
    "target = targets.describe('v5e:2x2')",
    "x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=On(target.devices[0]))",
    "program = parse(jax.jit(jnp.matmul).lower(x, x).compile().as_text())",
    "print(2 * 4096**3 / (costs.cycles(program) / target.chip.clock) / target.chip.peak_flops)",
  )
  assert 0.85 < float(printed.split()[-1]) <= 1.0
