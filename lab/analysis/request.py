"""Requests of analyses (checkpoints and data) and their outcomes (rows of numbers and plots)."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data import files
from data.page import Curve, Plot
from data.tables import Column, Report
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.saved_model import OpenedEncoder, OpenedRun, SavedModel, open_model, open_run
from pretrain.ops.positions import segments_of
from pretrain.recipe import Recipe


class Needs(Exception):
  """Raised if an analysis lacks data or heads; the message names them."""


class LeftOut(dict[str, str]):
  """{checkpoint: what it lacks for an analysis}; the analysis uses the others."""

  @contextlib.contextmanager
  def where_lacking(self, name: str) -> Iterator[None]:
    """Skips a checkpoint if the block raises Needs."""
    try:
      yield
    except Needs as error:
      self[name] = str(error)

  def sentences(self, rows: Sequence) -> list[str]:
    """Returns a sentence for each skipped checkpoint; raises Needs if no rows are left."""
    if self and not rows:
      raise Needs("; ".join(dict.fromkeys(self.values())))
    return [f"Made without {name}: this needs {what}" for name, what in self.items()]


def over_steps(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[Curve]:
  """Makes curves over steps from table rows: one for each checkpoint and each key in `labels`.

  The name is the label, with the checkpoint's name if there are several checkpoints or the label is empty.
  """
  curves, names = [], dict.fromkeys(row["checkpoint"] for row in rows)
  for name in names:
    for key, label in labels.items():
      own = [row for row in rows if row["checkpoint"] == name and row.get(key) is not None]
      steps, values = (np.asarray([row[part] for row in own]) for part in ("step", key))
      if own:
        shown = f"{name}, {label}" if label and len(names) > 1 else label or name
        curves.append(Curve(shown, steps, values, has_dots=True))
  return curves


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The result of an analysis: rows, plots and notes."""

  title: str
  rows: Sequence[Mapping[str, Any]]
  plots: Sequence[Plot]
  notes: Sequence[str]
  left_out: Sequence[str] = ()  # of `LeftOut.sentences`

  def report(self, stem: str) -> Report:
    """Returns the rows as a table: numbers with four digits, text left-aligned."""
    names = list(dict.fromkeys(name for row in self.rows for name in row))
    columns = []
    for name in names:
      is_text = any(isinstance(row.get(name), str) for row in self.rows)
      columns.append(
        Column(name, lambda row, name=name: _cell(row.get(name)), "left" if is_text else "right")
      )
    notes = [*self.notes, *(f"{line}." for line in self.left_out)]
    return Report(stem, self.title, columns, self.rows, notes)


def _cell(value: Any) -> str:
  if value is None:
    return "-"
  if isinstance(value, float):
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"
  return f"{value:,}" if isinstance(value, int) else str(value)


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


def first_texts(recipe: Recipe, ids: jax.Array) -> jax.Array:
  """Returns rows with only the first of several texts, as which a row is measured: [batch, length] int32."""
  if not recipe.has_segments:
    return ids
  return jnp.where(
    segments_of(ids, ids != recipe.tokens.pad, cls=recipe.tokens.cls) == 1, ids, recipe.tokens.pad
  )
