"""Reads the encoder, its vocabulary and the heads of a pretraining checkpoint for fine-tuning."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from data.errors import ConfigError
from pretrain.checkpoints.saved_model import OpenedEncoder, open_model
from pretrain.mesh import trees
from pretrain.models.encoder import init_encoder


@dataclasses.dataclass(frozen=True)
class WarmStart:
  """A pretraining checkpoint opened for fine-tuning: its encoder, vocabulary, heads and metadata."""

  directory: str  # that has its `checkpoints`
  encoder: OpenedEncoder  # the session replaces the fields of `config.model` in its config
  heads: dict  # heads of pretraining, {'rtd': {...}, ...}
  meta: Mapping[str, Any]
  digest: str  # sha256 over the encoder's and the heads' arrays; 'from scratch' for a fresh encoder
  init_encoder: Callable[[jax.Array], dict]  # key to the encoder's parameters: the loaded ones, or fresh ones


def load(
  directory: str,
  *,
  step: int | None = None,
  vocabulary_directory: str = "",
  from_scratch: bool = False,
  layers: int = 0,
) -> WarmStart:
  """Reads a checkpoint; nothing is put on a device.

  Args:
    directory: a pretraining workdir, the output of `pretrain.export import`, or the directory of a step.
    step: number of the checkpoint; None: the newest.
    vocabulary_directory: '': beside the checkpoint, else beside the run's records.
    from_scratch: whether only the encoder's sizes and the vocabulary are taken from the checkpoint.
    layers: number of the encoder's first layers to keep; 0: all.

  Raises:
    ConfigError: the encoder has fewer layers.
    DataError: checkpoint or vocabulary is missing, the vocabulary is not the checkpoint's, it has more pieces
      than rows, or the parameters do not match the config.
  """
  saved = open_model(directory, step)
  encoder = saved.open_encoder(vocabulary_directory, flag="--config.vocabulary")
  heads, pad_id, meta = saved.params.get("heads", {}), encoder.vocabulary.special_ids.pad, saved.meta
  if layers:
    if layers > encoder.config.num_layers:
      raise ConfigError(
        f"checkpoint_layers={layers}: the encoder has {encoder.config.num_layers} layers; use\n"
        f"  --config.checkpoint_layers={encoder.config.num_layers}"
      )
    encoder = encoder.first_layers(layers)
    model = {**meta["config"]["model"], "num_layers": layers}
    meta = {**meta, "config": {**meta["config"], "model": model}}
  if from_scratch:
    init = functools.partial(init_encoder, config=encoder.config, pad_id=pad_id)
    return WarmStart(str(saved.workdir), encoder, heads, meta, "from scratch", init)
  digest = trees.digest({"encoder": encoder.params, "heads": heads})
  return WarmStart(str(saved.workdir), encoder, heads, meta, digest, lambda key: encoder.params)


def describe(start: WarmStart, *, used_head: str, fresh_head: str) -> str:
  """Returns a line about loaded, fresh and unused parameters; '' as the name of a head means none."""
  step = start.meta.get("step", 0)
  named = {f"heads/{used_head}"} if used_head else set()
  left = sorted({f"heads/{name}" for name in start.heads} - named)
  left += ["generator"] if start.meta["config"].get("corruption", {}).get("kind") == "generator" else []
  is_fresh = start.digest == "from scratch"
  fresh = [*(["encoder"] if is_fresh else []), *([f"heads/{fresh_head}"] if fresh_head else [])]
  loaded = [*([] if is_fresh else ["encoder"]), *sorted(named)]
  return (
    f"loaded {', '.join(loaded) or 'nothing'}; fresh: {', '.join([*fresh, 'optimizer', 'step'])}; "
    f"unused: {', '.join(left) or 'nothing'} (pretraining step {step:,})"
  )
