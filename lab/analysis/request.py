"""The input of all analyses: checkpoints, which are opened when needed, and data."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from data import files
from lab.analysis.figures import first_texts
from lab.analysis.outcome import LeftOut, Needs
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.opened import OpenedRun, open_run
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel, open_model


@dataclasses.dataclass(frozen=True)
class Request:
  """Checkpoints to analyse, with data and sizes."""

  directories: Sequence[str]  # workdirs, or directories of steps
  data: pathlib.Path | None = None  # annotated data, as for `pretrain.probe`
  rows: int = 256  # held-out blocks
  batch_size: int = 32
  sentences: int = 1_000  # training sentences of a probe
  pooling: str = "cls"  # or 'mean': the vector of a sentence or block

  @functools.cached_property
  def names(self) -> list[str]:
    """Names of the checkpoints: the shortest endings of their paths that differ."""
    return files.short_names([pathlib.Path(directory) for directory in self.directories])

  def newest(self, left_out: LeftOut) -> Iterator[tuple[str, OpenedRun]]:
    """Yields (name, opened run) of each run's newest checkpoint; skips imports; errors as for `open_run`."""
    for name, directory in zip(self.names, self.directories):
      with left_out.where_lacking(name):
        yield name, _opened(directory, None, self.batch_size)

  def saved(self) -> Iterator[tuple[str, SavedModel]]:
    """Yields (name, parameters and metadata) of each newest checkpoint; runs' records need not exist."""
    for name, directory in zip(self.names, self.directories):
      yield name, open_model(directory)

  def encoders(self) -> Iterator[tuple[str, OpenedEncoder, np.ndarray | None]]:
    """Yields (name, encoder, held-out ids [blocks, length] or None for an import) of newest checkpoints."""
    for (name, saved), directory in zip(self.saved(), self.directories):
      if "source" in saved.meta:
        yield name, saved.open_encoder(), None
      else:
        opened = _opened(directory, None, self.batch_size)
        blocks = opened.heldout.rows(0, min(len(opened.heldout), self.rows))
        yield name, opened.encoder, np.asarray(first_texts(opened.run.recipe, jnp.asarray(blocks)))

  def every_step(self, left_out: LeftOut) -> Iterator[tuple[str, int, OpenedRun]]:
    """Yields (name, step, opened run) of every saved step; skips imports and runs in `left_out`."""
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
