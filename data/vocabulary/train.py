"""Makes vocabularies: trains one on text, imports existing files, or extends one by new words.

An extension takes the words of a text that need most pieces, and keeps the ids of all others. A new word has
the id of a spare slot, `[unused0]`, or else a new id at the end. WordPiece takes it into its list. A BPE
tokenizer.json takes it into its pieces and gets `ignore_merges`: a word that is a piece is not made by
merges. In both, AutoTokenizer gives the same ids.
"""

import collections
import io
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from data import errors, files, vocabulary
from data.vocabulary import tokenizer_files, tokenizer_json

logger = logging.getLogger(__name__)

MAX_TRAINING_CHARACTERS = 200_000_000  # more text changes few pieces, and BPE keeps it in memory
MAX_LETTERS = 1_000  # characters of WordPiece, as in BERT; rarer ones become [UNK]
LEAST_TIMES = 2  # that a new word is in the text
Words = Mapping[str, tuple[int, ...]]  # piece of a new word -> its pieces in the old vocabulary


def default_size(kind: str, *, cased: bool) -> int:
  """Returns the papers' vocabulary size: COCO-LM and AMOS uncased or cased (++); BERT and TACO."""
  if kind == "wordpiece":
    return 30_522
  return 64_000 if cased else 32_768


def train(
  sentences: Iterable[str],
  directory: str | os.PathLike,
  *,
  kind: str,
  cased: bool,
  size: int,
  size_flag: str = "--size",
) -> vocabulary.Vocabulary:
  """Trains a vocabulary on at most MAX_TRAINING_CHARACTERS characters; writes `directory` or nothing.

  Kind 'sentencepiece' is BPE with nmt_nfkc or nmt_nfkc_cf, and every character is a piece. `directory` must
  not exist or must be empty. `size` includes the five special pieces; messages call it `size_flag`.
  DataError: there is no text, or too little for `size` pieces; the message names the largest possible size.
  """
  taken = _Counted(sentences)
  files.refuse_others(directory)
  with files.whole_directory(directory) as aside:
    if kind == "sentencepiece":
      content = _train_sentencepiece(taken, cased=cased, size=size, size_flag=size_flag)
      (aside / "sp.model").write_bytes(content)
    else:
      pieces = _train_wordpiece(taken, cased=cased, size=size, size_flag=size_flag)
      (aside / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    vocabulary.write_description(aside, kind=kind, cased=cased)
  return vocabulary.load(directory)


class _Counted:
  """Yields sentences up to MAX_TRAINING_CHARACTERS, and counts their characters."""

  def __init__(self, sentences: Iterable[str]):
    self._sentences = sentences
    self.characters = 0

  def __iter__(self) -> Iterator[str]:
    for sentence in self._sentences:
      if self.characters > MAX_TRAINING_CHARACTERS:
        return
      self.characters += len(sentence)
      yield sentence


def _train_sentencepiece(sentences: _Counted, *, cased: bool, size: int, size_flag: str) -> bytes:
  import sentencepiece  # here: training WordPiece needs no sentencepiece

  names = tokenizer_files.PIECES
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences),
      model_writer=model,
      model_type="bpe",
      vocab_size=size,
      normalization_rule_name="nmt_nfkc" if cased else "nmt_nfkc_cf",
      character_coverage=1.0,
      max_sentence_length=1 << 20,  # bytes; the default silently drops longer ones
      # The order of the official dictionaries; all but [UNK] are control pieces.
      bos_id=0,
      bos_piece=names["cls"],
      pad_id=1,
      pad_piece=names["pad"],
      eos_id=2,
      eos_piece=names["sep"],
      unk_id=3,
      unk_piece=names["unk"],
      control_symbols=[names["mask"]],
      minloglevel=2,
    )
  except (RuntimeError, ValueError) as error:
    raise errors.DataError(_explain(str(error), sentences, size, size_flag)) from error
  return model.getvalue()


_NO_TEXT = "no usable text to train a vocabulary on (held-out documents do not count: --heldout_fraction)"


def _explain(message: str, sentences: _Counted, size: int, size_flag: str) -> str:
  if not sentences.characters:
    return _NO_TEXT
  limit = re.search(r"value <= (\d+)", message)
  if limit:
    return (
      f"a vocabulary of {size} pieces is too large for {errors.counted(sentences.characters, 'character')} "
      f"of text; the largest possible size is {limit[1]}; use more text, or:\n  {size_flag}={limit[1]}"
    )
  required = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
  if required:
    return (
      f"a vocabulary of {size} pieces is too small: {required[1]} are needed for the special pieces and for "
      f"each character of the text:\n  {size_flag}={required[1]}"
    )
  return f"a vocabulary of {size} pieces cannot be trained: {message.strip().splitlines()[-1]}"


