"""From start and end logits of windows to answers: the n best spans of a question and the score of "none".

A question's context is cut into overlapping windows of tokens; each gives logits. Source: COCO-LM
fairseq/data/squad/squad_metrics.py (the decoding of the papers' figures), spec finetuning.md 4.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from tokenizers import normalizers, pre_tokenizers

from data.errors import DataError, DivergedError

NO_SPAN = "empty"  # the text the official code writes where no span is allowed


class Window(NamedTuple):
  """One window of a question's context, without its padding."""

  tokens: Sequence[Any]  # [length], [CLS] first: pieces or ids, whichever `detokenize` takes
  start_logits: np.ndarray  # [length or more] float; what goes beyond the tokens is padding, never read
  end_logits: np.ndarray  # [length or more] float
  word_of: np.ndarray  # [length] int: the word of the context that a token is of, -1 outside the document
  is_max_context: np.ndarray  # [length] bool: no other window shows more around this token


class Candidate(NamedTuple):
  """One answer of the n best."""

  text: str  # "" is "no answer"
  probability: float  # softmax of start + end logit over the n best
  start_logit: float
  end_logit: float


class Answer(NamedTuple):
  """What is decoded for one question."""

  text: str  # the best that is not ""
  null_odds: float | None  # score of "no answer" minus that of `text`; None without `can_be_null`
  n_best: list[Candidate]  # best first; "" may come last out of order

  def text_at(self, threshold: float) -> str:
    """`text`, or "" if "no answer" leads by more than the threshold (0 in the official Hugging Face code)."""
    return "" if self.null_odds is not None and self.null_odds > threshold else self.text


class _Span(NamedTuple):
  window: Window
  start: int
  end: int  # inclusive
  start_logit: float
  end_logit: float


def decode(
  windows: Sequence[Window],
  words: Sequence[str],
  *,
  detokenize: Callable[[list[Any]], str],
  lower_case: bool = False,
  n_best: int = 20,
  max_answer_length: int = 30,
  can_be_null: bool = True,
  best_only: bool = False,
) -> Answer:
  """Decodes one question.

  A span starts and ends in the document part, at positions among the n best starts and ends of its window,
  its start where its window is the one of maximum context. Equal scores keep the order of windows, then
  starts, then ends; equal logits that of positions. Spans of one text count once, by their best.

  Args:
    windows: of the question, in order.
    words: of its context, split as `Window.word_of` counts them.
    detokenize: tokens to text.
    lower_case: whether the pieces are lower-cased (an uncased vocabulary).
    n_best: starts and ends looked at in each window, and answers kept.
    max_answer_length: in tokens.
    can_be_null: SQuAD 2.0: position 0, [CLS], stands for "no answer"; its score is the lowest of the windows.
    best_only: stop at the best text: the same `text` and `null_odds` several times as fast, but `n_best` ends
      there. For scores during training.

  Returns:
    Answer. Where no span is allowed, `NO_SPAN` with logits 0, as in the official code.

  Raises:
    DataError: no window, or arrays shorter than their tokens.
    DivergedError: a logit is NaN or plus infinity.
  """
  for window in windows:
    _check(window)
  if not windows:
    raise DataError("question without a window: its context has no token; leave it out or answer it with ''")
  null = min(((float(window.start_logits[0]), float(window.end_logits[0])) for window in windows), key=sum)
  spans = [span for window in windows for span in _spans(window, n_best, max_answer_length)]
  if can_be_null:
    spans.append(_Span(windows[0], 0, 0, *null))
  kept: dict[str, tuple[float, float]] = {}
  for span in sorted(spans, key=lambda span: span.start_logit + span.end_logit, reverse=True):
    if len(kept) == n_best or (best_only and any(kept)):
      break
    text = _span_text(span, words, detokenize, lower_case) if span.start else ""
    kept.setdefault(text, (span.start_logit, span.end_logit))
  if can_be_null:
    kept.setdefault("", null)
  if not any(kept):
    kept = {NO_SPAN: (0.0, 0.0)} | kept
  return _answer(kept, null if can_be_null else None)


