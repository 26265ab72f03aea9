"""From logits to SQuAD's files and figures."""

import json
import pathlib

import numpy as np
import pytest

from data import squad, vocabulary
from data.errors import StorageError
from data.squad import Answer, Question
from data.vocabulary import train as vocabulary_train
from finetune.squad import answers as squad_answers
from finetune.squad import scores as squad_evaluate
from finetune.squad import windows as squad_features
from tests.finetune.squad import squad_case

XQUAD = pathlib.Path(__file__).resolve().parents[4] / "shared" / "datasets" / "squad2" / "xquad.en.json.gz"
PIECES = (
  "[PAD]",
  "[UNK]",
  "[CLS]",
  "[SEP]",
  "[MASK]",
  *("who", "?", "ann", "met", "bob", "'", "s", "in", "1895"),
)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  directory = tmp_path_factory.mktemp("words")
  (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
  return vocabulary.write_description(directory, kind="wordpiece", cased=False)


def question(name, context, *texts):
  answers = tuple(Answer(text, context.index(text), True) for text in texts)
  return Question(name, "", context, "Who?", answers, not texts)


QUESTIONS = [
  question("bob", "Ann met Bob's Bob in 1895.", "Bob"),
  question("year", "Ann met Bob in 1895.", "1895", "in 1895"),
  question("none", "Ann met Bob."),
]
EMPTY = question("empty", " ")


def oracle(features, *, only_null=False):
  """Logits that say what the targets say, padded by 5 of 99."""
  fields, start_logits, end_logits = features.examples.fields, [], []
  for ids, start, end in zip(features.examples.ids, fields["start"], fields["end"]):
    pair = np.zeros((2, len(ids) + 5), np.float32)
    pair[:, len(ids) :] = 99.0
    pair[:, 0] = 10.0 if only_null or start == 0 else -10.0
    if not only_null:
      pair[[0, 1], [start, end]] = 10.0
    start_logits.append(pair[0])
    end_logits.append(pair[1])
  return start_logits, end_logits


def answers(questions, pieces, *, only_null=False, can_be_null=True, longest=30, **options):
  settings = squad_case.settings(max_answer_length=longest, **options)
  features = squad_features.build(questions, pieces, settings, training=False)
  logits = oracle(features, only_null=only_null)
  return squad_answers.decode(questions, features, *logits, pieces, settings, can_be_null=can_be_null)


def with_odds(predictions, odds):
  return {name: prediction._replace(null_odds=odds[name]) for name, prediction in predictions.items()}


def test_right_logits_give_the_words_of_the_context(words):
  found = answers(QUESTIONS, words)
  assert squad_answers.texts_at(found, 0.0) == {"bob": "Bob", "year": "1895", "none": ""}
  assert found["none"].text != "" and found["bob"].null_odds == -40.0 and found["none"].null_odds > 0.0
  # Windows of one question are read together.
  long = question("long", "Ann met " * 30 + "Bob in " + "Ann " * 30, "Bob in")
  found = answers([long, *QUESTIONS], words, max_length=20, stride=4, max_query_length=2)
  assert found["long"].text == "Bob in" and found["none"].text_at(0.0) == ""


def test_figures_of_right_and_of_silent_logits_and_of_version_1(words):
  perfect = squad_answers.evaluate(QUESTIONS, answers(QUESTIONS, words))
  assert perfect["exact_threshold_0"] == perfect["best_exact"] == perfect["best_f1"] == 100.0
  silent = squad_answers.evaluate(QUESTIONS, answers(QUESTIONS, words, only_null=True))
  assert silent["exact_threshold_0"] == pytest.approx(100 / 3)
  found = answers(QUESTIONS[:2], words, only_null=True, can_be_null=False)
  assert squad_answers.null_odds(found) is None and all(squad_answers.texts(found).values())
  assert set(squad_answers.evaluate(QUESTIONS[:2], found)) == {"exact", "f1"}
  # The official fields at the script's own threshold: one answer is lost above 1, two above 0.
  odds = {"bob": 0.5, "year": 1.5, "none": 2.0}
  scores = squad_answers.official(QUESTIONS, with_odds(answers(QUESTIONS, words), odds))
  assert scores["exact"] == pytest.approx(200 / 3) and scores["total"] == 3
  assert (scores["HasAns_exact"], scores["HasAns_total"], scores["NoAns_exact"]) == (50.0, 2, 100.0)
  assert (scores["best_exact"], scores["best_exact_thresh"]) == (100.0, 1.5)


def test_a_question_without_tokens_is_answered_with_nothing_and_counted(words):
  for can_be_null in (True, False):
    found = answers([EMPTY, *QUESTIONS], words, can_be_null=can_be_null)
    assert found["empty"].text == "" and list(found) == ["empty", "bob", "year", "none"]
    assert found["empty"].null_odds == (0.0 if can_be_null else None)
    if can_be_null:
      assert squad_answers.evaluate([EMPTY, *QUESTIONS], found)["best_exact"] == 100.0


def test_the_report_keeps_thresholds_apart(words):
  found = answers(QUESTIONS, words)
  figures = {"exact_threshold_0": 70.0, "f1_threshold_0": 71.0, "best_exact": 80.0, "best_exact_thresh": -1.5}
  figures |= {"best_f1": 81.0, "best_f1_thresh": 2.0}
  first, plain, best = squad_answers.report_lines(figures, QUESTIONS, found, name="mine")
  assert "mine, SQuAD 2.0: 3 questions, 1 " in first and plain.endswith("EM 70.00  F1 71.00")
  assert best.endswith("EM 80.00 at -1.500  F1 81.00 at 2.000")


def test_official_files_are_whole_and_those_of_an_earlier_call_do_not_stay(words, tmp_path):
  found, folder = answers(QUESTIONS, words), tmp_path / "new"
  paths = squad_answers.write(folder, found, {"best_f1": 1.5})
  contents = {path.name: json.loads(path.read_text()) for path in paths}
  assert sorted(path.name for path in folder.iterdir()) == sorted(contents)
  assert contents["predictions.json"] == squad_answers.texts(found)
  assert contents["null_odds.json"] == squad_answers.null_odds(found)
  assert contents["predictions_threshold_0.json"] == {"bob": "Bob", "year": "1895", "none": ""}
  assert contents["evaluation.json"] == {"best_f1": 1.5}
  best = contents["nbest_predictions.json"]["bob"][0]
  assert best == found["bob"].n_best[0]._asdict() and best["text"] == "Bob"
  with pytest.raises(ValueError):  # what cannot be written leaves the old files
    squad_answers.write(folder, with_odds(found, dict.fromkeys(found, float("nan"))))
  assert json.loads((folder / "null_odds.json").read_text()) == squad_answers.null_odds(found)
  (folder / "null_odds.json").unlink()
  (folder / "null_odds.json").mkdir()  # nothing can be renamed to it: no scores beside half an answer
  with pytest.raises(StorageError):
    squad_answers.write(folder, found, {"best_f1": 2.5})
  assert not (folder / "evaluation.json").exists()
  (folder / "null_odds.json").rmdir()
  (folder / "mine.txt").write_text("stays")
  squad_answers.write(folder, answers(QUESTIONS[:2], words, can_be_null=False))
  names = {path.name for path in folder.iterdir()}
  assert names == {"predictions.json", "nbest_predictions.json", "mine.txt"}


@pytest.mark.skipif(not XQUAD.is_file(), reason=f"needs {XQUAD}")
def test_answers_of_a_real_file_come_back(tmp_path):
  questions = squad.read(XQUAD).questions
  assert (len(questions), sum(question.is_impossible for question in questions)) == (1_190, 0)
  text = dict.fromkeys(part for question in questions for part in (question.context, question.question))
  pieces = vocabulary_train.train(text, tmp_path / "v", kind="sentencepiece", cased=False, size=3_000)
  found = answers(questions, pieces, longest=384)
  # What is left: answers that begin or end inside a token, and words that the official alignment cannot take
  # apart because a piece holds punctuation.
  gold = {q.id: [a.text for a in q.answers] for q in questions}
  hits = squad_evaluate.raw_scores(gold, squad_answers.texts_at(found, 0.0)).exact
  assert np.mean(list(hits.values())) >= 0.99
