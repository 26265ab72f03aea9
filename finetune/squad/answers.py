"""Answers to a SQuAD file from the logits of its windows: the official files, scores, and what they mean."""

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

# Questions of the official development sets; the papers' figures are on them.
OFFICIAL_QUESTIONS = {"2.0": 11_873, "1.1": 10_570}
OFFICIAL_TRAINING = {"2.0": 130_319, "1.1": 87_599}
_FILES = ("predictions.json", "null_odds.json", "nbest_predictions.json", "predictions_threshold_0.json")
SCORES = "evaluation.json"

Predictions = dict[str, Prediction]  # by the id of the question, in the order of the file


def texts(predictions: Predictions) -> dict[str, str]:
  """The best texts; "" only for questions without a window."""
  return {name: prediction.text for name, prediction in predictions.items()}


def texts_at(predictions: Predictions, threshold: float) -> dict[str, str]:
  """The texts, but "" where "no answer" leads by more than `threshold`. SQuAD 1.1: the texts."""
  return {name: prediction.text_at(threshold) for name, prediction in predictions.items()}


def null_odds(predictions: Predictions) -> dict[str, float] | None:
  """The scores of "no answer" minus those of the texts; None for SQuAD 1.1."""
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
  """Decodes every question.

  The features are those of all questions, made with `training=False`; logits, `can_be_null` and `best_only`
  are as in `decoding.decode`, for all windows. A question without a window (no token in it or in its context)
  is answered with "", with odds of 0: no threshold changes what it scores.

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
  """Scores in percent, labelled as in `scores.labelled_scores`; errors as of `scores.gold_answers`."""
  gold = squad_scores.gold_answers(questions)
  return squad_scores.labelled_scores(gold, texts(predictions), null_odds(predictions))


def official(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
  """What the official script prints for predictions.json with null_odds.json as its na-prob file.

  Its default threshold is 1. Names as there: exact, f1, total, HasAns_*, NoAns_*; of SQuAD 2.0 best_* too.
  Errors as of `scores.gold_answers`.
  """
  gold = squad_scores.gold_answers(questions)
  return squad_scores.evaluate(gold, texts(predictions), null_odds(predictions), threshold=1.0)


def report_lines(
  scores: Mapping[str, float], questions: Sequence[Question], predictions: Predictions, *, name: str
) -> list[str]:
  """Lines: what was scored, named `name`, and its `evaluate` figures, those of each threshold apart."""
  version = "1.1" if null_odds(predictions) is None else "2.0"
  num_impossible = sum(question.is_impossible for question in questions)
  lines = [
    f"evaluated on {name}, SQuAD {version}: {len(questions):,} questions, {num_impossible:,} of them without "
    "an answer"
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
  """Writes the answers, their scores, the official ones and `more` as `write` does; returns the paths."""
  return write(directory, predictions, {**scores, "official": official(questions, predictions), **more})


def write(
  directory: str | os.PathLike, predictions: Predictions, scores: Mapping[str, Any] | None = None
) -> list[pathlib.Path]:
  """Writes the official files, each whole; evaluation.json goes first and comes last, so it vouches for them.

  predictions.json holds the best texts, as the official code of the papers writes them: with null_odds.json
  as its na-prob file the official script gives the figures of every threshold. predictions_threshold_0.json
  holds "" where threshold 0 says so, to be scored alone. SQuAD 1.1 has no null_odds.json and no thresholds.
  nbest_predictions.json: {id: [{text, probability, start_logit, end_logit}]}. evaluation.json: `scores`, JSON
  values, which may also name the run. Files of an earlier call that this one does not write are removed. A
  directory that cannot be written is a StorageError. Returns the paths of the files.
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
