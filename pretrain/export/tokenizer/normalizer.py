"""What sentencepiece does to text before its pieces, as a normalizer of the `tokenizers` library.

A sentencepiece model carries its Unicode rules as a table of longest matches. The library's Precompiled
takes the same table, but looks up a cluster of at most 5 bytes as one and takes the shortest match: of E
followed by a combining accent it makes e, without the accent. Steps before it keep what sentencepiece does:

1. a character that the table deletes (U+0001) goes before each combining mark that the table joins with
   nothing, so that Unicode's own composition leaves it where it stands;
2. NFKC composes the rest, which is what the table's entries of several characters do;
3. the same character before each mark that is left makes every cluster a single character.

Known to differ: letter forms that are new in Unicode 15 and 16 (U+1E030 and on, U+1CCD6 and on) with a
combining mark after them, which the library's tables of Unicode are too old for.
"""

import collections
import functools
import sys
import unicodedata
from collections.abc import Callable, Iterable

from data.errors import DataError

_BREAK = "\x01"
_CONTROLS = [chr(i) for i in (*range(2, 9), *range(14, 32))]
# The library loses count of characters where something is put before the first.
_INSIDE = r"(?!\A)"
# What may continue a cluster: marks, joiners, tags, \n after \r, what is too new for the library's tables.
# Skin tones and tags are 4 bytes; with a letter before them they are a cluster of 5.
_EXTENDS = r"[^\p{L}\p{N}\p{P}\p{S}\p{Z}]|[\x{10000}-\x{10ffff}]"


def build(processor, spec, where: str):
  """Returns a `tokenizers` normalizer that does what a sentencepiece model does; DataError if none can.

  The `SentencePieceProcessor` is asked what it makes of single characters; `spec` is its proto's
  `normalizer_spec`, `where` is the file, for errors.
  """
  from tokenizers import Regex, normalizers

  if not spec.escape_whitespaces:
    raise DataError(
      f"{where}: escape_whitespaces is off; only models that write spaces as '▁' can be exported"
    )
  steps = []
  if spec.add_dummy_prefix and not spec.remove_extra_whitespaces:
    steps.append(normalizers.Prepend(" "))  # before deletions: a text of which nothing is left keeps it
  if spec.precompiled_charsmap:
    steps += _characters(processor, spec, where)
  if spec.remove_extra_whitespaces:
    steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" +"), " ")]
    if spec.add_dummy_prefix:
      steps.append(normalizers.Prepend("▁"))
  return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])


def _characters(processor, spec, where: str) -> list:
  """The steps that do what the table of characters does."""
  from tokenizers import Regex, normalizers

  def normalize(text: str) -> str:
    return processor.normalize(f"x{text}x")  # spaces at the ends of a text would go

  free = [control for control in _CONTROLS if normalize(control) == normalize("")]
  if normalize(_BREAK) != normalize("") or not free:
    raise DataError(
      f"{where}: its normalisation {spec.name!r} keeps control characters, so that tokenizer.json cannot "
      "follow it; expected nmt_nfkc or nmt_nfkc_cf"
    )
  composable = _composable()
  # NFKC must not touch what the table treats in another way (U+FF5E, the wide tilde): controls stand in.
  others = [c for c in composable if normalize(c) != normalize(unicodedata.normalize("NFKC", c))]
  if len(others) > len(free):
    raise DataError(
      f"{where}: its normalisation {spec.name!r} differs from NFKC in {len(others)} characters, more than "
      f"the {len(free)} that tokenizer.json can follow; expected nmt_nfkc or nmt_nfkc_cf"
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
  """All characters that Unicode takes apart."""
  return [chr(i) for i in range(1, sys.maxunicode + 1) if unicodedata.decomposition(chr(i))]


def _joined(composable: list[str], normalize: Callable[[str], str]) -> dict[str, set[str]]:
  """{mark: the characters before it that the table joins it to, or that are joined before it is}."""
  variants = collections.defaultdict(list)  # of a character: those that are it but for their form
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
  """A pattern of the empty place before each mark that is not joined to the character before it."""
  groups = collections.defaultdict(list)
  for mark, bases in joined.items():
    groups[_class(bases)].append(mark)
  alternatives = "|".join(f"(?<=[{bases}])[{_class(marks)}]" for bases, marks in groups.items() if bases)
  return rf"{_INSIDE}(?={_EXTENDS}|[{_class(joined)}])(?!{alternatives})"


def _class(characters: Iterable[str]) -> str:
  """The inside of a pattern's brackets, runs of characters as ranges."""
  ranges: list[list[int]] = []
  for point in sorted(map(ord, characters)):
    if ranges and point == ranges[-1][1] + 1:
      ranges[-1][1] = point
    else:
      ranges.append([point, point])
  return "".join(
    rf"\x{{{first:x}}}" + (rf"-\x{{{last:x}}}" if last > first else "") for first, last in ranges
  )
