"""Rules about several fields: sizes that must fit each other, choices that make no sense together.

Every rule takes {dotted name: value} with all fields of `configs/base.py`, each right by itself, and
yields lines for the user that name the fields it read. Rules about devices are by themselves: how many there
are is known later. Imports no jax.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

from data.errors import unknown
from pretrain.command import generator_rules
from pretrain.settings import feed, mixture, trackers
from pretrain.settings.field_types import Fields, show
from pretrain.settings.mesh import MeshSettings, Sizes, nearest, shown
from pretrain.settings.objectives import OBJECTIVES, switched_on
from pretrain.settings.objectives.objective import Contrast, Objective


def problems(config: Fields) -> list[str]:
  """Lines for everything that does not fit together, whatever the number of devices."""
  objectives = _switched_on(config)
  refusals = [*_model(config), *_objectives(config, objectives), *_corruption(config), *_training(config)]
  for objective in objectives.values():
    refusals += objective.problems(config)
  if config["corruption.kind"] == "generator":
    refusals += generator_rules.problems(config)
  else:
    refusals += generator_rules.without_generator(config)
  return refusals


def device_problems(config: Fields, num_devices: int | None) -> list[str]:
  """Lines for what does not fit on devices; `num_devices` of all hosts are None while not known."""
  misshaped = list(_mesh(config, num_devices))
  # Without a mesh there is nothing that batches and parameters must be divisible by.
  return misshaped or [*_cuts(config, num_devices), *_batch(config, _switched_on(config), num_devices)]


def _switched_on(config: Fields) -> dict[str, Objective]:
  return switched_on(
    {
      name: {field.name: config[f"objectives.{name}.{field.name}"] for field in dataclasses.fields(settings)}
      for name, settings in OBJECTIVES.items()
    }
  )


def _model(config: Fields) -> Iterator[str]:
  if config["model.hidden_size"] % config["model.num_heads"]:
    yield f"{show(config, 'model.hidden_size', 'model.num_heads')}: the heads must divide the width"
  if config["data.length"] > config["model.max_length"]:
    length = config["data.length"]
    yield (
      f"{show(config, 'data.length', 'model.max_length')}: the sequence is longer than the position table; "
      f"use --config.model.max_length={length} or a shorter sequence"
    )
  if config["model.attention"] == "cudnn" and config["model.attention_dropout"] > 0:
    yield (
      f"{show(config, 'model.attention', 'model.attention_dropout')}: cuDNN draws no dropout that can be "
      f"repeated; use attention_dropout 0.0, or attention 'auto'"
    )
  if config["model.attention"] == "cudnn" and config["model.dtype"] == "float32":
    yield f"{show(config, 'model.attention', 'model.dtype')}: cuDNN computes in bfloat16; use dtype 'auto'"
  if config["model.scan_unroll"] > config["model.num_layers"]:
    yield f"{show(config, 'model.scan_unroll', 'model.num_layers')}: there are fewer layers to unroll"
  if config["model.relative_position"] != "none":
    buckets, distance = config["model.relative_buckets"], config["model.relative_max_distance"]
    if buckets % 2:
      yield f"model.relative_buckets={buckets}: expected an even number, half for each direction"
    # A quarter of the buckets are exact distances; the logarithm of the rest needs room above them.
    if distance <= buckets // 4 + 1:
      yield (
        f"{show(config, 'model.relative_max_distance', 'model.relative_buckets')}: expected a distance "
        f"above {buckets // 4 + 1}"
      )
  needs_checkpoint = config["model.freeze_embeddings"] == "checkpoint"
  if needs_checkpoint != bool(config["model.freeze_embeddings_from"]):
    yield (
      f"{show(config, 'model.freeze_embeddings', 'model.freeze_embeddings_from')}: 'checkpoint' and the "
      f"checkpoint's directory go together; give both or neither"
    )


def _objectives(config: Fields, objectives: dict[str, Objective]) -> Iterator[str]:
  if not objectives:
    weights = ", ".join(f"objectives.{name}.weight" for name in OBJECTIVES)
    yield f"no objective is on: give one of {weights} a value above 0"
  for name, objective in objectives.items():
    shown = objective.show(config, "weight", "corruption.kind")
    has_masks = config["corruption.kind"] == "mask"
    if "replaced" in objective.reads and has_masks:
      yield (
        f"{shown}: {name} needs replaced tokens; use corruption.kind 'generator' or 'random', or "
        f"objectives.mlm"
      )
    if "masks" in objective.reads and not has_masks:
      yield (
        f"{shown}: {name} reads masks, and the input has replaced tokens; use objectives.clm with "
        f"copy=False, or corruption.kind 'mask'"
      )
  cropped = [
    f"objectives.{name}.weight" for name, objective in objectives.items() if "crop" in objective.reads
  ]
  if len(cropped) > 1:
    yield f"{show(config, *cropped)}: a step has one crop, and each of them reads its own; switch on one"


def _corruption(config: Fields) -> Iterator[str]:
  kind, rule = config["corruption.kind"], config["corruption.mask_rule"]
  masked, random = config["corruption.mask_token_rate"], config["corruption.random_token_rate"]
  if masked + random > 1 + 1e-9:
    yield (
      f"{show(config, 'corruption.mask_token_rate', 'corruption.random_token_rate')}: they are parts of the "
      f"chosen tokens and add up to more than 1"
    )
  if rule == "electra_google" and random > 0:
    yield (
      f"{show(config, 'corruption.random_token_rate', 'corruption.mask_rule')}: this rule puts in no random "
      f"tokens; use 0.0, or mask_rule 'count' or 'bernoulli'"
    )
    return
  # Google's ELECTRA leaves 15 % of the chosen tokens as they are and lets the generator predict them.
  keeps_some = masked < 1 and not (kind == "generator" and rule == "electra_google")
  if kind != "mask" and (random > 0 or keeps_some):
    yield (
      f"{show(config, 'corruption.mask_token_rate', 'corruption.random_token_rate', 'corruption.kind')}: "
      f"the mix of masks, random and kept tokens belongs to corruption.kind 'mask'; use 1.0 and 0.0 here"
    )


def _training(config: Fields) -> Iterator[str]:
  total = config["train.total_steps"]
  if config["optimizer.warmup_steps"] > total:
    yield (
      f"{show(config, 'optimizer.warmup_steps', 'train.total_steps')}: the warm-up is longer than the run; "
      f"shorten it too, for example with --config.optimizer.warmup_steps={total // 10}"
    )
  if config["optimizer.end_learning_rate"] > config["optimizer.learning_rate"]:
    yield (
      f"{show(config, 'optimizer.end_learning_rate', 'optimizer.learning_rate')}: the end is above the peak"
    )
  outside = [step for step in config["train.checkpoint_steps"] if not 1 <= step <= total]
  if outside:
    yield (
      f"{show(config, 'train.checkpoint_steps', 'train.total_steps')}: steps outside 1 to {total} never come"
    )
  if config["train.spike_roll_back"] and not config["train.spike_zscore"]:
    yield "train.spike_roll_back=True: nothing is a spike; give train.spike_zscore, such as 8"
  for name in trackers.names(config["train.trackers"]):
    if name not in trackers.NAMES:
      yield f"train.trackers: {unknown('tracker', name, trackers.NAMES)}"
  if config["train.probe_every"] and not config["train.probe_data"]:
    yield "train.probe_every: nothing to ask about; give train.probe_data, a folder of annotated data"
  if config["train.probe_every"] and config["train.multihost"]:
    yield "train.probe_every: only where one process trains; use `python -m pretrain.probe` afterwards"
  yield from mixture.problems(config)
  yield from feed.problems(config)
  if not any(config[f"data.{name}"] for name in ("source", "directory", "mixture", "stages")):
    yield "data.source='', data.directory='': no text; give a source such as 'installed_docs' or a directory"


def _mesh(config: Fields, num_devices: int | None) -> Iterator[str]:
  asked = _asked(config)
  names = show(config, *(f"mesh.{axis}" for axis in Sizes._fields))
  if 0 in asked.sizes or asked.sizes.count(-1) > 1:
    yield f"{names}: expected sizes of 1 or more, and -1 (the rest of the devices) at most once"
  elif num_devices is not None and asked.filled(num_devices) is None:
    fits = functools.partial(_fits, config, num_devices)
    near = nearest(asked.sizes, num_devices, can=fits) or nearest(asked.sizes, num_devices)
    assert near is not None  # all of them along `data` always are
    yield f"{names}: the product must be the number of devices, {num_devices}; the nearest is {shown(near)}"


def _asked(config: Fields) -> MeshSettings:
  return MeshSettings(*(config[f"mesh.{axis}"] for axis in Sizes._fields))


def _fits(config: Fields, num_devices: int, sizes: Sizes) -> bool:
  """Whether everything that a mesh of these sizes must divide is divided."""
  changed = {**config, **{f"mesh.{axis}": size for axis, size in sizes._asdict().items()}}
  return not [*_cuts(changed, num_devices), *_batch(changed, _switched_on(changed), num_devices)]


def _cuts(config: Fields, num_devices: int | None) -> Iterator[str]:
  """Sizes that the mesh cuts; the vocabulary may stay whole (sharding.MAY_STAY_WHOLE)."""
  cut = [("model.num_heads", "tensor"), ("model.mlp_size", "tensor"), ("model.hidden_size", "fsdp")]
  if config["corruption.kind"] == "generator":
    cut += [(name.replace("model.", "generator."), axis) for name, axis in cut]
  for name, axis in cut:
    size = _axis_size(config, axis, num_devices)
    if config[name] % size:
      yield f"{show(config, name)}: not divisible by mesh.{axis}={size}, which cuts it; change one of them"


def _axis_size(config: Fields, axis: str, num_devices: int | None) -> int:
  """Devices on an axis; 1 for the one that takes the rest while the rest is not known."""
  size = config[f"mesh.{axis}"]
  if size != -1:
    return size
  others = math.prod(config[f"mesh.{other}"] for other in ("data", "fsdp", "tensor") if other != axis)
  return max(1, (num_devices or 0) // others)


def _batch(config: Fields, objectives: dict[str, Objective], num_devices: int | None) -> Iterator[str]:
  """The batch must fall into microbatches, each into contrast groups and into equal parts per device."""
  microbatches, reasons = config["train.microbatches"], []
  if microbatches > 1:
    reasons.append(f"train.microbatches={microbatches}")
  shards = _axis_size(config, "data", num_devices) * _axis_size(config, "fsdp", num_devices)
  if shards > 1:
    reasons.append(f"{shards} devices along mesh.data and mesh.fsdp")
  unit = shards
  for name, objective in objectives.items():
    if isinstance(objective, Contrast) and objective.group_size > 1:
      unit = math.lcm(unit, objective.group_size)
      reasons.append(f"objectives.{name}.group_size={objective.group_size}")
  unit *= microbatches
  batch = config["train.batch_size"]
  if batch % unit:
    below, above = batch // unit * unit, (batch // unit + 1) * unit
    sizes = f"{below} or {above}" if below else f"{above}"
    yield (
      f"train.batch_size={batch}: not a multiple of {unit}, what {' and '.join(reasons)} need; use {sizes}"
    )
