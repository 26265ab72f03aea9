"""Answers to a SQuAD file from the logits of its windows: the official files, scores, and what they mean."""

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, StorageError
from data.squad import Question
from data.vocabulary import Vocabulary
from finetune.squad import decoding as squad_predict
from finetune.squad import scores as squad_evaluate
from finetune.squad import windows as squad_features
from finetune.squad.decoding import Candidate
from finetune.squad.windows import Features

# Questions of the official development sets; the papers' figures are on them.
OFFICIAL_QUESTIONS = {"2.0": 11_873, "1.1": 10_570}
OFFICIAL_TRAINING = {"2.0": 130_319, "1.1": 87_599}
_FILES = ("predictions.json", "null_odds.json", "nbest_predictions.json", "predictions_threshold_0.json")
SCORES = "evaluation.json"


class Predictions(NamedTuple):
  """Answers to all questions of a file, in its order."""

  texts: dict[str, str]  # id -> the best answer; "" only for questions in `empty`
  null_odds: dict[str, float] | None  # id -> score of "no answer" minus that of the text; None for SQuAD 1.1
  n_best: dict[str, list[Candidate]]
  empty: dict[str, str]  # id -> why nothing was asked of the model

  def at(self, threshold: float) -> dict[str, str]:
    """The texts, but "" where "no answer" leads by more than `threshold`. SQuAD 1.1: the texts."""
    if self.null_odds is None:
      return dict(self.texts)
    return {name: "" if self.null_odds[name] > threshold else text for name, text in self.texts.items()}


def decode(
  questions: Sequence[Question],
  features: Features,
  start_logits: Sequence[np.ndarray],
  end_logits: Sequence[np.ndarray],
  vocabulary: Vocabulary,
  *,
  can_be_null: bool,
  n_best: int = 20,
  max_answer_length: int = 30,
  best_only: bool = False,
) -> Predictions:
  """Decodes every question.

  A question without a window (no token in it or in its context) is answered with "", with odds of 0: no
  threshold changes what it scores.

  Args:
    questions: as given to `squad_features.build`.
    features: of it, not for training.
    start_logits: for each window [length or more] float; what lies beyond its tokens is padding.
    end_logits: as `start_logits`.
    vocabulary: the features' own.
    can_be_null: SQuAD 2.0; False: 1.1, where every question has an answer.
    n_best: starts and ends looked at in each window, and answers kept.
    max_answer_length: in tokens.
    best_only: for scores alone, several times as fast: the lists of answers end at the best text.

  Raises:
    DataError: not one pair of logits for each window, or a question that has no window for another reason.
    DivergedError: a logit is not a number.
  """
  if not len(start_logits) == len(end_logits) == len(features.windows):
    raise DataError(
      f"start logits of {len(start_logits)} windows and end logits of {len(end_logits)}; expected those of "
      f"all {len(features.windows)}, in their order"
    )
  of_question: dict[int, list[int]] = {}
  for number, window in enumerate(features.windows):
    of_question.setdefault(window.question, []).append(number)
  made = Predictions({}, {} if can_be_null else None, {}, dict(features.empty))
  for number, question in enumerate(questions):
    answer = squad_predict.Answer("", 0.0, [Candidate("", 1.0, 0.0, 0.0)])
    if number in of_question:
      answer = squad_predict.decode(
        _windows(features, of_question[number], start_logits, end_logits),
        features.documents[features.document_of[number]].words,
        detokenize=vocabulary.decode,
        lower_case=not vocabulary.cased,
        n_best=n_best,
        max_answer_length=max_answer_length,
        can_be_null=can_be_null,
        best_only=best_only,
      )
    elif question.id not in features.empty:
      raise DataError(f"question {question.id!r} has no window; make the features without training=True")
    made.texts[question.id], made.n_best[question.id] = answer.text, answer.n_best
    if made.null_odds is not None:
      made.null_odds[question.id] = float(answer.null_odds or 0.0)
  return made


def _windows(
  features: Features, numbers: list[int], start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray]
) -> list[squad_predict.Window]:
  """One question's windows as the decoder wants them."""
  windows = [features.windows[number] for number in numbers]
  word_of_token = features.documents[features.document_of[windows[0].question]].word_of
  made = []
  for number, window, is_best in zip(numbers, windows, squad_features.max_context(windows)):
    ids = features.examples.ids[number].tolist()
    place = slice(window.offset, window.offset + window.count)
    word_of, is_max_context = np.full(len(ids), -1), np.zeros(len(ids), bool)
    word_of[place] = word_of_token[window.first : window.first + window.count]
    is_max_context[place] = is_best
    made.append(squad_predict.Window(ids, start_logits[number], end_logits[number], word_of, is_max_context))
  return made


