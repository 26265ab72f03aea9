"""A fine-tuned model as a checkpoint: `<directory>/checkpoints/<step>` and the vocabulary, for export."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data import errors, files
from finetune.search.warm_start import WarmStart
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoints

_OF_PRETRAINING = ("source", "records", "started_from", "devices")


def save(
  directory: Path, params: Any, start: WarmStart, *, task: Mapping[str, Any], step: int, recipe: str
) -> None:
  """Writes a model, whole or not at all; one that is there is replaced.

  Args:
    directory: that the model becomes.
    params: {'encoder', 'heads'} host arrays.
    start: what it was fine-tuned from.
    task: JSON values: 'name', 'labels' and 'problem_type' of the export, and how the model was chosen.
    step: number of updates it was trained with.
    recipe: name for the model card.

  Raises:
    StorageError: it cannot be written.
  """
  config = dict(start.meta["config"]) | {"recipe": recipe}
  meta = {
    "config": config,
    "vocabulary_digest": start.vocabulary.digest,
    "task": dict(task),
    "pretraining_step": start.meta.get("step", 0),
  }
  # The model card reads these: they describe the pretraining, or where the checkpoint was imported from.
  meta |= {name: start.meta[name] for name in _OF_PRETRAINING if name in start.meta}
  with errors.writing(directory), files.whole_directory(directory, replace=True) as aside:
    shutil.copytree(start.vocabulary_directory, aside / "vocabulary")
    with contextlib.closing(Checkpoints(aside, every=1, keep=1)) as checkpoints:
      state = {"params": jax.tree.map(jnp.asarray, params), "step": jnp.asarray(step, jnp.int32)}
      checkpoints.save(step, state, meta, force=True)
      checkpoints.wait()


def scale_outputs(params: Any, scale: float) -> Any:
  """{'encoder', 'heads'} whose classification head, linear at its end, gives `scale` times the outputs."""
  if scale == 1.0:
    return params
  head = params["heads"]["classification"]
  output = {name: leaf * np.float32(scale) for name, leaf in head["output"].items()}
  return {**params, "heads": {**params["heads"], "classification": {**head, "output": output}}}


def saved_task(directory: Path) -> dict[str, Any]:
  """The `task` that the model of a directory was saved with; {} without a model that can be read."""
  try:
    return checkpoint.read_meta(checkpoint.step_path(directory)).get("task", {})
  except errors.DataError:
    return {}
