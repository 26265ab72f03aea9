"""Builds merges and a normalizer of the `tokenizers` library that do what a sentencepiece BPE model does.

A sentencepiece model stores its Unicode rules as a table of longest matches. The library's Precompiled reads
the same table, but looks up a cluster of at most 5 bytes at once and uses the shortest match: from E followed
by a combining accent it makes e, without the accent. Steps before it prevent that:

1. A character that the table deletes (U+0001) is inserted before each combining mark that the table does not
   join, so that Unicode's own composition does not join it either.
2. NFKC composes the rest, as the table's entries of several characters do.
3. The same character before each remaining mark makes every cluster a single character.

Known differences: letter forms that are new in Unicode 15 and 16 (U+1E030 and on, U+1CCD6 and on), followed
by a combining mark, because the library's Unicode tables are older.
"""

import collections
import functools
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping

from data.errors import DataError, reason

_BPE = 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # ModelProto.SentencePiece.Type
_BREAK = "\x01"
_CONTROLS = [chr(i) for i in (*range(2, 9), *range(14, 32))]
# The library miscounts characters if something is inserted before the first one.
_INSIDE = r"(?!\A)"
# Characters that continue a cluster: marks, joiners, tags, \n after \r, those unknown to the library.
# Skin tones and tags have 4 bytes; with a letter before them they are a cluster of 5.
_EXTENDS = r"[^\p{L}\p{N}\p{P}\p{S}\p{Z}]|[\x{10000}-\x{10ffff}]"


def read_proto(path):
  """Reads the `ModelProto` of a sentencepiece file; raises DataError if it is none."""
  from google.protobuf.message import DecodeError
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue] (made by protobuf)
  try:
    proto.ParseFromString(path.read_bytes())
  except (OSError, DecodeError) as error:
    raise DataError(
      f"{path}: not a sentencepiece model ({reason(error)}); restore the original file"
    ) from error
  return proto


def bpe_model(proto, ids: Mapping[str, int], *, vocabulary: Mapping[str, int], unknown: str, where: str):
  """Returns a `tokenizers.models.BPE` that splits text as the sentencepiece model does.

  Sentencepiece merges the neighbours that make the best piece; the library has a ranked list of pairs. One
  pair for each piece is enough: while the characters of a piece are merged into it, all merges happen inside
  it and do not depend on the text around it. So a piece is always made of the two parts that are merged last
  when it is a text of its own.

  `ids` is {piece: id} for pieces of text, `vocabulary` also has special pieces, `where` names the file in
  errors. DataError: the model is not BPE or has unsupported features, or `ids` lacks some of its pieces.
  """
  from tokenizers import models

  scores = _scores(proto, where)
  has_bytes = proto.trainer_spec.byte_fallback
  produced = [*scores, *(piece.piece for piece in proto.pieces if has_bytes and piece.type == _BYTE)]
  missing = [piece for piece in produced if piece not in ids]
  if missing:
    raise DataError(
      f"{where}: pieces without an id of their own: {len(missing)} (such as {missing[0]!r}); tokenizer.json "
      "cannot give one id to several pieces; use a layout that keeps sp.model and dict.txt"
    )
  merges = [_last_join(piece, scores) for piece in sorted(scores, key=scores.__getitem__, reverse=True)]
  return models.BPE(
    dict(vocabulary),
    [pair for pair in merges if pair],
    unk_token=unknown,
    fuse_unk=True,
    byte_fallback=has_bytes,
  )


def _scores(proto, where: str) -> dict[str, float]:
  """Returns {piece: score} of a sentencepiece BPE model, without special and byte pieces."""
  if proto.trainer_spec.model_type != _BPE:
    raise DataError(f"{where}: not a BPE model; expected a sentencepiece model with model_type BPE")
  for piece in proto.pieces:
    if piece.type not in (_NORMAL, _UNKNOWN, _CONTROL, _BYTE):
      raise DataError(f"{where}: the piece {piece.piece!r} has a type that tokenizer.json does not support")
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
  long = {piece: score for piece, score in scores.items() if len(piece) > 1}
  if len(set(long.values())) < len(long):
    raise DataError(f"{where}: two pieces have the same score; tokenizer.json needs different scores")
  return scores


def _last_join(piece: str, scores: Mapping[str, float]) -> tuple[str, str] | None:
  """Returns the two parts that are merged last when `piece` is the whole text; None if it is never made."""
  pieces = list(piece)
  while len(pieces) > 2:
    pairs = [scores.get(pieces[i] + pieces[i + 1]) for i in range(len(pieces) - 1)]
    best = max((score for score in pairs if score is not None), default=None)
    if best is None:
      return None
    i = pairs.index(best)  # the leftmost of equals
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
  return (pieces[0], pieces[1]) if len(pieces) == 2 else None


