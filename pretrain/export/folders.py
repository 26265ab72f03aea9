"""Names of the export layouts, and the writer for `--to=torch`.

`stock.write` writes the stock layouts, `official.write` the official ones, `embedding_files` those of
sentence-transformers. If a layout has no slot for a
parameter, the parameter is stored in `extra.safetensors` under this project's path, so that nothing is lost.
"""

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from safetensors.numpy import save_file

from data.errors import ConfigError
from pretrain.export import task_fields
from pretrain.export.tensor_rows import State, flatten

PRE_NORM = ("modernbert", "eurobert", "ultrabert")  # classes of transformers with pre-norm layers
STOCK = ("mpnet", "layoutlmv3", "bert", "electra", *PRE_NORM)  # classes of transformers
OFFICIAL = ("cocolm", "amos", "fairseq")  # formats of the papers' code
LAYOUTS = (*STOCK, *OFFICIAL, "torch")
EXTRA = "extra.safetensors"


class Written(NamedTuple):
  """The contents of an exported folder, for the self-check and the card."""

  architecture: str = ""  # class name in config.json; '': transformers cannot load it
  head: str = ""  # name of the head that the class computes; '': none
  extra: tuple[str, ...] = ()  # this project's paths in extra.safetensors


def refuse(layout: str, why: str) -> NoReturn:
  """Raises a ConfigError: the layout cannot represent this model, with the reason and alternatives."""
  raise ConfigError(
    f"--to={layout} cannot represent this model exactly: {why}; choose another layout\n"
    "  --to=auto\n  --to=torch"
  )


def activation_fault(code: str, kind: str, ours: str) -> str:
  """Describes how a classification head of `kind` in ACTIVATIONS differs from ours; '' if it does not."""
  theirs = task_fields.ACTIVATIONS[kind]
  return "" if theirs == ours else f"{code} has {theirs} in its classification head, this model has {ours}"


def save_tensors(path: pathlib.Path, state: State) -> None:
  """Writes contiguous arrays as safetensors for PyTorch; writes no file for an empty state."""
  if state:
    path.touch()
    mode = path.stat().st_mode  # by the umask; the library would make it readable by its owner only
    save_file(state, path, metadata={"format": "pt"})
    path.chmod(mode)


def save_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes a mapping as indented JSON with sorted keys."""
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_own(
  folder: pathlib.Path,
  params: dict,
  model: Mapping[str, Any],
  vocabulary_directory: pathlib.Path,
  *,
  task: Mapping[str, Any] | None = None,
) -> Written:
  """Writes `--to=torch` into an empty folder: all parameters under this project's names, and the vocabulary.

  `model` is the checkpoint's `config.model`, which describes the encoder. `task` is `meta['task']` of a
  fine-tuned checkpoint.
  """
  save_tensors(folder / "model.safetensors", flatten(params))
  fields = task_fields.own_fields(params, task or {})
  fields |= {"model_type": "text_encoder_pretraining", "model": dict(model)}
  save_json(folder / "config.json", fields)
  shutil.copytree(vocabulary_directory, folder / "vocabulary")
  return Written()
