"""From logits to SQuAD's answers, files and figures, and the official scores, by hand."""

import json
import math
import pathlib

import numpy as np
import pytest

from data import squad, vocabulary
from data.errors import DataError, DivergedError, StorageError
from data.squad import Answer, Question
from data.vocabulary import tokenizer_files
from data.vocabulary import train as vocabulary_train
from finetune.squad import answers as squad_answers
from finetune.squad import answers as squad_evaluate
from finetune.squad import windows as squad_features
from finetune.squad import windows as squad_predict
from finetune.squad.windows import Document, Window, text_in_words
from tests.finetune.squad import squad_case

XQUAD = pathlib.Path(__file__).resolve().parents[4] / "shared" / "datasets" / "squad2" / "xquad.en.json.gz"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (*SPECIAL, "who", "?", "ann", "met", "bob", "'", "s", "in", "1895")


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


# Two questions with answers, two without. As they are: exact 0, 1, 0, 1 and F1 1/2, 1, 0, 1.
GOLD = {"a": ["red house"], "b": ["in 1895", "1895"], "c": [], "d": []}
PREDICTED = {"a": "a red barn", "b": "1895.", "c": "x", "d": ""}
ODDS = {"a": -2.0, "b": -1.0, "c": 0.5, "d": 3.0}


def test_normalisation_drops_case_punctuation_articles_and_spaces():
  assert squad_evaluate.normalize_answer("  The  U.S.A.'s (An) apple-pie ") == "usas applepie"
  assert squad_evaluate.normalize_answer("then theatre a") == "then theatre"
  assert squad_evaluate.normalize_answer("«café»") == "«café»"  # only ASCII punctuation


def test_f1_counts_words_as_often_as_both_have_them():
  # Common: red once, sea once. Precision 2/3, recall 2/4.
  assert squad_evaluate.f1("red sea sea dog", "red red sea") == pytest.approx(2 * 2 / (3 + 4))
  # Without words it is whether both have none.
  assert [squad_evaluate.f1(*pair) for pair in (("", ""), ("", "x"), ("x", "the"), ("a", "!"))] == [
    1.0,
    0.0,
    0.0,
    1.0,
  ]


def test_best_of_several_gold_answers_counts():
  raw = squad_evaluate.raw_scores(GOLD, PREDICTED)
  assert raw.exact == {"a": 0, "b": 1, "c": 0, "d": 1}
  assert raw.f1 == {"a": 0.5, "b": 1.0, "c": 0.0, "d": 1.0}
  assert raw.has_answer == {"a": True, "b": True, "c": False, "d": False}


def test_answer_of_which_normalisation_leaves_nothing_is_an_empty_one():
  assert squad_evaluate.raw_scores({"q": ["the"]}, {"q": ""}).exact == {"q": 1}
  assert squad_evaluate.raw_scores({"q": ["the", "red"]}, {"q": ""}).exact == {"q": 0}
  assert squad_evaluate.raw_scores({"q": ["the"]}, {"q": ""}).has_answer == {"q": True}


def test_odds_above_the_threshold_make_the_answer_empty():
  found = squad_evaluate.official_scores(GOLD, PREDICTED, ODDS, threshold=0.0)  # c and d become ""
  assert (found["exact"], found["f1"], found["total"]) == (75.0, 87.5, 4)
  assert (found["HasAns_exact"], found["HasAns_f1"], found["HasAns_total"]) == (50.0, 75.0, 2)
  assert (found["NoAns_exact"], found["NoAns_f1"], found["NoAns_total"]) == (100.0, 100.0, 2)
  at_the_odds_of_c = squad_evaluate.official_scores(GOLD, PREDICTED, ODDS, threshold=0.5)  # not above
  assert (at_the_odds_of_c["exact"], at_the_odds_of_c["f1"]) == (50.0, 62.5)
  everything = squad_evaluate.official_scores(GOLD, PREDICTED, ODDS, threshold=-9.0)
  assert (everything["HasAns_f1"], everything["NoAns_f1"]) == (0.0, 100.0)


