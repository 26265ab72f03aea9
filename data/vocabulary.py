"""Vocabularies: text to token ids and back, and the directory that one is kept in.

A vocabulary directory holds `vocabulary.json` (kind, case, size, special ids, content hash) and either `sp.model`
(sentencepiece; with `dict.txt` if the ids are a fairseq dictionary's) or `vocab.txt` (WordPiece).

Commands:
  python -m data.vocabulary train --source=installed_docs --size=4096 --output=DIR
  python -m data.vocabulary import --vocab_txt=vocab.txt --output=DIR
  python -m data.vocabulary import --sp_model=sp.model --dict=dict.txt --cased --output=DIR
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from data import errors, manifest

NAME = "vocabulary.json"
FORMAT = 1
KINDS = ("sentencepiece", "wordpiece")
PIECES = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
# Names of the same symbols in fairseq dictionaries (checked in both directions by its Dictionary class).
ALIASES = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}


@dataclasses.dataclass(frozen=True)
class SpecialIds:
  """Ids that no text produces, but for `unk`. Read them from here: they differ between vocabularies."""

  cls: int
  pad: int
  sep: int
  unk: int
  mask: int


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Text to ids and back.

  Attributes:
    kind: 'sentencepiece' or 'wordpiece'.
    cased: whether case is kept.
    size: number of ids.
    special_ids: ids of [CLS], [PAD], [SEP], [UNK] and [MASK].
    digest: sha256 over everything that decides an id.
  """

  kind: str
  cased: bool
  size: int
  special_ids: SpecialIds
  digest: str
  _pieces: tuple[str, ...] = dataclasses.field(repr=False)
  _encode_batch: Callable[[Sequence[str]], list[list[int]]] = dataclasses.field(repr=False)
  _join: Callable[[list[str]], str] = dataclasses.field(repr=False)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of `text`, no special ids added. No text gives [CLS], [PAD], [SEP] or [MASK]."""
    return self._encode_batch([text])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, computed in this thread."""
    return self._encode_batch(texts)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns readable text; special pieces are written out.

    Raises:
      DataError: an id is outside the vocabulary.
    """
    return self._join([self.piece(int(i)) for i in ids])

  def piece(self, token_id: int) -> str:
    """Returns the piece of an id, such as '▁the' or '##ing'.

    Raises:
      DataError: the id is outside the vocabulary.
    """
    if not 0 <= token_id < self.size:
      raise errors.DataError(f"token id {token_id} is outside the vocabulary of {self.size} pieces")
    return self._pieces[token_id]


def load(directory: str | os.PathLike) -> Vocabulary:
  """Loads the vocabulary in `directory`.

  Raises:
    DataError: a file is missing, damaged, or not the one that `vocabulary.json` was written for.
  """
  directory = pathlib.Path(directory)
  path = directory / NAME
  if not path.is_file():
    raise errors.DataError(
      f"{directory} holds no vocabulary ({NAME} is missing); make one with `python -m data.vocabulary "
      "train --source=... --output=...`, or `... import` for an existing vocab.txt or sp.model"
    )
  try:
    described = json.loads(path.read_text(encoding="utf-8"))
    kind, cased, digest = described["kind"], described["cased"], described["digest"]
    if described["format"] != FORMAT or kind not in KINDS or not isinstance(cased, bool):
      raise ValueError("format, kind or cased has an unknown value")
  except (ValueError, KeyError, TypeError) as error:
    raise errors.DataError(
      f"{path}: not a vocabulary description ({error}); train or import it again"
    ) from error
  vocabulary = build(directory, kind=kind, cased=cased)
  if vocabulary.digest != digest:
    raise errors.DataError(
      f"{directory}: its files changed after {NAME} was written (sha256 {vocabulary.digest[:12]}, expected "
      f"{str(digest)[:12]}); bring back the original files, or train or import the vocabulary again"
    )
  return vocabulary


def describe(directory: str | os.PathLike, *, kind: str, cased: bool) -> Vocabulary:
  """Writes `vocabulary.json` beside the model files in `directory` and returns the vocabulary."""
  vocabulary = build(directory, kind=kind, cased=cased)
  content: dict[str, Any] = {
    "format": FORMAT,
    "kind": kind,
    "cased": cased,
    "size": vocabulary.size,
    "special_ids": dataclasses.asdict(vocabulary.special_ids),
    "digest": vocabulary.digest,
  }
  text = json.dumps(content, indent=1, sort_keys=True) + "\n"
  manifest.write_atomically(pathlib.Path(directory) / NAME, text.encode())
  return vocabulary


def build(directory: str | os.PathLike, *, kind: str, cased: bool) -> Vocabulary:
  """Builds a vocabulary from the model files in `directory`.

  Raises:
    DataError: a file is missing or damaged, or a special piece is missing.
  """
  directory = pathlib.Path(directory)
  if kind == "wordpiece":
    path = directory / "vocab.txt"
    pieces = read_vocab_txt(path)
    encode_batch = _wordpiece_encoder(pieces, cased=cased)
    contents = [read_bytes(path)]
    join = _join_wordpieces
  else:
    path = directory / "sp.model"
    processor, model_pieces = _read_sp_model(path)
    contents = [read_bytes(path)]
    pieces = model_pieces
    if (directory / "dict.txt").is_file():
      path = directory / "dict.txt"
      pieces = read_dictionary(path)
      contents.append(read_bytes(path))
    encode_batch = _sentencepiece_encoder(processor, model_pieces, pieces)
    join = _join_sentencepieces
  special_ids = SpecialIds(**{name: _special_id(path, pieces, piece) for name, piece in PIECES.items()})
  digest = hashlib.sha256(f"{FORMAT} {kind} {cased}".encode())
  for content in contents:
    digest.update(hashlib.sha256(content).digest())
  return Vocabulary(
    kind, cased, len(pieces), special_ids, digest.hexdigest(), tuple(pieces), encode_batch, join
  )


def read_bytes(path: pathlib.Path) -> bytes:
  """Returns the content of a vocabulary file.

  Raises:
    DataError: it is missing, unreadable or empty.
  """
  try:
    content = path.read_bytes()
  except OSError as error:
    raise errors.DataError(f"{path}: cannot read this vocabulary file ({error.strerror})") from error
  if not content:
    raise errors.DataError(f"{path}: this vocabulary file is empty")
  return content


def read_lines(path: pathlib.Path) -> list[str]:
  """Returns the lines of a vocabulary text file without their line ends."""
  try:
    text = read_bytes(path).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise errors.DataError(f"{path}: not UTF-8 text (byte {error.start}); is it the right file?") from error
  # Not splitlines(): a piece may be a Unicode line separator.
  lines = [line.removesuffix("\r") for line in text.split("\n")]
  return lines[:-1] if lines[-1] == "" else lines


def read_vocab_txt(path: pathlib.Path) -> list[str]:
  """Reads a WordPiece `vocab.txt`: one piece a line, its id the number of the line from 0."""
  pieces = read_lines(path)
  _refuse_duplicates(path, pieces)
  if "" in pieces:
    raise errors.DataError(f"{path}: line {pieces.index('') + 1} is empty; expected one piece per line")
  return pieces


def read_dictionary(path: pathlib.Path) -> list[str]:
  """Reads a fairseq `dict.txt` and returns its symbols in the order of their ids.

  Four symbols lead ([CLS] [PAD] [SEP] [UNK]); a line is `<symbol> <count>`, optionally followed by
  `#fairseq:overwrite`; special symbols keep their place; [MASK] is put at the end unless the file has it.

  Raises:
    DataError: a line is not of this form, or a symbol stands there twice.

  Source: fairseq/data/dictionary.py of the COCO-LM repository, and its tokenization_utils.py.
  """
  symbols = [PIECES[name] for name in ("cls", "pad", "sep", "unk")]
  known = set(symbols)
  from_file: set[str] = set()
  for number, line in enumerate(read_lines(path), start=1):
    entry, overwrite, _ = line.rstrip().partition(" #fairseq:overwrite")
    symbol, _, count = entry.rpartition(" ")
    if not symbol or not count.isdecimal():
      raise errors.DataError(f"{path}: line {number} is {line[:40]!r}; expected `<symbol> <count>`")
    symbol = ALIASES.get(symbol, symbol)
    if symbol in from_file and not overwrite and symbol not in PIECES.values():
      raise errors.DataError(f"{path}: line {number} has the symbol {symbol!r} a second time")
    from_file.add(symbol)
    if symbol not in known:
      known.add(symbol)
      symbols.append(symbol)
  return symbols if PIECES["mask"] in known else [*symbols, PIECES["mask"]]


def _refuse_duplicates(path: pathlib.Path, pieces: Sequence[str]) -> None:
  if len(set(pieces)) < len(pieces):
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
      if piece in seen:
        raise errors.DataError(f"{path}: the piece {piece!r} stands in lines {seen[piece]} and {number}")
      seen[piece] = number


def _special_id(path: pathlib.Path, pieces: Sequence[str], piece: str) -> int:
  names = [piece] + [alias for alias, name in ALIASES.items() if name == piece]
  for name in names:
    if name in pieces:
      return pieces.index(name)
  raise errors.DataError(
    f"{path}: no piece {piece} among its {len(pieces)}; it is needed, add it to the file"
  )


def _read_sp_model(path: pathlib.Path):
  """Returns the sentencepiece processor and its pieces by id."""
  import sentencepiece  # here: reading a WordPiece vocabulary needs no sentencepiece

  content = read_bytes(path)
  try:
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
  except (RuntimeError, OSError, ValueError, IndexError) as error:
    raise errors.DataError(
      f"{path}: not a sentencepiece model, or a damaged one ({len(content)} bytes)"
    ) from error
  if not pieces:
    raise errors.DataError(f"{path}: a sentencepiece model without pieces")
  return processor, pieces


def _sentencepiece_encoder(processor, model_pieces: Sequence[str], pieces: Sequence[str]):
  """Returns texts -> ids; `pieces` give the ids, and special ones are out of the reach of text."""
  special = set(PIECES.values()) | set(ALIASES)
  unk = _first(pieces, PIECES["unk"], "<unk>")
  ids = {piece: i for i, piece in enumerate(pieces) if piece not in special}
  table = np.asarray([ids.get(piece, unk) for piece in model_pieces], np.int64)
  produced_by_text = table.tolist()
  # Control pieces never come out of text, so a model trained here needs no second look-up.
  is_same = all(i == to for i, to in enumerate(produced_by_text) if not processor.is_control(i))

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    encoded = processor.encode(list(texts), out_type=int, num_threads=1)
    return encoded if is_same else [[produced_by_text[i] for i in ids] for ids in encoded]

  return encode_batch


def _first(pieces: Sequence[str], *names: str) -> int:
  return next((pieces.index(name) for name in names if name in pieces), 0)


def _wordpiece_encoder(pieces: Sequence[str], *, cased: bool):
  """Returns texts -> ids by BERT's rules: clean, lower-case, strip accents, split off punctuation, WordPiece."""
  # One process per core does the work; threads of the library would fight with them.
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  from tokenizers import Tokenizer, models

  special = set(PIECES.values())
  ids = {piece: i for i, piece in enumerate(pieces) if piece not in special - {PIECES["unk"]}}
  tokenizer = Tokenizer(models.WordPiece(ids, unk_token=PIECES["unk"], max_input_chars_per_word=100))
  configure_wordpiece(tokenizer, cased=cased)

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

  return encode_batch


def configure_wordpiece(tokenizer, *, cased: bool) -> None:
  """Gives a `tokenizers.Tokenizer` BERT's normalisation and its split into words."""
  from tokenizers import normalizers, pre_tokenizers

  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _join_sentencepieces(pieces: list[str]) -> str:
  return "".join(pieces).replace("▁", " ").strip()


def _join_wordpieces(pieces: list[str]) -> str:
  return " ".join(pieces).replace(" ##", "")


@functools.lru_cache(maxsize=2)
def load_cached(directory: str) -> Vocabulary:
  """Loads a vocabulary once per process, for the workers of a pool."""
  return load(directory)


if __name__ == "__main__":
  from data import vocabulary_train

  raise SystemExit(vocabulary_train.main())
