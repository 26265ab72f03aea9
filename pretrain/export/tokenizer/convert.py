"""Converts a vocabulary directory to the tokenizer files of transformers, and back.

`AutoTokenizer.from_pretrained` of the folder returns the vocabulary's ids with special pieces around them:
`[CLS] A [SEP]`, and for a pair the separators of `Vocabulary.with_special_ids`. Two things differ:

* Text that spells a special piece, `[MASK]` or `[SEP]`, becomes its id, as users of masked language models
  expect; our vocabularies, and the tokenizer with `split_special_tokens=True`, read it as text. Tokens that a
  user added have their ids in both.
* Both truncate the longer text of a pair. If both texts are too long and the room is odd, the library may
  give the odd token to the other text.
"""

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from data import vocabulary
from data.errors import DataError
from data.vocabulary import tokenizer_files, tokenizer_json
from data.vocabulary import train as vocabulary_train
from pretrain.export.tokenizer import bpe, normalizer, read_wordpiece

# With this name transformers reads only tokenizer.json, for every model type. The classes of bert, mpnet and
# electra would build their own pipeline, and layoutlmv3's does not accept plain text. sentence-transformers
# calls AutoProcessor, which reads the same name; without it, it would need an image processor for layoutlmv3.
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
# No token_type_ids: our encoder uses segment 0 for every token.
_INPUT_NAMES = ("input_ids", "attention_mask")
# Texts that some step of the conversion could get wrong.
_PROBES = (
  "",
  " ",
  " \t two  spaces\u00a0here \n",
  "It's 9 o'clock (or 10), isn't it?",
  "É e\u0301 E\u0301 A\u0302\u0323 u\u0308\u0304 \u00fc\u0304 \u0304x X\u0302 \u1ec7 \u00ea\u0323",
  "日本語 ｶﾞ か\u3099 \uff5e \u301c 한국어 \u1112\u1161\u11ab",
  "ﬁ Ⅷ ① ㎏ ½ … ß İ ſ Σς ™",
  "🙂 👩\u200d👩\u200d👧 🇩🇪 👍🏽 \ufe0f a\u200cb\u200d",
  "a\x00b\x01c\x02e\x01\u0301 \x7f\x85\u2028\u2029 \ufeff\u200b\u00ad",
  "\u2581 \u2581x \u2581",
  "שָׁלוֹם السَّلَام हिन्दी ক\u09c7\u09be ไทยกำ",
  "x" * 300 + "\u0301" * 40,
  "ababababa aaaaaaa mississippi",
  "[MASK] [CLS]x[SEP] <s></s> <mask> [UNK] [mask]",
)


def write_tokenizer(
  vocabulary_directory: str | os.PathLike, output: str | os.PathLike, *, max_length: int
) -> None:
  """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json, and the vocabulary's own files.

  A vocabulary that is a tokenizer.json is copied byte for byte. For others, the tokenizer must first return
  our ids for difficult texts and for every piece; otherwise DataError, with the reason. `max_length` is the
  model's limit, special tokens included.
  """
  source, output = pathlib.Path(vocabulary_directory), pathlib.Path(output)
  words = vocabulary.load(source)
  tokenizer = None if words.kind == vocabulary.TOKENIZER_JSON else _checked(source, words)
  special = _special_pieces(words)
  config = {
    "tokenizer_class": TOKENIZER_CLASS,
    "processor_class": TOKENIZER_CLASS,
    "model_max_length": max_length,
    "model_input_names": _INPUT_NAMES,
    "clean_up_tokenization_spaces": False,
    **special,
  }
  output.mkdir(parents=True, exist_ok=True)
  if tokenizer:
    tokenizer.save(str(output / tokenizer_json.NAME))
  for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
    (output / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
  for name in (vocabulary.NAME, *vocabulary.MODEL_FILES[words.kind]):
    if (source / name).is_file():
      shutil.copyfile(source / name, output / name)


def warning(vocabulary_directory: str | os.PathLike) -> str:
  """Returns a warning if no tokenizer.json can represent a vocabulary, with the reason; else ''.

  It takes two seconds for 32,768 pieces. It warns when a vocabulary is chosen, days before an export.
  """
  source = pathlib.Path(vocabulary_directory)
  try:
    words = vocabulary.load(source)
    if words.kind != vocabulary.TOKENIZER_JSON:
      _checked(source, words)
  except DataError as error:
    return f"models with this vocabulary cannot be exported as a class of transformers: {error}"
  return ""


def _checked(source: pathlib.Path, words: vocabulary.Vocabulary):
  """Builds a `tokenizers.Tokenizer` and checks its ids; raises DataError, with a reason, if they differ."""
  try:
    tokenizer = build_tokenizer(source, words)
    _check(words, tokenizer, source)
  except DataError as error:
    raise DataError(f"{error}; export with the vocabulary's own files\n  --to=torch") from error
  return tokenizer


def build_tokenizer(directory: pathlib.Path, words: vocabulary.Vocabulary):
  """Builds the `tokenizers.Tokenizer` of a vocabulary directory; it adds special pieces around texts.

  DataError: the library cannot represent this vocabulary exactly.
  """
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as our vocabularies do
  from tokenizers import AddedToken, processors

  if words.pretokenization != "none":
    raise DataError(
      f"{directory}: its pretokenization {words.pretokenization!r} removes pieces after sentencepiece, which "
      "tokenizer.json does not support; use a layout that keeps sp.model and dict.txt"
    )
  tokenizer = _sentencepiece(directory, words) if words.kind == "sentencepiece" else _wordpiece(words)
  special = _special_pieces(words)
  tokenizer.add_special_tokens(
    [AddedToken(piece, special=True, normalized=False) for piece in special.values()]
  )
  cls, sep = special["cls_token"], special["sep_token"]
  tokenizer.post_processor = processors.TemplateProcessing(
    single=f"{cls} $A {sep}",
    pair=" ".join([cls, "$A", *[sep] * words.separators, "$B", sep]),
    special_tokens=[(cls, words.special_ids.cls), (sep, words.special_ids.sep)],
  )
  return tokenizer


def _special_pieces(words: vocabulary.Vocabulary) -> dict[str, str]:
  return {f"{name}_token": words.piece(getattr(words.special_ids, name)) for name in tokenizer_files.PIECES}


def _ids(words: vocabulary.Vocabulary) -> dict[str, int]:
  return {words.piece(i): i for i in range(words.size)}


def _sentencepiece(directory: pathlib.Path, words: vocabulary.Vocabulary):
  from tokenizers import Tokenizer, decoders

  path = directory / "sp.model"
  proto = bpe.read_proto(path)
  processor, _ = tokenizer_files.read_sp_model(path)
  ids = _ids(words)
  of_text, _ = tokenizer_files.ids_of_text(list(ids))
  unknown = words.piece(words.special_ids.unk)
  model = bpe.bpe_model(proto, of_text, vocabulary=ids, unknown=unknown, where=str(path))
  tokenizer = Tokenizer(model)
  tokenizer.normalizer = normalizer.build(processor, proto.normalizer_spec, str(path))
  steps = [decoders.ByteFallback()] if proto.trainer_spec.byte_fallback else []
  tokenizer.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), *steps, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
  )
  return tokenizer


