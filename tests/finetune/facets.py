"""What a fine-tuning config decides, facet by facet, as text that can be compared. Nothing is compiled.

`test_field_sensitivity.py` changes one field at a time and looks which facets change:

  plan         the lines about examples, padded lengths and steps
  programs     what every program is made for: seeds, learning rates, steps and warm-up of its runs
  step         the first program of a training step
  start        the values that an encoder starts from
  batches      the examples that the training steps get
  evaluations  the examples that are evaluated
  saves        how often the state of unfinished runs is saved
"""

import contextlib
import hashlib
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

from finetune import main
from finetune.search.program import RunGroup
from finetune.search.save_model import KeptWeights
from pretrain.checkpoints.checkpoint import Checkpoints
from tests.pretrain.facets import digest


def _sha(*arrays) -> str:
  content = hashlib.sha256()
  for array in arrays:
    content.update(f"{np.shape(array)}".encode() + np.asarray(array).tobytes())
  return content.hexdigest()[:16]


class _Device:
  """Stands for the compiled functions of every `RunGroup` and notes what they get."""

  def __init__(self, *, is_traced: bool) -> None:
    self.is_traced = is_traced
    self.programs, self.batches, self.evaluations, self.saves = [], [], [], []
    self.step = self.start = ""

  def init_state(self, group: RunGroup):
    self.programs.append([np.asarray(part).tolist() for part in group.runs])
    if self.is_traced and not self.start:
      self.start = digest(group._functions.init.trace(group._hyper).jaxpr)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), group.abstract_state())

  def train_step(self, group: RunGroup, state, batch):
    if self.is_traced and not self.step:
      self.step = digest(group._functions.step.trace(state, group._place(batch), group._hyper).jaxpr)
    self.batches.append(_sha(*(batch[name] for name in sorted(batch))))
    return state, {"loss": (np.zeros(group.runs.count), np.ones(group.runs.count))}

  def outputs(self, group: RunGroup, params, batch):
    self.evaluations.append(_sha(*(batch[name] for name in sorted(batch))))
    shapes = jax.eval_shape(group._functions.outputs, params, group._place(batch))
    random = np.random.default_rng(len(self.evaluations))  # other outputs every time, the same in every start
    return jax.tree.map(
      lambda leaf: random.standard_normal(leaf.shape).astype(leaf.dtype)[: group.runs.count], shapes
    )

  def save(self, checkpoints: Checkpoints, step: int, state, meta, **options) -> bool:
    del options
    names = sorted(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state))
    if "identity" in meta:
      self.saves.append(str(step))
    else:
      shown = {name: meta[name] for name in ("task", "checkpoint") if name in meta}
      pathlib.Path(checkpoints.directory, "saved").write_text(f"{names} {shown}")
    return True


@contextlib.contextmanager
def _stand_in(device: _Device):
  with contextlib.ExitStack() as stack:
    for name in ("init_state", "train_step", "outputs"):
      method = getattr(device, name)
      stand_in = lambda group, *arguments, _method=method: _method(group, *arguments)  # noqa: E731
      stack.enter_context(mock.patch.object(RunGroup, name, stand_in))
    stack.enter_context(mock.patch.object(RunGroup, "better", lambda group, best, params, is_better: params))
    kept: dict[tuple, Any] = {}
    save = lambda _, cell, seed, params, *, step, **more: kept.update({(cell, seed): (params, step)})  # noqa: E731
    stack.enter_context(mock.patch.object(KeptWeights, "save", save))
    stack.enter_context(
      mock.patch.object(KeptWeights, "load", lambda _, cell, seed, fingerprint: kept[cell, seed])
    )
    stack.enter_context(
      mock.patch.object(
        Checkpoints,
        "save",
        lambda checkpoints, *arguments, **options: device.save(checkpoints, *arguments, **options),
      )
    )
    yield


def facets(arguments: Sequence[str], capsys, *, is_traced: bool) -> dict[str, Any]:
  """The facets of a command by name; 'step' and 'start', which take longest, are empty if not `is_traced`."""
  capsys.readouterr()
  device = _Device(is_traced=is_traced)
  with tempfile.TemporaryDirectory() as folder, _stand_in(device):
    workdir = pathlib.Path(folder, "workdir")
    code = main.main([*arguments, f"--workdir={workdir}"])
    said = capsys.readouterr()
    assert code == 0, said.err
  return {
    "plan": "\n".join(line for line in said.err.splitlines() if "most" in line or "padded" in line),
    "programs": device.programs,
    "step": device.step,
    "start": device.start,
    "batches": " ".join(device.batches),
    "evaluations": " ".join(device.evaluations),
    "saves": " ".join(device.saves),
  }
