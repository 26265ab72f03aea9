"""Finds the family of another library's checkpoint and converts its tensors to our parameters.

The import command, its tests and the comparison with official outputs all use these functions, which read the
tables of `official` and `stock`.
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from data.errors import DataError
from pretrain.export import official
from pretrain.export.stock.classes import CLASSES
from pretrain.export.stock.config import encoder_fields
from pretrain.export.stock.convert import from_stock
from pretrain.export.task_fields import last_layer, read_task, stored_task
from pretrain.export.tensor_rows import Imported, State, put
from pretrain.export.weight_files import EXTRA, ForeignCheckpoint, read_state
from pretrain.mesh import trees
from pretrain.models import encoder as encoder_model
from pretrain.models.layers import EncoderConfig

OWN = "text_encoder_pretraining"  # model_type of `--to=torch`
_PREFIXES = ("encoder/", "generator/", "heads/")


class Recognised(NamedTuple):
  """A checkpoint converted to our parameters and config fields."""

  family: str  # 'fairseq', 'official', 'stock' or 'own'
  params: dict  # float32 numpy
  fields: dict[str, Any]  # fields of `model` in configs/base.py
  generator: dict[str, Any]  # fields of `generator`; {} if the checkpoint has none
  unmatched: tuple[str, ...]  # names of tensors that were not read
  matched: tuple[str, ...]  # names of tensors that were read
  task: dict[str, Any]  # `meta['task']` of a fine-tuned model; {} for other models


def recognise(
  foreign: ForeignCheckpoint, *, num_heads: int | None = None, extra: State | None = None
) -> Recognised:
  """Finds the family by tensor names and `model_type`, and reads all tensors with those of `read_extra`.

  The encoder has exactly the names and shapes of the model that `fields` describe. DataError: unsupported
  architecture, a missing tensor, a wrong shape, or settings that contradict it. ConfigError: the number of
  heads is unknown, or `num_heads` contradicts the checkpoint.
  """
  state, config = foreign.state, foreign.config
  model_type, generator = config.get("model_type"), {}
  extra = extra or {}
  if any(".sentence_encoder." in name for name in state):
    family = "fairseq"
    heads = official.find_num_heads(config, "encoder_attention_heads", state, num_heads)
    sharing = official.find_sharing(state)
    names = official.from_fairseq(state, num_heads=heads, share_embeddings=sharing)
    params = merge(names.params, extra)
    fields, generator = official.fairseq_fields(config, params), {"share_embeddings": sharing}
  elif any(name.endswith("attention.self_attn.in_proj.weight") for name in state):
    family = "official"
    heads = official.find_num_heads(config, "num_attention_heads", state, num_heads)
    names = official.from_hugging_face(state, num_heads=heads)
    params = merge(names.params, extra)
    fields = official.port_fields(config, params)
  elif model_type == OWN:
    family = "own"
    matched = tuple(sorted(name for name in state if name.startswith(_PREFIXES)))
    params = merge({}, {name: state[name] for name in matched})
    names = Imported(params, tuple(sorted({*state} - {*matched})), matched)
    fields = own_fields(config)
  elif isinstance(model_type, str) and model_type in CLASSES:
    family = "stock"
    fields = encoder_fields(config)
    names = from_stock(state, config, extra=extra)
    params = names.params
  else:
    shown = ", ".join(sorted(state)[:3])
    raise DataError(
      f"{foreign.folder}: unsupported architecture; found model_type {model_type!r} with tensors {shown}, "
      f"...; expected official COCO-LM or AMOS, {', '.join(CLASSES)}, or an export of this program"
    )
  check_encoder(params, fields)
  layers = params.get("generator", {}).get("trunk", {}).get("layers", {}).get("up", {}).get("kernel")
  generator = {} if layers is None else generator | {"num_layers": layers.shape[0]}
  task = _task(params, config, family)
  return Recognised(family, params, fields, generator, names.unmatched, names.matched, task)


def _task(params: dict, config: Mapping[str, Any], family: str) -> dict[str, Any]:
  heads, kept = params.get("heads", {}), stored_task(config)
  last = last_layer(heads)
  if last is None:
    return kept if "question_answering" in heads else {}
  kind = config["model_type"] if family == "stock" else family
  return kept | read_task(config, kind, num_outputs=last["bias"].shape[0])


def read_extra(folder: Path) -> State:
  """Reads {our path: array} from an export's extra.safetensors; {} if there is none."""
  path = folder / EXTRA
  return read_state(path).state if path.is_file() else {}


def merge(params: dict, flat: Mapping[str, np.ndarray]) -> dict:
  """Returns a new tree with arrays added at 'a/b/c'; raises DataError if a path is already taken."""
  merged: dict = {}
  for path, array in [*trees.by_path(params).items(), *flat.items()]:
    put(merged, path, array)
  return merged


def own_fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the encoder's fields from `model` in the config.json of `--to=torch`.

  Fields that an older version did not have are left out. DataError: a field without a default is missing, or
  one has a wrong type or value.
  """
  model = config.get("model")
  model = model if isinstance(model, Mapping) else {}
  fields, defaults = {}, {field.name: field.default for field in dataclasses.fields(EncoderConfig)}
  for name, kind in typing.get_type_hints(EncoderConfig).items():
    if name not in model and defaults[name] is not dataclasses.MISSING:
      continue
    value: Any = model.get(name)
    choices = typing.get_args(kind)  # a Literal's choices; of other types ()
    if typing.get_origin(kind) is tuple:
      is_right = isinstance(value, list) and all(type(each) is int for each in value)
      expected, kind, choices = "a list of integers", tuple, ()
    elif choices:
      is_right, expected = value in choices, ", ".join(choices)
    else:
      is_right, expected = type(value) is kind or (kind, type(value)) == (float, int), kind.__name__
    if not is_right:
      raise DataError(f"config.json: model.{name} is {value!r}; expected {expected}; export it again")
    fields[name] = value if choices else kind(value)
  return fields


def check_encoder(params: dict, fields: Mapping[str, Any]) -> None:
  """Checks an encoder's parameters against the model that the fields describe.

  DataError: a size differs, or a parameter is missing, unknown or has another shape.
  """
  has_positions = fields.get("position", "learned") == "learned"
  for name, size in official.sizes(params, has_positions=has_positions).items():
    stated = fields.get(name, size)
    if type(stated) is not int or stated != size:
      raise DataError(
        f"checkpoint: {name} is {stated!r} in its settings, but {size} in its tensors; check that it is "
        "complete"
      )
  config = EncoderConfig(**fields)
  if config.hidden_size % config.num_heads:
    raise DataError(f"checkpoint: width {config.hidden_size} is not divisible by {config.num_heads} heads")
  init = functools.partial(encoder_model.init_encoder, config=config, pad_id=0)
  expected = {"encoder": jax.eval_shape(init, jax.random.key(0))}
  problems = trees.differences(expected, {"encoder": params["encoder"]})
  if problems:
    raise DataError(f"checkpoint: {trees.first_lines(problems)}; check that all its files are there")
