"""Extends a vocabulary by the words of a text that take most pieces, and keeps the ids of all others.

A new word has the id of a spare slot, `[unused0]`, or else a new id at the end. WordPiece takes it into its
list. A BPE tokenizer.json takes it into its pieces and gets `ignore_merges`: a word that is a piece is not
made by merges. In both, AutoTokenizer gives the same ids.
"""

import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from data import errors, files, vocabulary
from data.vocabulary import tokenizer_files, tokenizer_json
from data.vocabulary.extension import Extension

logger = logging.getLogger(__name__)

LEAST_TIMES = 2  # that a new word is in the text
Words = Mapping[str, tuple[int, ...]]  # piece of a new word -> its pieces in the old vocabulary


def extend(
  source: pathlib.Path, cut: Sequence[tuple[tuple[int, ...], int]], output: pathlib.Path, *, most: int
) -> vocabulary.Vocabulary:
  """Writes the vocabulary in `source` with at most `most` new words to `output`.

  `cut` has the words of several pieces in a text, (ids of the pieces, times) each, in the order in which they
  are wanted. Taken are the first that occur LEAST_TIMES times and that the tokenizer can read as a whole.

  DataError: this kind of vocabulary cannot take whole words, or the text has none. ConfigError: `output`
  exists and is not empty.
  """
  old = check(source)
  files.refuse_others(output)
  with files.whole_directory(output) as aside:
    candidates = _candidates(old, cut)
    whole = _read_as_whole(_write(aside, source, old, candidates)) if candidates else ()
    words = {word: candidates[word] for word in list(whole)[:most]}
    if not words:
      raise errors.DataError(
        f"{source}: no word of several pieces that it could take is in this text {LEAST_TIMES} times; name a "
        "longer text\n  --source=FILE"
      )
    made = _write(aside, source, old, words)
    if len(_read_as_whole(made)) < len(words):
      raise errors.DataError(f"{source}: its tokenizer reads new words otherwise; expected each as one piece")
    if others := _never_made(source, old):
      logger.warning(
        f"{source}: {len(others)} pieces that its merges never made, such as {others[0]!r}, are now given to "
        "such words too; their rows may be untrained"
      )
  return vocabulary.load(output)


def check(source: pathlib.Path) -> vocabulary.Vocabulary:
  """Loads a vocabulary; DataError if its kind cannot take whole words."""
  words = vocabulary.load(source)
  model = words.kind
  if words.kind == vocabulary.TOKENIZER_JSON:
    model = tokenizer_json.model_of(tokenizer_json.read(source / tokenizer_json.NAME)[0])
  if model in ("sentencepiece", "Unigram"):
    raise errors.DataError(
      f"{source}: {model} chooses pieces by their scores, and a new word has none; expected WordPiece "
      "or BPE in a tokenizer.json"
    )
  return words


def _never_made(source: pathlib.Path, words: vocabulary.Vocabulary) -> list[str]:
  """Returns the pieces of a BPE tokenizer.json that are made of others where a word equals them."""
  if words.kind != vocabulary.TOKENIZER_JSON:
    return []
  tokenizer, content = tokenizer_json.read(source / tokenizer_json.NAME)
  if "merges" not in content["model"] or content["model"].get("ignore_merges"):
    return []
  added = {token["content"] for token in content["added_tokens"]}
  pieces = (piece for piece in content["model"]["vocab"] if piece not in added)
  return [piece for piece in pieces if len(tokenizer.model.tokenize(piece)) > 1]


def _candidates(
  words: vocabulary.Vocabulary, cut: Sequence[tuple[tuple[int, ...], int]]
) -> dict[str, tuple[int, ...]]:
  """Returns {new piece: its pieces} of the words that occur LEAST_TIMES times."""
  wanted: dict[str, tuple[int, ...]] = {}
  known = {words.piece(i) for i in range(words.size)}
  continues = "" if words.marks_begin else words.mark
  for ids, times in cut:
    piece = words.piece(ids[0]) + "".join(words.piece(i).removeprefix(continues) for i in ids[1:])
    if times >= LEAST_TIMES and piece not in known and words.special_ids.unk not in ids:
      wanted.setdefault(piece, ids)
  return wanted


def _read_as_whole(made: vocabulary.Vocabulary) -> list[str]:
  """Returns the new pieces that a text with the word gives."""
  assert made.extends
  new = list(made.extends.pieces)
  texts = [f"a {letters} a" if begins else f"{letters} a" for letters, begins in map(made.letters, new)]
  return [made.piece(i) for i, ids in zip(new, made.encode_batch(texts), strict=True) if i in ids]


def _write(
  directory: pathlib.Path, source: pathlib.Path, old: vocabulary.Vocabulary, words: Words
) -> vocabulary.Vocabulary:
  """Writes the old vocabulary with all of these words."""
  spare = [i for i in range(old.size) if tokenizer_json.SPARE.fullmatch(old.piece(i))]
  new = [*spare, *range(old.size, old.size + len(words))][: len(words)]
  ids = dict(zip(words, new, strict=True))
  special = None
  if old.kind == vocabulary.TOKENIZER_JSON:
    special = {role: old.piece(getattr(old.special_ids, role)) for role in tokenizer_files.PIECES}
    tokenizer, content = tokenizer_json.read(source / tokenizer_json.NAME)
    made = _with_words(content, ids, tokenizer_json.pieces_of(tokenizer))
    text = json.dumps(made, indent=2, ensure_ascii=False)
    (directory / tokenizer_json.NAME).write_text(text, encoding="utf-8")
  else:
    pieces = [old.piece(i) for i in range(old.size)]
    pieces += [""] * (max(new) + 1 - old.size)
    for piece, number in ids.items():
      pieces[number] = piece
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
  extends = Extension(old.digest, old.size, dict(zip(new, words.values(), strict=True)))
  return vocabulary.write_description(
    directory, kind=old.kind, cased=old.cased, special=special, extends=extends
  )


def _with_words(content: dict[str, Any], ids: Mapping[str, int], pieces: Sequence[str]) -> dict[str, Any]:
  """Returns the content of a tokenizer.json with new pieces; those at their ids must be spare slots."""
  taken = {pieces[i] for i in ids.values() if i < len(pieces)}
  model = content["model"]
  added = [token for token in content["added_tokens"] if token["content"] not in taken]
  # The library numbers added tokens that the model lacks from the model's size on, which grows.
  numbers = model["vocab"] | {token["content"]: token["id"] for token in added}
  numbers = {piece: i for piece, i in numbers.items() if piece not in taken} | dict(ids)
  model = model | {"vocab": numbers} | ({"ignore_merges": True} if "merges" in model else {})
  return content | {"model": model, "added_tokens": added}
