"""Vocabularies convert text to token ids and back; each has a directory of files.

A vocabulary directory has `vocabulary.json` (kind, case, size, special ids, content hash) and either
`sp.model` (sentencepiece; with `dict.txt` if the ids are a fairseq dictionary's), `vocab.txt` (WordPiece) or
`tokenizer.json` (of another library, carried byte for byte: data/vocabulary/tokenizer_json.py).
With `pretokenization: official` words are split as in the official COCO-LM and AMOS code before sentencepiece
encodes them.

Commands:
  python -m data.vocabulary train --source=installed_docs --size=4096 --output=DIR
  python -m data.vocabulary import --vocab_txt=vocab.txt --output=DIR
  python -m data.vocabulary import --tokenizer_json=tokenizer.json --output=DIR
  python -m data.vocabulary import --sp_model=sp.model --dict=dict.txt --cased --pretokenization=official \
    --output=DIR
  python -m data.vocabulary extend --from=DIR --source='/my/*.txt' --words=2000 --output=NEW
  python -m data.vocabulary trim --vocabulary=DIR --source='/my/*.txt' --output=NEW
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from data import errors, files
from data.vocabulary import official as official_tokenizer
from data.vocabulary import tokenizer_files, tokenizer_json

NAME = "vocabulary.json"
FORMAT = 1
KINDS = ("sentencepiece", "wordpiece")  # that can be trained here
TOKENIZER_JSON = "tokenizer_json"  # a kind that can only be imported
MODEL_FILES = {
  "sentencepiece": ("sp.model", "dict.txt"),
  "wordpiece": ("vocab.txt", tokenizer_json.NAME),  # the file that vocab.txt was read from, for exports
  TOKENIZER_JSON: (tokenizer_json.NAME, tokenizer_json.SPM),
}
FILES = tuple(
  dict.fromkeys((NAME, *itertools.chain(*MODEL_FILES.values())))
)  # all files of a vocabulary directory
# Entries of NAME that some vocabularies have.
_SPECIAL_PIECES, _EXTENDS = "special_pieces", "extends"
PRETOKENIZATIONS = ("none", "official")  # how text is split before sentencepiece: data/vocabulary/official.py
ROWS = 64  # rows of a token table are a multiple of it, which suits matrix units


@dataclasses.dataclass(frozen=True)
class Extension:
  """The vocabulary that another one extends or trims, and the pieces that it had for each new id.

  A model gets the rows of the new ids from the rows of these pieces.
  """

  digest: str  # of the old vocabulary
  size: int  # its ids
  pieces: Mapping[int, tuple[int, ...]]  # new id -> ids of the old vocabulary; trimmed: one for every id

  @property
  def trims(self) -> bool:
    """Whether every new id is an old piece, so that no row of a model keeps its place."""
    return len(self.pieces) == max(self.pieces, default=-1) + 1

  @classmethod
  def read(cls, stored: Any) -> "Extension":
    """Returns the extension of JSON values; ValueError, KeyError or TypeError if they are damaged."""
    pieces = {int(new): tuple(map(int, old)) for new, old in dict(stored.get("pieces", {})).items()}
    pieces |= {new: (int(old),) for new, old in enumerate(stored.get("kept", ()))}
    extension = cls(str(stored["digest"]), int(stored["size"]), pieces)
    if not all(old and min(old) >= 0 and max(old) < extension.size for old in pieces.values()):
      raise ValueError("a new word has pieces outside the old vocabulary")
    return extension

  def stored(self) -> dict[str, Any]:
    """Returns the extension as JSON values, for `read`."""
    if self.trims:
      pieces = {"kept": [self.pieces[new][0] for new in range(len(self.pieces))]}
    else:
      pieces = {"pieces": {str(new): list(old) for new, old in self.pieces.items()}}
    return {"digest": self.digest, "size": self.size, **pieces}


def table_rows(size: int) -> int:
  """Returns the rows of a token table for `size` ids: the next multiple of ROWS."""
  return -(-size // ROWS) * ROWS


@dataclasses.dataclass(frozen=True)
class SpecialIds:
  """The special ids, which differ between vocabularies; text produces none of them except `unk`."""

  cls: int
  pad: int
  sep: int
  unk: int
  mask: int


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Converts text to ids and back; `digest` is a sha256 of everything that determines the ids."""

  kind: str  # one of KINDS, or TOKENIZER_JSON
  cased: bool
  size: int  # ids
  special_ids: SpecialIds
  digest: str
  pretokenization: str  # one of PRETOKENIZATIONS
  _pieces: tuple[str, ...] = dataclasses.field(repr=False)
  _encode_batch: Callable[[Sequence[str]], list[list[int]]] = dataclasses.field(repr=False)
  _join: Callable[[list[str]], str] = dataclasses.field(repr=False)
  between: tuple[int, ...]  # ids between two texts: one [SEP] for BERT, two for COCO-LM, MPNet and RoBERTa
  _mark: str = ""  # of a tokenizer.json; '': that of the kind
  _show: Callable[[str], str] = str  # the text of a piece without its mark
  extends: Extension | None = None  # the vocabulary whose ids it kept

  def encode(self, text: str) -> list[int]:
    """Returns the ids of `text` without special ids; even text like '[MASK]' produces none of them."""
    return self._encode_batch([text])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text; uses only the calling thread."""
    return self._encode_batch(texts)

  def encode_words(self, texts: Iterable[Sequence[str]]) -> list[list[list[int]]]:
    """Returns the ids of each word of each text, given as a list of words that spaces separate.

    A word may also be a sentence. All but the first get the ids that they have after a space.
    """
    given = [[self.behind_space(word) if at else word for at, word in enumerate(words)] for words in texts]
    different = list(dict.fromkeys(itertools.chain.from_iterable(given)))
    ids = dict(zip(different, self.encode_batch(different), strict=True))
    return [[ids[word] for word in words] for words in given]

  def behind_space(self, text: str) -> str:
    """Returns the text to encode for a text that follows a space: with it, if the ids depend on it."""
    return f" {text}" if self.reads_space else text

  @functools.cached_property
  def reads_space(self) -> bool:
    """Whether a text has other ids after a space: a tokenizer.json with add_prefix_space=false."""
    alone, behind = self.encode_batch(["a", " a"])
    return bool(alone and behind) and not self.letters(alone[0])[1] and self.letters(behind[0])[1]

  def with_special_ids(
    self, first: Sequence[int], second: Sequence[int] | None = None, *, max_length: int = sys.maxsize
  ) -> list[int]:
    """Returns `[CLS] A [SEP]` or, with `second`, a pair, of at most `max_length` ids.

    A pair has `between` between its parts. A is cut at its end, a pair by `truncate_pair`.
    """
    cls, sep = self.special_ids.cls, self.special_ids.sep
    if second is None:
      return [cls, *first[: max(max_length - 2, 0)], sep]
    first, second = official_tokenizer.truncate_pair(first, second, max_length - 2 - len(self.between))
    return [cls, *first, *self.between, *second, sep]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the ids as readable text with special pieces; DataError for an id outside the vocabulary."""
    return self._join([self.piece(int(i)) for i in ids])

  def piece(self, token_id: int) -> str:
    """Returns the piece of an id, such as '▁the', 'Ġthe' or '##ing'; DataError outside the vocabulary."""
    if not 0 <= token_id < self.size:
      raise errors.DataError(f"token id {token_id} is outside the vocabulary of {self.size} pieces")
    return self._pieces[token_id]

  @property
  def mark(self) -> str:
    """The mark of a piece that begins a word, '▁' or 'Ġ', or of one that continues it, such as '##'."""
    return self._mark or ("##" if self.kind == "wordpiece" else "▁")

  @property
  def marks_begin(self) -> bool:
    """Whether the mark begins a word, not continues one."""
    return self.mark in ("▁", tokenizer_json.BYTE_MARK)

  def letters(self, token_id: int) -> tuple[str, bool]:
    """Returns the text of a piece without its mark (' ' if nothing is left), and whether it begins a word."""
    piece = self.piece(token_id)
    text = self._show(piece.removeprefix(self.mark))
    return text or " ", piece.startswith(self.mark) == self.marks_begin

  @functools.cached_property
  def word_starts(self) -> bytes:
    """Whether each id begins a word, a byte of 0 or 1 for each; b'' if the pieces do not show it.

    Special ids begin words (fairseq's masked-LM task), and so does white space among byte-level pieces.
    """
    shown = [self.letters(number) for number in range(self.size)]
    starts = [begins or (self.marks_begin and text[0].isspace()) for text, begins in shown]
    special = {*dataclasses.asdict(self.special_ids).values()}
    of_text = {starts[number] for number in range(self.size) if number not in special}
    for number in special:
      starts[number] = True
    ids = self.encode("a a a")  # the first word may lack its mark; sentencepiece may put marks at the end
    is_shown = sum(starts[number] for number in ids) > 1 and not self.piece(ids[-1]).endswith(self.mark)
    return bytes(starts) if is_shown and of_text == {True, False} else b""

  def shown_piece(self, token_id: int) -> str:
    """Returns a piece for display: 'token' begins a word, '-ing' continues one, ',' is unchanged."""
    letters, begins = self.letters(token_id)
    if letters[0].isalnum() and not begins:
      return f"-{letters}"
    return self.piece(token_id) if letters == " " else letters


