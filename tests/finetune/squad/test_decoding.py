"""n-best decoding, by hand."""

import math

import numpy as np
import pytest

from data.errors import DivergedError
from data.vocabulary import tokenizer_files
from finetune.squad import windows as squad_predict
from finetune.squad.windows import Document, Window, text_in_words
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
