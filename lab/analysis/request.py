"""What is asked of the analyses: checkpoints, opened when they are needed, and data."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from data import files
from lab.analysis.outcome import LeftOut, Needs
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.opened import OpenedRun, contrast_head, open_run
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel, open_model


class EncoderAndHead(NamedTuple):
  """An encoder, and what its run's head of sequence contrast makes of [CLS]; None: there is no such head."""

  encoder: OpenedEncoder
  head: Callable[[jax.Array], jax.Array] | None


@dataclasses.dataclass(frozen=True)
class Request:
  """Checkpoints of runs and what they are asked with."""

  directories: Sequence[str]  # workdirs, or directories of steps
  data: pathlib.Path | None = None  # annotated data, as of `pretrain.probe`
  rows: int = 256  # held-out blocks
  batch_size: int = 32
  sentences: int = 1_000  # to train a probe on
  pooling: str = "cls"  # or 'mean', or 'head' of [CLS]: what the vector of a sentence or block is
  random_pairs: str = "blocks"  # or 'sentences': of what random pairs are

  @functools.cached_property
  def names(self) -> list[str]:
    """What the checkpoints are called: as much of the ends of their paths as tells them apart."""
    return files.short_names([pathlib.Path(directory) for directory in self.directories])

  def newest(self, left_out: LeftOut) -> Iterator[tuple[str, OpenedRun]]:
    """Every run at its newest step, opened; errors as of `open_run`. Imports are left out."""
    for name, directory in zip(self.names, self.directories):
      with left_out.where_lacking(name):
        yield name, _opened(directory, None, self.batch_size)

  def saved(self) -> Iterator[tuple[str, SavedModel]]:
    """Every checkpoint at its newest step, read alone: its run's records may be gone."""
    for name, directory in zip(self.names, self.directories):
      yield name, open_model(directory)

  def encoders(self) -> Iterator[tuple[str, EncoderAndHead, np.ndarray | None]]:
    """Every encoder at its newest step, and [blocks, length] held-out ids; None of an import."""
    for (name, saved), directory in zip(self.saved(), self.directories):
      if "source" in saved.meta:
        yield name, EncoderAndHead(saved.open_encoder(), None), None
      else:
        opened = _opened(directory, None, self.batch_size)
        blocks = opened.heldout.rows(0, min(len(opened.heldout), self.rows))
        yield name, EncoderAndHead(opened.encoder, contrast_head(opened.run, opened.params)), blocks

  def every_step(self, left_out: LeftOut) -> Iterator[tuple[str, int, OpenedRun]]:
    """Every saved step of every run, opened, of a run that is left out no more; imports are left out."""
    for name, directory in zip(self.names, self.directories):
      newest = checkpoint.step_path(directory)
      steps = checkpoint.saved_steps(newest.parent) if pathlib.Path(directory).absolute() != newest else []
      for step in steps or [int(newest.name)]:
        if name not in left_out:
          with left_out.where_lacking(name):
            yield name, step, _opened(str(newest.parent.parent), step, self.batch_size)


@functools.lru_cache(maxsize=2)
def _opened(directory: str, step: int | None, rows: int) -> OpenedRun:
  if "source" in checkpoint.read_meta(checkpoint.step_path(directory, step)):
    raise Needs("records that the checkpoint was trained on, which an import lacks")
  return open_run(directory, step, rows=rows)
