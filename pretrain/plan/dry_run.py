"""Describes a run before it starts: config, parameters, sharding, cost. Nothing is trained or written."""

import dataclasses
import math
import os
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from data import files, manifest, vocabulary
from pretrain.checkpoints import resume, warm_start
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import chips, sharding, trees
from pretrain.mesh.device_program import on_own_rows
from pretrain.mesh.devices import compiler_options
from pretrain.models.encoder import layers_a_turn
from pretrain.models.layers import activation_bytes
from pretrain.ops.attention import attention
from pretrain.plan import flops
from pretrain.reading import mixed
from pretrain.reading.prepare import records_directory, refuse_other_text
from pretrain.reading.prepared import refuse_other_masks, token_ids
from pretrain.run import Run, make_run
from pretrain.settings import PRETRAINING, mixture
from pretrain.settings.run import DataFields, ReadingSettings, batch_sizes, reading_settings

GIB = 1 << 30


def parameter_counts(params: Mapping[str, Any]) -> dict[str, int]:
  """Counts parameters as {'encoder', 'generator', 'heads', 'total'}; shared tables count as encoder."""
  counts = {
    part: sum(leaf.size for leaf in jax.tree.leaves(params.get(part, {})))
    for part in ("encoder", "generator", "heads")
  }
  return counts | {"total": sum(counts.values())}


def memory_per_device(run: Run) -> dict[str, float]:
  """Estimates the memory of one device in bytes.

  Keys: 'state' (parameters and optimizer moments, exact), 'gradients' (exact), 'activations' (stored by the
  layers for the backward pass) and 'vocabulary logits' (one chunk, three arrays).
  """
  config, mesh = run.config, run.mesh
  params = run.abstract_state.params
  # Not sharded over `data` until they are summed, even if the update is.
  gradients = jax.tree.map(
    lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
    params,
    sharding.shardings(mesh, params),
  )
  model, length = config.model, config.data.length
  shards = mesh.shape["data"] * mesh.shape["fsdp"]
  rows = config.train.batch_size // config.train.microbatches // shards
  crops = sum("crop" in objective.reads for objective in run.recipe.objectives.values())
  depth = model.num_layers * (1 + crops)
  depth += sum(objective.own_layers for objective in run.recipe.objectives.values())
  if run.recipe.generator is not None:
    depth += sum(member.num_layers for member in run.recipe.generator.members)
  activations = activation_bytes(
    run.recipe.encoder,
    tokens=rows * length,
    length=length,
    depth=depth,
    has_plain_attention=attention_choice(run).body == "plain",
  )
  slots = min(run.recipe.chunk * rows, rows * length)
  logits = 3 * 4 * slots * model.vocab_size
  return {
    "state": float(local_bytes(run.abstract_state)),
    "gradients": float(local_bytes(gradients)),
    "activations": float(activations),
    "vocabulary logits": float(logits),
  }


