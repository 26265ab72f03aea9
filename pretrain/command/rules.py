"""Rules about several fields: sizes that must fit each other, choices that make no sense together.

Every rule takes {dotted name: value} with all fields of `configs/base.py`, each right by itself, and
yields lines for the user that name the fields it read. Imports no jax.
"""

import math
from collections.abc import Iterator

from pretrain.command import generator_rules
from pretrain.command.fields import Fields, show

OBJECTIVES = ("mlm", "rtd", "clm", "all_token", "scl", "taco")
READ_REPLACED_TOKENS = ("rtd", "clm", "all_token")


def problems(config: Fields, *, num_devices: int | None, num_hosts: int) -> list[str]:
  """Lines for everything that does not fit together.

  Args:
    config: {dotted name: value}, every value allowed by itself.
    num_devices: of all hosts; None: not known.
    num_hosts: processes that train together.
  """
  found = [
    *_model(config),
    *_lengths(config),
    *_objectives(config),
    *_corruption(config),
    *_contrast(config),
    *_training(config),
  ]
  if config["corruption.kind"] == "generator":
    found += generator_rules.problems(config)
  else:
    found += generator_rules.without_generator(config)
  misshaped = list(_mesh(config, num_devices, num_hosts))
  # What the devices must divide cannot be said of a mesh that does not exist.
  return found + (misshaped or [*_cuts(config, num_devices), *_batch(config, num_devices)])


def _is_on(config: Fields, objective: str) -> bool:
  return config[f"objectives.{objective}.weight"] > 0


def _model(config: Fields) -> Iterator[str]:
  if config["model.hidden_size"] % config["model.num_heads"]:
    yield f"{show(config, 'model.hidden_size', 'model.num_heads')}: the heads must divide the width"
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


def _lengths(config: Fields) -> Iterator[str]:
  length, rows = config["data.length"], config["model.max_length"]
  if length > rows:
    yield (
      f"{show(config, 'data.length', 'model.max_length')}: the sequence is longer than the position table; "
      f"use --config.model.max_length={length} or a shorter sequence"
    )
  if _is_on(config, "scl"):
    fraction = config["objectives.scl.crop_fraction"]
    crop = int(fraction * length) if fraction <= 1 else int(fraction)
    if crop < 1 or crop > length:
      yield (
        f"{show(config, 'objectives.scl.crop_fraction', 'data.length')}: a crop has {crop} tokens; "
        f"expected 1 to {length}"
      )
    elif length <= rows < min(crop + config["objectives.scl.crop_add_cls"], length + 1):
      yield (
        f"{show(config, 'objectives.scl.crop_fraction', 'objectives.scl.crop_add_cls', 'model.max_length')}"
        f": [CLS] and a whole sequence are longer than the position table; use a crop below 1.0, "
        f"crop_add_cls=False or --config.model.max_length={length + 1}"
      )
  if _is_on(config, "taco") and config["objectives.taco.window"] // 2 >= length:
    yield (
      f"{show(config, 'objectives.taco.window', 'data.length')}: half the window is as long as the sequence"
    )


def _objectives(config: Fields) -> Iterator[str]:
  kind, on = config["corruption.kind"], [name for name in OBJECTIVES if _is_on(config, name)]
  if not on:
    weights = ", ".join(f"objectives.{name}.weight" for name in OBJECTIVES)
    yield f"no objective is on: give one of {weights} a value above 0"
  if kind == "mask":
    for name in READ_REPLACED_TOKENS:
      if name in on:
        yield (
          f"{show(config, f'objectives.{name}.weight', 'corruption.kind')}: {name} needs replaced tokens; "
          f"use corruption.kind 'generator' or 'random', or objectives.mlm"
        )
  elif "mlm" in on:
    yield (
      f"{show(config, 'objectives.mlm.weight', 'corruption.kind')}: mlm reads masks, and the input has "
      f"replaced tokens; use objectives.clm with copy=False, or corruption.kind 'mask'"
    )
  if "all_token" in on and "clm" in on:
    yield (
      f"{show(config, 'objectives.all_token.weight', 'objectives.clm.weight')}: both train the LM "
      f"head and the copy head on the same positions; switch one of them off"
    )
  untrained = config["objectives.clm.copy"] and config["objectives.clm.stop_gradient"]
  if "clm" in on and untrained and not {"rtd", "all_token"} & set(on):
    yield (
      f"{show(config, 'objectives.clm.copy', 'objectives.clm.stop_gradient', 'objectives.rtd.weight')}: the "
      f"copy head would never be trained; give rtd a weight, or set copy or stop_gradient to False"
    )


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


