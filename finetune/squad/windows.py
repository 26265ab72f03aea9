"""SQuAD questions as windows of tokens: `[CLS] question [SEP] [SEP] part of the context [SEP]`.

Long contexts are cut into overlapping windows. A window's target is the answer's span, or [CLS] if the answer
is not all in it. Source: COCO-LM fairseq/data/squad/squad_extractor.py, spec finetuning.md 4.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from data.errors import ConfigError, DataError
from data.squad import Question
from data.vocabulary import Vocabulary
from finetune.search.examples import Examples

_WORD = re.compile("[^ \t\r\n\u202f]+")  # the official code splits at no other space of Unicode


@dataclasses.dataclass(frozen=True)
class Settings:
  """How contexts are cut into windows and answers are decoded: sizes in tokens, answers compared."""

  max_length: int  # of a window, special tokens included
  stride: int  # from the start of a window to the start of the next
  max_query_length: int
  num_buckets: int  # most padded lengths; each is compiled
  multiple: int  # padded lengths are multiples of it
  n_best: int  # starts and ends compared in each window, and answers kept for a question
  max_answer_length: int

  def stored(self) -> dict[str, int]:
    """Returns the settings that are saved with a model: all but the padded lengths."""
    return {name: value for name, value in vars(self).items() if name not in ("num_buckets", "multiple")}


def settings_of(config: Any, max_length: int) -> Settings:
  """Returns the settings in a fine-tuning config, for windows of `max_length` tokens."""
  data, asked = config.data, config.squad
  return Settings(
    max_length=max_length,
    stride=asked.stride,
    max_query_length=asked.max_query_length,
    num_buckets=data.buckets,
    multiple=data.bucket_multiple,
    n_best=asked.n_best,
    max_answer_length=asked.max_answer_length,
  )


class Document(NamedTuple):
  """A question's context, split into words and tokens; each word is tokenised on its own."""

  words: list[str]
  starts: list[int]  # [words] index of each word's first character in the context
  ids: np.ndarray  # [tokens] int32
  word_of: np.ndarray  # [tokens] int32 number of each token's word, increasing


class Window(NamedTuple):
  """A question followed by a part of its context, in tokens."""

  question: int  # its index among the questions of the file
  first: int  # index of the part's first token in the document
  count: int  # tokens of the part
  offset: int  # position of the part in the window
  document: Document
  tokens: np.ndarray  # [length] int32 ids, [CLS] first, without padding

  @property
  def part(self) -> slice:
    """The slice of the window's tokens that holds its part of the context."""
    return slice(self.offset, self.offset + self.count)


class Features(NamedTuple):
  """The windows of questions, in the order of the questions, with their targets.

  `examples` has the fields 'start' and 'end' [windows] int32: positions of the first answer's first and last
  token, or 0, the position of [CLS], if the window does not contain it. The token field 'allowed' is bool:
  True at positions where an answer may be, [CLS] and the context.
  """

  examples: Examples
  windows: list[Window]  # of the examples
  dropped: dict[str, str]  # id -> why its answer cannot be located; not used in training
  empty: dict[str, str]  # id -> whether the question or the context has no token; without windows


def build(
  questions: Sequence[Question], vocabulary: Vocabulary, settings: Settings, *, training: bool
) -> Features:
  """Returns questions and their contexts as windows of at most `max_length` tokens.

  `max_length=385` gives the official code's windows for 384: that code counts one special token too few.
  For training, `dropped` questions get no windows, as in the official code.

  Raises:
    ConfigError: `stride` or `max_query_length` is below 1, or `max_length` leaves no room for a context.
    DataError: there is no question.
  """
  _check_room(vocabulary, settings)
  if not questions:
    raise DataError("found no question in the SQuAD file, expected at least one; check the file")
  queries = _encode({question.question for question in questions}, vocabulary)
  contexts = list(dict.fromkeys(question.context for question in questions))
  documents = dict(zip(contexts, tokenise(contexts, vocabulary), strict=True))
  answers = _encode({question.answers[0].text for question in questions if question.answers}, vocabulary)
  made = Features(Examples([], {}, {"allowed": []}), [], {}, {})
  targets: list[tuple[int, int]] = []
  for number, question in enumerate(questions):
    document, query = documents[question.context], queries[question.question][: settings.max_query_length]
    if not len(document.ids) or not query:
      made.empty[question.id] = f"the {'question' if len(document.ids) else 'context'} has no token"
      continue
    span, problem = _answer_span(question, document, answers, vocabulary)
    if problem:
      made.dropped[question.id] = problem
      if training:
        continue
    for window in _windows(number, query, document, vocabulary, settings):
      made.windows.append(window)
      made.examples.ids.append(window.tokens)
      made.examples.token_fields["allowed"].append(_allowed(window))
      targets.append(_target(span, window))
  target = np.asarray(targets, np.int32).reshape(-1, 2)
  made.examples.fields.update(start=target[:, 0], end=target[:, 1])
  return made


def _check_room(vocabulary: Vocabulary, settings: Settings) -> None:
  length, query = settings.max_length, settings.max_query_length
  if settings.stride < 1 or query < 1:
    raise ConfigError(f"squad.stride={settings.stride}, squad.max_query_length={query}: expected 1 or more")
  least = query + vocabulary.separators + 3
  if length < least:
    raise ConfigError(
      f"windows of {length} tokens: questions of up to {query} tokens need windows of at least {least}, or "
      f"no context fits; use longer windows or shorter questions:\n  --config.data.max_length={least}\n"
      f"  --config.squad.max_query_length={max(1, query - least + length)}"
    )


