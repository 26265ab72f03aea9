"""EM and F1 of extractive question answering: SQuAD 2.0, and 1.1, which has no unanswerable questions.

Source: the official evaluation script of SQuAD 2.0 with the search for the best threshold, as in COCO-LM
huggingface/utils_squad_evaluate.py and fairseq/data/squad/squad_metrics.py. Scores of a set are in percent.
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
  """Returns a text in lower case, without ASCII punctuation and the words a, an, the, with single spaces."""
  return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(gold: str, prediction: str) -> int:
  """Returns 1 if both answers are the same after `normalize_answer`, else 0."""
  return int(normalize_answer(gold) == normalize_answer(prediction))


def f1(gold: str, prediction: str) -> float:
  """Returns the F1 of the normalised words of two answers; without words: 1 if both have none, else 0."""
  gold_words, words = normalize_answer(gold).split(), normalize_answer(prediction).split()
  if not gold_words or not words:
    return float(gold_words == words)
  num_same = (collections.Counter(gold_words) & collections.Counter(words)).total()
  if num_same == 0:
    return 0.0
  precision, recall = num_same / len(words), num_same / len(gold_words)
  return 2.0 * precision * recall / (precision + recall)


class RawScores(NamedTuple):
  """EM and F1 of each question, before a threshold turns answers into "no answer"."""

  exact: dict[str, int]  # id -> 0 or 1
  f1: dict[str, float]  # id -> [0, 1]
  has_answer: dict[str, bool]  # id -> whether the file gives answers


def gold_answers(questions: Sequence[Question]) -> dict[str, list[str]]:
  """Returns {question id: gold answers, [] if unanswerable}; DataError if a question has no gold answer."""
  gold: dict[str, list[str]] = {}
  for question in questions:
    if not question.answers and not question.is_impossible:
      raise DataError(
        f"question {question.id!r} has no gold answer and is not marked as impossible: it cannot be scored; "
        "use a file with answers, such as the official one"
      )
    gold[question.id] = [] if question.is_impossible else [answer.text for answer in question.answers]
  if not gold:
    raise DataError("SQuAD: found no question to score, expected at least one; check the data file")
  return gold


def raw_scores(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> RawScores:
  """Returns EM and F1 of every prediction, against the gold answer that gives the highest score.

  Every question needs a prediction; "" means "no answer", the right one for unanswerable questions.
  """
  exact, overlap = {}, {}
  for name, answers in gold.items():
    # As in the official script, gold answers without words after normalisation ("the") do not count.
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
  """Returns the scores of the official evaluation script: at one threshold, and at the best thresholds.

  Args:
    null_odds: {question id: score of "no answer" minus score of the text}; None for SQuAD 1.1: no threshold
      is applied or searched.
    threshold: if a question's odds are above it, its prediction counts as "".

  Returns:
    Official names: exact, f1, total, HasAns_* and NoAns_* (where there are such questions), best_exact,
    best_exact_thresh, best_f1, best_f1_thresh. All but thresholds and totals are in percent.
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
  """Returns the scores of a report: at threshold 0, and at the thresholds that are best on these questions.

  In percent: exact_threshold_0 and f1_threshold_0, which use no gold answers to choose the threshold;
  best_exact and best_f1, which do, as in the papers. best_exact_thresh and best_f1_thresh are thresholds.
  Without `null_odds`, only `exact` and `f1`. Arguments are those of `evaluate`.
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
  """Returns the highest score of any threshold, in percent, and the threshold.

  Starts with "no answer" to every question and threshold 0, then raises the threshold over the sorted odds.
  Questions with equal odds are added one by one, in the order of `null_odds`, and every total on the way
  counts, as in the official script.
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
