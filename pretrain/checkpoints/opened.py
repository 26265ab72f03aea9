"""A checkpoint opened as the run that it is of, on one device, to be looked at on held-out text."""

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
from pretrain.corruption.generator import GeneratorSettings
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import trees
from pretrain.models import heads
from pretrain.reading import prepared
from pretrain.run import Run, make_run


class OpenedRun(NamedTuple):
  """What a look at a checkpoint needs."""

  run: Run  # its mesh is one device, its batches are of the rows that were asked for
  params: dict  # numpy arrays
  encoder: OpenedEncoder  # the encoder alone, as it is used when nothing trains it
  heldout: HeldoutRecords
  records: str  # directory of the prepared records, or the Task of a feed
  step: int  # updates done


def open_run(directory: str | os.PathLike, step: int | None = None, *, rows: int) -> OpenedRun:
  """Opens a checkpoint, `directory` and `step` as of `checkpoint.step_path`, for batches of `rows` rows.

  Its draws on held-out rows are those of the run's own evaluation: they depend on a row's place alone.

  Raises:
    DataError: no checkpoint, its records or vocabulary are not there or are others, or it was changed.
  """
  saved = open_model(directory, step)
  config = config_of(saved.meta["config"])
  heldout, records = prepared.open_heldout(config)  # before other rows are asked for: a feed counts in them
  config.mesh.update({"data": 1, "fsdp": 1, "tensor": 1})
  config.train.update({"batch_size": rows, "microbatches": 1})
  encoder = saved.open_encoder()
  vocabulary = encoder.vocabulary
  if heldout.vocabulary.digest != vocabulary.digest:
    raise DataError(f"{records} was prepared with another vocabulary than checkpoint {saved.path} has")
  run = make_run(config, tokens_of(vocabulary), devices=jax.devices()[:1])
  problems = trees.differences(run.abstract_state.params, saved.params)
  if problems:
    raise DataError(f"checkpoint {saved.path}: {trees.first_lines(problems)}; is it complete?")
  return OpenedRun(run, saved.params, encoder, heldout, records, int(saved.path.name))


def contrast_head(run: Run, params: dict) -> Callable[[jax.Array], jax.Array] | None:
  """What the head of sequence contrast makes of vectors of [CLS]; None: the run has no such head."""
  names = [name for name, objective in run.recipe.objectives.items() if "crop" in objective.reads]
  head = next((params["heads"][name] for name in names if name in params["heads"]), None)
  return head and functools.partial(heads.apply_transform, head, run.recipe.encoder)


class OpenedGenerator(NamedTuple):
  """The generator of a checkpoint, ready to be computed with beside its encoder."""

  params: dict  # numpy arrays
  settings: GeneratorSettings
  tokens: TokenIds


def open_generator(saved: SavedModel, encoder: OpenedEncoder) -> OpenedGenerator | None:
  """The generator beside the `encoder` of a checkpoint, computed as that one is.

  None: it has none, or an import does not say how it is computed. DataError: its parameters are not those of
  the generator which the config describes.
  """
  if "generator" not in saved.params:
    return None
  params, tokens = saved.params["generator"], tokens_of(encoder.vocabulary)
  settings = build.generator_settings(config_of(saved.meta["config"]), encoder.config)
  expected = jax.eval_shape(lambda key: generator.init(key, settings, tokens), jax.random.key(0))
  weights = {name: leaves for name, leaves in params.items() if name != "mixture"}
  problems = trees.differences(expected, weights)
  if problems and "source" in saved.meta:
    return None
  if problems:
    raise DataError(f"checkpoint {saved.path}, generator: {trees.first_lines(problems)}; is it complete?")
  return OpenedGenerator(params, settings, tokens)


def tokens_of(vocabulary: Vocabulary) -> TokenIds:
  """The special ids of a vocabulary, and its size."""
  return TokenIds(**dataclasses.asdict(vocabulary.special_ids), vocab_size=vocabulary.size)


def config_of(saved: Mapping[str, Any]) -> ConfigDict:
  """A config as a checkpoint or a workdir keeps it; fields that came later have their defaults."""
  config = base.get_config()
  known, given = resume.flatten(config.to_dict()), resume.flatten(saved)
  kept = {name: value for name, value in given.items() if name in known}
  config.update_from_flattened_dict(
    {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
  )
  return config
