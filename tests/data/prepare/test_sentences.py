"""Repair, splitting and cutting of text."""

import collections
import re
import sys
import time

from data.prepare import packing


def split(text):
  counts = collections.Counter()
  return packing.split_sentences(text, counts), {name: number for name, number in counts.items() if number}


def test_text_is_split_into_sentences_and_nothing_is_lost():
  found, counts = split("Dr. Smith  came. He left at 3.5 p.m. today!\tWhy? ")
  assert found[0] == "Dr. Smith came."
  assert " ".join(found) == "Dr. Smith came. He left at 3.5 p.m. today! Why?"
  assert not counts
  assert split("") == split(" \t ") == ([], {})


def test_bad_characters_become_spaces_and_are_counted():
  assert split("a\x00b\x07c") == (["a b c"], {"control_characters": 2})
  assert split("\ufeffa\x7fb\x1fc\x9fd") == (["a b c d"], {"control_characters": 4})
  assert split("a\ufffdb") == (["a b"], {"invalid_characters": 1})
  assert split("a\ud800\udfffb") == (["a b"], {"surrogates": 2})
  assert split("\x00\x01") == ([], {"control_characters": 2})


def test_every_space_of_unicode_is_tidied():
  every = [chr(i) for i in range(sys.maxunicode + 1)]
  assert [c for c in every if not c.split()] == re.findall(r"\s", "".join(every))
  assert split("a\u3000\u2028 b\xa0\xa0c\x85")[0] == ["a b c"]


def test_long_sentences_are_cut_at_spaces():
  text = "word " * 5_000
  found, counts = split(text)
  assert counts == {"long_sentences_cut": 1}
  assert [len(sentence) for sentence in found] == [9_999, 9_999, 4_999]  # 2,000 words and the spaces between
  assert " ".join(found) == text.strip()
  assert split("x" * 10_000) == (["x" * 10_000], {})
  cases = [("ab cd ef", 5), ("ab cdefgh ij", 5), ("abcdefgh", 3), (" ab", 2)]
  pieces = [["ab cd", "ef"], ["ab", "cdef", "gh ij"], ["abc", "def", "gh"], ["a", "b"]]
  assert [packing.cut(text, most) for text, most in cases] == pieces


def test_the_time_of_text_without_a_full_stop_grows_as_the_text():
  def seconds(text):
    begin = time.process_time()  # a busy machine does not count
    return split(text)[0], time.process_time() - begin

  for part in ("x" * 30, "xy " * 10):  # three megabytes
    tenth = min(seconds(part * 10_000)[1] for _ in range(3))
    found, whole = seconds(part * 100_000)
    assert whole < 50 * tenth  # 10 where time grows as the text, 100 where it grows as its square
    assert "".join(found).replace(" ", "") == (part * 100_000).replace(" ", "")