def _answer(kept: dict[str, tuple[float, float]], null: tuple[float, float] | None) -> Answer:
  """From the texts, best first, with their logits."""
  probabilities = special.softmax([start + end for start, end in kept.values()])
  candidates = [
    Candidate(text, float(probability), start, end)
    for (text, (start, end)), probability in zip(kept.items(), probabilities)
  ]
  best = next(candidate for candidate in candidates if candidate.text)
  odds = None if null is None else null[0] + null[1] - best.start_logit - best.end_logit
  return Answer(best.text, odds, candidates)


def _check(window: Window) -> None:
  length = len(window.tokens)
  for name in ("start_logits", "end_logits", "word_of", "is_max_context"):
    found = len(getattr(window, name))
    if found < length or not length:
      raise DataError(f"window of {length} tokens with {found} {name}; every token needs its own")
  logits = np.concatenate([window.start_logits[:length], window.end_logits[:length]])
  if np.isnan(logits).any() or np.isposinf(logits).any():
    raise DivergedError("a start or end logit is not a number or is infinite; lower the learning rate")


def _n_best(logits: np.ndarray, count: int) -> np.ndarray:
  """Positions of the highest logits, highest first, the lower position first of equal ones."""
  return np.argsort(-np.asarray(logits, np.float64), kind="stable")[:count]


def _spans(window: Window, n_best: int, max_answer_length: int) -> Iterator[_Span]:
  length = len(window.tokens)
  starts, ends = (_n_best(logits[:length], n_best) for logits in (window.start_logits, window.end_logits))
  in_document = np.asarray(window.word_of[:length]) >= 0
  can_start = in_document & np.asarray(window.is_max_context[:length], bool)
  size = ends[None, :] - starts[:, None] + 1
  is_allowed = (size >= 1) & (size <= max_answer_length)
  is_allowed &= can_start[starts][:, None] & in_document[ends][None, :]
  for i, j in zip(*np.nonzero(is_allowed)):
    start, end = int(starts[i]), int(ends[j])
    yield _Span(window, start, end, float(window.start_logits[start]), float(window.end_logits[end]))


def _span_text(
  span: _Span, words: Sequence[str], detokenize: Callable[[list[Any]], str], lower_case: bool
) -> str:
  first, last = (int(span.window.word_of[at]) for at in (span.start, span.end))
  predicted = detokenize(list(span.window.tokens[span.start : span.end + 1]))
  original = " ".join(words[first : last + 1])
  return text_in_words(" ".join(predicted.split()), original, lower_case=lower_case)


def text_in_words(predicted: str, original: str, *, lower_case: bool) -> str:
  """The part of the original words that a detokenised span covers: "Smith" of "Smith's".

  Both are compared after BERT's basic tokenisation (spaces around punctuation and Chinese characters; lower
  case without accents if asked for), character by character without the spaces.

  Args:
    predicted: detokenised span, single spaces.
    original: the words it was taken from, single spaces.
    lower_case: whether the pieces are lower-cased.

  Returns:
    A part of `original`; all of it where the two cannot be aligned.

  Source: `get_final_text` of the BERT code, as in COCO-LM fairseq/data/squad/squad_metrics.py.
  """
  normalizer, splitter = _basic_tokenizer(lower_case)
  basic = " ".join(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(original)))
  at = basic.find(predicted) if predicted else -1
  places = [i for i, character in enumerate(original) if character != " "]
  if at < 0 or len(basic.replace(" ", "")) != len(places):
    return original
  first = len(basic[:at].replace(" ", ""))
  last = first + len(predicted.replace(" ", "")) - 1
  return original[places[first] : places[last] + 1]


@functools.cache
def _basic_tokenizer(lower_case: bool):
  normalizer = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=True, strip_accents=lower_case, lowercase=lower_case
  )
  return normalizer, pre_tokenizers.BertPreTokenizer()
