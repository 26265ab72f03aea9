"""n-best decoding, by hand."""

import math

import numpy as np
import pytest

from data.errors import DivergedError
from data.vocabulary import tokenizer_files
from finetune.squad import decoding as squad_predict
from finetune.squad.decoding import text_in_words
from finetune.squad.windows import Document, Window
from tests.finetune.squad import squad_case

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


def test_best_span_wins_and_the_odds_are_null_minus_its_score():
  answer = decode(window([1.0, 0.0, 3.0], [0.0, 2.0, 1.5], null=(0.5, 1.0)))
  # Bob 4.5, Ann met 3, Ann met Bob 2.5, met 2, null and met Bob 1.5, Ann 1: spans before null.
  assert texts(answer) == ["Bob", "Ann met", "Ann met Bob", "met", "met Bob", "", "Ann"]
  assert answer.text == "Bob"
  assert answer.null_odds == 1.5 - 4.5


def test_probabilities_are_the_softmax_over_what_is_kept():
  answer = decode(window([1.0], [0.0], words=("Ann",)))
  total = math.exp(1.0) + math.exp(0.0)
  assert [c.probability for c in answer.n_best] == pytest.approx([math.exp(1.0) / total, 1.0 / total])
  assert [(c.start_logit, c.end_logit) for c in answer.n_best] == [(1.0, 0.0), (0.0, 0.0)]


def test_query_separators_and_padding_are_never_chosen():
  one, starts, ends = window([1.0, 0.0], [1.0, 0.0])  # behind it there is another word of the document
  padded = one, *(np.append(logits, [99.0] * 30) for logits in (starts, ends))
  assert decode(padded) == decode((one, starts, ends))
  assert all(max(c.start_logit, c.end_logit) <= 1.0 for c in decode(padded).n_best)


def test_end_is_not_before_start_and_not_too_far():
  apart = window([5.0, 0.0, 0.0], [0.0, 0.0, 5.0])
  assert decode(apart).text == "Ann met Bob"
  assert decode(apart, max_answer_length=3).text == "Ann met Bob"
  assert decode(apart, max_answer_length=2).text == "Ann"
  assert "met Ann" not in texts(decode(apart))


def test_start_must_be_where_its_context_is_largest_and_end_need_not():
  words, low = ("then", *WORDS, "went"), [-9.0, -9.0, -9.0]
  # The first and the last word of the second window have more around them in its neighbours.
  before, after = (window(low, low, words=words, first=first) for first in (0, 2))
  seen = window([9.0, 1.0, 9.0], [0.0, 0.0, 3.0], words=words, first=1)
  assert texts(decode(before, seen, after))[:3] == ["met Bob", "met", ""]


def test_only_the_n_best_starts_and_ends_are_looked_at():
  # With one of each, the separators' 9s hide the document: nothing but null is left.
  answer = decode(window([5.0, 0.0, 0.0], [5.0, 0.0, 0.0]), n_best=1)
  assert texts(answer) == ["empty", ""]
  masked = window([5.0, 0.0, 0.0], [5.0, 0.0, 0.0])
  for logits in masked[1:]:
    logits[[1, 2, 3, 7]] = -np.inf
  assert texts(decode(masked, n_best=1)) == ["Ann", ""]


def test_equal_scores_keep_the_order_of_windows_starts_and_ends():
  flat = window([0.0, 0.0], [0.0, 0.0], null=(-1.0, 0.0))
  later = window([0.0], [0.0], null=(-1.0, 0.0), first=2)
  assert texts(decode(later, flat)) == ["Bob", "Ann", "Ann met", "met", ""]
  assert texts(decode(flat, later)) == ["Ann", "Ann met", "met", "Bob", ""]


def test_a_text_counts_once_by_its_best_span():
  answer = decode(window([1.0, 2.0], [1.0, 2.0], words=("Ann", "Ann")))
  assert texts(answer) == ["Ann", "Ann Ann", ""]
  assert answer.n_best[0].start_logit == 2.0


def test_null_is_the_lowest_of_the_windows_and_added_where_the_n_best_leave_it_out():
  answer = decode(
    window([1.0], [0.0], null=(4.0, 0.0)),
    window([0.0], [0.0], null=(2.0, 1.0), first=1),
  )
  assert answer.null_odds == 3.0 - 1.0
  assert ("", 2.0, 1.0) in [(c.text, c.start_logit, c.end_logit) for c in answer.n_best]
  free = window([3.0, 2.0, 1.0], [3.0, 2.0, 1.0])
  for logits in free[1:]:
    logits[[1, 2, 3, 7]] = -np.inf
  assert texts(decode(free, n_best=2)) == ["Ann", "Ann met", ""]


def test_the_text_is_never_empty_and_a_threshold_makes_it_so():
  answer = decode(window([1.0], [1.0], null=(5.0, 5.0), words=("Ann",)))
  assert texts(answer) == ["", "Ann"]
  assert (answer.text, answer.null_odds) == ("Ann", 8.0)
  assert [answer.text_at(threshold) for threshold in (0.0, 8.0)] == ["", "Ann"]
  version_1 = decode(window([1.0], [1.0], null=(50.0, 5.0), words=("Ann",)), can_be_null=False)
  assert (texts(version_1), version_1.text, version_1.null_odds) == (["Ann"], "Ann", None)
  assert version_1.text_at(0.0) == "Ann"


def test_where_no_span_is_allowed_the_official_stand_in_is_written():
  whole = window([1.0], [1.0], null=(2.0, 3.0))
  answer = decode(whole, max_answer_length=0)
  assert (answer.text, answer.null_odds, texts(answer)) == ("empty", 5.0, ["empty", ""])
  assert texts(decode(whole, max_answer_length=0, can_be_null=False)) == ["empty"]


def in_words(words, word_of, tokens, at, join=" ".join):
  """The text of the span of positions `at`, behind [CLS] and [SEP], in the words of an uncased document."""
  document = Document(words, [], np.arange(len(word_of)), np.asarray(word_of))
  part = Window(0, 0, len(word_of), 2, document, np.array(["[CLS]", "[SEP]", *tokens]))
  logits = np.eye(len(tokens) + 2)[list(at)][:, None]
  options = {"detokenize": join, "lower_case": True}
  return squad_predict.decode([part], *logits, squad_case.settings(), **options).text


def test_text_is_taken_from_the_words_of_the_context_and_may_begin_within_one():
  assert in_words(["Smith's", "(1895)."], [0, 0, 0, 1], ["smith", "'", "s", "1895"], (2, 2)) == "Smith"
  pieces = ["play", "##ing", "chess"]
  assert (
    in_words(["playing", "chess"], [0, 0, 1], pieces, (3, 4), tokenizer_files.join_wordpieces) == "ing chess"
  )


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


def test_logits_that_are_not_finite_are_divergence():
  one, starts, ends = window([1.0], [1.0])
  for value in (np.nan, np.inf):
    with pytest.raises(DivergedError, match="start or end logit"):
      decode((one, np.where(np.arange(6) == 2, value, starts), ends))
