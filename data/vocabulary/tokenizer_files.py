"""Reads the files of a vocabulary (`vocab.txt`, `dict.txt`, `sp.model`) and builds tokenisers.

`remembering` caches the ids of words, because most words of a text occurred in earlier texts. It splits text
at spaces, looks each word up, and passes only new words to the tokeniser, in one call. The ids are exactly
those of encoding the whole text: `splits_at_spaces` checks that nothing in a sentencepiece model spans a
space. A word that may change its neighbours is never cached, and a text with such a word is encoded whole.
When the cache is full, further words are cached for one call.
"""

import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from data import errors

PIECES = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
# Names of the same symbols in fairseq dictionaries; its class Dictionary maps them in both directions.
ALIASES = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}


SPARE = re.compile(r"\[unused\d+\]")  # pieces that no text should give: slots for new words
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")  # of transformers, beside its tokenizers
MAX_PIECES = 1 << 20  # more than any vocabulary has; each takes 300 bytes of memory
MAX_BYTES = 1 << 28  # of a file
MAX_WORDS = 1 << 17  # in the cache, about 40 MB; the first words stay, because most of them are common
MAX_LETTERS = 32  # of a cached word

_SPACE = "▁"
_BPE = 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3  # ModelProto.SentencePiece.Type
# Masks for a unit of the normaliser's table, a Darts-clone double array: "is a value", and the byte.
_IS_VALUE, _BYTE = np.uint32(1 << 31), np.uint32(0xFF)

EncodeBatch = Callable[[Sequence[str]], list[list[int]]]


def read_bytes(path: pathlib.Path) -> bytes:
  """Returns the bytes of a vocabulary file; DataError if it is missing, unreadable, empty or too large."""
  try:
    if (size := path.stat().st_size) > MAX_BYTES:
      raise errors.DataError(
        f"{path}: {size:,} bytes, a vocabulary file has at most {MAX_BYTES:,}; is it the right file?"
      )
    content = path.read_bytes()
  except OSError as error:
    raise errors.DataError(f"{path}: cannot read this vocabulary file ({errors.reason(error)})") from error
  if not content:
    raise errors.DataError(f"{path}: this vocabulary file is empty")
  return content


def read_lines(path: pathlib.Path) -> list[str]:
  """Returns the lines of a vocabulary text file without line ends; DataError if there are too many."""
  content = read_bytes(path)
  if (count := content.count(b"\n")) > MAX_PIECES:
    raise errors.DataError(
      f"{path}: {count:,} lines, a vocabulary has at most {MAX_PIECES:,} pieces; is it the right file?"
    )
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise errors.DataError(f"{path}: not UTF-8 text (byte {error.start}); is it the right file?") from error
  # Not splitlines(): a piece may be a Unicode line separator.
  lines = [line.removesuffix("\r") for line in text.split("\n")]
  return lines[:-1] if lines[-1] == "" else lines


def read_vocab_txt(path: pathlib.Path) -> list[str]:
  """Returns the pieces of a WordPiece `vocab.txt`, one per line; the id is the line number from 0."""
  pieces = read_lines(path)
  seen: dict[str, int] = {}
  for number, piece in enumerate(pieces, start=1):
    if piece in seen:
      raise errors.DataError(f"{path}: the piece {piece!r} is in lines {seen[piece]} and {number}")
    seen[piece] = number
  if "" in seen:
    raise errors.DataError(f"{path}: line {pieces.index('') + 1} is empty; expected one piece per line")
  return pieces


def read_dictionary(path: pathlib.Path) -> list[str]:
  """Returns the symbols of a fairseq `dict.txt` in the order of their ids.

  The first four are [CLS] [PAD] [SEP] [UNK]. A line is `<symbol> <count>`, optionally followed by
  `#fairseq:overwrite`; a repeated symbol keeps its first id. [MASK] is appended unless the file has it.
  DataError: a line has another form, as in a vocab.txt or a truncated file, or overwrites a symbol.

  Source: fairseq/data/dictionary.py of the COCO-LM repository, and its tokenization_utils.py.
  """
  symbols = [PIECES[name] for name in ("cls", "pad", "sep", "unk")]
  known = set(symbols)
  for number, line in enumerate(read_lines(path), start=1):
    entry = line.rstrip().removesuffix(" #fairseq:overwrite")
    symbol, _, count = entry.rpartition(" ")
    if not symbol or not count.isdecimal():
      raise errors.DataError(f"{path}: line {number} is {line[:40]!r}; expected `<symbol> <count>`")
    symbol = ALIASES.get(symbol, symbol)
    if symbol in known and entry != line.rstrip():
      raise errors.DataError(
        f"{path}: line {number} gives {symbol!r} a second id (#fairseq:overwrite); expected one id for each"
      )
    if symbol not in known:
      known.add(symbol)
      symbols.append(symbol)
  return symbols if PIECES["mask"] in known else [*symbols, PIECES["mask"]]


