"""A model without its optimizer: saved, and opened for use, with its vocabulary and meta."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import base
from data import fetched
from data import vocabulary as vocabularies
from data.errors import DataError
from data.records import HeldoutRecords
from data.vocabulary import Vocabulary
from pretrain import build
from pretrain.checkpoints import checkpoint, resume, workdir
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorConfig
from pretrain.corruption.masking import TokenIds
from pretrain.inference.batches import Compiled
from pretrain.mesh import trees
from pretrain.models.encoder import encode, init_encoder
from pretrain.models.layers import EncoderConfig, encoder_config
from pretrain.reading import prepare, prepared
from pretrain.run import Run, make_run
from pretrain.settings import mixture
from pretrain.settings.model import GeneratorSettings
from pretrain.settings.run import WITHOUT_WARMUP, reading_settings

_NEEDED = ("config", "vocabulary_digest", "packages")


class OpenedEncoder(NamedTuple):
  """A checkpoint's encoder for inference: parameters, config and vocabulary."""

  params: dict  # numpy arrays
  config: EncoderConfig
  vocabulary: Vocabulary
  vocabulary_directory: Path

  def first_layers(self, count: int) -> "OpenedEncoder":
    """Returns the encoder without the layers after the first `count`."""
    config = dataclasses.replace(self.config, num_layers=count)
    pad_id = self.vocabulary.special_ids.pad
    shapes = jax.eval_shape(lambda key: init_encoder(key, config, pad_id=pad_id), jax.random.key(0))
    # Stacks of layers have one layer an entry of their first dimension; all other arrays keep their shape.
    params = jax.tree.map(lambda shape, array: array[: shape.shape[0]], shapes, self.params)
    return self._replace(params=params, config=config)

  def program(
    self, function: Callable[..., Any], params: Any = None, *, batch_size: int, longest: int = 0
  ) -> Compiled:
    """Returns a `Compiled` that applies `function` to batches; it compiles when it is first called.

    Args:
      function: (params, config, batch, pad_id=) to a tree of arrays with the rows of the batch first.
      params: host arrays; None: those of the encoder.
      longest: tokens of the longest input; 0: the encoder's positions.
    """
    config, pad_id = self.config, self.vocabulary.special_ids.pad
    return Compiled(
      lambda params, batch: function(params, config, batch, pad_id=pad_id),
      self.params if params is None else params,
      batch_size=batch_size,
      longest=longest or config.max_length,
      pad_id=pad_id,
    )

  def hidden_states(self, texts: Sequence[str], *, batch_size: int = 32) -> list[np.ndarray]:
    """Returns the last layer of each text, [tokens, embed] float32 with [CLS] and [SEP], in order.

    Texts are cut at the encoder's positions.
    """

    def last(params: Any, config: EncoderConfig, batch: Mapping[str, jax.Array], *, pad_id: int) -> jax.Array:
      ids = batch["ids"]
      return encode(params, config, ids, ids != pad_id, pad_id=pad_id)[1].last.astype(jnp.float32)

    most, whole = self.config.max_length, self.vocabulary.with_special_ids
    ids = [whole(pieces, max_length=most) for pieces in self.vocabulary.encode_batch(texts)]
    computed = self.program(last, batch_size=batch_size)([{"ids": np.asarray(row, np.int32)} for row in ids])
    return [hidden[: len(row)] for hidden, row in zip(computed, ids, strict=True)]


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """The parameters and metadata of a checkpoint from pretraining, an import or fine-tuning."""

  path: Path  # directory of the step
  params: dict  # nested, of numpy arrays
  meta: dict[str, Any]  # JSON values; always with `config`, `vocabulary_digest` and `packages`

  @property
  def workdir(self) -> Path:
    """Directory of the run, with its metrics and its copy of the vocabulary."""
    return self.path.parent.parent

  @property
  def task(self) -> dict[str, Any]:
    """The task of a fine-tuned model: 'labels', 'problem_type', 'activation' and more; else {}."""
    return self.meta.get("task") or {}

  def load_vocabulary(self, directory: str = "", *, flag: str = "") -> tuple[Path, Vocabulary]:
    """Loads the vocabulary that the model was trained with; returns its directory too.

    Without a `directory` it is searched beside the checkpoint, then beside the run's records. Errors name the
    `flag` for a directory, or where to copy it. DataError: it is missing, damaged, or not this checkpoint's.
    """
    folder = Path(fetched.local(directory, flag=flag)) if directory else self._find_vocabulary(flag)
    vocabulary = vocabularies.load(folder)
    expected = str(self.meta["vocabulary_digest"])
    if vocabulary.digest != expected:
      raise DataError(
        f"{folder} is not the vocabulary of checkpoint {self.path}: its sha256 is "
        f"{vocabulary.digest[:12]}...; expected {expected[:12]}...; {self._mend(flag)}"
      )
    return folder, vocabulary

  def open_encoder(
    self, vocabulary_directory: str = "", *, flag: str = "", dtype: str = "auto"
  ) -> OpenedEncoder:
    """Opens the encoder, computed in `dtype`, with the vocabulary found by `load_vocabulary`.

    Raises:
      DataError: as there; the vocabulary is larger than the token table; parameters do not match the config.
    """
    config = frozen_config(self.meta["config"]["model"], dtype=dtype)
    where, vocabulary = self.load_vocabulary(vocabulary_directory, flag=flag)
    if vocabulary.size > config.vocab_size:
      raise DataError(
        f"checkpoint {self.path}: its token table has {config.vocab_size} rows, but the vocabulary {where} "
        f"has {vocabulary.size} pieces; use the vocabulary of its training"
      )
    params = self.params.get("encoder", {})
    pad_id = vocabulary.special_ids.pad
    expected = jax.eval_shape(lambda key: init_encoder(key, config, pad_id=pad_id), jax.random.key(0))
    problems = trees.differences(expected, params)
    if problems:
      raise DataError(f"checkpoint {self.path}, encoder: {trees.first_lines(problems)}; is it complete?")
    return OpenedEncoder(params, config, vocabulary, where)

  def _find_vocabulary(self, flag: str) -> Path:
    folders = [self.workdir / "vocabulary"]
    # An older config may lack the fields of its records.
    with contextlib.suppress(KeyError):
      fields = self.meta["config"]
      data = {"mixture": "", "stages": "", **fields["data"]}
      places = [prepare.directory(data, vocab_size=fields["model"]["vocab_size"])]
      if mixture.is_asked(data):
        places = mixture.directories(data)
      folders += [Path(place) / "vocabulary" for place in places]
    for folder in folders:
      if (folder / vocabularies.NAME).is_file():
        return folder
    raise DataError(
      f"no vocabulary in {' or '.join(map(str, folders))}; expected that of the checkpoint's records; "
      f"{self._mend(flag)}"
    )

  def _mend(self, flag: str) -> str:
    return f"give its directory\n  {flag}=DIR" if flag else f"copy its files to {self.workdir}/vocabulary"


