"""Trains a vocabulary on text, or builds one from existing files."""

import collections
import io
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

from data import errors, files, vocabulary
from data.vocabulary import tokenizer_files, tokenizer_json

MAX_TRAINING_CHARACTERS = 200_000_000  # more text changes few pieces, and BPE keeps it in memory
MAX_LETTERS = 1_000  # characters of WordPiece, as in BERT; rarer ones become [UNK]


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
