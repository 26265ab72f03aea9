"""Splits paragraphs into sentences, and packs tokenised documents into blocks of tokens, the model's inputs.

A block has at most `length` tokens. Except for 'concat' and 'segments', it begins with [CLS], each sentence
ends in [SEP], and an additional [SEP], the border, separates documents. A block of 'segments' is several
[CLS] text [SEP], each a document or whole sentences of a longer one.
"""

import bisect
import collections
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np
import sentencex

MODES = ("complete", "complete_doc", "none", "eos", "concat", "segments")
RUN_ON = ("concat", "segments")  # modes in which no [SEP] separates the sentences of a document
BORDER_SIZE = 1  # tokens; a sentence has at least two, so size 1 means a border
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


def split_sentences(paragraph: str, counts: collections.Counter) -> list[str]:
  """Returns the non-empty sentences of a paragraph, with each run of white space as one space.

  Sentences of more than MAX_CHARACTERS are cut and counted as 'long_sentences_cut'.
  """
  found = []
  for sentence in sentencex.segment("en", repair(paragraph, counts)):
    sentence = " ".join(sentence.split())
    if len(sentence) > MAX_CHARACTERS:
      counts["long_sentences_cut"] += 1
      found += cut(sentence, MAX_CHARACTERS)
    elif sentence:
      found.append(sentence)
  return found


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


def block_slices(sizes: np.ndarray, block: int, mode: str) -> np.ndarray:
  """Cuts a stream of sentences into blocks.

  Args:
    sizes: [sentences] int, tokens of each sentence with its separator; 1 is a border between documents.
    block: most tokens in a block, not counting [CLS].
    mode: 'complete': as many whole sentences as fit, across documents; 'complete_doc': the same within
      one document, borders left out; 'none': every `block` tokens, the last block may be shorter; 'eos':
      each sentence alone; 'concat': as 'none' without the last, shorter block. Not 'segments', whose blocks
      are no pieces of the stream.

  Returns:
    [blocks, 2] int64, start and end of each block in the stream. A sentence longer than `block` is a block.

  Source: fairseq TokenBlockDataset (token_block_utils_fast.pyx) as used by MC-BERT and COCO-LM;
  'concat' is run_mlm_with_contrastive.py of TACO.
  """
  sizes = np.asarray(sizes, dtype=np.int64)
  if mode in ("none", "concat"):
    total = int(sizes.sum())
    if mode == "concat":
      total -= total % block
    starts = np.arange(0, total, block)
    return np.stack([starts, np.minimum(starts + block, total)], axis=1)
  if mode == "eos":
    ends = np.cumsum(sizes)
    return np.stack([ends - sizes, ends], axis=1)
  return _whole_sentences(sizes.tolist(), block, keep_borders=mode == "complete")


def _whole_sentences(sizes: list[int], block: int, *, keep_borders: bool) -> np.ndarray:
  """Fills blocks greedily with whole sentences; without `keep_borders` each document starts a new block."""
  slices = []
  start = end = 0
  for size in sizes:
    is_border = size == BORDER_SIZE and not keep_borders
    if end > start and (is_border or end - start + size > block):
      slices.append((start, end))
      start = end
    end += size
    if is_border:
      start = end
  if end > start:
    slices.append((start, end))
  return np.asarray(slices, dtype=np.int64).reshape(-1, 2)


def cut_sentences(sentences: Sequence[Sequence[int]], most_tokens: int) -> tuple[list[Sequence[int]], int]:
  """Cuts sentences longer than `most_tokens`; returns all pieces and the number of cut sentences."""
  pieces = []
  num_cut = 0
  for sentence in sentences:
    if len(sentence) <= most_tokens:
      pieces.append(sentence)
      continue
    num_cut += 1
    pieces += [sentence[i : i + most_tokens] for i in range(0, len(sentence), most_tokens)]
  return pieces, num_cut


def pack(
  documents: Sequence[Sequence[Sequence[int]]], *, length: int, mode: str, cls: int, sep: int
) -> tuple[list[np.ndarray], int]:
  """Packs documents into records; returns the records and the number of sentences that were cut.

  A document is a list of sentences, each a non-empty sequence of ids without special ids. A record is
  [at most `length`] int64, [CLS] included; blocks of only separators are dropped. `mode` is one of MODES.
  """
  if mode == "concat":
    return _pack_concatenated(documents, length=length, cls=cls, sep=sep), 0
  if mode == "segments":
    return _pack_segments(documents, length=length, cls=cls, sep=sep)
  num_cut = 0
  entries: list[Sequence[int]] = []
  for sentences in documents:
    if mode != "none":
      sentences, cut = cut_sentences(sentences, length - 2)
      num_cut += cut
    if entries and sentences and mode != "eos":
      entries.append(())
    entries += sentences
  sizes = np.fromiter((len(entry) + 1 for entry in entries), np.int64, len(entries))
  flat = np.empty(int(sizes.sum()), np.int64)
  ends = np.cumsum(sizes)
  is_text = np.ones(flat.size, bool)
  is_text[ends - 1] = False
  flat[is_text] = np.fromiter(itertools.chain.from_iterable(entries), np.int64, flat.size - len(entries))
  flat[~is_text] = sep
  records = []
  for start, end in block_slices(sizes, length - 1, mode):
    if is_text[start:end].any():
      records.append(np.concatenate([[cls], flat[start:end]]))
  return records, num_cut


def _pack_concatenated(documents, *, length: int, cls: int, sep: int) -> list[np.ndarray]:
  stream: list[int] = []
  for sentences in documents:
    if sentences:
      stream.append(cls)
      stream += itertools.chain.from_iterable(sentences)
      stream.append(sep)
  flat = np.asarray(stream, np.int64)
  return [flat[start:end] for start, end in block_slices(np.asarray([flat.size]), length, "concat")]


def _pack_segments(documents, *, length: int, cls: int, sep: int) -> tuple[list[np.ndarray], int]:
  """Puts each segment, in the order of the text, into the fullest record that has room for it.

  The longest first would fill records by another 0.1 to 1 % of their tokens, but collect the short ones: in a
  mix of chapters and sentences, records of 512 tokens had up to 137 segments instead of 37.
  """
  records: list[list[int]] = []
  num_cut = 0
  room: list[tuple[int, int]] = []  # free tokens and number of every record that is not full, ascending
  for sentences in documents:
    pieces, cut = cut_sentences(sentences, length - 2)
    num_cut += cut
    for segment in _segments(pieces, length, cls, sep):
      at = bisect.bisect_left(room, (len(segment), 0))
      free, number = room.pop(at) if at < len(room) else (length, len(records))
      if number == len(records):
        records.append([])
      records[number] += segment
      if free > len(segment):
        bisect.insort(room, (free - len(segment), number))
  return [np.asarray(record, np.int64) for record in records], num_cut


def _segments(sentences: list[Sequence[int]], length: int, cls: int, sep: int) -> Iterator[list[int]]:
  """Yields a document as [CLS] text [SEP] of at most `length` tokens, each as many sentences as fit."""
  text: list[int] = []
  for sentence in sentences:
    if text and len(text) + len(sentence) > length - 2:
      yield [cls, *text, sep]
      text = []
    text.extend(sentence)  # not +=, which would add an array
  if text:
    yield [cls, *text, sep]
