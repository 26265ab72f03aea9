"""WordPiece tokenizers of others: `tokenizer.json` or `vocab.txt` to our pieces by id.

Only BERT's pipeline is taken, the one that our WordPiece vocabularies have; anything else is refused and
named, for the ids of a model mean nothing with other ones.
"""

import json
import pathlib
from collections.abc import Mapping

from data.errors import DataError, reason
from data.vocabulary import tokenizer_files
from pretrain.export.foreign import files

_ADVICE = "only BERT's WordPiece and sentencepiece with its sp.model can be imported"


def read(folder: pathlib.Path) -> tuple[list[str], bool]:
  """Returns the pieces by id, special ones under names that our vocabularies find, and whether case is kept.

  DataError: there are no such files, they are damaged, or are not BERT's WordPiece.
  """
  path, separators = folder / "tokenizer.json", None
  if path.is_file():
    pieces, cased, separators = _from_tokenizer(path)
  elif (folder / "vocab.txt").is_file():
    path = folder / "vocab.txt"
    pieces, cased = tokenizer_files.read_vocab_txt(path), _case(folder)
  else:
    raise DataError(
      f"{folder}: no tokenizer in it; expected sp.model (with dict.txt), tokenizer.json, or vocab.txt"
    )
  pieces = _named(path, pieces, _special_names(folder))
  unwritable = [piece for piece in pieces if not piece or set(piece) & set("\r\n")]
  if unwritable:
    raise DataError(f"{path}: the piece {unwritable[0]!r} cannot stand in a vocab.txt; {_ADVICE}")
  ids = {
    name: tokenizer_files.special_id(path, pieces, piece) for name, piece in tokenizer_files.PIECES.items()
  }
  expected = 2 if pieces[ids["sep"]] == "</s>" else 1  # as our vocabularies put them there
  if separators not in (None, expected):
    raise DataError(
      f"{path}: {separators} separators stand between two texts, expected {expected}; {_ADVICE}"
    )
  return pieces, cased


def _from_tokenizer(path: pathlib.Path) -> tuple[list[str], bool, int | None]:
  """The pieces of a tokenizer.json, whether it keeps case, and its separators between two texts."""
  from tokenizers import Tokenizer, models

  try:
    theirs = Tokenizer.from_buffer(tokenizer_files.read_bytes(path))
  except Exception as error:  # the library raises nothing more special
    raise DataError(
      f"{path}: not a tokenizer that can be read ({reason(error)[:80]}); bring back the original file"
    ) from error
  by_id = {number: piece for piece, number in theirs.get_vocab().items()}
  if sorted(by_id) != list(range(theirs.get_vocab_size())):  # before to_str(), which counts up to the largest
    raise DataError(f"{path}: the ids of its {theirs.get_vocab_size()} pieces are not 0 and on, each once")
  content = json.loads(theirs.to_str())
  rules = content["normalizer"] or {}
  cased = not rules.get("lowercase")
  if rules.get("strip_accents") == rules.get("lowercase"):
    rules["strip_accents"] = None  # the same by another name
  ours = Tokenizer(models.WordPiece({}, max_input_chars_per_word=100))
  tokenizer_files.configure_wordpiece(ours, cased=cased)
  expected = json.loads(ours.to_str())
  for part in ("model", "normalizer", "pre_tokenizer"):
    for name in expected[part].keys() - {"vocab", "unk_token"}:
      value = (content[part] or {}).get(name)
      if value != expected[part][name]:
        raise DataError(f"{path}: {part} {name} is {value!r}, expected {expected[part][name]!r}; {_ADVICE}")
  for token in theirs.get_added_tokens_decoder().values():
    if not token.special:
      raise DataError(f"{path}: the added token {token.content[:40]!r} is cut out of text; {_ADVICE}")
  added = theirs.num_special_tokens_to_add(is_pair=True)  # one before the texts and one behind them
  return [by_id[number] for number in range(len(by_id))], cased, added - 2 if added else None


def _case(folder: pathlib.Path) -> bool:
  """Whether a `vocab.txt` keeps case, by the tokenizer_config.json beside it."""
  path = folder / "tokenizer_config.json"
  config = files.read_json(path) if path.is_file() else {}
  if type(config.get("do_lower_case")) is not bool:
    raise DataError(
      f"{path}: no do_lower_case in it, so whether vocab.txt keeps case is unknown; make a vocabulary with "
      "`python -m data.vocabulary import --vocab_txt=...` (and --cased, if it does)"
    )
  if config.get("strip_accents") not in (None, config["do_lower_case"]):
    raise DataError(f"{path}: strip_accents is {config['strip_accents']!r}, expected null; {_ADVICE}")
  if config.get("tokenize_chinese_chars", True) is not True:
    raise DataError(f"{path}: tokenize_chinese_chars is not true; {_ADVICE}")
  return not config["do_lower_case"]


def _special_names(folder: pathlib.Path) -> dict[str, str]:
  """{'cls': '<s>'}: what the files say special pieces are called."""
  special = {}
  for name in ("tokenizer_config.json", "special_tokens_map.json"):
    config = files.read_json(folder / name) if (folder / name).is_file() else {}
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
