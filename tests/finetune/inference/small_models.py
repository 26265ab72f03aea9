"""Fine-tuned models with random heads: what training would save, without training."""

import json
import pathlib
import shutil

import jax
import numpy as np

from finetune.own.schema import FILE, TaskSchema
from pretrain.checkpoints.checkpoint import Checkpoints, load_params


def _linear(random: np.random.Generator, inputs: int, outputs: int) -> dict:
  return {
    "kernel": random.normal(size=(inputs, outputs)).astype(np.float32),
    "bias": random.normal(size=outputs).astype(np.float32),
  }


def head(num_outputs: int, *, width: int = 16) -> dict:
  """A head of a text's vector; `num_outputs` 0: one that answers questions; below 0: of words."""
  random = np.random.default_rng(abs(num_outputs))
  if num_outputs < 0:
    return {"tagging": _linear(random, width, -num_outputs)}
  if not num_outputs:
    return {"question_answering": _linear(random, width, 2)}
  output = _linear(random, width, num_outputs)
  return {"classification": {"dense": _linear(random, width, width), "output": output}}


def save(
  run: pathlib.Path, directory: pathlib.Path, heads: dict, task: dict, schema: TaskSchema | None = None
) -> pathlib.Path:
  """Writes the model of the encoder of `run` with these heads, and its `task.json`; returns the directory."""
  params, meta = load_params(run)
  state = {"params": {"encoder": params["encoder"], "heads": heads}, "step": np.int32(40)}
  meta = {"config": meta["config"], "vocabulary_digest": meta["vocabulary_digest"], "task": task}
  checkpoints = Checkpoints(directory, every=1, keep=1)
  checkpoints.save(40, jax.tree.map(jax.numpy.asarray, state), meta, force=True)
  checkpoints.close()
  shutil.copytree(run / "vocabulary", directory / "vocabulary")
  if schema is not None:
    (directory / FILE).write_text(schema.as_json(), encoding="utf-8")
  return directory


def own(run: pathlib.Path, directory: pathlib.Path, kind: str, *labels: str, **fields) -> pathlib.Path:
  """A model of a user's own task; `fields` are those of its schema that are not the usual ones."""
  usual = {"text": ("text",), "label": "label", "pooling": "mean", "max_length": 24}
  schema = TaskSchema(kind=kind, labels=labels, **(usual | fields))
  task = {"name": "own", "labels": list(labels) or None, "problem_type": schema.problem_type}
  task = json.loads(json.dumps(task | {"activation": "tanh", "pooling": schema.pooling}))
  made = head(-schema.num_outputs if kind == "tagging" else schema.num_outputs)
  return save(run, directory, made, task, schema)