def test_best_threshold_is_the_odds_of_the_last_question_answered():
  found = squad_evaluate.official_scores(GOLD, PREDICTED, ODDS, threshold=9.0)
  # All empty: 2 of 4. Then a adds 0 (F1 1/2), b adds 1, c takes 1 away.
  assert (found["best_exact"], found["best_exact_thresh"]) == (75.0, -1.0)
  assert (found["best_f1"], found["best_f1_thresh"]) == (87.5, -1.0)


def test_the_best_threshold_in_special_cases():
  # Without any gain all are empty, and the threshold is 0.
  assert squad_evaluate.best_threshold({"c": 0}, {"c": "x"}, {"c": -4.0}, {"c": False}) == (100.0, 0.0)
  # d passes the threshold before b, but its text is "" anyway: it costs nothing.
  odds = {"d": -3.0, "b": -1.0}
  assert squad_evaluate.best_threshold({"d": 1, "b": 1}, PREDICTED, odds, {"d": False, "b": True}) == (
    100.0,
    -1.0,
  )
  # Passing d changes nothing: the first of equal totals is the best.
  odds = {"b": -1.0, "d": 3.0}
  assert squad_evaluate.best_threshold({"b": 1, "d": 1}, PREDICTED, odds, {"b": True, "d": False}) == (
    100.0,
    -1.0,
  )
  # Questions of equal odds pass one by one in their order, as in the official script.
  scores, has_answer = {"b": 1, "c": 0}, {"b": True, "c": False}
  assert squad_evaluate.best_threshold(scores, PREDICTED, {"b": 1.0, "c": 1.0}, has_answer) == (100.0, 1.0)
  assert squad_evaluate.best_threshold(scores, PREDICTED, {"c": 1.0, "b": 1.0}, has_answer) == (50.0, 0.0)


def test_report_labels_threshold_0_and_best_apart():
  assert squad_evaluate.labelled_scores(GOLD, PREDICTED, ODDS | {"b": 0.1}) == {
    "exact_threshold_0": 50.0,  # b is empty now
    "f1_threshold_0": 62.5,
    "best_exact": 75.0,
    "best_exact_thresh": 0.1,
    "best_f1": 87.5,
    "best_f1_thresh": 0.1,
  }


def test_without_odds_every_text_counts_and_nothing_is_called_best():
  found = squad_evaluate.official_scores(GOLD, PREDICTED, None, threshold=0.0)
  assert (found["exact"], found["f1"]) == (50.0, 62.5)
  assert not [name for name in found if name.startswith("best")]
  alone = {"exact": 100.0, "f1": 100.0, "total": 1}  # groups without a question are left out
  expected = alone | {f"HasAns_{name}": value for name, value in alone.items()}
  assert squad_evaluate.official_scores({"b": ["x"]}, {"b": "x"}, None, threshold=0.0) == expected
  assert squad_evaluate.labelled_scores(GOLD, PREDICTED, None) == {"exact": 50.0, "f1": 62.5}


def test_gold_answers_are_those_of_the_file_and_none_where_there_is_none():
  questions = [
    Question("b", "", "x y", "?", (Answer("x", 0, True), Answer("y", 2, True)), False),
    Question("a", "", "x y", "?", (Answer("x", 0, True),), True),  # a plausible answer, which is none
  ]
  assert list(squad_evaluate.gold_answers(questions).items()) == [("b", ["x", "y"]), ("a", [])]
  for wrong in ([Question("s", "", "x y", "?", (), False)], []):
    with pytest.raises(DataError, match="'s'" if wrong else "SQuAD"):
      squad_evaluate.gold_answers(wrong)


# [CLS] q [SEP] [SEP] three words [SEP]: the document is at positions 4, 5, 6.
WORDS = ("Ann", "met", "Bob")