def special_id(path: pathlib.Path, pieces: Sequence[str], piece: str) -> int:
  """Returns the id of a special piece, also by its fairseq name; DataError if it is missing."""
  names = [piece] + [alias for alias, name in ALIASES.items() if name == piece]
  for name in names:
    if name in pieces:
      return pieces.index(name)
  raise errors.DataError(
    f"{path}: no piece {piece} among its {len(pieces)}; every vocabulary needs it, add it to the file"
  )


def special_names(folder: pathlib.Path, roles: Iterable[str] = tuple(PIECES)) -> dict[str, str]:
  """Returns {'cls': '<s>', ...} as tokenizer_config.json or special_tokens_map.json in `folder` name them.

  DataError: a file is not a JSON object.
  """
  named: dict[str, str] = {}
  for config in map(_read_object, (folder / name for name in CONFIGS)):
    for role in roles:
      if isinstance(token := _content(config.get(f"{role}_token")), str):
        named.setdefault(role, token)
  return named


def _read_object(path: pathlib.Path) -> dict[str, Any]:
  """Returns the JSON object in a file, {} if there is no file; DataError if it is none."""
  try:
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
      raise ValueError(f"a {type(content).__name__}")
  except (OSError, ValueError, RecursionError) as error:
    raise errors.DataError(
      f"{path}: not a JSON object ({errors.reason(error)}); restore the original file"
    ) from error
  return content


def _content(token: Any) -> Any:
  return token.get("content") if isinstance(token, dict) else token


def own_names(names: Iterable[str]) -> list[str]:
  """Returns the names of added tokens that are neither spare slots nor special pieces of any tokenizer."""
  known = {*PIECES.values(), *ALIASES}
  return [name for name in dict.fromkeys(names) if name not in known and not SPARE.fullmatch(name)]


def refuse_added(path: pathlib.Path) -> None:
  """Raises DataError if files beside a vocabulary file `path` add tokens to it that a user chose."""
  folder, added = path.parent, _read_object(path.with_name("added_tokens.json"))
  lists: list[Any] = [*added]
  for config in map(_read_object, (folder / name for name in CONFIGS)):
    for name in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
      tokens = config.get(name) or []
      lists += map(_content, tokens.values() if isinstance(tokens, dict) else tokens)
  roles = special_names(folder).values()
  if own := [name for name in own_names(map(str, lists)) if name not in roles]:
    raise errors.DataError(
      f"{path}: it has no place for the added tokens {errors.listed(own)} of the files beside it; write a "
      f"tokenizer.json with the library that made them, and import that\n  {to_json(folder)}"
    )


def to_json(folder: pathlib.Path) -> str:
  """Returns the command that writes a tokenizer.json of the tokenizer in a folder."""
  call = f"A.from_pretrained('{folder}').save_pretrained('{folder}')"
  return f'python -c "from transformers import AutoTokenizer as A; {call}"'


def read_sp_model(path: pathlib.Path):
  """Returns the sentencepiece processor of a model file, and its pieces by id."""
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


def sentencepiece_encoder(processor, model_pieces: Sequence[str], pieces: Sequence[str]):
  """Returns a function from texts to ids, the indices in `pieces`; text produces no special ids."""
  ids, unk = ids_of_text(pieces)
  table = np.asarray([ids.get(piece, unk) for piece in model_pieces], np.int64)
  produced_by_text = table.tolist()
  # Text produces no control pieces, so for a model trained here the ids need no second look-up.
  is_same = all(i == to for i, to in enumerate(produced_by_text) if not processor.is_control(i))

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    encoded = processor.encode(list(texts), out_type=int, num_threads=1)
    return encoded if is_same else [[produced_by_text[i] for i in ids] for ids in encoded]

  return encode_batch


def ids_of_text(pieces: Sequence[str]) -> tuple[dict[str, int], int]:
  """Returns {piece: id} for all pieces except special ones, and the id of [UNK]."""
  special = set(PIECES.values()) | set(ALIASES)
  unk = next((pieces.index(name) for name in (PIECES["unk"], "<unk>") if name in pieces), 0)
  return {piece: i for i, piece in enumerate(pieces) if piece not in special}, unk


def wordpiece_encoder(pieces: Sequence[str], *, cased: bool):
  """Returns a function from texts to ids by BERT's rules (normalise, split at punctuation, WordPiece)."""
  # There is one process per core already; more threads would only compete.
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  from tokenizers import Tokenizer, models

  # BERT's split separates brackets, so text cannot produce a piece like [MASK].
  ids = {piece: i for i, piece in enumerate(pieces)}
  unknown = PIECES["unk"] if PIECES["unk"] in ids else "<unk>"
  tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=100))
  configure_wordpiece(tokenizer, cased=cased)

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

  return encode_batch


