"""What folders of exports share; `--to=torch` and the files of sentence-transformers are written here.

`stock.write` makes the stock layouts, `official.write` the official ones. What a layout has no slot for lies
in `extra.safetensors` under our own paths, so that nothing is lost.
"""

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from safetensors.numpy import save_file

from data.errors import ConfigError
from pretrain.export import task_fields
from pretrain.export.tensor_rows import State
from pretrain.mesh import trees
from pretrain.models.config import EncoderConfig

EXTRA = "extra.safetensors"


def refuse(layout: str, why: str) -> NoReturn:
  """Raises the ConfigError of a layout that cannot hold a model, and says what can."""
  raise ConfigError(
    f"--to={layout} cannot hold this model exactly: {why}; use --to=auto, or --to=torch for names of our own"
  )


def activation_fault(code: str, kind: str, ours: str) -> str:
  """How a head of a `kind` of `task_fields.ACTIVATIONS` differs from ours; '': it does not."""
  theirs = task_fields.ACTIVATIONS[kind]
  return "" if theirs == ours else f"{code} has {theirs} in its classification head, ours has {ours}"


def flatten(params: dict) -> State:
  """{'encoder/trunk/...': contiguous float32 array} of a tree of parameters."""
  return {path: np.ascontiguousarray(leaf, np.float32) for path, leaf in trees.by_path(params).items()}


def save_tensors(path: pathlib.Path, state: State) -> None:
  """Writes contiguous arrays as safetensors that PyTorch libraries read; nothing for an empty state."""
  if state:
    path.touch()
    mode = path.stat().st_mode  # the umask's; the library's own file could be read by its owner alone
    save_file(state, path, metadata={"format": "pt"})
    path.chmod(mode)


def save_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes readable JSON."""
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_own(
  folder: pathlib.Path,
  params: dict,
  model: Mapping[str, Any],
  vocabulary_directory: pathlib.Path,
  *,
  task: Mapping[str, Any] | None = None,
) -> None:
  """Writes `--to=torch` into an empty folder: every parameter under our own path, and the vocabulary's files.

  `model` is `config.model` of the checkpoint, which says what encoder the arrays make up; `task` is
  `meta['task']` of a fine-tuned one.
  """
  save_tensors(folder / "model.safetensors", flatten(params))
  fields = task_fields.own_fields(params, task or {})
  fields |= {"model_type": "text_encoder_pretraining", "model": dict(model)}
  save_json(folder / "config.json", fields)
  shutil.copytree(vocabulary_directory, folder / "vocabulary")


def write_sentence_transformers(folder: pathlib.Path, config: EncoderConfig) -> None:
  """Writes what SentenceTransformer(folder) reads: the encoder, then the mean over tokens."""
  modules = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  ]
  (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
  save_json(
    folder / "sentence_bert_config.json", {"max_seq_length": config.max_length, "do_lower_case": False}
  )
  (folder / "1_Pooling").mkdir()
  pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
  save_json(folder / "1_Pooling" / "config.json", pooling)
