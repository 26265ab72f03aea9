"""Finds words in ids; counts words, pieces and letters by script, and the words with most pieces."""

import collections
import re
from collections.abc import Iterator

import numpy as np

from data import vocabulary
from data.inspect import scripts

WORDS, PIECES, LETTERS = range(3)  # columns of counts
MOST_WORDS = 1 << 18  # most counted words of several pieces; beyond it the rarer half is dropped

UNKNOWN, _BYTES = "[UNK]", "bytes"  # used in place of a script
_BYTE = re.compile(r"<0x[0-9A-F]{2}>|\ufffd+")  # the latter: byte-level pieces of a part of a character


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
      name = UNKNOWN if is_unknown else _BYTES if is_byte else scripts.of_text(text)
      # A byte piece, which is part of a character, also counts as a letter.
      kinds = [name] if is_unknown or is_byte else [scripts.of(character) for character in text]
      self.sizes[piece], self.letters[piece] = 0 if is_unknown else len(text), sum(map(bool, kinds))
      self._begins[piece], self._is_mark[piece] = begins, text == " "
      self._starts_inside[piece], self._joins[piece] = bool(kinds[0]), bool(kinds[-1])
      if name not in names:
        names.append(name)
      self.script[piece] = names.index(name)
    self.scripts = tuple(names)  # the first, '', is for pieces without letters
    self.is_unspaced = np.array([name in scripts.UNSPACED for name in names])
    self._is_word = ~self.is_unspaced & ~np.isin(names, ("", scripts.DIGITS, UNKNOWN))
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
  """Counts over texts of ids: words by script and language, uses of ids, words with many pieces."""

  def __init__(self, pieces: Pieces):
    self.pieces = pieces
    self.by_language: dict[str, np.ndarray] = {}  # [scripts, 3]
    self.texts: collections.Counter[str] = collections.Counter()  # {language: texts}
    self.unknown: collections.Counter[str] = collections.Counter()  # {language: unknown pieces}
    self.used = np.zeros(pieces.letters.size, np.int64)  # how often each id occurs
    self.cut: collections.Counter[tuple[int, ...]] = collections.Counter()

  def add(self, ids: np.ndarray, language: str) -> None:
    """Adds a text, ids [n], to the counts."""
    spans = self.pieces.spans(ids)
    zero = np.zeros((len(self.pieces.scripts), 3), np.int64)
    self.by_language[language] = self.by_language.get(language, zero) + self.pieces.count(ids, spans)
    self.texts[language] += 1
    self.unknown[language] += int(np.count_nonzero(ids == self.pieces.unknown))
    self.used += np.bincount(ids, minlength=self.used.size)
    self.cut.update(self.pieces.cut(ids, spans))
    if len(self.cut) > MOST_WORDS:
      self.cut = collections.Counter(dict(self.cut.most_common(MOST_WORDS // 2)))

  @property
  def total(self) -> int:
    """The number of pieces in the texts, including unknown but not special ones."""
    return int(self.used[self.pieces.sizes > 0].sum()) + self.unknown.total()

  @property
  def by_script(self) -> dict[str, np.ndarray]:
    """Counts of words, pieces and letters by script, {script: [3]}, in descending order of pieces."""
    total = sum(self.by_language.values(), np.zeros((len(self.pieces.scripts), 3), np.int64))
    found = {name: row for name, row in zip(self.pieces.scripts, total) if row[PIECES]}
    return dict(sorted(found.items(), key=lambda item: -item[1][PIECES]))

  def most_cut(self, most: int) -> list[tuple[tuple[int, ...], int]]:
    """Returns (pieces, count) of the words with the most extra pieces, (pieces - 1) * count, in order."""
    saved = sorted(self.cut.items(), key=lambda item: (-item[1] * (len(item[0]) - 1), item[0]))
    return saved[:most]