def frozen_config(model: Mapping[str, Any], *, dtype: str = "auto") -> EncoderConfig:
  """Returns an encoder's config for inference, from the fields under `model`."""
  # A loop over layers halves the compile time, and inference compiles many shapes.
  return encoder_config(model, dtype=dtype, remat="none", attention="auto", scan_unroll=1)


def open_model(directory: str | os.PathLike, step: int | None = None) -> SavedModel:
  """Reads a checkpoint for a warm start, fine-tuning or export; nothing is put on a device.

  The encoder's token table is whole, also where the run stores its difference to the generator's. `directory`
  and `step` are as in `addresses.step_path`. DataError: as there, or the checkpoint is unreadable, or its
  meta is incomplete.
  """
  path = workdir.step_path(directory, step)
  params, meta = checkpoint.load_params(path)
  missing = [name for name in _NEEDED if name not in meta]
  if not missing and "model" not in meta["config"]:
    missing = ["config.model"]
  if missing:
    raise DataError(
      f"checkpoint {path}: its meta lacks {', '.join(missing)}, so it was changed or comes from another "
      "program; expected a checkpoint of a run, an import or fine-tuning"
    )
  return SavedModel(path, generator.joined_tables(params), meta)


def save_params(
  directory: str | os.PathLike, params: Any, meta: Mapping[str, Any], *, step: int, flag: str = "--output"
) -> None:
  """Writes `<directory>/checkpoints/<step>` with parameters only, host or jax arrays, for `open_model`.

  A run cannot resume from it. StorageError, naming `flag`: it cannot be written.
  """
  with contextlib.closing(Checkpoints(directory, every=1, keep=1, flag=flag)) as checkpoints:
    state = {"params": jax.tree.map(jnp.asarray, params), "step": jnp.asarray(step, jnp.int32)}
    checkpoints.save(step, state, meta, force=True)
    checkpoints.wait()