def load(directory: str | os.PathLike) -> Vocabulary:
  """Loads a vocabulary; DataError if a file is missing, damaged, or does not match `vocabulary.json`."""
  directory = pathlib.Path(directory)
  path = directory / NAME
  if not path.is_file():
    raise errors.DataError(
      f"{directory} holds no vocabulary ({NAME} is missing); train one, or import a vocab.txt, sp.model or "
      "tokenizer.json:\n"
      f"  python -m data.vocabulary train --source=... --output={directory}\n"
      f"  python -m data.vocabulary import --vocab_txt=FILE --output={directory}"
    )
  try:
    described = json.loads(path.read_text(encoding="utf-8"))
    kind, cased, digest = described["kind"], described["cased"], described["digest"]
    pretokenization = described.get("pretokenization", "none")  # older versions have no such field
    special = described.get(_SPECIAL_PIECES)
    extends = Extension.read(described[_EXTENDS]) if _EXTENDS in described else None
    if described["format"] != FORMAT or kind not in MODEL_FILES or not isinstance(cased, bool):
      raise ValueError("format, kind or cased has an unknown value")
    if (kind == TOKENIZER_JSON) != (
      isinstance(special, dict) and special.keys() == tokenizer_files.PIECES.keys()
    ):
      raise ValueError(f"{_SPECIAL_PIECES} has an unknown value")
    if pretokenization not in PRETOKENIZATIONS:
      raise ValueError(f"pretokenization is none of {', '.join(PRETOKENIZATIONS)}")
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise errors.DataError(
      f"{path}: not a vocabulary description ({errors.named_reason(error)}); train or import it again"
    ) from error
  vocabulary = build(
    directory, kind=kind, cased=cased, pretokenization=pretokenization, special=special, extends=extends
  )
  if vocabulary.digest != digest:
    raise errors.DataError(
      f"{directory}: its files changed after {NAME} was written (sha256 {vocabulary.digest[:12]}, expected "
      f"{str(digest)[:12]}); restore the original files, or train or import the vocabulary again"
    )
  return vocabulary


