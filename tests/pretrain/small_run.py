"""Runs small enough for a test: a config file for the real command, and the same configs in the process.

python -m pretrain.main --config=tests/pretrain/small_run.py:mlm --config.data.directory=DIR --workdir=DIR
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs import base
from data import manifest
from pretrain import train
from pretrain.checkpoints.checkpoint import load_params
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import sharding, trees
from pretrain.reading.prepared import token_ids
from pretrain.run import Run, make_run
from pretrain.step import TrainState
from tests import lines

VOCAB_SIZE = 300
LENGTH = 32

_SMALL = {
  "model.vocab_size": VOCAB_SIZE,
  "model.hidden_size": 16,
  "model.num_layers": 1,
  "model.num_heads": 2,
  "model.mlp_size": 32,
  "model.max_length": LENGTH,
  "model.relative_buckets": 8,
  "model.relative_max_distance": 16,
  "model.init_stddev": 0.1,  # at 0.02 so small a model says nothing: differences would hide below rounding
  "model.dtype": "float32",
  "generator.num_layers": 1,
  "objectives.scl.group_size": 2,
  "objectives.taco.group_size": 2,
  "objectives.taco.num_negatives": 4,
  "optimizer.learning_rate": 1e-3,
  "optimizer.warmup_steps": 2,
  "data.length": LENGTH,
  "data.workers": 1,
  "train.batch_size": 8,
  "train.total_steps": 6,
  "train.log_every": 3,
  "train.eval_every": 4,
  "train.eval_batches": 2,
  "train.checkpoint_every": 2,
}

RECIPES = {
  "mlm": {"objectives.mlm.weight": 1.0},
  "coco_lm": {
    "corruption.kind": "generator",
    "objectives.rtd.weight": 50.0,
    "objectives.clm.weight": 1.0,
    "objectives.scl.weight": 1.0,
  },
  "gdes": {
    "corruption.kind": "generator",
    "generator.share_embeddings": "gdes",
    "objectives.rtd.weight": 50.0,
  },
  "union": {
    "corruption.kind": "generator",
    "generator.num_layers": 2,
    "generator.mlm_layers": (1, 2),
    "generator.share_embeddings": "tokens",
    "generator.sampling_dropout": "zero",
    "generator.mixture": "adversarial",
    "model.num_layers": 2,
    "objectives.rtd.weight": 50.0,
    "objectives.clm.weight": 1.0,
    "objectives.scl.weight": 1.0,
    "objectives.taco.weight": 1.0,
  },
}


def get_config(recipe: str = "mlm") -> ConfigDict:
  """The base config made small, with a recipe's fields."""
  config = base.get_config()
  config.update_from_flattened_dict({**_SMALL, **RECIPES[recipe]})
  config.recipe = recipe
  return config


def mixture_config(text: str, fields: dict | None = None) -> ConfigDict:
  """Returns a config of masked LM on `data.mixture`, or on `data.stages` where the text begins with '0:'."""
  name = "data.stages" if text.startswith("0:") else "data.mixture"
  return small_config("mlm", "", {name: text, **(fields or {})})


def small_config(recipe: str, directory, fields: dict | None = None) -> ConfigDict:
  """`get_config` on prepared records, with `fields` ({'a.b': value}) on top."""
  config = get_config(recipe)
  config.update_from_flattened_dict({"data.directory": str(directory), **(fields or {})})
  return config


@contextlib.contextmanager
def devices(number: int):
  """Lets meshes be made of the first `number` of the eight fake devices."""
  make_mesh, some = sharding.make_mesh, jax.devices()[:number]

  def of_some(settings, *, devices=None):
    return make_mesh(settings, devices=some if devices is None else devices)

  counted = mock.patch.object(jax, "device_count", lambda: number)
  with mock.patch.object(sharding, "make_mesh", of_some), counted:
    yield


class SharedRun(Run):
  """A run that hands out each of its functions once made: the runs of one config compile them once."""

  @functools.cached_property
  def _functions(self) -> dict[str, Callable]:
    return {
      "init": jax.jit(self._initial, out_shardings=self.state_shardings),
      "train": super().compile_train_step(),
      "eval": super().compile_eval_step(),
    }

  def init_state(self) -> TrainState:
    """As that of `Run`."""
    with jax.set_mesh(self.mesh):
      return self._functions["init"]()

  def compile_train_step(self) -> Callable:
    """As that of `Run`."""
    return self._functions["train"]

  def compile_eval_step(self) -> Callable:
    """As that of `Run`."""
    return self._functions["eval"]


_SHARED: dict[tuple, SharedRun] = {}


def shared_run(config: ConfigDict, tokens: TokenIds, *, mesh: Mesh | None = None) -> Run:
  """`make_run`, but the same run for the same config, vocabulary and devices in one test file."""
  mesh = mesh or sharding.make_mesh(sharding.MeshSettings(**config.mesh.to_dict()))
  key = (config.to_json(), tokens, mesh.devices.size)
  if key not in _SHARED:
    made = make_run(config.copy_and_resolve_references(), tokens, mesh=mesh)
    _SHARED[key] = SharedRun(**{field.name: getattr(made, field.name) for field in dataclasses.fields(Run)})
  return _SHARED[key]


def small_run(config: ConfigDict, *, number: int = 1) -> Run:
  """The parts of a run on `number` devices."""
  with devices(number):
    return shared_run(config, token_ids(config.data.directory))


def run_steps(run: Run, ids: list[np.ndarray]) -> tuple:
  """Takes a step per global batch, from the initial state: (last state, metrics per step, jitted step)."""
  with jax.set_mesh(run.mesh):
    state, step, metrics = run.init_state(), run.compile_train_step(), []
    for batch in ids:
      state, made = step(state, sharding.to_global(run.mesh, batch))
      metrics.append(jax.device_get(made))
  return state, metrics, step


def run_training(config: ConfigDict, workdir, *, say=None, number: int = 1, **options) -> int:
  """`train.train` on `number` devices, with `options`; its exit code. `say` gets what is logged."""
  with (
    devices(number),
    mock.patch.object(train, "make_run", shared_run),
    lines.heard(str if say is None else say),
  ):
    return train.train(config, str(workdir), **options)


def metric_lines(workdir) -> list[dict]:
  """The lines of metrics.jsonl without what a clock decides."""
  lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
  return [
    {name: value for name, value in json.loads(line).items() if not name.startswith("perf/")}
    for line in lines
  ]


def saved_params(workdir, step: int | None = None) -> dict[str, np.ndarray]:
  """{path: array} of a checkpoint's parameters."""
  params, _ = load_params(workdir, step)
  return {path: np.asarray(leaf) for path, leaf in trees.by_path(params).items()}


def assert_same_params(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
  """Bit-equal: the same names and numbers."""
  assert first.keys() == second.keys()
  different = [name for name in first if not np.array_equal(first[name], second[name])]
  assert not different, different


def vocabulary_size(directory) -> int:
  """Pieces of the vocabulary that records were made with."""
  return manifest.read(directory).vocabulary.size
