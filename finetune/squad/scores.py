"""Scores of extractive question answering: SQuAD 2.0, and 1.1 as the case without unanswerable questions.

Source: the official evaluation script of SQuAD 2.0 with the search for the best threshold, as in COCO-LM
huggingface/utils_squad_evaluate.py and fairseq/data/squad/squad_metrics.py. Scores of a set are percent there
and here.
"""

import collections
import re
import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data.errors import DataError
from data.squad import Question

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
  """Lower case, without ASCII punctuation and the words a, an, the; one space between words."""
  return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(gold: str, prediction: str) -> int:
  """1 if both are the same after normalisation, else 0."""
  return int(normalize_answer(gold) == normalize_answer(prediction))


def f1(gold: str, prediction: str) -> float:
  """F1 of the bags of words after normalisation; if either has none, 1 if both have none, else 0."""
  gold_words, words = normalize_answer(gold).split(), normalize_answer(prediction).split()
  if not gold_words or not words:
    return float(gold_words == words)
  num_same = (collections.Counter(gold_words) & collections.Counter(words)).total()
  if num_same == 0:
    return 0.0
  precision, recall = num_same / len(words), num_same / len(gold_words)
  return 2.0 * precision * recall / (precision + recall)


class RawScores(NamedTuple):
  """Scores of the texts as predicted, before any threshold."""

  exact: dict[str, int]  # id -> 0 or 1
  f1: dict[str, float]  # id -> [0, 1]
  has_answer: dict[str, bool]  # id -> whether the file gives answers


def gold_answers(questions: Sequence[Question]) -> dict[str, list[str]]:
  """{question id: its answers, none if unanswerable}, in order; a set without answers is a DataError."""
  gold: dict[str, list[str]] = {}
  for question in questions:
    if not question.answers and not question.is_impossible:
      raise DataError(
        f"question {question.id!r} has no answer and is not marked as impossible; a set without answers can "
        "be predicted, not scored"
      )
    gold[question.id] = [] if question.is_impossible else [answer.text for answer in question.answers]
  if not gold:
    raise DataError("SQuAD: there is no question to score; check the data file")
  return gold


def raw_scores(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> RawScores:
  """Scores of each question's text against the best of its gold answers, "" where there is none.

  A prediction of "" is "no answer"; every question has one.
  """
  exact, overlap = {}, {}
  for name, answers in gold.items():
    # An answer of which nothing is left ("the") counts for nothing; without any other it is "".
    texts = [text for text in answers if normalize_answer(text)] or [""]
    exact[name] = max(exact_match(text, predictions[name]) for text in texts)
    overlap[name] = max(f1(text, predictions[name]) for text in texts)
  return RawScores(exact, overlap, {name: bool(answers) for name, answers in gold.items()})


def evaluate(
  gold: Mapping[str, Sequence[str]],
  predictions: Mapping[str, str],
  null_odds: Mapping[str, float] | None,
  *,
  threshold: float,
) -> dict[str, float]:
  """The official evaluation: at one threshold, and with the best ones.

  Args:
    null_odds: {question id: score of "no answer" over that of the text}; None for SQuAD 1.1, where every
      text counts as it is and there is no best threshold.
    threshold: a question whose odds are above it counts as answered with "".

  Returns:
    Official names: exact, f1, total, HasAns_* and NoAns_* (where there are such questions), best_exact,
    best_exact_thresh, best_f1, best_f1_thresh. Percent, but thresholds and totals.
  """
  raw = raw_scores(gold, predictions)
  if null_odds is None:
    return _figures(raw.exact, raw.f1, raw.has_answer)
  exact, overlap = (
    {
      name: float(not raw.has_answer[name]) if null_odds[name] > threshold else value
      for name, value in scores.items()
    }
    for scores in (raw.exact, raw.f1)
  )
  figures = _figures(exact, overlap, raw.has_answer)
  for metric, scores in (("exact", raw.exact), ("f1", raw.f1)):
    best, at = best_threshold(scores, predictions, null_odds, raw.has_answer)
    figures |= {f"best_{metric}": best, f"best_{metric}_thresh": at}
  return figures


def labelled_scores(
  gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str], null_odds: Mapping[str, float] | None
) -> dict[str, float]:
  """What a report prints: figures of threshold 0 and figures of the best threshold, each by its own name.

  In percent: exact_threshold_0, f1_threshold_0 (what can be had without seeing the answers), best_exact and
  best_f1 (the papers' figures: the threshold is chosen on the same questions) with their thresholds. Without
  `null_odds` there are `exact` and `f1` alone. Arguments are those of `evaluate`.
  """
  scores = evaluate(gold, predictions, null_odds, threshold=0.0)
  plain = {name: scores[name] for name in ("exact", "f1")}
  if null_odds is None:
    return plain
  best = {name: value for name, value in scores.items() if name.startswith("best_")}
  return {f"{name}_threshold_0": value for name, value in plain.items()} | best


def best_threshold(
  scores: Mapping[str, float],
  predictions: Mapping[str, str],
  null_odds: Mapping[str, float],
  has_answer: Mapping[str, bool],
) -> tuple[float, float]:
  """(Score in percent, threshold) of the highest total, by moving the threshold up over the sorted odds.

  Begins with "no answer" to everything, and threshold 0. Questions of equal odds pass one after the other in
  the order of `null_odds`, and the highest total on the way counts, as in the official script.
  """
  total = best = float(sum(not has for has in has_answer.values()))
  threshold = 0.0
  for name in sorted(null_odds, key=lambda name: null_odds[name]):
    if has_answer[name]:
      total += scores[name]
    elif predictions[name]:
      total -= 1.0
    if total > best:
      best, threshold = total, null_odds[name]
  return 100.0 * best / len(scores), threshold


def _figures(
  exact: Mapping[str, float], overlap: Mapping[str, float], has_answer: Mapping[str, bool]
) -> dict[str, float]:
  groups = {
    "": list(exact),
    "HasAns_": [name for name in exact if has_answer[name]],
    "NoAns_": [name for name in exact if not has_answer[name]],
  }
  figures = {}
  for prefix, names in groups.items():
    if names:
      figures[f"{prefix}exact"] = 100.0 * sum(exact[name] for name in names) / len(names)
      figures[f"{prefix}f1"] = 100.0 * sum(overlap[name] for name in names) / len(names)
      figures[f"{prefix}total"] = len(names)
  return figures
