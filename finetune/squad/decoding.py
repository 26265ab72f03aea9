"""Decodes one question's answer from start and end logits: its n best spans and the score of "no answer".

A question's context is cut into overlapping windows of tokens; the model computes logits for each. Source:
COCO-LM fairseq/data/squad/squad_metrics.py (the papers' scores are from it), spec finetuning.md 4.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from tokenizers import normalizers, pre_tokenizers

from data.errors import DivergedError
from finetune.squad.windows import Settings, Window, max_context

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