def configure_wordpiece(tokenizer, *, cased: bool) -> None:
  """Sets BERT's normalisation and split into words on a `tokenizers.Tokenizer`."""
  from tokenizers import normalizers, pre_tokenizers

  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def join_sentencepieces(pieces: list[str]) -> str:
  """Returns sentencepieces as readable text; '▁' begins a word."""
  return "".join(pieces).replace("▁", " ").strip()


def join_wordpieces(pieces: list[str]) -> str:
  """Returns WordPieces as readable text; '##' continues a word, also one that begins before them."""
  return " ".join(pieces).replace(" ##", "").removeprefix("##")


def has_space_mark(word: str) -> bool:
  """Returns whether a word has sentencepiece's '▁', which is dropped at the end of a text."""
  return _SPACE in word


def remembering(
  encode_batch: EncodeBatch, *, touches_others: Callable[[str], bool] = lambda word: False
) -> EncodeBatch:
  """Returns a function with the results of `encode_batch` that encodes a cached word only once.

  `touches_others` returns whether a word may change the ids of its neighbours, or they its ids. Threads may
  share the function: if another thread has just removed a word, the text is encoded whole.
  """
  remembered: dict[str, tuple[int, ...]] = {}
  numbers: dict[int, int] = {}  # id -> the one object that all words share, which saves memory

  def known(text: str) -> list[int] | None:
    try:
      return list(itertools.chain.from_iterable(map(remembered.__getitem__, text.split(" "))))
    except KeyError:
      return None

  def learn(texts: list[str]) -> None:
    words = itertools.chain.from_iterable(text.split(" ") for text in texts)
    unknown = set(itertools.filterfalse(remembered.__contains__, words))
    if 2 * len(unknown) > sum(text.count(" ") for text in texts):
      return  # numbers, names, a script without spaces: words that will hardly occur again
    new = [word for word in unknown if len(word) <= MAX_LETTERS and not touches_others(word)]
    found = [tuple(map(numbers.setdefault, ids, ids)) for ids in encode_batch(new)]
    remembered.update(zip(new, found))

  def encode(texts: Sequence[str]) -> list[list[int]]:
    encoded: list[Any] = [known(text) for text in texts]
    missing = [i for i, ids in enumerate(encoded) if ids is None]
    learn([texts[i] for i in missing])
    for i in missing:
      encoded[i] = known(texts[i])
    whole = [i for i in missing if encoded[i] is None]
    for i, ids in zip(whole, encode_batch([texts[i] for i in whole])):
      encoded[i] = ids
    while len(remembered) > MAX_WORDS:
      remembered.popitem()  # the newest
    return encoded

  return encode


def splits_at_spaces(processor) -> bool:
  """Returns whether a `SentencePieceProcessor` encodes a text word by word.

  True for BPE that marks each word with a leading '▁', if no piece has '▁' inside and no rule of the
  normaliser reads a space or writes '▁'. Unigram models are different: they score the whole text.
  """
  from sentencepiece import sentencepiece_model_pb2

  model = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())  # pyright: ignore[reportAttributeAccessIssue] (made by protobuf)
  rules, training = model.normalizer_spec, model.trainer_spec
  pieces = {piece.piece: piece.type for piece in model.pieces}
  return (
    training.model_type == _BPE
    and not training.treat_whitespace_as_suffix
    and rules.add_dummy_prefix
    and rules.remove_extra_whitespaces
    and rules.escape_whitespaces
    and {*pieces.values()} <= {_NORMAL, _UNKNOWN, _CONTROL}
    and pieces.get(_SPACE) == _NORMAL  # else unknown neighbours become one piece, even across '▁'
    and not any(_SPACE in piece[1:] for piece in pieces)
    and not _rules_touch_spaces(rules.precompiled_charsmap)
  )


def _rules_touch_spaces(table: bytes) -> bool:
  """Returns whether a rule in a normaliser's table reads a space or writes '▁'.

  The table has 4 bytes with the size of an array, the array of the rules' inputs, and the rules' outputs.
  """
  if not table:
    return False
  size = int.from_bytes(table[:4], "little")
  units = np.frombuffer(table[4 : 4 + size], "<u4")
  # The index of a unit's child for a byte is: index xor offset xor byte.
  places = np.arange(units.size) ^ (units >> 10 << ((units & 512) >> 6)).astype(np.int64) ^ ord(" ")
  places = places[((units & _IS_VALUE) == 0) & (places < units.size)]
  reads = (units[places] & (_IS_VALUE | _BYTE)) == ord(" ")
  return bool(reads.any()) or _SPACE.encode() in table[4 + size :]