def write_description(
  directory: str | os.PathLike,
  *,
  kind: str,
  cased: bool,
  pretokenization: str = "none",
  special: Mapping[str, str] | None = None,
  extends: Extension | None = None,
) -> Vocabulary:
  """Writes `vocabulary.json` for the model files in `directory`; returns the vocabulary.

  `special` has the special pieces of a tokenizer.json, whose rules decide about case.
  """
  vocabulary = build(
    directory, kind=kind, cased=cased, pretokenization=pretokenization, special=special, extends=extends
  )
  content: dict[str, Any] = {
    "format": FORMAT,
    "kind": kind,
    "cased": vocabulary.cased,
    "size": vocabulary.size,
    "special_ids": dataclasses.asdict(vocabulary.special_ids),
    "digest": vocabulary.digest,
  }
  if pretokenization != "none":
    content["pretokenization"] = pretokenization
  if special:
    content[_SPECIAL_PIECES] = dict(special)
  if extends:
    content[_EXTENDS] = extends.stored()
  files.write_json(pathlib.Path(directory) / NAME, content, sort_keys=True)
  return vocabulary


def build(
  directory: str | os.PathLike,
  *,
  kind: str,
  cased: bool,
  pretokenization: str = "none",
  special: Mapping[str, str] | None = None,
  extends: Extension | None = None,
) -> Vocabulary:
  """Builds a vocabulary from model files; DataError if one is missing, damaged or lacks a special piece."""
  directory = pathlib.Path(directory)
  mark, show, between = "", str, ()
  if kind == "wordpiece":
    path = directory / "vocab.txt"
    if pretokenization != "none":
      raise errors.DataError(f"{path}: pretokenization {pretokenization!r} is for sentencepiece vocabularies")
    pieces = tokenizer_files.read_vocab_txt(path)
    encode_batch = tokenizer_files.remembering(tokenizer_files.wordpiece_encoder(pieces, cased=cased))
    contents = [tokenizer_files.read_bytes(path)]
    join = tokenizer_files.join_wordpieces
  elif kind == TOKENIZER_JSON:
    path = directory / tokenizer_json.NAME
    assert special is not None
    opened = tokenizer_json.open_file(path, special)
    pieces, encode_batch, join, cased, mark, show, between = opened
    contents = [tokenizer_files.read_bytes(path)]
  else:
    path, pieces, contents, encode_batch = _sentencepiece(directory, pretokenization)
    is_official = pretokenization == "official"
    join = official_tokenizer.join if is_official else tokenizer_files.join_sentencepieces
  names = special or tokenizer_files.PIECES
  special_ids = SpecialIds(
    **{name: tokenizer_files.special_id(path, pieces, piece) for name, piece in names.items()}
  )
  is_bert = kind == "wordpiece" and pieces[special_ids.sep] != "</s>"
  between = between or (special_ids.sep,) * (1 if is_bert else 2)
  # 'none' adds nothing, so that digests of older versions stay valid.
  suffix = "" if pretokenization == "none" else f" {pretokenization}"
  suffix += f" {files.digest_json(special)}" if special else ""
  suffix += f" {files.digest_json(extends.stored())}" if extends else ""
  digest = hashlib.sha256(f"{FORMAT} {kind} {cased}{suffix}".encode())
  for content in contents:
    digest.update(hashlib.sha256(content).digest())
  return Vocabulary(
    kind=kind,
    cased=cased,
    size=len(pieces),
    special_ids=special_ids,
    digest=digest.hexdigest(),
    pretokenization=pretokenization,
    _pieces=tuple(pieces),
    _encode_batch=encode_batch,
    _join=join,
    between=between,
    _mark=mark,
    _show=show,
    extends=extends,
  )


