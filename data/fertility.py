"""Counts words, pieces and letters of texts by script: pieces per word are a vocabulary's fertility.

Words are found in ids, so records are counted as they are, and a text after a vocabulary was applied to it.
"""

import collections
import dataclasses
import functools
import pathlib
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from data import errors, sources, vocabulary
from data.prepare import engine, packing
from data.tables import Column, Report, text_column

MOST_TEXT = 64_000_000  # characters of a text that are read, unless all of it is asked for
MOST_ROWS = 12  # of a table of scripts or characters

DIGITS, OTHER = "digits", "other"
# In these scripts spaces do not separate words, so pieces are only counted per character.
UNSPACED = frozenset(
  {"Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"}
)
# The script is the first word of a character's Unicode name, with these exceptions.
_RENAMED = {"Cjk": "Han", "Ideographic": "Han", "Combining": OTHER, "Modifier": OTHER}
_RENAMED |= {"Caron": OTHER, "Variation": OTHER}

WORDS, PIECES, LETTERS = range(3)  # columns of counts
MOST_WORDS = 1 << 18  # most counted words of several pieces; beyond it the rarer half is dropped

UNKNOWN, _BYTES = "[UNK]", "bytes"  # used in place of a script
_BYTE = re.compile(r"<0x[0-9A-F]{2}>|\ufffd+")  # the latter: byte-level pieces of a part of a character


@functools.cache
def script(character: str) -> str:
  """Returns 'Latin', 'Han', ... for a letter or mark, 'digits' for a number, '' for anything else."""
  category = unicodedata.category(character)[0]
  if category == "N":
    return DIGITS
  if category not in "LM":
    return ""
  # NFKC turns wide and narrow forms, ligatures and mathematical letters into plain letters.
  plain = unicodedata.normalize("NFKC", character).strip()[:1] or character
  name = re.split(r"[ -]", unicodedata.name(plain, OTHER))[0].title()
  return _RENAMED.get(name, name)


def script_of_text(text: Iterable[str]) -> str:
  """Returns the script of the first letter; if there is none, 'digits', 'other' (only marks) or ''."""
  found = [name for name in map(script, text) if name]
  return next((name for name in found if name not in (DIGITS, OTHER)), found[0] if found else "")


