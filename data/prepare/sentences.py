"""Paragraphs to clean sentences: repairs of the text, splitting by `sentencex`, cutting of the over-long."""

import collections
import re

import sentencex

MAX_CHARACTERS = 10_000  # of a sentence; longer ones are cut at the last space before, or hard

_REPLACEMENT = "\ufffd"
# Control characters other than tab and line ends, the byte-order mark, and halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair(text: str, counts: collections.Counter) -> str:
  """Returns `text` without characters that no tokeniser should see.

  Invalid bytes (already U+FFFD), lone surrogates and control characters each become one space, and are
  counted in `counts` as 'invalid_characters', 'surrogates' and 'control_characters'.
  """
  if text.isascii() and text.isprintable():
    return text
  text, num_surrogates = _SURROGATE.subn(" ", text)
  text, num_control = _CONTROL.subn(" ", text)
  num_invalid = text.count(_REPLACEMENT)
  if num_invalid:
    text = text.replace(_REPLACEMENT, " ")
  if num_surrogates or num_control or num_invalid:
    counts.update(surrogates=num_surrogates, control_characters=num_control, invalid_characters=num_invalid)
  return text


def split(paragraph: str, counts: collections.Counter) -> list[str]:
  """Splits one paragraph into sentences, spaces tidied, none empty.

  Sentences of more than MAX_CHARACTERS are cut and counted as 'long_sentences_cut'.
  """
  sentences = []
  for sentence in sentencex.segment("en", repair(paragraph, counts)):
    sentence = " ".join(sentence.split())
    if len(sentence) > MAX_CHARACTERS:
      counts["long_sentences_cut"] += 1
      sentences += cut(sentence, MAX_CHARACTERS)
    elif sentence:
      sentences.append(sentence)
  return sentences


def cut(text: str, most_characters: int) -> list[str]:
  """Cuts `text` into pieces of at most `most_characters`, at a space where there is one."""
  pieces = []
  start = 0
  while len(text) - start > most_characters:
    end = text.rfind(" ", start + 1, start + most_characters + 1)
    end = start + most_characters if end == -1 else end
    pieces.append(text[start:end].strip())
    start = end
  pieces.append(text[start:].strip())
  return [piece for piece in pieces if piece]
