"""WordPiece tokenizers of others: `tokenizer.json` or `vocab.txt` to our pieces by id.

Only BERT's pipeline is taken, the one that our WordPiece vocabularies have; anything else is refused and
named, for the ids of a model mean nothing with other ones.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from data.errors import DataError, reason
from data.vocabulary import tokenizer_files

_ADVICE = "only BERT's WordPiece and sentencepiece with its sp.model can be imported"
_MISSING = object()


def read(folder: pathlib.Path) -> tuple[list[str], bool]:
  """Returns the pieces by id, special ones under names that our vocabularies find, and whether case is kept.

  DataError: there are no such files, they are damaged, or are not BERT's WordPiece.
  """
  path = folder / "tokenizer.json"
  if path.is_file():
    content = _object(path)
    pieces, cased = _pieces(path, content), _pipeline(path, content)
  elif (folder / "vocab.txt").is_file():
    path = folder / "vocab.txt"
    pieces, cased = tokenizer_files.read_vocab_txt(path), _case(folder)
    content = {}
  else:
    raise DataError(
      f"{folder}: no tokenizer in it; expected sp.model (with dict.txt), tokenizer.json, or vocab.txt"
    )
  pieces = _named(path, pieces, _special_names(folder))
  unwritable = [piece for piece in pieces if not piece or set(piece) & set("\r\n")]
  if unwritable:
    raise DataError(f"{path}: the piece {unwritable[0]!r} cannot stand in a vocab.txt; {_ADVICE}")
  if len(set(pieces)) < len(pieces):
    raise DataError(f"{path}: two ids have the same piece; expected one piece for each")
  for name in tokenizer_files.PIECES.values():
    tokenizer_files.special_id(path, pieces, name)
  _check_pairs(path, content, pieces)
  return pieces, cased


def _object(path: pathlib.Path) -> dict[str, Any]:
  try:
    content = json.loads(tokenizer_files.read_bytes(path).decode("utf-8"))
  except (ValueError, RecursionError) as error:
    raise DataError(f"{path}: not JSON ({reason(error)[:80]}); bring back the original file") from error
  if not isinstance(content, dict):
    raise DataError(f"{path}: expected an object, found {type(content).__name__}")
  return content


def _part(path: pathlib.Path, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  part = content.get(name)
  if not isinstance(part, dict):
    raise DataError(f"{path}: its {name} is {str(part)[:40]!r}, expected an object; {_ADVICE}")
  return part


def _expect(path: pathlib.Path, where: str, part: Mapping[str, Any], **expected: tuple) -> None:
  for name, allowed in expected.items():
    found = part.get(name, _MISSING)
    if not any(type(found) is type(value) and found == value for value in allowed):
      shown = "missing" if found is _MISSING else repr(found)[:40]
      raise DataError(f"{path}: {where} {name} is {shown}, expected {allowed[0]!r}; {_ADVICE}")


def _pieces(path: pathlib.Path, content: Mapping[str, Any]) -> list[str]:
  """The pieces of the model and the special ones added to it."""
  model = _part(path, content, "model")
  if "type" in model or "merges" in model:  # files of before 0.11 of the library have no type
    _expect(path, "model", model, type=("WordPiece",))
  _expect(path, "model", model, continuing_subword_prefix=("##",), max_input_chars_per_word=(100,))
  ids = dict(_part(path, model, "vocab"))
  added = content.get("added_tokens", [])
  for token in added if isinstance(added, list) else [added]:
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
      raise DataError(f"{path}: in added_tokens is {str(token)[:40]!r}, expected objects with content and id")
    if token.get("special") is not True:
      raise DataError(f"{path}: the added token {token['content'][:40]!r} is cut out of text; {_ADVICE}")
    if ids.setdefault(token["content"], token.get("id")) != token.get("id"):
      raise DataError(f"{path}: the piece {token['content'][:40]!r} has two ids; expected one")
  by_id = {number: piece for piece, number in ids.items() if type(number) is int}
  if sorted(by_id) != list(range(len(ids))):
    raise DataError(f"{path}: the ids of its {len(ids)} pieces are not 0 to {len(ids) - 1}, each once")
  return [by_id[number] for number in range(len(ids))]


def _pipeline(path: pathlib.Path, content: Mapping[str, Any]) -> bool:
  """Checks what is done to text before the model; returns whether case is kept."""
  rules = _part(path, content, "normalizer")
  _expect(path, "normalizer", rules, type=("BertNormalizer",), clean_text=(True,), lowercase=(True, False))
  lowercase = rules["lowercase"]
  _expect(path, "normalizer", rules, handle_chinese_chars=(True,), strip_accents=(None, lowercase))
  _expect(path, "pre_tokenizer", _part(path, content, "pre_tokenizer"), type=("BertPreTokenizer",))
  return not lowercase


def _case(folder: pathlib.Path) -> bool:
  """Whether a `vocab.txt` keeps case, by the tokenizer_config.json beside it."""
  path = folder / "tokenizer_config.json"
  config = _object(path) if path.is_file() else {}
  if type(config.get("do_lower_case")) is not bool:
    raise DataError(
      f"{path}: no do_lower_case in it, so whether vocab.txt keeps case is unknown; make a vocabulary with "
      "`python -m data.vocabulary import --vocab_txt=...` (and --cased, if it does)"
    )
  lowercase = config["do_lower_case"]
  rules = {"strip_accents": None, "tokenize_chinese_chars": True} | config
  _expect(path, "its", rules, strip_accents=(None, lowercase), tokenize_chinese_chars=(True,))
  return not lowercase


def _special_names(folder: pathlib.Path) -> dict[str, str]:
  """{'cls': '<s>'}: what the files say special pieces are called."""
  special = {}
  for name in ("tokenizer_config.json", "special_tokens_map.json"):
    config = _object(folder / name) if (folder / name).is_file() else {}
    for role in tokenizer_files.PIECES:
      token = config.get(f"{role}_token")
      token = token.get("content") if isinstance(token, dict) else token
      if isinstance(token, str):
        special.setdefault(role, token)
  return special


def _named(path: pathlib.Path, pieces: list[str], special: Mapping[str, str]) -> list[str]:
  """Renames pieces so that each special name is found at its id: <s> in MPNet, whose [CLS] is unused."""
  renamed = list(pieces)
  for role, piece in special.items():
    if piece not in pieces:
      raise DataError(f"{path}: no piece {piece[:40]!r}, the {role}_token of the files beside it")
    official = tokenizer_files.PIECES[role]
    names = [official, *(alias for alias, name in tokenizer_files.ALIASES.items() if name == official)]
    for name in names[: names.index(piece)] if piece in names else names:
      if name in renamed:
        renamed[renamed.index(name)] = f"[unused {name}]"
    if piece not in names:
      renamed[pieces.index(piece)] = official
  return renamed


def _check_pairs(path: pathlib.Path, content: Mapping[str, Any], pieces: list[str]) -> None:
  """The number of separators between two texts must be the one that our vocabularies put there."""
  processor = content.get("post_processor")
  if not isinstance(processor, dict):
    return
  separators = {"BertProcessing": 1, "RobertaProcessing": 2}.get(str(processor.get("type")))
  pair = processor.get("pair")
  if isinstance(pair, list):
    marks = "".join("s" if "SpecialToken" in str(item) else "x" for item in pair)
    separators = marks.strip("s").count("s")
  separator = pieces[tokenizer_files.special_id(path, pieces, tokenizer_files.PIECES["sep"])]
  expected = 2 if separator == "</s>" else 1
  if separators not in (None, expected):
    raise DataError(
      f"{path}: {separators} {separator} stand between two texts, expected {expected}; {_ADVICE}"
    )
