"""Writes and reads the files of sentence-transformers beside an encoder: pooling, norm, prompts, length.

They are written as versions 3 to 5 write them; later versions read them without a warning.
"""

import json
import logging
import pathlib
from collections.abc import Mapping
from typing import Any, NoReturn

from data.errors import DataError, listed
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export.weight_files import read_json, save_json
from pretrain.models.layers import EncoderConfig

logger = logging.getLogger(__name__)

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
_TOKENIZER = "tokenizer_config.json"
_KINDS = ("Transformer", "Pooling", "Normalize")  # the last one only for vectors of length 1
_LIBRARY = "sentence_transformers."
# Pooling -> its 'pooling_mode' since version 6, and the end of its switch 'pooling_mode_...' before.
_MODES = {"cls": ("cls", "cls_token"), "mean": ("mean", "mean_tokens"), "last": ("lasttoken", "lasttoken")}
_SWITCH = "pooling_mode_"
_WORDS = {
  "cls": "the hidden state at the first token",
  "mean": "the mean hidden state of all tokens",
  "last": "the hidden state at the last token",
}
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # prompts that encode_document looks for


def described(schema: EmbeddingSchema) -> str:
  """Returns how a vector is made, such as 'the mean hidden state of all tokens, not normalised'."""
  return f"{_WORDS[schema.pooling]}, {'divided by its length' if schema.unit else 'not normalised'}"