class Pieces:
  """Facts about each piece of a vocabulary, as arrays of shape [vocab].

  A word is a sequence of letters, marks and digits. It begins at the vocabulary's mark, after any other
  character, and where a script without spaces begins or ends. A piece '▁' belongs to the following word. An
  unknown piece counts as a letter.
  """

  def __init__(self, words: vocabulary.Vocabulary):
    special = set(vars(words.special_ids).values())
    self.letters = np.zeros(words.size, np.int64)  # letters, marks and digits of a piece
    self.sizes = np.zeros(words.size, np.int64)  # characters without the mark; 0 for special pieces
    self._begins, self._is_mark, self._starts_inside, self._joins = np.zeros((4, words.size), bool)
    names, self.script = [""], np.zeros(words.size, np.int64)
    for piece in range(words.size):
      text, begins = words.letters(piece)
      is_unknown, is_byte = piece == words.special_ids.unk, bool(_BYTE.fullmatch(text))
      if piece in special and not is_unknown:
        continue
      name = UNKNOWN if is_unknown else _BYTES if is_byte else script_of_text(text)
      # A byte piece, which is part of a character, also counts as a letter.
      kinds = [name] if is_unknown or is_byte else [script(character) for character in text]
      self.sizes[piece], self.letters[piece] = 0 if is_unknown else len(text), sum(map(bool, kinds))
      self._begins[piece], self._is_mark[piece] = begins, text == " "
      self._starts_inside[piece], self._joins[piece] = bool(kinds[0]), bool(kinds[-1])
      if name not in names:
        names.append(name)
      self.script[piece] = names.index(name)
    self.scripts = tuple(names)  # the first, '', is for pieces without letters
    self.is_unspaced = np.array([name in UNSPACED for name in names])
    self._is_word = ~self.is_unspaced & ~np.isin(names, ("", DIGITS, UNKNOWN))
    self.unknown = words.special_ids.unk

  def spans(self, ids: np.ndarray) -> np.ndarray:
    """Returns, per word in ids [n], its first piece, its first piece with letters, its end: [words, 3]."""
    is_text = self.letters[ids] > 0
    before = np.roll(ids, 1)
    joined = self._joins[before] & self._starts_inside[ids] & ~self._begins[ids]
    unspaced = self.is_unspaced[self.script[ids]] | self.is_unspaced[self.script[before]]
    joined &= ~(unspaced & (self.script[ids] != self.script[before]))
    joined[:1] = False
    starts = np.flatnonzero(is_text & ~joined)
    lead = self._is_mark[before[starts]] & ~self._begins[ids[starts]] & (starts > 0)
    stops = np.flatnonzero(is_text & ~np.append(is_text & joined, False)[1:]) + 1
    return np.stack([starts - lead, starts, stops], axis=1)

  def count(self, ids: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Returns the counts of WORDS, PIECES and LETTERS in ids [n] with these spans: [scripts, 3] int64."""
    first, start, stop = spans.T
    script = self._script_of_words(ids, spans)
    ends = np.append(0, np.cumsum(self.letters[ids]))
    counts = np.zeros((len(self.scripts), 3), np.int64)
    for column, values in ((WORDS, np.ones_like(start)), (PIECES, stop - first)):
      np.add.at(counts[:, column], script, values)
    np.add.at(counts[:, LETTERS], script, ends[stop] - ends[start])
    return counts

  def _script_of_words(self, ids: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Returns the script of each word's first piece, or of the second if the first is unknown: [words]."""
    _, start, stop = spans.T
    is_unknown = (ids[start] == self.unknown) & (stop - start > 1)
    return self.script[ids[start + is_unknown]]

  def cut(self, ids: np.ndarray, spans: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Yields the pieces of each word of several pieces; skips numbers and scripts without spaces."""
    is_wanted = self._is_word[self._script_of_words(ids, spans)] & (spans[:, 2] - spans[:, 0] > 1)
    for begin, end in spans[is_wanted][:, [0, 2]].tolist():
      yield tuple(ids[begin:end].tolist())


class Counts:
  """Counts over texts of ids: words by script, uses of each id, words with many pieces."""

  def __init__(self, pieces: Pieces):
    self.pieces = pieces
    self._words = np.zeros((len(pieces.scripts), 3), np.int64)
    self.used = np.zeros(pieces.letters.size, np.int64)  # how often each id occurs
    self.cut: collections.Counter[tuple[int, ...]] = collections.Counter()

  def add(self, ids: np.ndarray) -> None:
    """Adds a text, ids [n], to the counts."""
    spans = self.pieces.spans(ids)
    self._words += self.pieces.count(ids, spans)
    self.used += np.bincount(ids, minlength=self.used.size)
    self.cut.update(self.pieces.cut(ids, spans))
    if len(self.cut) > MOST_WORDS:
      self.cut = collections.Counter(dict(self.cut.most_common(MOST_WORDS // 2)))

  @property
  def total(self) -> int:
    """The number of pieces in the texts, including unknown but not special ones."""
    return int(self.used[self.pieces.sizes > 0].sum() + self.used[self.pieces.unknown])

  @property
  def by_script(self) -> dict[str, np.ndarray]:
    """Counts of words, pieces and letters by script, {script: [3]}, in descending order of pieces."""
    found = {name: row for name, row in zip(self.pieces.scripts, self._words) if row[PIECES]}
    return dict(sorted(found.items(), key=lambda item: -item[1][PIECES]))

  def most_cut(self) -> list[tuple[tuple[int, ...], int]]:
    """Returns (pieces, count) of the words of several pieces, those with most extra pieces first.

    A word has (pieces - 1) * count extra pieces.
    """
    return sorted(self.cut.items(), key=lambda item: (-item[1] * (len(item[0]) - 1), item[0]))


@dataclasses.dataclass(frozen=True)
class Text:
  """Counts of the pieces into which a vocabulary splits a text."""

  counts: Counts
  documents: int
  characters: int
  is_whole: bool  # all of it was read
  unknown: list[tuple[str, int]]  # characters that become [UNK], with their counts; the most frequent first
  dropped: list[tuple[str, int]]  # the same of marks that the vocabulary's normalisation leaves out


def of_text(words: vocabulary.Vocabulary, request: sources.Request, *, most: int, num_workers: int) -> Text:
  """Applies a vocabulary to at most `most` documents of a source (0: all), the first of each of its units.

  DataError: no document is usable.
  """
  counts, characters = Counts(Pieces(words)), collections.Counter()
  documents, is_whole = 0, True
  with tempfile.TemporaryDirectory(prefix="fertility-") as temporary:
    request = engine.gathered(request, pathlib.Path(temporary), num_workers)
    units = sources.plan(request).units
    if most:
      every = -(-len(units) // most)
      is_whole, units = every == 1, units[::every]
    for unit in units:
      left = MOST_TEXT // len(units)
      repairs = collections.Counter()
      for number, document in enumerate(sources.read_documents(unit, request, repairs)):
        if most and (number >= -(-most // len(units)) or left < 0):
          is_whole = False
          break
        found = [text for paragraph in document for text in packing.split_sentences(paragraph, repairs)]
        if not found:
          continue
        left -= sum(map(len, found))
        (encoded,) = words.encode_words([found])
        counts.add(np.array([i for ids in encoded for i in (*ids, words.special_ids.sep)], np.int64))
        for sentence in found:
          characters.update(sentence)
        documents += 1
  if not documents:
    raise errors.DataError(f"--source={request.source} has no usable text; name another")
  alone = words.encode_batch([character for character, _ in characters.most_common()])
  found = list(zip(characters.most_common(), alone))
  unknown = [entry for entry, ids in found if words.special_ids.unk in ids]
  dropped = [entry for entry, ids in found if not ids and not entry[0].isspace()]
  return Text(counts, documents, characters.total(), is_whole, unknown, dropped)


def share(part: float, whole: float) -> str:
  """Returns part / whole in percent, '-' if the whole is 0."""
  return f"{part / whole:.2%}" if whole else "-"


def by_script(counted: Mapping[str, Counts]) -> Report:
  """Returns a table with each script's share of the pieces, and its pieces per word and character.

  `counted` has the counts of one or more directories by their names.
  """
  rows = []
  for directory, counts in counted.items():
    of_scripts = counts.by_script
    for name, (words, pieces, letters) in list(of_scripts.items())[:MOST_ROWS]:
      has_words = words and name not in (UNKNOWN, *UNSPACED)
      rows.append(
        {
          "directory": directory,
          "script": name,
          "share": share(pieces, counts.total),
          "per word": f"{pieces / words:.3f}" if has_words else "-",
          "per character": f"{pieces / letters:.3f}" if letters and name != UNKNOWN else "-",
        }
      )
    rest = counts.total - sum(int(row[PIECES]) for row in of_scripts.values())
    rows.append({"directory": directory, "script": "(no letters)", "share": share(rest, counts.total)})
  numbers = ("share", "per word", "per character")
  columns = [Column(name, lambda row, name=name: row.get(name, "-")) for name in numbers]
  columns = [text_column("directory", "directory"), text_column("script", "script"), *columns]
  note = f"Scripts without spaces have no words here: {', '.join(sorted(UNSPACED))}."
  more = max(len(counts.by_script) for counts in counted.values()) - MOST_ROWS
  notes = [note, *([f"Rarer scripts that are not shown: {more}."] if more > 0 else [])]
  return Report("", "Pieces per word and character, by script", columns[len(counted) == 1 :], rows, notes)