def _contrast(config: Fields) -> Iterator[str]:
  for name in ("scl", "taco"):
    size = config[f"objectives.{name}.group_size"]
    if not _is_on(config, name):
      continue
    if size == 1 or (size == 0 and config["train.batch_size"] == 1):
      yield (
        f"{show(config, f'objectives.{name}.group_size', 'train.batch_size')}: a group of one row has "
        f"nothing to contrast; expected 2 or more"
      )
    if size == 0 and config["train.microbatches"] > 1:
      yield (
        f"{show(config, f'objectives.{name}.group_size', 'train.microbatches')}: microbatches cut a group "
        f"that is the whole batch; use 1 microbatch or a group size"
      )
  if config["objectives.scl.head"] == "cls" and config["objectives.scl.projection_size"]:
    yield (
      f"{show(config, 'objectives.scl.head', 'objectives.scl.projection_size')}: there is no projection to "
      f"size; use head 'projection' or size 0"
    )


def _training(config: Fields) -> Iterator[str]:
  total = config["train.total_steps"]
  if config["optimizer.warmup_steps"] > total:
    yield (
      f"{show(config, 'optimizer.warmup_steps', 'train.total_steps')}: the warm-up is longer than the run"
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
  if not config["data.source"] and not config["data.directory"]:
    yield "data.source='', data.directory='': no text; give a source such as 'installed_docs' or a directory"


def _mesh(config: Fields, num_devices: int | None, num_hosts: int) -> Iterator[str]:
  sizes = {axis: config[f"mesh.{axis}"] for axis in ("data", "fsdp", "tensor")}
  shown = show(config, *(f"mesh.{axis}" for axis in sizes))
  if 0 in sizes.values() or list(sizes.values()).count(-1) > 1:
    yield f"{shown}: expected sizes of 1 or more, and -1 (the rest of the devices) at most once"
    return
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if num_devices is not None and (num_devices % fixed or (-1 not in sizes.values() and fixed != num_devices)):
    yield f"{shown}: the product must be the number of devices, {num_devices}"
    return
  # Otherwise a host's devices hold rows with gaps, which it could not read as one piece.
  local, tensor = (num_devices or 0) // num_hosts, _axis_size(config, "tensor", num_devices)
  if num_hosts > 1 and local % tensor and tensor % local:
    yield f"{shown}: mesh.tensor must divide the {local} devices of a host, or be a multiple of them"


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


def _batch(config: Fields, num_devices: int | None) -> Iterator[str]:
  """The batch must fall into microbatches, each into contrast groups and into equal parts per device."""
  parts, reasons = config["train.microbatches"], []
  if parts > 1:
    reasons.append(f"train.microbatches={parts}")
  shards = _axis_size(config, "data", num_devices) * _axis_size(config, "fsdp", num_devices)
  if shards > 1:
    reasons.append(f"{shards} devices along mesh.data and mesh.fsdp")
  unit = shards
  for name in ("scl", "taco"):
    size = config[f"objectives.{name}.group_size"]
    if _is_on(config, name) and size > 1:
      unit = math.lcm(unit, size)
      reasons.append(f"objectives.{name}.group_size={size}")
  unit *= parts
  batch = config["train.batch_size"]
  if batch % unit:
    below, above = batch // unit * unit, (batch // unit + 1) * unit
    sizes = f"{below} or {above}" if below else f"{above}"
    yield (
      f"train.batch_size={batch}: not a multiple of {unit}, what {' and '.join(reasons)} need; use {sizes}"
    )
