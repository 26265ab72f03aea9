"""What fine-tuning starts from: the encoder, its vocabulary, and the heads of a pretraining checkpoint."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from data.vocabulary import Vocabulary
from pretrain.checkpoints.saved_model import open_model
from pretrain.mesh import trees
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import init_encoder


@dataclasses.dataclass(frozen=True)
class WarmStart:
  """A checkpoint as fine-tuning uses it."""

  encoder: dict  # numpy arrays
  heads: dict  # those that pretraining left, {'rtd': {...}, ...}
  config: EncoderConfig  # the session replaces what `config.model` says
  vocabulary: Vocabulary
  vocabulary_directory: Path
  meta: Mapping[str, Any]
  digest: str  # sha256 over the encoder's and the heads' arrays; 'from scratch' for a fresh encoder
  init_encoder: Callable[[jax.Array], dict]  # key to the encoder's parameters: the loaded ones, or fresh ones


def load(
  directory: str,
  *,
  step: int | None = None,
  vocabulary_directory: str = "",
  from_scratch: bool = False,
) -> WarmStart:
  """Reads a checkpoint; nothing is put on a device.

  Args:
    directory: a pretraining workdir, the output of `pretrain.export import`, or the directory of a step.
    step: number of the checkpoint; None: the newest.
    vocabulary_directory: '': beside the checkpoint, else beside the run's records.
    from_scratch: whether only the encoder's sizes and the vocabulary are taken from the checkpoint.

  Raises:
    DataError: no checkpoint or vocabulary there, another vocabulary than that of the checkpoint, more pieces
      than rows, or parameters that are not those of the encoder its config describes.
  """
  saved = open_model(directory, step)
  opened = saved.open_encoder(vocabulary_directory, flag="--config.vocabulary")
  encoder, config, vocabulary = opened.params, opened.config, opened.vocabulary
  heads = saved.params.get("heads", {})
  fresh = functools.partial(init_encoder, config=config, pad_id=vocabulary.special_ids.pad)
  digest = "from scratch" if from_scratch else trees.digest({"encoder": encoder, "heads": heads})
  init = fresh if from_scratch else (lambda key: encoder)
  where = opened.vocabulary_directory
  return WarmStart(encoder, heads, config, vocabulary, where, saved.meta, digest, init)


def describe(start: WarmStart, *, used_head: str, fresh_head: str) -> str:
  """The line that says what was loaded, what is fresh and what is left over; '': no such head."""
  step = start.meta.get("step", 0)
  named = {f"heads/{used_head}"} if used_head else set()
  left = sorted({f"heads/{name}" for name in start.heads} - named)
  left += ["generator"] if start.meta["config"].get("corruption", {}).get("kind") == "generator" else []
  is_fresh = start.digest == "from scratch"
  fresh = [*(["encoder"] if is_fresh else []), *([f"heads/{fresh_head}"] if fresh_head else [])]
  loaded = [*([] if is_fresh else ["encoder"]), *sorted(named)]
  return (
    f"loaded {', '.join(loaded) or 'nothing'}; fresh: {', '.join([*fresh, 'optimizer', 'step'])}; "
    f"left over: {', '.join(left) or 'nothing'} (pretraining step {step:,})"
  )
