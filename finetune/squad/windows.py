"""SQuAD questions as windows, `[CLS] question [SEP] [SEP] part of the context [SEP]`, and their answers.

Long contexts are cut into overlapping windows. A window's target is the answer's span, or [CLS] if the answer
is not all in it. A question's answer is decoded from the logits of all its windows: its n best spans and the
score of "no answer". Source: COCO-LM fairseq/data/squad/squad_extractor.py and squad_metrics.py (the papers'
scores are from it), spec finetuning.md 4.
"""

import bisect
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from tokenizers import normalizers, pre_tokenizers

from data.errors import ConfigError, DataError, DivergedError
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
  least = query + len(vocabulary.between) + 3
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
  head = [special.cls, *query, *vocabulary.between]
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


NO_SPAN = "empty"  # written by the official code if no span is allowed


class Candidate(NamedTuple):
  """One of the n best answers to a question, with its probability and logits."""

  text: str  # "" is "no answer"
  probability: float  # softmax of start + end logit over the n best
  start_logit: float
  end_logit: float


class Prediction(NamedTuple):
  """The decoded answer to one question, with its n best candidates."""

  text: str  # the best text that is not ""
  null_odds: float | None  # score of "no answer" minus score of `text`; None without `can_be_null`
  n_best: list[Candidate]  # best first; "" may be last, whatever its score

  def text_at(self, threshold: float) -> str:
    """Returns `text`, or "" if "no answer" leads by more than the threshold (0 in the Hugging Face code)."""
    return "" if self.null_odds is not None and self.null_odds > threshold else self.text


class _Span(NamedTuple):
  window: Window
  start: int
  end: int  # inclusive
  start_logit: float
  end_logit: float


def decode(
  windows: Sequence[Window],
  start_logits: Sequence[np.ndarray],
  end_logits: Sequence[np.ndarray],
  settings: Settings,
  *,
  detokenize: Callable[[list[Any]], str],
  lower_case: bool = False,
  can_be_null: bool = True,
  best_only: bool = False,
) -> Prediction:
  """Returns the answer to one question, decoded from the logits of all its windows.

  A span's start and end are in the context, among the n best starts and ends of their window. Its start is in
  the window with the most context around it (`max_context`). Equal scores keep the order of windows, then
  starts, then ends; equal logits keep the order of positions. A text counts once, with its best span. If no
  span is allowed, the answer is `NO_SPAN` with logits 0, as in the official code.

  Args:
    windows: all windows of the question, in order, at least one.
    start_logits, end_logits: for each window [length or more] float; padding is never read.
    lower_case: whether the pieces are lower-cased (an uncased vocabulary).
    can_be_null: True for SQuAD 2.0: [CLS], position 0, means "no answer"; its lowest score counts.
    best_only: stops at the best text, for scores during training: several times as fast, with the same `text`
      and `null_odds`, but a shorter `n_best`.

  Raises:
    DivergedError: a logit is NaN or plus infinity.
  """
  logits = [_checked(*one) for one in zip(windows, start_logits, end_logits, strict=True)]
  null = min(((float(starts[0]), float(ends[0])) for starts, ends in logits), key=sum)
  spans = [
    span
    for window, pair, has_most_context in zip(windows, logits, max_context(windows))
    for span in _spans(window, *pair, has_most_context, settings)
  ]
  if can_be_null:
    spans.append(_Span(windows[0], 0, 0, *null))
  kept: dict[str, tuple[float, float]] = {}
  for span in sorted(spans, key=lambda span: span.start_logit + span.end_logit, reverse=True):
    if len(kept) == settings.n_best or (best_only and any(kept)):
      break
    text = _span_text(span, detokenize, lower_case) if span.start else ""
    kept.setdefault(text, (span.start_logit, span.end_logit))
  if can_be_null:
    kept.setdefault("", null)
  if not any(kept):
    kept = {NO_SPAN: (0.0, 0.0)} | kept
  return _prediction(kept, null if can_be_null else None)


