"""Repair, splitting and cutting of text."""

import collections
import re
import sys
import time

import pytest

from data.prepare import sentences


def split(text):
  counts = collections.Counter()
  return sentences.split(text, counts), counts


def test_text_is_split_into_sentences_and_nothing_is_lost():
  found, counts = split("Dr. Smith  came. He left at 3.5 p.m. today!\tWhy? ")
  assert found[0] == "Dr. Smith came."
  assert " ".join(found) == "Dr. Smith came. He left at 3.5 p.m. today! Why?"
  assert not counts


@pytest.mark.parametrize(
  ("text", "repaired", "name", "number"),
  [
    ("a\x00b\x07c", ["a b c"], "control_characters", 2),
    ("\ufeffa", ["a"], "control_characters", 1),
    ("a\ufffdb", ["a b"], "invalid_characters", 1),
    ("a\ud800b", ["a b"], "surrogates", 1),
  ],
)
def test_bad_characters_become_spaces_and_are_counted(text, repaired, name, number):
  found, counts = split(text)
  assert found == repaired
  assert counts[name] == number


def test_every_space_of_unicode_is_tidied():
  every = [chr(i) for i in range(sys.maxunicode + 1)]
  assert [c for c in every if not c.split()] == re.findall(r"\s", "".join(every))
  assert split("a\u3000\u2028 b\xa0\xa0c\x85")[0] == ["a b c"]


@pytest.mark.parametrize("text", ["", " \t ", "\x00\x01"])
def test_no_text_gives_no_sentence(text):
  assert split(text)[0] == []


def test_long_sentences_are_cut_at_spaces():
  found, counts = split("word " * 5_000)
  assert counts["long_sentences_cut"] == 1
  assert max(map(len, found)) <= sentences.MAX_CHARACTERS
  assert " ".join(found) == ("word " * 5_000).strip()


@pytest.mark.parametrize("part", ["x" * 30, "xy " * 10], ids=["no spaces", "spaces"])
def test_the_time_of_text_without_a_full_stop_grows_as_the_text(part):
  def seconds(text):
    begin = time.process_time()  # a busy machine does not count
    return split(text)[0], time.process_time() - begin

  text = part * 330_000  # ten megabytes
  tenth = min(seconds(part * 33_000)[1] for _ in range(3))
  found, whole = seconds(text)
  assert whole < 50 * tenth  # 10 where time grows as the text, 100 where it grows as its square
  assert max(map(len, found)) <= sentences.MAX_CHARACTERS
  assert "".join(found).replace(" ", "") == text.replace(" ", "")