def window(start, end, *, null=(0.0, 0.0), words=WORDS, first=0):
  """A window of a document of one token a word, and its logits: these, with 9s where no answer may be."""
  outside = np.full(3, 9.0)
  document = Document(list(words), [], np.arange(len(words)), np.arange(len(words)))
  tokens = np.array(["[CLS]", "q", "[SEP]", "[SEP]", *words[first : first + len(start)], "[SEP]"])
  logits = [np.concatenate([[one], outside, values, [9.0]]) for one, values in zip(null, (start, end))]
  return Window(0, first, len(start), 4, document, tokens), *logits


def decode(*windows, can_be_null=True, **settings):
  columns = zip(*windows) if windows else ((), (), ())
  return squad_predict.decode(
    *columns, squad_case.settings(**settings), detokenize=" ".join, can_be_null=can_be_null
  )


def texts(answer):
  return [candidate.text for candidate in answer.n_best]


def masked(*logits):
  """A window whose separators cannot be chosen."""
  made = window(*logits)
  for values in made[1:]:
    values[[1, 2, 3, 7]] = -np.inf
  return made


def test_the_n_best_answers_by_hand():
  apart, same = window([5.0, 0.0, 0.0], [0.0, 0.0, 5.0]), window([1.0, 2.0], [1.0, 2.0], words=("Ann", "Ann"))
  words, low = ("then", *WORDS, "went"), [-9.0, -9.0, -9.0]
  before, after = (window(low, low, words=words, first=first) for first in (0, 2))
  seen = window([9.0, 1.0, 9.0], [0.0, 0.0, 3.0], words=words, first=1)
  flat = window([0.0, 0.0], [0.0, 0.0], null=(-1.0, 0.0))
  later = window([0.0], [0.0], null=(-1.0, 0.0), first=2)
  nulls = window([1.0], [0.0], null=(4.0, 0.0)), window([0.0], [0.0], null=(2.0, 1.0), first=1)
  low_null, no_span = (
    window([1.0], [1.0], null=(5.0, 5.0), words=("Ann",)),
    window([1.0], [1.0], null=(2.0, 3.0)),
  )
  failures = []
  for what, answer, expected, odds in (
    # Bob 4.5, Ann met 3, Ann met Bob 2.5, met 2, null and met Bob 1.5, Ann 1: spans before null.
    ("best span", decode(window([1.0, 0.0, 3.0], [0.0, 2.0, 1.5], null=(0.5, 1.0))),
     ["Bob", "Ann met", "Ann met Bob", "met", "met Bob", "", "Ann"], 1.5 - 4.5),
    ("lengths", decode(apart), ["Ann met Bob", "Ann", "Ann met", "met Bob", "Bob", "met", ""], -10.0),
    ("at most 3", decode(apart, max_answer_length=3), texts(decode(apart)), -10.0),
    ("at most 2", decode(apart, max_answer_length=2), ["Ann", "Ann met", "met Bob", "Bob", "met", ""], -5.0),
    # The first and the last word of the second window have more around them in its neighbours.
    ("context", decode(before, seen, after, max_answer_length=2), ["met Bob", "met", "", "then", "then Ann",
      "Ann", "Ann met", "Bob", "Bob went", "went"], -4.0),
    # With one of each, the separators' 9s hide the document: nothing but null is left.
    ("n best hidden", decode(window([5.0, 0.0, 0.0], [5.0, 0.0, 0.0]), n_best=1), ["empty", ""], 0.0),
    ("n best", decode(masked([5.0, 0.0, 0.0], [5.0, 0.0, 0.0]), n_best=1), ["Ann", ""], -10.0),
    ("null behind", decode(masked([3.0, 2.0, 1.0], [3.0, 2.0, 1.0]), n_best=2), ["Ann", "Ann met", ""], -6.0),
    # Equal scores keep the order of windows, starts and ends.
    ("order", decode(later, flat), ["Bob", "Ann", "Ann met", "met", ""], -1.0),
    ("order too", decode(flat, later), ["Ann", "Ann met", "met", "Bob", ""], -1.0),
    ("a text once", decode(same), ["Ann", "Ann Ann", ""], -4.0),
    ("lowest null", decode(*nulls, n_best=1), ["empty", ""], 3.0),
    ("null first", decode(low_null), ["", "Ann"], 8.0),
    ("1.1", decode(low_null, can_be_null=False), ["Ann"], None),
    ("stand-in", decode(no_span, max_answer_length=0), ["empty", ""], 5.0),
    ("stand-in 1.1", decode(no_span, max_answer_length=0, can_be_null=False), ["empty"], None),
  ):  # fmt: skip
    if (texts(answer), answer.null_odds, answer.text) != (expected, odds, next(filter(None, expected))):
      failures.append(f"{what}: {texts(answer)} {answer.null_odds}")
  assert not failures, "\n".join(failures)
  assert decode(same).n_best[0].start_logit == 2.0  # by its best span
  assert [decode(low_null).text_at(threshold) for threshold in (7.9, 8.0)] == ["", "Ann"]
  assert decode(low_null, can_be_null=False).text_at(0.0) == "Ann"