def _sentencepiece(directory: pathlib.Path, pretokenization: str):
  """Returns the file that lists the pieces, the pieces, the bytes of all files, and the encoder."""
  path = directory / "sp.model"
  processor, model_pieces = tokenizer_files.read_sp_model(path)
  contents, pieces = [tokenizer_files.read_bytes(path)], model_pieces
  if (directory / "dict.txt").is_file():
    path = directory / "dict.txt"
    pieces = tokenizer_files.read_dictionary(path)
    contents.append(tokenizer_files.read_bytes(path))
  if pretokenization == "none":
    encode_batch = tokenizer_files.sentencepiece_encoder(processor, model_pieces, pieces)
    touches_others = tokenizer_files.has_space_mark
  else:
    ids, unknown = tokenizer_files.ids_of_text(pieces)
    encode_batch = official_tokenizer.encoder(processor, ids, unknown=unknown)
    touches_others = official_tokenizer.touches_others
  if tokenizer_files.splits_at_spaces(processor):
    encode_batch = tokenizer_files.remembering(encode_batch, touches_others=touches_others)
  return path, pieces, contents, encode_batch


def copy(source: str | os.PathLike, target: str | os.PathLike) -> Vocabulary:
  """Copies a vocabulary to a new directory; DataError, before anything is copied, if it is damaged."""
  kind = load(source).kind
  files.refuse_others(target)
  with files.whole_directory(pathlib.Path(target)) as aside:
    for name in (NAME, *MODEL_FILES[kind]):
      if (pathlib.Path(source) / name).is_file():
        shutil.copyfile(pathlib.Path(source) / name, aside / name)
  return load(target)


def load_cached(directory: str) -> Vocabulary:
  """Loads a vocabulary once per process, and again if its `vocabulary.json` changed."""
  path = pathlib.Path(directory) / NAME
  return _load_cached(directory, path.stat().st_mtime_ns if path.is_file() else 0)


@functools.lru_cache(maxsize=2)
def _load_cached(directory: str, _: int) -> Vocabulary:
  return load(directory)