def _wordpiece(words: vocabulary.Vocabulary):
  from tokenizers import Tokenizer, decoders, models

  unknown = words.piece(words.special_ids.unk)
  tokenizer = Tokenizer(models.WordPiece(_ids(words), unk_token=unknown, max_input_chars_per_word=100))
  tokenizer_files.configure_wordpiece(tokenizer, cased=words.cased)
  tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
  return tokenizer


def _check(words: vocabulary.Vocabulary, tokenizer, where: pathlib.Path) -> None:
  texts = [*_PROBES, *(words.piece(i).replace("▁", " ") for i in range(words.size))]
  for text, ours, theirs in differences(words, tokenizer, texts):
    raise DataError(
      f"{where}: tokenizer.json would give {text[:40]!r} the ids {theirs[:8]}; expected {ours[:8]}; this "
      "vocabulary cannot be exported as tokenizer.json"
    )


def differences(
  words: vocabulary.Vocabulary, tokenizer, texts: list[str]
) -> Iterator[tuple[str, list[int], list[int]]]:
  """Yields (text, our ids, the tokenizer's ids) where they differ; special pieces are read as text."""
  tokenizer.encode_special_tokens = True
  try:
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
  finally:
    tokenizer.encode_special_tokens = False
  for text, ours, encoding in zip(texts, words.encode_batch(texts), encodings, strict=True):
    if ours != encoding.ids:
      yield text, ours, encoding.ids


def read_tokenizer(folder: str | os.PathLike, output: str | os.PathLike) -> vocabulary.Vocabulary:
  """Makes a vocabulary directory from the tokenizer files in a folder.

  The first of these that exists is read: `vocabulary.json` with its files (an export of ours); `sp.model`
  with `dict.txt` (the official code's, so words are split its way) or alone; `tokenizer.json`, as it is or as
  BERT's WordPiece; `vocab.txt` with `tokenizer_config.json`, for whether case is kept.

  DataError: there is no tokenizer, or an unsupported one, or a special piece is missing. ConfigError:
  `output` exists and is not empty.
  """
  folder = pathlib.Path(folder)
  if (folder / vocabulary.NAME).is_file():
    return vocabulary.copy(folder, output)
  if (folder / "sp.model").is_file():
    processor, _ = tokenizer_files.read_sp_model(folder / "sp.model")
    split = "official" if (folder / "dict.txt").is_file() else "none"
    return _import(folder, output, cased=processor.normalize("A") != processor.normalize("a"), split=split)
  path = folder / tokenizer_json.NAME
  opened, content = tokenizer_json.read(path) if path.is_file() else (None, {"added_tokens": []})
  if opened and tokenizer_json.model_of(opened) != "WordPiece":
    return vocabulary_train.import_files(output, tokenizer=str(path), cased=True)
  pieces, cased = read_wordpiece.read(folder)
  # A vocab.txt cannot have them.
  if tokenizer_json.own_tokens(content, tokenizer_files.special_names(folder)):
    return vocabulary_train.import_files(output, tokenizer=str(path), cased=cased)
  with tempfile.TemporaryDirectory() as temporary:
    path = pathlib.Path(temporary) / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return _import(folder, output, cased=cased, split="none", vocab_txt=str(path))


def _import(
  folder: pathlib.Path, output: str | os.PathLike, *, cased: bool, split: str, vocab_txt: str = ""
) -> vocabulary.Vocabulary:
  model, dictionary = folder / "sp.model", folder / "dict.txt"
  return vocabulary_train.import_files(
    output,
    vocab_txt=vocab_txt,
    sp_model="" if vocab_txt else str(model),
    dictionary=str(dictionary) if not vocab_txt and dictionary.is_file() else "",
    cased=cased,
    pretokenization=split,
  )
