"""What each layout's folder holds, written from parameters, vocabulary and config.

Stock layouts go through `stock.write`, the official ones through `official.names`; `torch` is our own tree.
What a layout has no slot for lies in `extra.safetensors` under our own paths, so that nothing is lost.
"""

import argparse
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from data.vocabulary import Vocabulary
from pretrain import trees
from pretrain.export import task_fields
from pretrain.export.official import fit as official_fit
from pretrain.export.official import names as official_names
from pretrain.export.stock import config as stock_config
from pretrain.export.tensor_rows import State
from pretrain.models.config import EncoderConfig

STOCK = stock_config.LAYOUTS
OFFICIAL = official_fit.LAYOUTS
PLAIN = (*OFFICIAL, "torch")  # read by `torch_forward`, since no installed class does
LAYOUTS = (*STOCK, *PLAIN)
EXTRA = "extra.safetensors"


def flatten(params: dict) -> State:
  """{'encoder/trunk/...': contiguous float32 array} of a tree of parameters."""
  return {path: np.ascontiguousarray(leaf, np.float32) for path, leaf in trees.by_path(params).items()}


def save_tensors(path: pathlib.Path, state: State) -> None:
  """Writes safetensors that PyTorch libraries read; nothing for an empty state."""
  if state:
    contiguous = {name: np.ascontiguousarray(array) for name, array in state.items()}
    save_file(contiguous, path, metadata={"format": "pt"})


