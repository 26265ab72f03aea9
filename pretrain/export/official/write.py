"""Writes a model of ours as files for the official COCO-LM and AMOS code. Needs PyTorch."""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.vocabulary import Vocabulary
from pretrain.export import folders, task_fields
from pretrain.export.official import fit, names
from pretrain.export.stock.config import size_fields
from pretrain.export.tensor_rows import State, extra_of
from pretrain.models.layers import EncoderConfig


def write_official(
  folder: Path,
  params: dict,
  config: EncoderConfig,
  vocabulary_directory: Path,
  vocabulary: Vocabulary,
  *,
  layout: str,
  task: Mapping[str, Any],
) -> folders.Written:
  """Writes a model and its tokenizer into an empty folder, for the official code.

  Layouts 'cocolm' and 'amos' are the Hugging Face port of 2021 (pytorch_model.bin), 'fairseq' is model.pt.
  `task` is `meta['task']` of a fine-tuned checkpoint, or {}. Call `check_official` first.
  """
  import torch

  if layout == "fairseq":
    state = names.to_fairseq(params)
    content = {"args": _arguments(config, params, task_fields.activation(task)), "model": _tensors(state)}
    torch.save(content, folder / "model.pt")
    parts, _ = names.fairseq_parts(names.sharing_of(params))
  else:
    prefix = f"{layout}."
    state = names.to_hugging_face(params)
    heads = ("binary_head.", "clm_head.", "classifier.", "qa_outputs.")  # beside the encoder in the classes
    named = {name if name.startswith(heads) else prefix + name: array for name, array in state.items()}
    torch.save(_tensors(named), folder / "pytorch_model.bin")
    fields = _port_config(config, vocabulary, params, layout) | task_fields.label_fields(params, task)
    folders.save_json(folder / "config.json", fields)
    parts = names.PORT_PARTS
  extra = extra_of(params, parts)
  folders.save_tensors(folder / folders.EXTRA, extra)
  shutil.copyfile(vocabulary_directory / "sp.model", folder / "sp.model")
  _write_dictionary(folder / "dict.txt", vocabulary_directory, vocabulary)
  # Official code reads the two files above; only this folder records how text was split before pieces.
  shutil.copytree(vocabulary_directory, folder / "vocabulary")
  return folders.Written(extra=tuple(extra))


def _tensors(state: State) -> dict:
  """Converts to torch tensors; one array under several names stays one tensor, as official code ties them."""
  import torch

  made: dict[int, torch.Tensor] = {}
  for array in state.values():
    made.setdefault(id(array), torch.from_numpy(np.array(array, np.float32)))
  return {name: made[id(array)] for name, array in state.items()}


def _arguments(config: EncoderConfig, params: dict, activation: str) -> argparse.Namespace:
  """Returns the fields of a fairseq checkpoint's `args` that COCOLM_Model and AMOS_Model read.

  Source: official fairseq/models/cocolm/model.py (add_args, base_architecture).
  """
  heads = params.get("heads", {})
  contrast = heads.get(names.CONTRAST)
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
    generator_sample_mode="zero-dropout" if names.sharing_of(params) == "tokens" else "eval",
  )


def _port_config(config: EncoderConfig, vocabulary: Vocabulary, params: dict, layout: str) -> dict[str, Any]:
  """Returns config.json for the official Hugging Face port (huggingface/cocolm/configuration_cocolm.py)."""
  has_relative = config.relative_position == "official"
  return size_fields(config) | {
    "model_type": layout,
    "embedding_size": config.hidden_size,
    "max_position_embeddings": config.max_length,
    "type_vocab_size": config.num_segments,
    "rel_pos_bins": config.relative_buckets if has_relative else 0,
    "max_rel_pos": config.relative_max_distance if has_relative else 0,
    "layer_norm_type": "post",
    "cls_dropout_prob": 0.1,  # of the classification head, read by its class; the official scripts' value
    "need_pooler": names.CONTRAST in params.get("heads", {}),
    "pad_token_id": vocabulary.special_ids.pad,
  }


def _write_dictionary(path: Path, vocabulary_directory: Path, vocabulary: Vocabulary) -> None:
  """Writes fairseq's dict.txt, so that every piece keeps its id.

  fairseq adds the first four symbols itself, so they are not listed.
  """
  existing = vocabulary_directory / "dict.txt"
  if existing.is_file():
    shutil.copyfile(existing, path)
    return
  pieces = [vocabulary.piece(number) for number in range(len(fit.IDS), vocabulary.size)]
  path.write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
