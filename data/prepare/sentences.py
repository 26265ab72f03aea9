"""Splits paragraphs into sentences with `sentencex`, after repairs; cuts sentences that are too long."""

import collections
import re

import sentencex

MAX_CHARACTERS = 10_000  # of a sentence; longer ones are cut, if possible at a space

_REPLACEMENT = "\ufffd"
# Control characters except tab and line ends, and the byte-order mark; then lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair(text: str, counts: collections.Counter) -> str:
  """Returns `text` with invalid and control characters replaced by spaces.

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
  """Returns the non-empty sentences of a paragraph, with each run of white space as one space.

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
  """Cuts `text` into pieces of at most `most_characters` characters, if possible at spaces."""
  pieces = []
  start = 0
  while len(text) - start > most_characters:
    end = text.rfind(" ", start + 1, start + most_characters + 1)
    end = start + most_characters if end == -1 else end
    pieces.append(text[start:end].strip())
    start = end
  pieces.append(text[start:].strip())
  return [piece for piece in pieces if piece]
