"""SQuAD scores, by hand."""

import pytest

from data.errors import DataError
from data.squad import Answer, Question
from finetune.squad import scores as squad

# Two questions with answers, two without. As they are: exact 0, 1, 0, 1 and F1 1/2, 1, 0, 1.
GOLD = {"a": ["red house"], "b": ["in 1895", "1895"], "c": [], "d": []}
PREDICTED = {"a": "a red barn", "b": "1895.", "c": "x", "d": ""}
ODDS = {"a": -2.0, "b": -1.0, "c": 0.5, "d": 3.0}


def test_normalisation_drops_case_punctuation_articles_and_spaces():
  assert squad.normalize_answer("  The  U.S.A.'s (An) apple-pie ") == "usas applepie"
  assert squad.normalize_answer("then theatre a") == "then theatre"
  assert squad.normalize_answer("«café»") == "«café»"  # only ASCII punctuation


def test_f1_counts_words_as_often_as_both_have_them():
  # Common: red once, sea once. Precision 2/3, recall 2/4.
  assert squad.f1("red sea sea dog", "red red sea") == pytest.approx(2 * 2 / (3 + 4))
  # Without words it is whether both have none.
  assert [squad.f1(*pair) for pair in (("", ""), ("", "x"), ("x", "the"), ("a", "!"))] == [1.0, 0.0, 0.0, 1.0]


def test_best_of_several_gold_answers_counts():
  raw = squad.raw_scores(GOLD, PREDICTED)
  assert raw.exact == {"a": 0, "b": 1, "c": 0, "d": 1}
  assert raw.f1 == {"a": 0.5, "b": 1.0, "c": 0.0, "d": 1.0}
  assert raw.has_answer == {"a": True, "b": True, "c": False, "d": False}


def test_answer_of_which_normalisation_leaves_nothing_is_an_empty_one():
  assert squad.raw_scores({"q": ["the"]}, {"q": ""}).exact == {"q": 1}
  assert squad.raw_scores({"q": ["the", "red"]}, {"q": ""}).exact == {"q": 0}
  assert squad.raw_scores({"q": ["the"]}, {"q": ""}).has_answer == {"q": True}


def test_odds_above_the_threshold_make_the_answer_empty():
  found = squad.evaluate(GOLD, PREDICTED, ODDS, threshold=0.0)  # c and d become ""
  assert (found["exact"], found["f1"], found["total"]) == (75.0, 87.5, 4)
  assert (found["HasAns_exact"], found["HasAns_f1"], found["HasAns_total"]) == (50.0, 75.0, 2)
  assert (found["NoAns_exact"], found["NoAns_f1"], found["NoAns_total"]) == (100.0, 100.0, 2)
  at_the_odds_of_c = squad.evaluate(GOLD, PREDICTED, ODDS, threshold=0.5)  # 0.5 is not above 0.5
  assert (at_the_odds_of_c["exact"], at_the_odds_of_c["f1"]) == (50.0, 62.5)
  everything = squad.evaluate(GOLD, PREDICTED, ODDS, threshold=-9.0)
  assert (everything["HasAns_f1"], everything["NoAns_f1"]) == (0.0, 100.0)


def test_best_threshold_is_the_odds_of_the_last_question_answered():
  found = squad.evaluate(GOLD, PREDICTED, ODDS, threshold=9.0)
  # All empty: 2 of 4. Then a adds 0 (F1 1/2), b adds 1, c takes 1 away.
  assert (found["best_exact"], found["best_exact_thresh"]) == (75.0, -1.0)
  assert (found["best_f1"], found["best_f1_thresh"]) == (87.5, -1.0)


def test_the_best_threshold_in_special_cases():
  # Without any gain all are empty, and the threshold is 0.
  assert squad.best_threshold({"c": 0}, {"c": "x"}, {"c": -4.0}, {"c": False}) == (100.0, 0.0)
  # d passes the threshold before b, but its text is "" anyway: it costs nothing.
  odds = {"d": -3.0, "b": -1.0}
  assert squad.best_threshold({"d": 1, "b": 1}, PREDICTED, odds, {"d": False, "b": True}) == (100.0, -1.0)
  # Passing d changes nothing: the first of equal totals is the best.
  odds = {"b": -1.0, "d": 3.0}
  assert squad.best_threshold({"b": 1, "d": 1}, PREDICTED, odds, {"b": True, "d": False}) == (100.0, -1.0)
  # Questions of equal odds pass one by one in their order, as in the official script.
  scores, has_answer = {"b": 1, "c": 0}, {"b": True, "c": False}
  assert squad.best_threshold(scores, PREDICTED, {"b": 1.0, "c": 1.0}, has_answer) == (100.0, 1.0)
  assert squad.best_threshold(scores, PREDICTED, {"c": 1.0, "b": 1.0}, has_answer) == (50.0, 0.0)


def test_report_labels_threshold_0_and_best_apart():
  assert squad.labelled_scores(GOLD, PREDICTED, ODDS | {"b": 0.1}) == {
    "exact_threshold_0": 50.0,  # b is empty now
    "f1_threshold_0": 62.5,
    "best_exact": 75.0,
    "best_exact_thresh": 0.1,
    "best_f1": 87.5,
    "best_f1_thresh": 0.1,
  }


def test_without_odds_every_text_counts_and_nothing_is_called_best():
  found = squad.evaluate(GOLD, PREDICTED, None, threshold=0.0)
  assert (found["exact"], found["f1"]) == (50.0, 62.5)
  assert not [name for name in found if name.startswith("best")]
  alone = {"exact": 100.0, "f1": 100.0, "total": 1}  # groups without a question are left out
  expected = alone | {f"HasAns_{name}": value for name, value in alone.items()}
  assert squad.evaluate({"b": ["x"]}, {"b": "x"}, None, threshold=0.0) == expected
  assert squad.labelled_scores(GOLD, PREDICTED, None) == {"exact": 50.0, "f1": 62.5}


def test_gold_answers_are_those_of_the_file_and_none_where_there_is_none():
  questions = [
    Question("b", "", "x y", "?", (Answer("x", 0, True), Answer("y", 2, True)), False),
    Question("a", "", "x y", "?", (Answer("x", 0, True),), True),  # a plausible answer, which is none
  ]
  assert list(squad.gold_answers(questions).items()) == [("b", ["x", "y"]), ("a", [])]
  for wrong in ([Question("s", "", "x y", "?", (), False)], []):
    with pytest.raises(DataError, match="'s'" if wrong else "SQuAD"):
      squad.gold_answers(wrong)