class OpenedRun(NamedTuple):
  """A loaded checkpoint for analyses: its run, parameters, encoder, held-out records and step."""

  run: Run  # on one device, with batches of `rows`
  params: dict  # numpy arrays
  encoder: OpenedEncoder  # the encoder alone, configured for inference
  heldout: HeldoutRecords
  records: str  # directory of the prepared records, or the Task of a feed
  step: int  # updates done


def open_run(directory: str | os.PathLike, step: int | None = None, *, rows: int) -> OpenedRun:
  """Opens a checkpoint for batches of `rows` rows; see `checkpoint.step_path` for `directory` and `step`.

  Its random draws on held-out rows equal the run's own evaluation, because they depend on a row's index
  alone.

  Raises:
    DataError: checkpoint, records or vocabulary are missing, differ or were changed.
  """
  saved = open_model(directory, step)
  config = config_of(saved.meta["config"])
  if config.generator.share_embeddings == "gdes":
    config.generator.share_embeddings = "none"  # `open_model` returns two whole tables
  # Before `batch_size` changes, by which a feed counts.
  heldout, records = prepared.open_heldout(reading_settings(config))
  config.mesh.update({"data": 1, "fsdp": 1, "tensor": 1})
  config.train.update({"batch_size": rows, "microbatches": 1, **WITHOUT_WARMUP})
  encoder = saved.open_encoder()
  vocabulary = encoder.vocabulary
  if heldout.vocabulary.digest != vocabulary.digest:
    raise DataError(f"{records} was prepared with another vocabulary than that of checkpoint {saved.path}")
  tokens = tokens_of(vocabulary)
  if config.corruption.whole_words:
    tokens = dataclasses.replace(tokens, word_starts=vocabulary.word_starts)
  run = make_run(config, tokens, devices=jax.devices()[:1])
  problems = trees.differences(run.abstract_state.params, saved.params)
  if problems:
    raise DataError(f"checkpoint {saved.path}: {trees.first_lines(problems)}; is it complete?")
  return OpenedRun(run, saved.params, encoder, heldout, records, int(saved.path.name))


class OpenedGenerator(NamedTuple):
  """A checkpoint's generator for inference: parameters, settings and special token ids."""

  params: dict  # numpy arrays
  settings: GeneratorConfig
  tokens: TokenIds


def open_generator(saved: SavedModel, encoder: OpenedEncoder) -> OpenedGenerator | None:
  """Opens the generator of a checkpoint, configured like its `encoder`.

  Returns None if there is none, or an import lacks its settings. DataError: its parameters do not match the
  config.
  """
  if "generator" not in saved.params:
    return None
  params, tokens = saved.params["generator"], tokens_of(encoder.vocabulary)
  asked = GeneratorSettings(**config_of(saved.meta["config"]).generator)
  settings = build.generator_config(asked, encoder.config)
  expected = jax.eval_shape(lambda key: generator.init(key, settings, tokens), jax.random.key(0))
  weights = {name: leaves for name, leaves in params.items() if name != "mixture"}
  problems = trees.differences(expected, weights)
  if problems and "source" in saved.meta:
    return None
  if problems:
    raise DataError(f"checkpoint {saved.path}, generator: {trees.first_lines(problems)}; is it complete?")
  return OpenedGenerator(params, settings, tokens)


def tokens_of(vocabulary: Vocabulary) -> TokenIds:
  """Returns the special ids of a vocabulary, and its size."""
  return TokenIds(**dataclasses.asdict(vocabulary.special_ids), vocab_size=vocabulary.size)


def config_of(saved: Mapping[str, Any]) -> ConfigDict:
  """Returns a saved config with today's fields; newer fields have their defaults."""
  config = base.get_config()
  known, given = resume.flatten(config.to_dict()), resume.flatten(saved)
  kept = {name: value for name, value in given.items() if name in known}
  if kept.get("model.attention") == "cudnn":  # is gone; all bodies compute the same
    kept["model.attention"] = "auto"
  config.update_from_flattened_dict({name: _tupled(value) for name, value in kept.items()})
  return config


def _tupled(value: Any) -> Any:
  return tuple(map(_tupled, value)) if isinstance(value, list) else value
