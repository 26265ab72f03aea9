"""What --dry_run says, checked against a hand count and against the run itself."""

import jax
import pytest

from pretrain.plan import dry_run
from tests.pretrain.small_run import devices, small_config, small_run


def test_parts_and_total_are_counted():
  def leaf(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")

  params = {"encoder": {"a": leaf(2, 3), "b": leaf(4)}, "generator": {"c": leaf(5)}, "heads": {}}
  assert dry_run.parameter_counts(params) == {"encoder": 10, "generator": 5, "heads": 0, "total": 15}
  del params["generator"]
  assert dry_run.parameter_counts(params)["generator"] == 0


def test_state_and_gradients_are_counted_exactly_and_per_device(small_records):
  run = small_run(small_config("mlm", small_records))
  number = dry_run.parameter_counts(run.abstract_state.params)["total"]
  memory = dry_run.memory_per_device(run)
  assert memory["gradients"] == 4 * number
  # Parameters, two moments, and a few counters.
  assert 12 * number <= memory["state"] <= 12 * number + 64
  cut = small_run(small_config("mlm", small_records, {"mesh.fsdp": 8}), number=8)
  assert dry_run.memory_per_device(cut)["state"] < memory["state"] / 3
  shared = {"mesh.data": 8, "optimizer.shard_update": True}
  shared = dry_run.memory_per_device(small_run(small_config("mlm", small_records, shared), number=8))
  assert shared["state"] < memory["state"] / 3 and shared["gradients"] == memory["gradients"]


def test_remat_microbatches_and_chunks_lower_the_estimate(small_records):
  def memory(**fields):
    fields = {"model.num_layers": 4} | {name.replace("__", "."): value for name, value in fields.items()}
    return dry_run.memory_per_device(small_run(small_config("mlm", small_records, fields)))

  plain = memory()
  activations = [memory(model__remat=how)["activations"] for how in ("full", "cheap", "none")]
  assert activations == sorted(set(activations)) and activations[1] == plain["activations"]
  assert memory(train__microbatches=4)["activations"] == plain["activations"] / 4
  assert memory(model__vocab_chunk_rows=8)["vocabulary logits"] < plain["vocabulary logits"]


def test_layers_of_a_decoder_keep_activations_as_those_of_the_encoder(small_records):
  def activations(encoder: int, decoder: int) -> float:
    fields = {"objectives.mlm.weight": 0.0, "objectives.mae.weight": 1.0, "model.remat": "full"}
    fields |= {"model.num_layers": encoder, "objectives.mae.decoder_layers": decoder}
    return dry_run.memory_per_device(small_run(small_config("mlm", small_records, fields)))["activations"]

  assert activations(1, 3) == activations(3, 1) > activations(1, 1)


def test_kernels_of_attention_keep_no_probabilities(small_records):
  runs = [
    small_run(small_config("mlm", small_records, {"model.attention": body})) for body in ("plain", "auto")
  ]
  assert [dry_run.attention_choice(run).body for run in runs] == ["plain", "by_rows"]
  plain, kernels = (dry_run.memory_per_device(run)["activations"] for run in runs)
  assert kernels < plain


def test_a_dry_run_says_everything_and_writes_nothing(small_records, tmp_path):
  config = small_config("union", small_records)
  with devices(1):
    text = dry_run.dry_run(config, workdir=str(tmp_path / "run"))
  counts = dry_run.parameter_counts(small_run(config).abstract_state.params)
  for part in ("optimizer.learning_rate", "objectives.taco.weight", f"{counts['total']:,}", "fsdp"):
    assert part in text, part
  sections = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
  assert sections == ["config:", "workdir:", "parameters:", "mesh:", "sharding:", "cost:"]
  leaves = jax.tree_util.tree_leaves_with_path(small_run(config).abstract_state.params)
  for path, _ in leaves:
    assert jax.tree_util.keystr(path, simple=True, separator="/") in text
  for name in (
    "tokens per step",
    "training MFLOP per token",
    "memory per device",
    "attention  ",
    "compiler options  ",
    "time, est",
  ):
    assert name in text
  (line,) = [line for line in text.splitlines() if line.startswith("  tokens per step")]
  assert line.split()[-1] == "256"  # 8 rows of 32
  assert list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_records(tmp_path):
  with devices(1):
    text = dry_run.dry_run(small_config("mlm", tmp_path / "later"), workdir=str(tmp_path / "run"))
  assert "do not exist yet; the first start prepares them if --config.data.source=FILES names" in text
  assert list(tmp_path.iterdir()) == []


def test_devices_without_a_known_peak_compute_together(small_records, tmp_path, monkeypatch):
  monkeypatch.setattr(dry_run, "matmul_flops", lambda: 1e9)
  for backend, count in (("gpu", 2), ("cpu", 1)):  # a product takes all CPUs of a host
    monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
    with devices(2):
      text = dry_run.dry_run(small_config("mlm", small_records), workdir=str(tmp_path / "run"))
    assert f"at the speed of {count} x a matrix product here, 1 GFLOP/s" in text


def test_speed_of_a_product_is_a_plausible_number():
  assert 1e6 < dry_run.matmul_flops(128, repeats=2) < 1e16


@pytest.mark.parametrize("recipe, generator", [("mlm", False), ("coco_lm", True)])
def test_only_recipes_with_a_generator_have_its_parameters(small_records, recipe, generator):
  counts = dry_run.parameter_counts(small_run(small_config(recipe, small_records)).abstract_state.params)
  assert (counts["generator"] > 0) is generator