def normalizer(processor, spec, where: str):
  """Returns a `tokenizers` normalizer equal to a sentencepiece model's; raises DataError if there is none.

  `processor` is the `SentencePieceProcessor`, which shows what becomes of single characters; `spec` is its
  proto's `normalizer_spec`; `where` names the file in errors.
  """
  from tokenizers import Regex, normalizers

  if not spec.escape_whitespaces:
    raise DataError(f"{where}: escape_whitespaces is off; expected a model that writes spaces as '▁'")
  steps = []
  if spec.add_dummy_prefix and not spec.remove_extra_whitespaces:
    steps.append(normalizers.Prepend(" "))  # before deletions, so that an emptied text keeps it
  if spec.precompiled_charsmap:
    steps += _characters(processor, spec, where)
  if spec.remove_extra_whitespaces:
    steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" +"), " ")]
    if spec.add_dummy_prefix:
      steps.append(normalizers.Prepend("▁"))
  return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])


def _characters(processor, spec, where: str) -> list:
  """Returns the steps that replace the table of characters."""
  from tokenizers import Regex, normalizers

  def normalize(text: str) -> str:
    return processor.normalize(f"x{text}x")  # the x protect spaces at the ends

  free = [control for control in _CONTROLS if normalize(control) == normalize("")]
  if normalize(_BREAK) != normalize("") or not free:
    raise DataError(
      f"{where}: its normalisation {spec.name!r} keeps control characters, which tokenizer.json does not "
      "support; expected nmt_nfkc or nmt_nfkc_cf"
    )
  composable = _composable()
  # Controls replace characters that the table treats unlike NFKC (U+FF5E, the wide tilde): NFKC skips them.
  others = [c for c in composable if normalize(c) != normalize(unicodedata.normalize("NFKC", c))]
  if len(others) > len(free):
    raise DataError(
      f"{where}: its normalisation {spec.name!r} differs from NFKC in {len(others)} characters, more than "
      f"the {len(free)} that tokenizer.json supports; expected nmt_nfkc or nmt_nfkc_cf"
    )
  aside, back = [], []
  for character, control in zip(others, free):
    aside += [normalizers.Replace(control, _BREAK), normalizers.Replace(character, control)]
    back.append(normalizers.Replace(control, character))
  unjoined = _before_marks_that_join_nothing(_joined(composable, normalize))
  return [
    *aside,
    normalizers.Replace(Regex(unjoined), _BREAK),
    normalizers.NFKC(),
    *back,
    normalizers.Replace(Regex(f"{_INSIDE}(?={_EXTENDS})"), _BREAK),
    normalizers.Precompiled(spec.precompiled_charsmap),
  ]


@functools.cache
def _composable() -> list[str]:
  return [chr(i) for i in range(1, sys.maxunicode + 1) if unicodedata.decomposition(chr(i))]


def _joined(composable: list[str], normalize: Callable[[str], str]) -> dict[str, set[str]]:
  """Returns {mark: characters before it that the table joins it to, or that are joined before it}."""
  variants = collections.defaultdict(list)  # character -> its other forms
  for character in composable:
    plain = unicodedata.normalize("NFKC", character)
    if len(plain) == 1:
      variants[plain].append(character)
  joined = collections.defaultdict(set)
  for character in composable:
    letters = unicodedata.normalize("NFD", character)
    composed = unicodedata.normalize("NFC", letters)
    if composed != character or len(letters) < 2 or not unicodedata.category(letters[-1]).startswith("M"):
      continue
    whole, last = normalize(character), letters[-1]
    before = unicodedata.normalize("NFC", letters[:-1])  # one character: the composition's first half
    for mark in (last, *variants[last]):
      joined[mark] |= {base for base in (before, *variants[before]) if normalize(base + mark) == whole}
      if len(letters) > 2 and normalize(letters[:-1] + mark) == whole:
        joined[mark] |= {letters[-2], *variants[letters[-2]]}
  return joined


def _before_marks_that_join_nothing(joined: dict[str, set[str]]) -> str:
  """Returns a pattern for the position before each mark that is not joined to its character."""
  groups = collections.defaultdict(list)
  for mark, bases in joined.items():
    groups[_class(bases)].append(mark)
  alternatives = "|".join(f"(?<=[{bases}])[{_class(marks)}]" for bases, marks in groups.items() if bases)
  return rf"{_INSIDE}(?={_EXTENDS}|[{_class(joined)}])(?!{alternatives})"


def _class(characters: Iterable[str]) -> str:
  """Returns the inside of a pattern's brackets, with runs of characters as ranges."""
  ranges: list[list[int]] = []
  for point in sorted(map(ord, characters)):
    if ranges and point == ranges[-1][1] + 1:
      ranges[-1][1] = point
    else:
      ranges.append([point, point])
  return "".join(
    rf"\x{{{first:x}}}" + (rf"-\x{{{last:x}}}" if last > first else "") for first, last in ranges
  )