def save_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes readable JSON."""
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_official(
  folder: pathlib.Path,
  params: dict,
  config: EncoderConfig,
  vocabulary_directory: pathlib.Path,
  vocabulary: Vocabulary,
  *,
  layout: str,
  task: Mapping[str, Any],
) -> tuple[str, ...]:
  """Writes the files the official COCO-LM and AMOS code reads.

  Args:
    folder: exists and is empty.
    params: the checkpoint's parameters, all of them.
    config: its encoder.
    vocabulary_directory: of `vocabulary`.
    vocabulary: sentencepiece.
    layout: 'cocolm', 'amos' (Hugging Face port of 2021: pytorch_model.bin) or 'fairseq' (model.pt).
    task: `meta['task']` of a fine-tuned checkpoint, or {}.

  Returns:
    Our paths of what lies in extra.safetensors.

  Raises:
    ConfigError: as `official_fit.check_official`.
  """
  import torch

  activation = task.get("activation", "tanh")
  official_fit.check_official(config, vocabulary, layout, params, activation=activation)
  params = jax.tree.map(np.asarray, params)
  if layout == "fairseq":
    state = official_names.to_fairseq(params)
    content = {"args": _arguments(config, params, activation), "model": _tensors(state)}
    torch.save(content, folder / "model.pt")
    sharing = official_names.sharing_of(params)
    held = official_names.from_fairseq(state, num_heads=config.num_heads, share_embeddings=sharing)
  else:
    prefix = f"{layout}."
    state = official_names.to_hugging_face(params)
    heads = ("binary_head.", "clm_head.", "scl_head.")
    named = {name if name.startswith(heads) else prefix + name: array for name, array in state.items()}
    torch.save(_tensors(named), folder / "pytorch_model.bin")
    fields = _official_config(config, vocabulary, params, layout)
    save_json(folder / "config.json", fields | _labels(params, task))
    held = official_names.from_hugging_face(state, num_heads=config.num_heads)
  kept = flatten(held.params)
  extra = {path: leaf for path, leaf in flatten(params).items() if path not in kept}
  save_tensors(folder / EXTRA, extra)
  shutil.copyfile(vocabulary_directory / "sp.model", folder / "sp.model")
  write_dictionary(folder / "dict.txt", vocabulary_directory, vocabulary)
  # Official code reads the two files above; how this model's text was split before them stands only here.
  shutil.copytree(vocabulary_directory, folder / "vocabulary")
  return tuple(extra)


def _tensors(state: State) -> dict:
  """Torch tensors; what is one array here is one tensor there, as official code ties them."""
  import torch

  made: dict[int, torch.Tensor] = {}
  for array in state.values():
    made.setdefault(id(array), torch.from_numpy(np.array(array, np.float32)))
  return {name: made[id(array)] for name, array in state.items()}


def _arguments(config: EncoderConfig, params: dict, activation: str) -> argparse.Namespace:
  """`args` of a fairseq checkpoint: what COCOLM_Model and AMOS_Model read of it.

  Source: official fairseq/models/cocolm/model.py (add_args, base_architecture).
  """
  heads = params.get("heads", {})
  contrast = heads.get(official_names.CONTRAST)
  projection = contrast["dense"]["bias"].shape[0] if contrast else config.hidden_size
  generator = params.get("generator", {})
  is_amos = "mixture" in generator
  return argparse.Namespace(
    arch="amos_base" if is_amos else "cocolm_base",
    task="amos" if is_amos else "cocolm",
    encoder_layers=config.num_layers,
    generator_layers=len(generator["trunk"]["layers"]["up"]["bias"]) if generator else 0,
    encoder_embed_dim=config.hidden_size,
    encoder_ffn_embed_dim=config.mlp_size,
    encoder_attention_heads=config.num_heads,
    max_positions=config.max_length,
    rel_pos=int(config.relative_position == "official"),
    rel_pos_bins=config.relative_buckets,
    max_rel_pos=config.relative_max_distance,
    dropout=config.dropout,
    attention_dropout=config.attention_dropout,
    activation_dropout=0.0,
    activation_fn="gelu",
    pooler_activation_fn=activation,
    pooler_dropout=0.0,
    clm="clm" in heads,
    seq_contrast=contrast is not None,
    seq_contrast_dim=projection,
    generator_sample_mode="zero-dropout" if official_names.sharing_of(params) == "tokens" else "eval",
  )


def _official_config(
  config: EncoderConfig, vocabulary: Vocabulary, params: dict, layout: str
) -> dict[str, Any]:
  """config.json of the official Hugging Face port. Source: huggingface/cocolm/configuration_cocolm.py."""
  has_relative = config.relative_position == "official"
  return stock_config.size_fields(config) | {
    "model_type": layout,
    "embedding_size": config.hidden_size,
    "max_position_embeddings": config.max_length,
    "type_vocab_size": config.num_segments,
    "rel_pos_bins": config.relative_buckets if has_relative else 0,
    "max_rel_pos": config.relative_max_distance if has_relative else 0,
    "layer_norm_type": "post",
    "need_pooler": official_names.CONTRAST in params.get("heads", {}),
    "pad_token_id": vocabulary.special_ids.pad,
  }


def write_dictionary(path: pathlib.Path, vocabulary_directory: pathlib.Path, vocabulary: Vocabulary) -> None:
  """Writes fairseq's dict.txt, which gives every piece of the vocabulary the id it has here.

  Its first four symbols are implied by the reader and not listed.
  """
  existing = vocabulary_directory / "dict.txt"
  if existing.is_file():
    shutil.copyfile(existing, path)
    return
  pieces = [vocabulary.piece(number) for number in range(len(official_fit.IDS), vocabulary.size)]
  path.write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")


def _labels(params: dict, task: Mapping[str, Any]) -> dict[str, Any]:
  head = params.get("heads", {}).get("classification")
  return {} if head is None else task_fields.label_fields(head, **task_fields.arguments(task))


def write_own(
  folder: pathlib.Path,
  params: dict,
  model: Mapping[str, Any],
  vocabulary_directory: pathlib.Path,
  *,
  task: Mapping[str, Any] | None = None,
) -> None:
  """Writes `--to=torch`: every parameter under our own path, and the fields of `model`.

  Args:
    folder: exists and is empty.
    params: the checkpoint's parameters, all of them.
    model: `config.model` of the checkpoint.
    vocabulary_directory: copied whole.
    task: `meta['task']` of a fine-tuned checkpoint.
  """
  save_tensors(folder / "model.safetensors", flatten(params))
  head = params.get("heads", {}).get("classification")
  fields = {} if head is None else task_fields.own_fields(head, task or {})
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
