"""Answers to the questions of a SQuAD file: decoded, scored by EM and F1, and written as official files.

Source: the official evaluation script of SQuAD 2.0 with the search for the best threshold, as in COCO-LM
huggingface/utils_squad_evaluate.py and fairseq/data/squad/squad_metrics.py. Scores of a set are in percent.
"""

import collections
import json
import os
import pathlib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data import errors, files
from data.errors import DataError
from data.squad import Question
from data.vocabulary import Vocabulary
from finetune.squad import windows
from finetune.squad.windows import Candidate, Features, Prediction, Settings

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


def official_scores(
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
  Without `null_odds`, only `exact` and `f1`. Arguments are those of `official_scores`.
  """
  scores = official_scores(gold, predictions, null_odds, threshold=0.0)
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


# Questions in the official development sets, on which the papers' scores are, and in the training sets.
OFFICIAL_QUESTIONS = {"2.0": 11_873, "1.1": 10_570}
OFFICIAL_TRAINING = {"2.0": 130_319, "1.1": 87_599}
_FILES = ("predictions.json", "null_odds.json", "nbest_predictions.json", "predictions_threshold_0.json")
SCORES = "evaluation.json"

Predictions = dict[str, Prediction]  # by the id of the question, in the order of the file


def texts(predictions: Predictions) -> dict[str, str]:
  """Returns {question id: its best answer's text}; "" only for questions without a window."""
  return {name: prediction.text for name, prediction in predictions.items()}


def texts_at(predictions: Predictions, threshold: float) -> dict[str, str]:
  """Returns {question id: answer}, "" if "no answer" leads by more than `threshold` (never in SQuAD 1.1)."""
  return {name: prediction.text_at(threshold) for name, prediction in predictions.items()}


def null_odds(predictions: Predictions) -> dict[str, float] | None:
  """Returns {question id: score of "no answer" minus score of the best text}; None for SQuAD 1.1."""
  odds = {name: prediction.null_odds for name, prediction in predictions.items()}
  return {name: value for name, value in odds.items() if value is not None} or None


def decode(
  questions: Sequence[Question],
  features: Features,
  start_logits: Sequence[np.ndarray],
  end_logits: Sequence[np.ndarray],
  vocabulary: Vocabulary,
  settings: Settings,
  *,
  can_be_null: bool,
  best_only: bool = False,
) -> Predictions:
  """Returns the answers to questions, decoded from the start and end logits of their windows.

  `features` has all windows of the questions, built with `training=False`. Logits, `can_be_null` and
  `best_only` are as in `decoding.decode`, for all windows. The answer to a question without a window (the
  question or its context has no token) is "" with odds of 0, so it is "" at every threshold.

  Raises:
    DivergedError: a logit is not a number.
  """
  of_question: dict[int, list[int]] = {}
  for number, window in enumerate(features.windows):
    of_question.setdefault(window.question, []).append(number)
  predictions: Predictions = {}
  for number, question in enumerate(questions):
    rows = of_question.get(number, [])
    if rows:
      predictions[question.id] = windows.decode(
        [features.windows[row] for row in rows],
        [start_logits[row] for row in rows],
        [end_logits[row] for row in rows],
        settings,
        detokenize=vocabulary.decode,
        lower_case=not vocabulary.cased,
        can_be_null=can_be_null,
        best_only=best_only,
      )
    else:
      odds = 0.0 if can_be_null else None
      predictions[question.id] = Prediction("", odds, [Candidate("", 1.0, 0.0, 0.0)])
  return predictions


def evaluate(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
  """Returns EM and F1 in percent, as `scores.labelled_scores` does; errors as of `scores.gold_answers`."""
  gold = gold_answers(questions)
  return labelled_scores(gold, texts(predictions), null_odds(predictions))


def official(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
  """Returns the official script's scores of predictions.json, with null_odds.json as its na-prob file.

  The names are the script's: exact, f1, total, HasAns_*, NoAns_*, and best_* for SQuAD 2.0. The threshold is
  the script's default, 1. Errors as of `scores.gold_answers`.
  """
  gold = gold_answers(questions)
  return official_scores(gold, texts(predictions), null_odds(predictions), threshold=1.0)


def report_lines(
  scores: Mapping[str, float], questions: Sequence[Question], predictions: Predictions, *, name: str
) -> list[str]:
  """Returns lines for the log: the data, called `name`, and its `evaluate` scores, a line per threshold."""
  version = "1.1" if null_odds(predictions) is None else "2.0"
  num_impossible = sum(question.is_impossible for question in questions)
  lines = [
    f"evaluated on {name}, SQuAD {version}: {errors.counted(len(questions), 'question')}, "
    f"{num_impossible:,} of them without an answer"
  ]
  if version == "1.1":
    return [*lines, f"every question answered: EM {scores['exact']:.2f}  F1 {scores['f1']:.2f}"]
  return [
    *lines,
    f"threshold 0: EM {scores['exact_threshold_0']:.2f}  F1 {scores['f1_threshold_0']:.2f}",
    f"best threshold, chosen on the same questions as in the papers: EM {scores['best_exact']:.2f} at "
    f"{scores['best_exact_thresh']:.3f}  F1 {scores['best_f1']:.2f} at {scores['best_f1_thresh']:.3f}",
  ]


def write_scored(
  directory: str | os.PathLike,
  questions: Sequence[Question],
  predictions: Predictions,
  scores: Mapping[str, Any],
  **more: Any,
) -> list[pathlib.Path]:
  """Writes answers with `write`, and evaluation.json with `scores`, the official scores and `more`."""
  return write(directory, predictions, {**scores, "official": official(questions, predictions), **more})


def write(
  directory: str | os.PathLike, predictions: Predictions, scores: Mapping[str, Any] | None = None
) -> list[pathlib.Path]:
  """Writes answers in SQuAD's official format, and `scores` as evaluation.json; returns the paths.

  predictions.json has the best texts, as in the papers' code; the official script scores it at any threshold
  with null_odds.json as its na-prob file. predictions_threshold_0.json has "" where threshold 0 gives no
  answer, and is scored alone. nbest_predictions.json: {id: [{text, probability, start_logit, end_logit}]}.
  SQuAD 1.1 has no null_odds.json and no thresholds. `scores` are JSON values and may name the run.
  Deletes evaluation.json first and writes it last: if it exists, the other files are complete. Other files of
  an earlier call are removed. A directory that cannot be written is a StorageError.
  """
  directory = pathlib.Path(directory)
  odds = null_odds(predictions)
  contents: dict[str, object] = {
    "predictions.json": texts(predictions),
    "nbest_predictions.json": {
      name: [candidate._asdict() for candidate in prediction.n_best]
      for name, prediction in predictions.items()
    },
  }
  if odds is not None:
    contents["null_odds.json"] = odds
    contents["predictions_threshold_0.json"] = texts_at(predictions, 0.0)
  if scores is not None:
    contents[SCORES] = dict(scores)
  texts_of = {name: json.dumps(value, indent=1, allow_nan=False) + "\n" for name, value in contents.items()}
  with errors.writing(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for name in {*_FILES, SCORES} - set(texts_of) | {SCORES}:
      (directory / name).unlink(missing_ok=True)
    for name, text in texts_of.items():
      files.write_atomically(directory / name, text)
  return [directory / name for name in texts_of]
