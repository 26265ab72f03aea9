"""Words whose ids are remembered: most words of a text were in the text before it.

`encoder` splits text at spaces, looks each word up in a dictionary, and gives only the new words to the
tokeniser, all together. The ids are exactly those of the whole text: `splits_at_spaces` searches a
sentencepiece model for everything that could reach over a space. A word that may change its neighbours is
never remembered, and the tokeniser gets a text with such a word whole. A full dictionary stays as it is; more
words are then remembered for one call only.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAX_WORDS = 1 << 17  # remembered, in about 40 MB of a process: the first ones, most of which are common
MAX_LETTERS = 32  # of a remembered word

_SPACE = "▁"
_BPE = 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3  # ModelProto.SentencePiece.Type
# In a unit of the table of rules, a double array of Darts-clone: whether it is a value, and its byte.
_IS_VALUE, _BYTE = np.uint32(1 << 31), np.uint32(0xFF)

EncodeBatch = Callable[[Sequence[str]], list[list[int]]]


def has_space_mark(word: str) -> bool:
  """Tells whether a word has sentencepiece's mark of a space, of which none is left at the end of a text."""
  return _SPACE in word


def encoder(
  encode_batch: EncodeBatch, *, touches_others: Callable[[str], bool] = lambda word: False
) -> EncodeBatch:
  """Returns a function that gives the ids of `encode_batch` and encodes a remembered word only once.

  `touches_others` tells whether the words beside a word may change its ids, or it theirs. Threads may share
  the function: a text with a word that another thread has just forgotten is encoded whole.
  """
  remembered: dict[str, tuple[int, ...]] = {}
  numbers: dict[int, int] = {}  # one object for each id, where each word would have its own

  def known(text: str) -> list[int] | None:
    try:
      return list(itertools.chain.from_iterable(map(remembered.__getitem__, text.split(" "))))
    except KeyError:
      return None

  def learn(texts: list[str]) -> None:
    words = itertools.chain.from_iterable(text.split(" ") for text in texts)
    unknown = set(itertools.filterfalse(remembered.__contains__, words))
    if 2 * len(unknown) > sum(text.count(" ") for text in texts):
      return  # numbers, names, a script without spaces: words that will hardly be there again
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
  """Tells whether a `SentencePieceProcessor` encodes a text as its words one after another.

  True for BPE that writes each space as a mark before a word, where no piece has that mark inside, and no
  rule of the normaliser reads a space or writes a mark. Unigram models add up scores over the whole text.
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
    and pieces.get(_SPACE) == _NORMAL  # unknown neighbours become one piece, over a mark too
    and not any(_SPACE in piece[1:] for piece in pieces)
    and not _rules_touch_spaces(rules.precompiled_charsmap)
  )


def _rules_touch_spaces(table: bytes) -> bool:
  """Tells whether a rule in a normaliser's table reads a space, or writes the mark of one.

  The table is 4 bytes with the size of the array of what the rules read, that array, and what they write.
  """
  if not table:
    return False
  size = int.from_bytes(table[:4], "little")
  units = np.frombuffer(table[4 : 4 + size], "<u4")
  # Child of a unit for a byte: its own place xor its offset xor the byte.
  places = np.arange(units.size) ^ (units >> 10 << ((units & 512) >> 6)).astype(np.int64) ^ ord(" ")
  places = places[((units & _IS_VALUE) == 0) & (places < units.size)]
  reads = (units[places] & (_IS_VALUE | _BYTE)) == ord(" ")
  return bool(reads.any()) or _SPACE.encode() in table[4 + size :]
