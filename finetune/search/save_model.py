"""Saves weights of fine-tuned runs: those that a search may still need, and models for export."""

import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data import errors, files
from data.errors import DataError
from finetune.papers.protocols import Cell
from finetune.search.warm_start import WarmStart
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.saved_model import save_params

_OF_PRETRAINING = ("source", "records", "started_from", "devices")


class KeptWeights:
  """Stores the weights of fine-tuning runs that may still be selected, in one folder for each run.

  Weights are written before a run's results: a run that was killed in between is trained again.
  """

  def __init__(self, directory: Path) -> None:
    self.directory = directory

  def _place(self, cell: Cell, seed: int) -> Path:
    return self.directory / f"{cell.name}_seed{seed}"

  def save(self, cell: Cell, seed: int, params: Any, *, step: int, fingerprint: Mapping[str, Any]) -> None:
    """Writes the weights of a run, {'encoder', 'heads'} host arrays, atomically.

    `step` is the number of updates; `load` must be called with the same `fingerprint`.

    Raises:
      StorageError: the weights cannot be written.
    """
    place = self._place(cell, seed)
    with errors.writing(place), files.whole_directory(place, replace=True) as aside:
      save_params(aside, params, {"fingerprint": dict(fingerprint)}, step=step, flag="--workdir")

  def load(self, cell: Cell, seed: int, fingerprint: Mapping[str, Any]) -> tuple[Any, int] | None:
    """Returns a run's weights and number of updates; None if missing or of another fingerprint."""
    try:
      params, meta = checkpoint.load_params(self._place(cell, seed))
    except DataError:
      return None
    return (params, meta["step"]) if meta.get("fingerprint") == fingerprint else None

  def forget_all_but(self, runs: Collection[tuple[Cell, int]], cells: Iterable[Cell]) -> None:
    """Removes the stored weights of all runs of the search cells `cells`, except those of `runs`."""
    wanted = {self._place(*run) for run in runs}
    for path in (path for cell in cells for path in self.directory.glob(f"{cell.name}_seed*")):
      if path not in wanted:
        shutil.rmtree(path, ignore_errors=True)


def save(
  directory: Path,
  params: Any,
  start: WarmStart,
  *,
  task: Mapping[str, Any],
  step: int,
  recipe: str,
  texts: Mapping[str, str],
) -> None:
  """Writes `<directory>/checkpoints/<step>` and `vocabulary` atomically; replaces an existing directory.

  `params` are {'encoder', 'heads'} host arrays. `task` has JSON values: 'name', 'labels' and 'problem_type'
  of the export, and how the model was chosen. `recipe` is the name on the model card, `texts` are
  {name: content} of files beside the two folders.

  Raises:
    StorageError: the directory cannot be written.
  """
  pretrained = {} if start.digest == "from scratch" else start.meta
  config = dict(start.meta["config"]) | {"recipe": recipe}
  meta = {
    "config": config,
    "vocabulary_digest": start.encoder.vocabulary.digest,
    "task": dict(task),
    "pretraining_step": pretrained.get("step", 0),
  }
  # The model card reads these: they describe the pretraining, or the source of an imported checkpoint.
  meta |= {name: pretrained[name] for name in _OF_PRETRAINING if name in pretrained}
  with errors.writing(directory), files.whole_directory(directory, replace=True) as aside:
    shutil.copytree(start.encoder.vocabulary_directory, aside / "vocabulary")
    for name, content in texts.items():
      (aside / name).write_text(content, encoding="utf-8")
    save_params(aside, params, meta, step=step, flag="--workdir")


def scale_outputs(params: Any, scale: float, shift: float = 0.0) -> Any:
  """Returns `params` with a classification head that gives `scale` x outputs + `shift`."""
  if (scale, shift) == (1.0, 0.0):
    return params
  head = params["heads"]["classification"]
  output = {name: leaf * np.float32(scale) for name, leaf in head["output"].items()}
  output["bias"] = output["bias"] + np.float32(shift)
  return {**params, "heads": {**params["heads"], "classification": {**head, "output": output}}}


def saved_task(directory: Path) -> dict[str, Any]:
  """Returns the `task` with which a directory's model was saved; {} if no model can be read."""
  try:
    return checkpoint.read_meta(checkpoint.step_path(directory)).get("task", {})
  except DataError:
    return {}