def _prediction(kept: dict[str, tuple[float, float]], null: tuple[float, float] | None) -> Prediction:
  probabilities = special.softmax([start + end for start, end in kept.values()])
  candidates = [
    Candidate(text, float(probability), start, end)
    for (text, (start, end)), probability in zip(kept.items(), probabilities)
  ]
  best = next(candidate for candidate in candidates if candidate.text)
  odds = None if null is None else null[0] + null[1] - best.start_logit - best.end_logit
  return Prediction(best.text, odds, candidates)


def _checked(window: Window, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the start and end logits of a window without its padding; DivergedError if one is not finite."""
  length = len(window.tokens)
  logits = np.stack([starts[:length], ends[:length]])
  if np.isnan(logits).any() or np.isposinf(logits).any():
    wrong = "a start or end logit is NaN or infinite: training diverged; fine-tune again with a lower rate:"
    raise DivergedError(f"{wrong}\n  --config.search.learning_rates=1e-5")
  return logits[0], logits[1]


def _n_best(logits: np.ndarray, count: int) -> np.ndarray:
  """Returns the positions of the `count` highest logits, highest first; the lower position if equal."""
  return np.argsort(-np.asarray(logits, np.float64), kind="stable")[:count]


def _spans(
  window: Window,
  start_logits: np.ndarray,
  end_logits: np.ndarray,
  has_most_context: np.ndarray,
  settings: Settings,
) -> Iterator[_Span]:
  starts, ends = (_n_best(logits, settings.n_best) for logits in (start_logits, end_logits))
  in_document, can_start = np.zeros((2, len(window.tokens)), bool)
  in_document[window.part] = True
  can_start[window.part] = has_most_context
  size = ends[None, :] - starts[:, None] + 1
  is_allowed = (size >= 1) & (size <= settings.max_answer_length)
  is_allowed &= can_start[starts][:, None] & in_document[ends][None, :]
  for i, j in zip(*np.nonzero(is_allowed)):
    start, end = int(starts[i]), int(ends[j])
    yield _Span(window, start, end, float(start_logits[start]), float(end_logits[end]))


def _span_text(span: _Span, detokenize: Callable[[list[Any]], str], lower_case: bool) -> str:
  window = span.window
  shift = window.first - window.offset  # from positions in the window to tokens of the document
  first, last = window.document.word_of[[span.start + shift, span.end + shift]]
  predicted = detokenize(window.tokens[span.start : span.end + 1].tolist())
  original = " ".join(window.document.words[first : last + 1])
  return text_in_words(" ".join(predicted.split()), original, lower_case=lower_case)


def text_in_words(predicted: str, original: str, *, lower_case: bool) -> str:
  """Returns the characters of the original words that a detokenised span covers: "Smith" of "Smith's".

  Both texts have single spaces. They are compared after BERT's basic tokenisation (spaces around punctuation
  and Chinese characters; with `lower_case`, lower case without accents), without spaces. If they cannot be
  aligned, the result is `original`.

  Source: `get_final_text` of the BERT code, as in COCO-LM fairseq/data/squad/squad_metrics.py.
  """
  normalizer, splitter = _basic_tokenizer(lower_case)
  basic = " ".join(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(original)))
  at = basic.find(predicted) if predicted else -1
  positions = [i for i, character in enumerate(original) if character != " "]
  if at < 0 or len(basic.replace(" ", "")) != len(positions):
    return original
  first = len(basic[:at].replace(" ", ""))
  last = first + len(predicted.replace(" ", "")) - 1
  return original[positions[first] : positions[last] + 1]


@functools.cache
def _basic_tokenizer(lower_case: bool):
  normalizer = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=True, strip_accents=lower_case, lowercase=lower_case
  )
  return normalizer, pre_tokenizers.BertPreTokenizer()
