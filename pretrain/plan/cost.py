"""What a run costs: bytes of a device by formula, microbatches that fit, FLOPs and hours."""

import contextlib
import copy
import math
import time
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from data.errors import ConfigError
from pretrain.mesh import sharding
from pretrain.mesh.device_program import on_own_rows
from pretrain.mesh.devices import compiler_options
from pretrain.models.encoder import layers_a_turn
from pretrain.models.layers import activation_bytes
from pretrain.ops.attention import attention
from pretrain.plan import flops, rates
from pretrain.run import Run
from pretrain.settings import PRETRAINING
from pretrain.settings.run import batch_sizes


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


def microbatches_of(config: ConfigDict, shards: int, devices: int) -> dict[int, int]:
  """Returns {rows of a microbatch on a device: microbatches} that are valid for a config's batch.

  `shards` are the devices along `data` and `fsdp`, `devices` all of them.
  """
  rows = config.train.batch_size // shards
  changed, found = copy.deepcopy(ConfigDict(config)), {}
  for count in (count for count in range(1, rows + 1) if rows % count == 0):
    changed.train.microbatches = count
    with contextlib.suppress(ConfigError):
      PRETRAINING.check(changed, num_devices=devices)
      found[rows // count] = count
  return found


def rows_of(run: Run) -> int:
  """Returns the rows of a run's microbatch on a device."""
  train = run.config.train
  return train.batch_size // train.microbatches // run.mesh.devices[..., 0].size


def most_rows(run: Run, allowed: Collection[int], limit: float) -> int:
  """Returns the most of the `allowed` rows on a device that fit `limit` bytes, by formula; 0: none fits."""
  sizes = memory_per_device(run)
  each = sizes["activations"] / rows_of(run)
  fixed = sum(sizes.values()) - sizes["activations"]
  return max((rows for rows in allowed if fixed + each * rows <= limit), default=0)


def total_hours(run: Run, *, kind: str) -> tuple[float, str]:
  """Returns the hours of a whole run on its devices, as if of a `kind`, and at which speed."""
  count = run.mesh.devices.size
  if known := rates.expected(run.config, kind):
    speed, why = known
    return rates.hours(run.config, speed * count), why
  # A matrix product takes all CPUs of a host.
  alike, measured = jax.process_count() if kind == "cpu" else count, matmul_flops()
  why = f"{measured / 1e9:,.0f} GFLOP/s, measured with a matrix product here"
  return rates.hours(run.config, alike * measured), why


def cost_lines(run: Run, *, kind: str, limit: float = 0.0) -> dict[str, str]:
  """Returns {name: text} of a run's tokens, FLOPs, memory and time on devices of a `kind`, all by formula.

  `limit`: bytes of a device; 0: unknown.
  """
  config, memory, count = run.config, memory_per_device(run), run.mesh.devices.size
  sizes, length = batch_sizes(config.train), config.data.length
  per_token = flops.training_flops_per_token(config.to_dict())
  with jax.set_mesh(run.mesh):
    together = layers_a_turn(run.recipe.encoder)
  options = compiler_options(kind)
  hours, why = total_hours(run, kind=kind)
  return {
    **work_lines(config),
    "nominal TFLOP per step and device": f"{per_token * sizes.batch_size * length / count / 1e12:,.3f}",
    "attention": ": ".join(filter(None, attention_choice(run))),
    "layers": f"{together} of {config.model.num_layers} in each iteration of a loop",
    "compiler options": ", ".join(f"{name}={value}" for name, value in options.items()) or "XLA's own",
    "memory per device, estimated": gib(sum(memory.values())) + _verdict(run, sum(memory.values()), limit),
    **{f"  {name}": gib(size) for name, size in memory.items()},
    "time, estimated": f"{hours:,.1f} h, {hours * count:,.1f} device-hours, at {why}",
  }


def work_lines(config: ConfigDict) -> dict[str, str]:
  """Returns {name: text} of a run's tokens and FLOPs, which are the same on every machine."""
  sizes, length = batch_sizes(config.train), config.data.length
  return {
    "tokens per step": sizes.shown(length),
    "tokens in all": f"{sizes.rows_before(config.train.total_steps) * length:,}",
    "nominal training MFLOP per token": f"{flops.training_flops_per_token(config.to_dict()) / 1e6:,.1f}",
  }


def _verdict(run: Run, total: float, limit: float) -> str:
  """Returns whether a step fits `limit` bytes (0: unknown), and with how many microbatches it would."""
  if not limit:
    return ""
  if total <= limit:
    return f" of {gib(limit)}: fits"
  allowed = microbatches_of(run.config, run.mesh.devices[..., 0].size, run.mesh.devices.size)
  best = most_rows(run, allowed, limit)
  way = f"--config.train.microbatches={allowed[best]} does" if best else "no number of microbatches does"
  return f" of {gib(limit)}: does not fit; {way}"


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


def gib(size: float) -> str:
  """Returns a number of bytes as text, in GiB, or in MiB if it is small."""
  return f"{size / (1 << 30):,.2f} GiB" if size >= (1 << 30) / 10 else f"{size / (1 << 20):,.2f} MiB"