def pooled(hidden, mask, schema: EmbeddingSchema):
  """Computes vectors in PyTorch, for ONNX and the self-check.

  Hidden states are [batch, length, embed], the mask is [batch, length], 0 at padding, which may be on either
  side; vectors are [batch, embed].
  """
  import torch

  is_token = mask.to(hidden.dtype)
  if schema.pooling == "mean":
    vectors = (hidden * is_token[..., None]).sum(1) / is_token.sum(1, keepdim=True).clamp(min=1)
  else:
    numbers = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=hidden.dtype)
    ranks = is_token * (numbers if schema.pooling == "last" else 1 / numbers)
    where = ranks.argmax(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    vectors = hidden.gather(1, where).squeeze(1)
  return torch.nn.functional.normalize(vectors, dim=-1) if schema.unit else vectors


def write(folder: pathlib.Path, schema: EmbeddingSchema, config: EncoderConfig) -> None:
  """Writes the files that SentenceTransformer(folder) reads beside the encoder, and `embedding.json`."""
  modules = [
    {
      "idx": number,
      "name": str(number),
      "path": f"{number}_{kind}" if number else "",
      "type": f"{_LIBRARY}models.{kind}",
    }
    for number, kind in enumerate(_KINDS[: 2 + schema.unit])
  ]
  (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
  # Version 3 has one limit for both sides.
  longest = schema.longest(config.max_length)
  save_json(folder / LENGTH, {"max_seq_length": longest, "do_lower_case": False})
  pooling = {_SWITCH + name: kind == schema.pooling for kind, (_, name) in _MODES.items()}
  (folder / "1_Pooling").mkdir()
  save_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": config.hidden_size, **pooling})
  settings = {
    "model_type": "SentenceTransformer",
    "prompts": {"query": schema.query_prefix, "document": schema.passage_prefix},
    "default_prompt_name": "document" if schema.passage_prefix else None,
    "similarity_fn_name": "cosine",
  }
  save_json(folder / PROMPTS, settings)
  (folder / FILE).write_text(schema.as_json(), encoding="utf-8")


def read(folder: pathlib.Path, *, cased: bool, positions: int) -> EmbeddingSchema | None:
  """Reads how a folder's model makes vectors, from `embedding.json` or sentence-transformers' files.

  None: it has neither. Settings without a field in the schema that change no vector are listed in the log.
  `cased` tells whether the vocabulary keeps case, `positions` how many tokens the encoder reads at most.
  DataError: a module or setting has no counterpart here, or a file is damaged.
  """
  if (folder / FILE).is_file():
    return EmbeddingSchema.read(folder)
  if not (folder / MODULES).is_file():
    return None
  pooling, is_unit = _read_modules(folder)
  settings, limits, tokenizer = (
    read_json(folder / name) if (folder / name).is_file() else {} for name in (PROMPTS, LENGTH, _TOKENIZER)
  )
  # Version 6 has the limit in the tokenizer's config alone; a tokenizer without a limit has 1e30.
  most = limits.get("max_seq_length") or tokenizer.get("model_max_length") or 0
  prompts = settings.get("prompts") or {}
  texts = prompts.values() if isinstance(prompts, dict) else [0]
  if not (isinstance(most, int) and most >= 0 and all(isinstance(text, str | None) for text in texts)):
    raise DataError(f"{folder}: prompts or max_seq_length are not texts and a number; copy it again")
  most = most if most < positions else 0
  passage = next((name for name in _PASSAGE_PROMPTS if prompts.get(name)), _PASSAGE_PROMPTS[0])
  if any(texts) and pooling.get("include_prompt") is False:
    _refuse(folder, "include_prompt: false, which pools without the prompt's tokens")
  if limits.get("do_lower_case") and cased:
    _refuse(folder, "do_lower_case with a vocabulary that keeps case")
  # As encode_query and encode_document: the default is the prompt of a side that has none.
  usual = settings.get("default_prompt_name") or ""
  own = {"queries": "query" in prompts, "passages": not set(prompts).isdisjoint(_PASSAGE_PROMPTS)}
  borrowed = [side for side, is_named in own.items() if not is_named and prompts.get(usual)]
  if borrowed:
    logger.info(
      f"{PROMPTS}: default_prompt_name {usual!r}: its prompt is the prefix of {' and '.join(borrowed)}"
    )
  of_side = {side: usual if side in borrowed else name for side, name in zip(own, ("query", passage))}
  others = [name for name, text in prompts.items() if text and name not in of_side.values()]
  if others:
    logger.info(f"{PROMPTS}: prompts other than of query and document are not imported: {listed(others)}")
  if settings.get("similarity_fn_name") not in (None, "cosine"):
    logger.info(f"{PROMPTS}: similarity_fn_name is not imported: vectors are compared by cosine here")
  return EmbeddingSchema(
    pooling=_pooling(folder, pooling),
    unit=is_unit,
    query_prefix=prompts.get(of_side["queries"]) or "",
    passage_prefix=prompts.get(of_side["passages"]) or "",
    query_length=most,
    passage_length=most,
  )


def _read_modules(folder: pathlib.Path) -> tuple[dict[str, Any], bool]:
  """Returns the config of the pooling module, and whether vectors get length 1."""
  modules = [module if isinstance(module, dict) else {} for module in read_json(folder / MODULES, list)]
  kinds = [str(module.get("type")) for module in modules]
  names = [kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind for kind in kinds]
  if names not in (list(_KINDS[:2]), list(_KINDS)):
    _refuse(folder, f"chain {listed(names)} (known: {', '.join(_KINDS)})")
  path = str(modules[1].get("path"))
  if pathlib.Path(path).name != path or path in ("", ".."):
    raise DataError(f"{folder / MODULES}: {path[:80]!r} is not a folder in its folder; do not use it")
  return read_json(folder / path / "config.json"), len(names) == len(_KINDS)


def _pooling(folder: pathlib.Path, config: Mapping[str, Any]) -> str:
  asked = config.get("pooling_mode")
  if asked is None:
    on = [name.removeprefix(_SWITCH) for name, value in config.items() if value and name.startswith(_SWITCH)]
    asked = on or "mean"
  names = list(map(str, asked)) if isinstance(asked, list) else [str(asked)]
  ours = {name: kind for kind, theirs in _MODES.items() for name in theirs}
  if len(names) != 1 or names[0] not in ours:
    _refuse(folder, f"pooling by {listed(names)} (known: {', '.join(_MODES)})")
  return ours[names[0]]


def _refuse(folder: pathlib.Path, what: str) -> NoReturn:
  raise DataError(
    f"{folder}: sentence-transformers' {what} is not supported; import without it\n  --encoder_only"
  )