def evaluate(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
  """Scores in percent, labelled as in `squad_evaluate.labelled_scores`.

  Raises:
    DataError: a question has no answer and is not marked as impossible (a test set), or ids differ.
  """
  return squad_evaluate.labelled_scores(_gold(questions), predictions.texts, predictions.null_odds)


def official(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
  """What the official script prints for predictions.json with null_odds.json as its na-prob file.

  Its default threshold is 1. Names as there: exact, f1, total, HasAns_*, NoAns_*; of SQuAD 2.0 best_* too.

  Raises:
    DataError: as `evaluate`.
  """
  gold, threshold = _gold(questions), 1.0
  return squad_evaluate.evaluate(gold, predictions.texts, predictions.null_odds, threshold=threshold)


def _gold(questions: Sequence[Question]) -> dict[str, list[str]]:
  gold: dict[str, list[str]] = {}
  for question in questions:
    if not question.answers and not question.is_impossible:
      raise DataError(
        f"question {question.id!r} has no answer and is not marked as impossible; a set without answers can "
        "be predicted, not scored"
      )
    gold[question.id] = [] if question.is_impossible else [answer.text for answer in question.answers]
  return gold


def report_lines(
  scores: Mapping[str, float], questions: Sequence[Question], predictions: Predictions, *, name: str
) -> list[str]:
  """What was evaluated on what, the figures at threshold 0 apart from those at the best threshold.

  Args:
    scores: of `evaluate`.
    questions: that were scored.
    predictions: of them.
    name: of the data.
  """
  version = "1.1" if predictions.null_odds is None else "2.0"
  official = OFFICIAL_QUESTIONS[version]
  set_name = f"the official development set ({official:,})"
  which = f"as many as {set_name}" if len(questions) == official else f"not {set_name}"
  num_impossible = sum(question.is_impossible for question in questions)
  lines = [
    f"evaluated on {name}, SQuAD {version}: {len(questions):,} questions, {num_impossible:,} of them without "
    f"an answer; {which}"
  ]
  if predictions.empty:
    lines.append(f'answered with "" for want of tokens: {len(predictions.empty):,} questions')
  if version == "1.1":
    return [*lines, f"every question answered: EM {scores['exact']:.2f}  F1 {scores['f1']:.2f}"]
  return [
    *lines,
    f"threshold 0: EM {scores['exact_threshold_0']:.2f}  F1 {scores['f1_threshold_0']:.2f}",
    f"best threshold, chosen on the same questions as in the papers: EM {scores['best_exact']:.2f} at "
    f"{scores['best_exact_thresh']:.3f}  F1 {scores['best_f1']:.2f} at {scores['best_f1_thresh']:.3f}",
  ]


def write(
  directory: str | os.PathLike, predictions: Predictions, scores: Mapping[str, Any] | None = None
) -> list[pathlib.Path]:
  """Writes the official files; all are complete before the first takes its place.

  predictions.json holds the best texts, as the official code of the papers writes them: with null_odds.json
  as its na-prob file the official script gives the figures of every threshold. predictions_threshold_0.json
  holds "" where threshold 0 says so, for whoever scores it alone. SQuAD 1.1 has no null_odds.json and no
  thresholds. nbest_predictions.json: {id: [{text, probability, start_logit, end_logit}]}. evaluation.json:
  `scores`, JSON values, which may also say of which run. Those of an earlier call that do not belong to this
  one are removed.

  Returns:
    Paths of the files.

  Raises:
    StorageError: the directory cannot be written.
  """
  directory = pathlib.Path(directory)
  contents: dict[str, object] = {"predictions.json": predictions.texts}
  contents["nbest_predictions.json"] = {
    name: [candidate._asdict() for candidate in found] for name, found in predictions.n_best.items()
  }
  if predictions.null_odds is not None:
    contents["null_odds.json"] = predictions.null_odds
    contents["predictions_threshold_0.json"] = predictions.at(0.0)
  if scores is not None:
    contents[SCORES] = dict(scores)
  try:
    directory.mkdir(parents=True, exist_ok=True)
    aside = pathlib.Path(tempfile.mkdtemp(prefix=".squad.", dir=directory))
    try:
      for name, content in contents.items():
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        (aside / name).write_text(text, encoding="utf-8")
      for name in {*_FILES, SCORES} - set(contents):
        (directory / name).unlink(missing_ok=True)
      return [(aside / name).replace(directory / name) for name in contents]
    finally:
      shutil.rmtree(aside, ignore_errors=True)
  except OSError as error:
    raise StorageError(
      f"{directory}: cannot write the predictions ({error.strerror or error}); free or name another directory"
    ) from error
