"""Caches the ids of words, because most words of a text occurred in earlier texts.

`encoder` splits text at spaces, looks each word up in a dictionary, and passes only the new words to the
tokeniser, in one call. The ids are exactly those of encoding the whole text: `splits_at_spaces` checks that
nothing in a sentencepiece model spans a space. A word that may change its neighbours is never cached, and a
text with such a word is encoded whole. When the dictionary is full, further words are cached for one call.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAX_WORDS = 1 << 17  # in the cache, about 40 MB; the first words stay, because most of them are common
MAX_LETTERS = 32  # of a cached word

_SPACE = "▁"
_BPE = 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3  # ModelProto.SentencePiece.Type
# Masks for a unit of the normaliser's table, a Darts-clone double array: "is a value", and the byte.
_IS_VALUE, _BYTE = np.uint32(1 << 31), np.uint32(0xFF)

EncodeBatch = Callable[[Sequence[str]], list[list[int]]]


def has_space_mark(word: str) -> bool:
  """Returns whether a word has sentencepiece's '▁', which is dropped at the end of a text."""
  return _SPACE in word


def encoder(
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