def _encode(texts: set[str], vocabulary: Vocabulary) -> dict[str, list[int]]:
  """Returns {text: token ids}. Sorts the texts, so that the result does not depend on the set's order."""
  ordered = sorted(texts)
  return dict(zip(ordered, vocabulary.encode_batch(ordered), strict=True))


def tokenise(contexts: Sequence[str], vocabulary: Vocabulary) -> list[Document]:
  """Returns contexts split into words, and each word on its own into tokens.

  Words are separated by spaces, tabs, line ends and U+202F. A word may have no token, such as U+200B.
  """
  matches_of = [list(_WORD.finditer(context)) for context in contexts]
  words_of = [[match.group() for match in matches] for matches in matches_of]
  documents = []
  for matches, words, pieces in zip(matches_of, words_of, vocabulary.encode_words(words_of), strict=True):
    documents.append(
      Document(
        words,
        [match.start() for match in matches],
        np.asarray([i for ids in pieces for i in ids], np.int32),
        np.repeat(np.arange(len(words), dtype=np.int32), [len(ids) for ids in pieces]),
      )
    )
  return documents


def _windows(
  number: int, query: list[int], document: Document, vocabulary: Vocabulary, settings: Settings
) -> Iterator[Window]:
  special = vocabulary.special_ids
  head = [special.cls, *query, *[special.sep] * vocabulary.separators]
  for first, count in _cut(len(document.ids), settings.max_length - len(head) - 1, settings.stride):
    ids = np.concatenate([head, document.ids[first : first + count], [special.sep]])
    yield Window(number, first, count, len(head), document, ids.astype(np.int32))


def _cut(total: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
  """Yields (first token, number of tokens) of windows over `total` tokens, until one reaches the end."""
  first = 0
  while first + room < total:
    yield first, room
    first += min(room, stride)
  yield first, total - first


def _allowed(window: Window) -> np.ndarray:
  allowed = np.zeros(len(window.tokens), bool)
  allowed[0] = allowed[window.part] = True
  return allowed


def _target(span: tuple[int, int] | None, window: Window) -> tuple[int, int]:
  """Returns where the window has a span of the document, or (0, 0), [CLS], unless it has all of it."""
  if span is None or span[0] < window.first or span[1] >= window.first + window.count:
    return 0, 0
  shift = window.offset - window.first
  return span[0] + shift, span[1] + shift


def _answer_span(
  question: Question, document: Document, answers: dict[str, list[int]], vocabulary: Vocabulary
) -> tuple[tuple[int, int] | None, str]:
  """Returns the answer's (first, last) token in the document and '', or None and why it is not located.

  Only the first gold answer is located. (The official code does not train on questions with several.)
  """
  if question.is_impossible:
    return None, ""
  if not question.answers:
    return None, "it has no answer and is not marked as impossible"
  text, start = question.answers[0].text, question.answers[0].start
  if not text.strip() or start < 0 or start + len(text) > len(question.context):
    where = f"at character {start} is empty or outside the context of {len(question.context)} characters"
    return None, f"answer {text[:60]!r} {where}"
  # A space belongs to the word before it.
  first, last = (bisect.bisect_right(document.starts, at) - 1 for at in (start, start + len(text) - 1))
  words = " ".join(document.words[first : last + 1]) if first >= 0 else ""
  if " ".join(text.split()) not in words:
    return None, f"answer {text[:60]!r} is not at character {start}, where the context has {words[:60]!r}"
  low, high = np.searchsorted(document.word_of, [first, last + 1])
  if low == high:
    return None, f"answer {text[:60]!r} at character {start} has no token"
  at, size = _find_in_words(document.ids[low:high].tolist(), answers[text], vocabulary)
  return (int(low) + at, int(low) + at + size - 1), ""


def _find_in_words(ids: list[int], answer: list[int], vocabulary: Vocabulary) -> tuple[int, int]:
  """Finds an answer in its words' tokens, `1895` in `(1895-1943)`: (first, number), or else all of them."""
  for at in range(len(ids) - len(answer) + 1):
    if answer and ids[at : at + len(answer)] == answer:
      return at, len(answer)
  if vocabulary.marks_begin and vocabulary.pretokenization == "none":
    # The official code does not split punctuation here, so an answer inside a word has another first piece
    # than the same answer alone: compare the characters of the pieces.
    spelled, wanted = (
      [vocabulary.piece(i).replace(vocabulary.mark, "") for i in part] for part in (ids, answer)
    )
    ends = list(itertools.accumulate(map(len, spelled)))
    starts = [end - len(piece) for end, piece in zip(ends, spelled)]
    text, size = "".join(spelled), len("".join(wanted))
    for first, at in enumerate(starts):
      if size and at + size in ends and text.startswith("".join(wanted), at):
        return first, ends.index(at + size) + 1 - first
  return 0, len(ids)


def max_context(windows: Sequence[Window]) -> list[np.ndarray]:
  """Returns, for each window of one question, [count] bool: the window has the most context around a token.

  The context of a token is min(tokens to its left, to its right) + 0.01 x the window's size. If several
  windows have the most, the first one counts.
  """
  first = np.asarray([window.first for window in windows])[:, None]
  count = np.asarray([window.count for window in windows])[:, None]
  tokens = np.arange(int((first + count).max()))[None, :]
  around = np.minimum(tokens - first, first + count - 1 - tokens)
  best = np.argmax(np.where(around >= 0, around + 0.01 * count, -np.inf), axis=0)
  return [best[w.first : w.first + w.count] == number for number, w in enumerate(windows)]