def test_probabilities_are_the_softmax_over_what_is_kept_and_padding_is_never_read():
  answer = decode(window([1.0], [0.0], words=("Ann",)))
  total = math.exp(1.0) + math.exp(0.0)
  assert [c.probability for c in answer.n_best] == pytest.approx([math.exp(1.0) / total, 1.0 / total])
  assert [(c.start_logit, c.end_logit) for c in answer.n_best] == [(1.0, 0.0), (0.0, 0.0)]
  one, starts, ends = window([1.0, 0.0], [1.0, 0.0])  # behind it there is another word of the document
  padded = one, *(np.append(logits, [99.0] * 30) for logits in (starts, ends))
  assert decode(padded) == decode((one, starts, ends))
  for value in (np.nan, np.inf):
    with pytest.raises(DivergedError):
      decode((one, np.where(np.arange(7) == 2, value, starts), ends))


def in_words(words, word_of, tokens, at, join=" ".join):
  """The text of the span of positions `at`, behind [CLS] and [SEP], in the words of an uncased document."""
  document = Document(words, [], np.arange(len(word_of)), np.asarray(word_of))
  part = Window(0, 0, len(word_of), 2, document, np.array(["[CLS]", "[SEP]", *tokens]))
  logits = np.eye(len(tokens) + 2)[list(at)][:, None]
  options = {"detokenize": join, "lower_case": True}
  return squad_predict.decode([part], *logits, squad_case.settings(), **options).text


def test_text_is_taken_from_the_words_of_the_context_and_may_begin_within_one():
  assert in_words(["Smith's", "(1895)."], [0, 0, 0, 1], ["smith", "'", "s", "1895"], (2, 2)) == "Smith"
  words, pieces, join = ["playing", "chess"], ["play", "##ing", "chess"], tokenizer_files.join_wordpieces
  assert in_words(words, [0, 0, 1], pieces, (3, 4), join) == "ing chess"


def test_prediction_is_aligned_with_the_original_words():
  failures = []
  for predicted, original, lower_case, expected in (
    ("1895", "(1895-1943).", False, "1895"),
    ("1895 - 1943", "(1895-1943).", False, "1895-1943"),
    ("jose", "«José» Maria", True, "José"),
    ("jose", "«José» Maria", False, "«José» Maria"),  # another case: cannot be aligned
    ("Bob", "Ann met", False, "Ann met"),
    ("", "Ann met", False, "Ann met"),
    ("x", "x\u200by z", False, "x\u200by z"),  # a character that the basic tokenisation drops
    ("met Bob", "Ann met Bob", False, "met Bob"),
    ("国", "中国人", False, "国"),
  ):
    found = text_in_words(predicted, original, lower_case=lower_case)
    failures += [f"{predicted} in {original}: {found}"] * (found != expected)
  assert not failures, "\n".join(failures)