def _train_wordpiece(sentences: _Counted, *, cased: bool, size: int, size_flag: str) -> list[str]:
  from tokenizers import Tokenizer, models, trainers

  names = tokenizer_files.PIECES
  tokenizer = Tokenizer(models.WordPiece(unk_token=names["unk"], max_input_chars_per_word=100))
  tokenizer_files.configure_wordpiece(tokenizer, cased=cased)
  text = list(sentences)
  if not sentences.characters:
    raise errors.DataError(_NO_TEXT)
  special = [names[name] for name in ("pad", "unk", "cls", "sep", "mask")]  # the order of BERT's vocab.txt
  letters, continuations = _letters(tokenizer, text)
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=2,
    # The trainer numbers letters inside words in hash order and breaks ties between merges by these numbers.
    # Given here, sorted, they make training reproducible.
    special_tokens=special + continuations,
    initial_alphabet=letters,
    limit_alphabet=len(letters),
    show_progress=False,
  )
  tokenizer.train_from_iterator(text, trainer)
  pieces = tokenizer.get_vocab()
  if len(pieces) != size:
    is_small = len(pieces) > size
    raise errors.DataError(
      f"a vocabulary of {size} pieces {'is too small for' if is_small else 'does not fit'} "
      f"{errors.counted(sentences.characters, 'character')} of text; the training gave {len(pieces)}; "
      f"{'use' if is_small else 'use more text, or'}:\n  {size_flag}={len(pieces)}"
    )
  return sorted(pieces, key=pieces.__getitem__)


def _letters(tokenizer, text: list[str]) -> tuple[list[str], list[str]]:
  """Returns the MAX_LETTERS most frequent characters, and '##x' for each that also occurs inside a word."""
  words: collections.Counter = collections.Counter()
  for sentence in text:
    normal = tokenizer.normalizer.normalize_str(sentence)
    words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
  letters: collections.Counter = collections.Counter()
  for word, number in words.items():
    for letter in word:
      letters[letter] += number
  kept = set(sorted(letters, key=lambda letter: (-letters[letter], letter))[:MAX_LETTERS])
  inside = {letter for word in words for letter in word[1:]} & kept
  return sorted(kept), [f"##{letter}" for letter in sorted(inside)]


def import_files(
  directory: str | os.PathLike,
  *,
  vocab_txt: str = "",
  sp_model: str = "",
  dictionary: str = "",
  tokenizer: str = "",
  cased: bool,
  pretokenization: str = "none",
) -> vocabulary.Vocabulary:
  """Makes a vocabulary directory from `vocab.txt`, `tokenizer.json`, or `sp.model` (with `dict.txt` or not).

  The config files beside a tokenizer.json name its special pieces.

  DataError: a file is missing, damaged or has no special pieces. ConfigError: none or several kinds of file
  are given, or one without `sp.model` with a pretokenization.
  """
  if [bool(vocab_txt), bool(sp_model), bool(tokenizer)].count(True) != 1:
    raise errors.ConfigError(
      "give one of --vocab_txt=FILE, --tokenizer_json=FILE and --sp_model=FILE (with --dict=FILE if there "
      "is one)"
    )
  if not sp_model and pretokenization != "none":
    raise errors.ConfigError(f"--pretokenization={pretokenization} needs --sp_model; remove the flag")
  if not sp_model and dictionary:
    raise errors.ConfigError(f"--dict={dictionary} needs --sp_model; remove the flag")
  files.refuse_others(directory)
  if vocab_txt or sp_model:
    tokenizer_files.refuse_added(pathlib.Path(vocab_txt or sp_model))
  special = None
  if tokenizer:
    path = pathlib.Path(tokenizer)
    special = tokenizer_json.special_pieces(path, *tokenizer_json.read(path))
  paths = {
    "vocab.txt": vocab_txt,
    "sp.model": sp_model,
    "dict.txt": dictionary,
    tokenizer_json.NAME: tokenizer,
  }
  contents = {name: tokenizer_files.read_bytes(pathlib.Path(path)) for name, path in paths.items() if path}
  with files.whole_directory(directory) as aside:
    for name, content in contents.items():
      (aside / name).write_bytes(content)
    try:
      if sp_model:
        cased = tokenizer_files.read_sp_model(aside / "sp.model")[0].normalize("A").endswith("A")
      kind = "wordpiece" if vocab_txt else vocabulary.TOKENIZER_JSON if tokenizer else "sentencepiece"
      vocabulary.write_description(
        aside, kind=kind, cased=cased, pretokenization=pretokenization, special=special
      )
    except errors.DataError as error:
      message = str(error)
      for name, path in paths.items():
        message = message.replace(str(aside / name), path)
      raise errors.DataError(message) from error
  return vocabulary.load(directory)


def extend(
  source: pathlib.Path, cut: Sequence[tuple[tuple[int, ...], int]], output: pathlib.Path, *, most: int
) -> vocabulary.Vocabulary:
  """Writes the vocabulary in `source` with at most `most` new words to `output`.

  `cut` has the words of several pieces in a text, (ids of the pieces, times) each, in the order in which they
  are wanted. Taken are the first that occur LEAST_TIMES times and that the tokenizer can read as a whole.

  DataError: this kind of vocabulary cannot take whole words, or the text has none. ConfigError: `output`
  exists and is not empty.
  """
  old = check_extendable(source)
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


def check_extendable(source: pathlib.Path) -> vocabulary.Vocabulary:
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
  extends = vocabulary.Extension(old.digest, old.size, dict(zip(new, words.values(), strict=True)))
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
