"""Answers to the questions of a SQuAD file, from the logits of windows: decoding, scores, official files."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data import errors, files
from data.squad import Question
from data.vocabulary import Vocabulary
from finetune.squad import decoding
from finetune.squad import scores as squad_scores
from finetune.squad.decoding import Candidate, Prediction
from finetune.squad.windows import Features, Settings

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
      predictions[question.id] = decoding.decode(
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
  gold = squad_scores.gold_answers(questions)
  return squad_scores.labelled_scores(gold, texts(predictions), null_odds(predictions))


def official(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
  """Returns the official script's scores of predictions.json, with null_odds.json as its na-prob file.

  The names are the script's: exact, f1, total, HasAns_*, NoAns_*, and best_* for SQuAD 2.0. The threshold is
  the script's default, 1. Errors as of `scores.gold_answers`.
  """
  gold = squad_scores.gold_answers(questions)
  return squad_scores.evaluate(gold, texts(predictions), null_odds(predictions), threshold=1.0)


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
