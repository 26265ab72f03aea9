"""Opens a checkpoint with its run's config, on one device, to analyse it on held-out text."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from configs import base
from data.errors import DataError
from data.records import HeldoutRecords
from data.vocabulary import Vocabulary
from pretrain import build
from pretrain.checkpoints import resume
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel, open_model
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorConfig
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import trees
from pretrain.models import heads
from pretrain.reading import prepared
from pretrain.run import Run, make_run
from pretrain.settings.model import GeneratorSettings
from pretrain.settings.run import WITHOUT_WARMUP, reading_settings


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


def contrast_head(run: Run, params: dict) -> Callable[[jax.Array], jax.Array] | None:
  """Returns the sequence-contrast head as a function of vectors at [CLS]; None if there is none."""
  names = [name for name, objective in run.recipe.objectives.items() if "crop" in objective.reads]
  head = next((params["heads"][name] for name in names if name in params["heads"]), None)
  return head and functools.partial(heads.apply_transform, head, run.recipe.encoder)


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
  config.update_from_flattened_dict({name: _tupled(value) for name, value in kept.items()})
  return config


def _tupled(value: Any) -> Any:
  return tuple(map(_tupled, value)) if isinstance(value, list) else value
