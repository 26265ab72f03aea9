"""Reads WordPiece tokenizers of other libraries, `tokenizer.json` or `vocab.txt`, as our pieces by id.

Only BERT's pipeline is supported, which our WordPiece vocabularies have. Anything else raises a DataError
that names it, because a model is useless with other ids.
"""

import json
import pathlib
from collections.abc import Mapping

from data.errors import DataError, reason
from data.vocabulary import tokenizer_files
from pretrain.export import weight_files as files

_ADVICE = (
  "only BERT's WordPiece is read; `data.vocabulary import --tokenizer_json` carries others as they are"
)


def read(folder: pathlib.Path) -> tuple[list[str], bool]:
  """Returns the pieces by id, special ones by our vocabularies' names, and whether case is kept.

  DataError: files are missing or damaged, or are not BERT's WordPiece.
  """
  path, separators = folder / "tokenizer.json", None
  if path.is_file():
    pieces, cased, separators = _from_tokenizer(path)
  elif (folder / "vocab.txt").is_file():
    path = folder / "vocab.txt"
    tokenizer_files.refuse_added(path)
    pieces, cased = tokenizer_files.read_vocab_txt(path), _case(folder)
  else:
    raise DataError(
      f"{folder}: no tokenizer in it; expected sp.model (with dict.txt), tokenizer.json, or vocab.txt"
    )
  pieces = _named(path, pieces, tokenizer_files.special_names(folder))
  unwritable = [piece for piece in pieces if not piece or set(piece) & set("\r\n")]
  if unwritable:
    raise DataError(f"{path}: the piece {unwritable[0]!r} cannot be written to a vocab.txt; {_ADVICE}")
  ids = {
    name: tokenizer_files.special_id(path, pieces, piece) for name, piece in tokenizer_files.PIECES.items()
  }
  expected = 2 if pieces[ids["sep"]] == "</s>" else 1  # as in our vocabularies
  if separators not in (None, expected):
    raise DataError(f"{path}: {separators} separators between two texts; expected {expected}; {_ADVICE}")
  return pieces, cased


def _from_tokenizer(path: pathlib.Path) -> tuple[list[str], bool, int | None]:
  """Reads a tokenizer.json: pieces by id, whether it keeps case, the number of [SEP] between two texts."""
  from tokenizers import Tokenizer, models

  try:
    theirs = Tokenizer.from_buffer(tokenizer_files.read_bytes(path))
  except Exception as error:  # the library raises bare Exceptions
    raise DataError(
      f"{path}: not a readable tokenizer ({reason(error)[:80]}); restore the original file"
    ) from error
  by_id = {number: piece for piece, number in theirs.get_vocab().items()}
  if sorted(by_id) != list(range(theirs.get_vocab_size())):  # before to_str(), which counts up to the largest
    raise DataError(
      f"{path}: the ids of its {theirs.get_vocab_size()} pieces are not 0, 1, 2, ...; restore the original "
      "file"
    )
  content = json.loads(theirs.to_str())
  rules = content["normalizer"] or {}
  cased = not rules.get("lowercase")
  if rules.get("strip_accents") == rules.get("lowercase"):
    rules["strip_accents"] = None  # null means the value of lowercase
  ours = Tokenizer(models.WordPiece({}, max_input_chars_per_word=100))
  tokenizer_files.configure_wordpiece(ours, cased=cased)
  expected = json.loads(ours.to_str())
  for part in ("model", "normalizer", "pre_tokenizer"):
    for name in expected[part].keys() - {"vocab", "unk_token"}:
      value = (content[part] or {}).get(name)
      if value != expected[part][name]:
        raise DataError(f"{path}: {part} {name} is {value!r}; expected {expected[part][name]!r}; {_ADVICE}")
  for token in theirs.get_added_tokens_decoder().values():
    if not token.special and not tokenizer_files.own_names([token.content]):
      raise DataError(f"{path}: the added token {token.content[:40]!r} is not supported; {_ADVICE}")
  added = theirs.num_special_tokens_to_add(is_pair=True)  # minus one before the texts and one after them
  return [by_id[number] for number in range(len(by_id))], cased, added - 2 if added else None


def _case(folder: pathlib.Path) -> bool:
  """Reads from tokenizer_config.json whether the `vocab.txt` beside it keeps case."""
  path = folder / "tokenizer_config.json"
  config = files.read_json(path) if path.is_file() else {}
  if type(config.get("do_lower_case")) is not bool:
    raise DataError(
      f"{path}: no do_lower_case in it, so it is unknown whether vocab.txt keeps case; make a vocabulary "
      "with (and --cased, if it does)\n"
      f"  python -m data.vocabulary import --vocab_txt={folder / 'vocab.txt'}"
    )
  if config.get("strip_accents") not in (None, config["do_lower_case"]):
    raise DataError(f"{path}: strip_accents is {config['strip_accents']!r}; expected null; {_ADVICE}")
  if config.get("tokenize_chinese_chars", True) is not True:
    raise DataError(f"{path}: tokenize_chinese_chars is not true, as expected; {_ADVICE}")
  return not config["do_lower_case"]


def _named(path: pathlib.Path, pieces: list[str], special: Mapping[str, str]) -> list[str]:
  """Renames pieces so that our names of special pieces are at their ids (<s> in MPNet)."""
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
