"""Rules about several fields: sizes that must match, choices that contradict each other.

Every rule gets {dotted name: value} of all fields of `configs/base.py`, each valid by itself. It yields
messages for the user that name the fields it read. Rules about devices are by themselves: how many there
are is known later. Imports no jax.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

from data.errors import unknown
from pretrain.command import generator_rules
from pretrain.settings import mixture, run
from pretrain.settings.field_types import Fields, show
from pretrain.settings.objectives import OBJECTIVES, Contrast, Objective, switched_on
from pretrain.settings.run import MeshSettings, MeshSizes, nearest_sizes, shown_sizes


def problems(config: Fields) -> list[str]:
  """Returns an error for each contradiction between fields that does not depend on devices."""
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
  """Returns an error for each size that does not fit the mesh; `num_devices` (all hosts) may be unknown."""
  misshaped = list(_mesh(config, num_devices))
  # With an invalid mesh it is unknown what batches and parameters must be divisible by.
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
    yield f"{show(config, 'model.hidden_size', 'model.num_heads')}: the width must be divisible by the heads"
  if config["model.num_kv_heads"] and config["model.num_heads"] % config["model.num_kv_heads"]:
    yield f"{show(config, 'model.num_kv_heads', 'model.num_heads')}: expected a divisor of the heads"
  if config["model.pair_segments"] and config["model.num_segments"] < 2:
    yield f"{show(config, 'model.pair_segments', 'model.num_segments')}: expected 2 segments at least"
  if config["data.length"] > config["model.max_length"]:
    length = config["data.length"]
    yield (
      f"{show(config, 'data.length', 'model.max_length')}: the sequence is longer than the position table; "
      f"shorten it or use\n  --config.model.max_length={length}"
    )
  if config["model.attention"] == "cudnn" and config["model.attention_dropout"] > 0:
    yield (
      f"{show(config, 'model.attention', 'model.attention_dropout')}: cuDNN's dropout cannot be "
      f"reproduced; use one of\n  --config.model.attention_dropout=0.0\n  --config.model.attention=auto"
    )
  if config["model.attention"] == "cudnn" and config["model.dtype"] == "float32":
    yield f"{show(config, 'model.attention', 'model.dtype')}: needs bfloat16\n  --config.model.dtype=auto"
  hides_more = {
    "data.packing": config["data.packing"] == "segments",
    "model.global_every": config["model.global_every"] != 1,  # the other layers have windows
    "model.global_layers": bool(config["model.global_layers"]),
    "objectives.mae.weight": bool(config["objectives.mae.weight"]),
  }
  if config["model.attention"] == "cudnn" and any(hides_more.values()):
    shown_sizes = show(config, "model.attention", *(name for name, does in hides_more.items() if does))
    yield f"{shown_sizes}: cuDNN hides the end of a row only\n  --config.model.attention=auto"
  if config["model.scan_unroll"] > config["model.num_layers"]:
    yield f"{show(config, 'model.scan_unroll', 'model.num_layers')}: the model has fewer layers to unroll"
  yield from _backbone(config)
  if config["model.relative_position"] != "none":
    buckets, distance = config["model.relative_buckets"], config["model.relative_max_distance"]
    if buckets % 2:
      yield f"model.relative_buckets={buckets}: expected an even number, half for each direction"
    # A quarter of the buckets are single distances; the logarithmic ones need larger distances.
    if distance <= buckets // 4 + 1:
      yield (
        f"{show(config, 'model.relative_max_distance', 'model.relative_buckets')}: expected a distance "
        f"above {buckets // 4 + 1}"
      )
  needs_checkpoint = config["model.freeze_embeddings"] == "checkpoint"
  if needs_checkpoint != bool(config["model.freeze_embeddings_from"]):
    yield (
      f"{show(config, 'model.freeze_embeddings', 'model.freeze_embeddings_from')}: 'checkpoint' needs the "
      f"checkpoint's directory, and the reverse; set both or neither"
    )


def _backbone(config: Fields) -> Iterator[str]:
  """Yields combinations of the encoder's switches that make no sense."""
  position, relative = config["model.position"], config["model.relative_position"]
  both = show(config, "model.position", "model.relative_position")
  if position == "rope" and relative != "none":
    yield f"{both}: both give attention relative positions\n  --config.model.relative_position=none"
  if position == relative == "none":
    yield f"{both}: the encoder would not know the order of tokens\n  --config.model.position=rope"
  if position == "rope" and (config["model.hidden_size"] // config["model.num_heads"]) % 2:
    sizes = show(config, "model.hidden_size", "model.num_heads")
    yield f"{sizes}: rotary positions turn pairs of numbers; expected heads of an even width"
  if config["model.norm"] == "rmsnorm" and config["model.norm_bias"]:
    norm = show(config, "model.norm", "model.norm_bias")
    yield f"{norm}: RMSNorm has no bias\n  --config.model.norm_bias=false"
  if not config["model.embedding_norm"] and config["model.norm_placement"] == "post":
    norms = show(config, "model.embedding_norm", "model.norm_placement")
    yield f"{norms}: only a pre-norm encoder can do without a norm on its embeddings"
  layers = list(config["model.global_layers"])
  numbers = range(config["model.num_layers"])
  if layers != sorted(set(layers) & set(numbers)):
    shown_sizes = show(config, "model.global_layers", "model.num_layers")
    yield f"{shown_sizes}: expected ascending numbers of layers, from 0"
  if layers and config["model.global_every"] != 1:
    yield f"{show(config, 'model.global_layers', 'model.global_every')}: expected one of them"


def _objectives(config: Fields, objectives: dict[str, Objective]) -> Iterator[str]:
  if not objectives:
    weights = ", ".join(f"objectives.{name}.weight" for name in OBJECTIVES)
    yield f"no objective is on: set one of {weights} above 0"
  for name, objective in objectives.items():
    shown_sizes = objective.show(config, "weight", "corruption.kind")
    has_masks = config["corruption.kind"] == "mask"
    if "replaced" in objective.reads and has_masks:
      yield (
        f"{shown_sizes}: {name} needs replaced tokens; use corruption.kind 'generator' or 'random', or "
        f"objectives.mlm"
      )
    if "masks" in objective.reads and not has_masks:
      yield (
        f"{shown_sizes}: {name} needs masks, but the input has replaced tokens; use objectives.clm with "
        f"copy=False, or corruption.kind 'mask'"
      )
  cropped = [
    f"objectives.{name}.weight" for name, objective in objectives.items() if "crop" in objective.reads
  ]
  if len(cropped) > 1:
    yield f"{show(config, *cropped)}: a step has one crop, and each of these needs its own; switch on one"


def _corruption(config: Fields) -> Iterator[str]:
  kind, rule = config["corruption.kind"], config["corruption.mask_rule"]
  masked, random = config["corruption.mask_token_rate"], config["corruption.random_token_rate"]
  if masked + random > 1 + 1e-9:
    yield (
      f"{show(config, 'corruption.mask_token_rate', 'corruption.random_token_rate')}: these fractions of the "
      f"chosen tokens add up to more than 1"
    )
  if stages := config["corruption.mask_rates"]:
    starts, shown_sizes = [start for start, _ in stages], show(config, "corruption.mask_rates")
    if starts[0] != 0 or starts != sorted({*starts}) or starts[-1] >= 1:
      yield f"{shown_sizes}: expected ascending fractions of the run, from 0 and below 1"
    if any(not 0 < rate < 1 for _, rate in stages):
      yield f"{shown_sizes}: expected rates in (0, 1)"
    if rule in ("electra_google", "deberta"):
      both = show(config, "corruption.mask_rates", "corruption.mask_rule")
      yield f"{both}: this rule has one rate\n  --config.corruption.mask_rates="
  if rule in ("electra_google", "deberta") and config["corruption.whole_words"]:
    both = show(config, "corruption.whole_words", "corruption.mask_rule")
    yield f"{both}: this rule chooses single tokens\n  --config.corruption.mask_rule=count"
  if rule == "electra_google" and random > 0:
    yield (
      f"{show(config, 'corruption.random_token_rate', 'corruption.mask_rule')}: this rule inserts no random "
      f"tokens; use 0.0, or mask_rule 'count' or 'bernoulli'"
    )
    return
  # Google's ELECTRA leaves 15 % of the chosen tokens unchanged, and the generator predicts them too.
  keeps_some = masked < 1 and not (kind == "generator" and rule == "electra_google")
  if kind != "mask" and (random > 0 or keeps_some):
    yield (
      f"{show(config, 'corruption.mask_token_rate', 'corruption.random_token_rate', 'corruption.kind')}: "
      f"only corruption.kind 'mask' mixes masks, random and unchanged tokens; use 1.0 and 0.0 here"
    )


def _training(config: Fields) -> Iterator[str]:
  total = config["train.total_steps"]
  if config["optimizer.warmup_steps"] > total:
    yield (
      f"{show(config, 'optimizer.warmup_steps', 'train.total_steps')}: the warm-up is longer than the run; "
      f"shorten it, for example with\n  --config.optimizer.warmup_steps={total // 10}"
    )
  decay = config["optimizer.decay_steps"]
  if config["optimizer.schedule"] == "wsd" and config["optimizer.warmup_steps"] + decay > total:
    steps = show(config, "optimizer.warmup_steps", "optimizer.decay_steps", "train.total_steps")
    yield f"{steps}: the warm-up and the decay are longer than the run"
  if config["optimizer.schedule"] != "wsd" and decay:
    steps = show(config, "optimizer.decay_steps", "optimizer.schedule")
    yield f"{steps}: the schedule has no such steps\n  --config.optimizer.schedule=wsd"
  if config["optimizer.schedule"] != "wsd" and config["optimizer.decay_shape"] != "linear":
    shape = show(config, "optimizer.decay_shape", "optimizer.schedule")
    yield f"{shape}: only 'wsd' has it\n  --config.optimizer.schedule=wsd"
  if config["optimizer.update_clipping"] != "none":
    if config["optimizer.adam_eps_placement"] != "corrected" or not config["optimizer.adam_bias_correction"]:
      placement = show(config, "optimizer.update_clipping", "optimizer.adam_eps_placement")
      corrected = (
        "--config.optimizer.adam_eps_placement=corrected --config.optimizer.adam_bias_correction=true"
      )
      yield f"{placement}: StableAdamW has corrected moments\n  {corrected}"
    if config["optimizer.clip_norm"]:
      clips = show(config, "optimizer.update_clipping", "optimizer.clip_norm")
      yield f"{clips}: gradients would be clipped twice\n  --config.optimizer.clip_norm=0"
  if config["optimizer.end_learning_rate"] > config["optimizer.learning_rate"]:
    yield (
      f"{show(config, 'optimizer.end_learning_rate', 'optimizer.learning_rate')}: the final rate is above "
      "the peak"
    )
  yield from _batch_warmup(config)
  outside = [step for step in config["train.checkpoint_steps"] if not 1 <= step <= total]
  if outside:
    yield (f"{show(config, 'train.checkpoint_steps', 'train.total_steps')}: expected steps from 1 to {total}")
  if config["train.spike_roll_back"] and not config["train.spike_zscore"]:
    yield "train.spike_roll_back=True: spikes are not detected\n  --config.train.spike_zscore=8"
  if config["train.init_grow"] and not config["train.init_from"]:
    yield "train.init_grow='tile', train.init_from='': no model to grow\n  --config.train.init_from=DIR"
  for name in run.tracker_names(config["train.trackers"]):
    if name not in run.TRACKERS:
      yield f"train.trackers: {unknown('tracker', name, run.TRACKERS)}"
  if config["train.probe_every"] and not config["train.probe_data"]:
    yield "train.probe_every: no data to probe with; give a folder of annotated data in train.probe_data"
  yield from mixture.problems(config)
  yield from mixture.feed_problems(config)
  if not any(config[f"data.{name}"] for name in ("source", "directory", "mixture", "stages")):
    yield "data.source='', data.directory='': no text\n  --config.data.source=installed_docs"


def _batch_warmup(config: Fields) -> Iterator[str]:
  """Yields an error if batches cannot grow from the first size to the last in equal numbers of updates."""
  start, warmup = config["train.batch_size_start"], config["train.batch_warmup_steps"]
  batch, microbatches = config["train.batch_size"], config["train.microbatches"]
  shown_sizes = show(config, "train.batch_size_start", "train.batch_warmup_steps")
  if bool(start) != bool(warmup):
    yield f"{shown_sizes}: a warm-up of the batch size needs both; set both or neither"
  if not (start and warmup) or batch % microbatches:
    return
  unit = batch // microbatches
  if start >= batch or start % unit:
    sizes = show(config, "train.batch_size_start", "train.batch_size", "train.microbatches")
    yield f"{sizes}: expected whole microbatches of {unit} rows, fewer than {microbatches}"
    return
  smaller = (batch - start) // unit
  if warmup % smaller:
    near = math.ceil(warmup / smaller) * smaller
    yield (
      f"{shown_sizes}: the {smaller} smaller sizes need equal numbers of updates, for example\n"
      f"  --config.train.batch_warmup_steps={near}"
    )
  if warmup >= config["train.total_steps"]:
    steps = show(config, "train.batch_warmup_steps", "train.total_steps")
    yield (
      f"{steps}: the batch would not reach its size before the end; for example\n"
      f"  --config.train.batch_warmup_steps={max(1, config['train.total_steps'] // 10 // smaller) * smaller}"
    )
  if config["data.feed"] == "seqio":
    yield f"{shown_sizes}, data.feed='seqio': a feed has batches of one size\n  --config.data.feed=records"


def _mesh(config: Fields, num_devices: int | None) -> Iterator[str]:
  asked = _asked(config)
  names = show(config, *(f"mesh.{axis}" for axis in MeshSizes._fields))
  if 0 in asked.sizes or asked.sizes.count(-1) > 1:
    yield f"{names}: expected sizes of at least 1, and -1 (all other devices) at most once"
  elif num_devices is not None and asked.filled(num_devices) is None:
    fits = functools.partial(_fits, config, num_devices)
    near = nearest_sizes(asked.sizes, num_devices, can=fits) or nearest_sizes(asked.sizes, num_devices)
    assert near is not None  # all devices along `data` always fit
    found = shown_sizes(near)
    yield f"{names}: the product must be the number of devices, {num_devices}; the nearest is {found}"


def _asked(config: Fields) -> MeshSettings:
  return MeshSettings(*(config[f"mesh.{axis}"] for axis in MeshSizes._fields))


def _fits(config: Fields, num_devices: int, sizes: MeshSizes) -> bool:
  """Returns whether a mesh of these sizes divides the model's sizes and the batch evenly."""
  changed = {**config, **{f"mesh.{axis}": size for axis, size in sizes._asdict().items()}}
  return not [*_cuts(changed, num_devices), *_batch(changed, _switched_on(changed), num_devices)]


def _cuts(config: Fields, num_devices: int | None) -> Iterator[str]:
  """Yields errors for sizes that the mesh does not divide; those of sharding.MAY_STAY_WHOLE are exempt."""
  cut = [("model.num_heads", "tensor"), ("model.mlp_size", "tensor"), ("model.hidden_size", "fsdp")]
  if config["corruption.kind"] == "generator":
    cut += [(name.replace("model.", "generator."), axis) for name, axis in cut]
  cut += [("model.num_kv_heads", "tensor"), ("model.embedding_size", "fsdp")]
  for name, axis in cut:
    size = _axis_size(config, axis, num_devices)
    if config[name] % size:
      yield f"{show(config, name)}: not divisible by mesh.{axis}={size}, which shards it; change one of them"


def _axis_size(config: Fields, axis: str, num_devices: int | None) -> int:
  """Returns the devices on an axis; 1 for a size of -1 while the number of devices is unknown."""
  size = config[f"mesh.{axis}"]
  if size != -1:
    return size
  others = math.prod(config[f"mesh.{other}"] for other in ("data", "fsdp", "tensor") if other != axis)
  return max(1, (num_devices or 0) // others)


def _batch(config: Fields, objectives: dict[str, Objective], num_devices: int | None) -> Iterator[str]:
  """Yields an error if the batch does not divide into microbatches, contrast groups and parts per device."""
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
      f"train.batch_size={batch}: not a multiple of {unit}, as needed by {' and '.join(reasons)}; use {sizes}"
    )