def attention_choice(run: Run) -> attention.Choice:
  """Returns which attention the encoder uses for whole rows in a training step, and why."""
  config, encoder, choices = run.config, run.recipe.encoder, []
  if encoder.relative_position == "disentangled":
    return attention.Choice("plain" if encoder.attention == "plain" else "blocks", "")

  def look(params, rows, totals):
    choices.append(
      attention.choose(
        encoder.attention,
        rows=rows.shape[0],
        length=config.data.length,
        heads=encoder.num_heads,
        head_dim=encoder.head_dim,
        dtype=encoder.compute_dtype,
        dropout_rate=encoder.attention_dropout,
        has_bias=encoder.relative_position != "none",
      )
    )
    return params, totals

  rows = jax.ShapeDtypeStruct((config.train.batch_size // config.train.microbatches,), jnp.int32)
  with jax.set_mesh(run.mesh):
    jax.eval_shape(lambda rows: on_own_rows(look, {}, row_axis=0, returns="values")({}, rows, {}), rows)
  return choices[0]


def local_bytes(abstract_tree: Any) -> int:
  """Returns the bytes on one device of a tree of ShapeDtypeStructs with shardings."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(abstract_tree)
  )


def dry_run(config: ConfigDict, *, workdir: str) -> str:
  """Returns the resolved config, parameter counts, mesh, sharding and cost of a run, as text.

  ConfigError: the config has problems. DataError: a checkpoint to begin with is missing.
  """
  PRETRAINING.check(config, num_devices=jax.device_count())
  _ = warm_start.origins(config.to_dict()).paths  # looks for them
  settings = reading_settings(config)
  if mixture.is_fed(config.data):
    tokens, lines = _feed(settings.data, settings.vocab_size)
  elif mixture.seqio_name(config.data):
    tokens = TokenIds(0, 1, 2, 3, 4, config.model.vocab_size)
    lines = {"records": f"of the Tasks of {config.data.mixture}; the first start reads their names"}
  elif mixture.is_asked(config.data):
    found = mixed.find(settings, only=(manifest.NAME,))
    refuse_other_masks(settings.data, found.manifest.packing, records=found.directory)
    tokens, lines = token_ids(found.directory), _mixture_lines(found)
  else:
    tokens, lines = _records(settings)
  # Costs do not depend on where words begin.
  run = make_run(config, dataclasses.replace(tokens, word_starts=b"\1" * tokens.vocab_size))
  sections = [
    section("config", resume.flatten(config.to_dict())),
    section("workdir", {"workdir": workdir, **lines}),
    section("parameters", {k: f"{v:,}" for k, v in parameter_counts(run.abstract_state.params).items()}),
    section("mesh", {name: str(size) for name, size in run.mesh.shape.items()}),
    section("sharding", _sharding_lines(run)),
    section("cost", cost_lines(run, kind=jax.devices()[0].device_kind)),
  ]
  return "\n\n".join(sections)


def _records(settings: ReadingSettings) -> tuple[TokenIds, dict[str, str]]:
  """Returns special ids from the records of a config, or placeholders, and a line about their location."""
  directory = records_directory(settings, only=(manifest.NAME,))
  prepared = os.path.exists(os.path.join(directory, manifest.NAME))
  if prepared:
    refuse_other_text(settings.data, directory)
    refuse_other_masks(settings.data, manifest.read(directory).packing, records=directory)
  tokens = token_ids(directory) if prepared else TokenIds(0, 1, 2, 3, 4, settings.vocab_size)
  directory = settings.data.directory or directory  # not the local copy of an address
  named = " if --config.data.source=FILES names their text" if settings.data.directory else ""
  missing = "" if prepared else f" (do not exist yet; the first start prepares them{named})"
  return tokens, {"records": f"{directory}{missing}"}


def _feed(data: DataFields, vocab_size: int) -> tuple[TokenIds, dict[str, str]]:
  """Returns special ids from `data.vocabulary`, or placeholders, and a line that names the source."""
  words = files.read_json(os.path.join(data.vocabulary, vocabulary.NAME)) if data.vocabulary else {}
  tokens = TokenIds(0, 1, 2, 3, 4, vocab_size)
  if words:
    tokens = TokenIds(**words["special_ids"], vocab_size=words["size"])
  return tokens, {"records": f"none: {data.source} is read during training"}


def _mixture_lines(sources: mixed.Found) -> dict[str, str]:
  return {
    f"records {source.name}": ", ".join(
      f"{float(rate):.4%} from step {step:,}" for step, rate in zip(sources.steps, source.rates)
    )
    + f" ({source.written})"
    for source in sources.sources
  }


def _sharding_lines(run: Run) -> dict[str, str]:
  leaves = trees.by_path(run.abstract_state.params)
  return {path: f"{list(leaf.shape)} {leaf.sharding.spec}" for path, leaf in leaves.items()}


def cost_lines(run: Run, *, kind: str) -> dict[str, str]:
  """Returns {name: text} of a run's tokens, FLOPs, memory and time on devices of a `kind`, all by formula."""
  config = run.config
  sizes, length = batch_sizes(config.train), config.data.length
  tokens = sizes.rows_before(config.train.total_steps) * length
  per_token = flops.training_flops_per_token(config.to_dict())
  memory, count = memory_per_device(run), run.mesh.devices.size
  with jax.set_mesh(run.mesh):
    together = layers_a_turn(run.recipe.encoder)
  options = compiler_options(kind)
  # Half of the peak is this project's target; a device without a known peak is measured by a matrix product,
  # which takes all CPUs of a host.
  peak = config.train.peak_flops or chips.peak_flops(kind)
  if peak:
    speed, basis = 0.5 * peak * count, f"half of the peak of {count} x {kind}"
  else:
    alike, measured = jax.process_count() if kind == "cpu" else count, matmul_flops()
    speed, basis = alike * measured, f"{alike} x a matrix product here, {measured / 1e9:,.0f} GFLOP/s"
  hours = per_token * tokens / speed / 3600
  return {
    "tokens per step": sizes.shown(length),
    "tokens in all": f"{tokens:,}",
    "nominal training MFLOP per token": f"{per_token / 1e6:,.1f}",
    "nominal TFLOP per step and device": f"{per_token * sizes.batch_size * length / count / 1e12:,.3f}",
    "attention": ": ".join(filter(None, attention_choice(run))),
    "layers": f"{together} of {config.model.num_layers} in each iteration of a loop",
    "compiler options": ", ".join(f"{name}={value}" for name, value in options.items()) or "XLA's own",
    "memory per device, estimated": f"{sum(memory.values()) / GIB:.2f} GiB",
    **{f"  {name}": f"{size / GIB:.2f} GiB" for name, size in memory.items()},
    "time, estimated": f"{hours:,.1f} h, {hours * count:,.1f} device-hours, at the speed of {basis}",
  }


def matmul_flops(size: int = 1024, repeats: int = 8) -> float:
  """Measures the FLOP/s of a float32 matrix product on the default device."""
  x = jnp.ones((size, size), jnp.float32)
  product = jax.jit(jnp.matmul)
  product(x, x).block_until_ready()
  started = time.perf_counter()
  for _ in range(repeats):
    x = product(x, x) / size
  x.block_until_ready()
  return repeats * 2 * size**3 / (time.perf_counter() - started)


def section(title: str, lines: Mapping[str, Any]) -> str:
  """Formats {name: value} as lines in two columns under a title."""
  width = max((len(name) for name in lines), default=0)
  return "\n".join([f"{title}:", *(f"  {name:<{width}}  {value}" for name, value in lines.items())])
