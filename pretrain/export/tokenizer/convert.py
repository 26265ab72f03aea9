"""Converts a vocabulary directory to the tokenizer files of transformers, and back.

`AutoTokenizer.from_pretrained` of the folder returns the vocabulary's ids with special pieces around them:
`[CLS] A [SEP]`, and for a pair the separators of `Vocabulary.with_special_ids`. Two things differ:

* Text that spells a special piece, `[MASK]` or `[SEP]`, becomes its id, as users of masked language models
  expect; our vocabularies, and the tokenizer with `split_special_tokens=True`, read it as text. Tokens that a
  user added have their ids in both.
* Both truncate the longer text of a pair. If both texts are too long and the room is odd, the library may
  give the odd token to the other text.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping

from data import vocabulary
from data.errors import ConfigError, DataError, reason
from data.vocabulary import tokenizer_files, tokenizer_json
from data.vocabulary import train as vocabulary_train
from pretrain.export.tokenizer import from_sentencepiece
from pretrain.export.weight_files import read_json

# With this name transformers reads only tokenizer.json, for every model type. The classes of bert, mpnet and
# electra would build their own pipeline, and layoutlmv3's does not accept plain text. sentence-transformers
# calls AutoProcessor, which reads the same name; without it, it would need an image processor for layoutlmv3.
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
# token_type_ids only for models whose second text of a pair is segment 1; others use 0 for every token.
_INPUT_NAMES, _TYPES = ("input_ids", "attention_mask"), ("token_type_ids",)
_ADVICE = (
  "only BERT's WordPiece is read; `data.vocabulary import --tokenizer_json` carries others as they are"
)
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
  vocabulary_directory: str | os.PathLike,
  output: str | os.PathLike,
  *,
  max_length: int,
  pair_segments: bool = False,
) -> None:
  """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json, and the vocabulary's own files.

  A vocabulary that is a tokenizer.json, or was read from one, has it copied byte for byte. For others, the
  tokenizer must first return our ids for difficult texts and for every piece; otherwise DataError, with the
  reason. `max_length` is the
  model's limit, special tokens included.
  """
  source, output = pathlib.Path(vocabulary_directory), pathlib.Path(output)
  words = vocabulary.load(source)
  carried = source / tokenizer_json.NAME
  tokenizer = tokenizer_json.read(carried)[0] if carried.is_file() else _checked(source, words)
  special = {f"{role}_token": tokenizer.id_to_token(i) for role, i in vars(words.special_ids).items()}
  config = {
    "tokenizer_class": TOKENIZER_CLASS,
    "processor_class": TOKENIZER_CLASS,
    "model_max_length": max_length,
    "model_input_names": _INPUT_NAMES + _TYPES * pair_segments,
    "clean_up_tokenization_spaces": False,
    **special,
  }
  output.mkdir(parents=True, exist_ok=True)
  if not carried.is_file():
    tokenizer.post_processor = _template(words, second=int(pair_segments))
    tokenizer.save(str(output / tokenizer_json.NAME))
  for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
    (output / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
  for name in (vocabulary.NAME, *vocabulary.MODEL_FILES[words.kind]):
    if (source / name).is_file():
      shutil.copyfile(source / name, output / name)


def warning(vocabulary_directory: str | os.PathLike) -> str:
  """Returns a warning if no tokenizer.json can represent a vocabulary, with the reason; else ''.

  It takes two seconds for 32,768 pieces. `data.vocabulary import` prints it, days before an export.
  """
  source = pathlib.Path(vocabulary_directory)
  try:
    words = vocabulary.load(source)
    if not (source / tokenizer_json.NAME).is_file():
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
  from tokenizers import AddedToken

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
  tokenizer.post_processor = _template(words, second=0)
  return tokenizer


def _template(words: vocabulary.Vocabulary, *, second: int):
  """Returns the post-processor that writes special pieces; the second text of a pair has segment `second`."""
  from tokenizers import processors

  cls, sep = words.piece(words.special_ids.cls), words.piece(words.special_ids.sep)
  return processors.TemplateProcessing(
    single=f"{cls} $A {sep}",
    pair=" ".join([cls, "$A", *map(words.piece, words.between), f"$B:{second} {sep}:{second}"]),
    special_tokens=[(cls, words.special_ids.cls), (sep, words.special_ids.sep)],
  )


def _special_pieces(words: vocabulary.Vocabulary) -> dict[str, str]:
  return {f"{name}_token": words.piece(getattr(words.special_ids, name)) for name in tokenizer_files.PIECES}


def _ids(words: vocabulary.Vocabulary) -> dict[str, int]:
  return {words.piece(i): i for i in range(words.size)}


def _sentencepiece(directory: pathlib.Path, words: vocabulary.Vocabulary):
  from tokenizers import Tokenizer, decoders

  path = directory / "sp.model"
  proto = from_sentencepiece.read_proto(path)
  processor, _ = tokenizer_files.read_sp_model(path)
  ids = _ids(words)
  of_text, _ = tokenizer_files.ids_of_text(list(ids))
  unknown = words.piece(words.special_ids.unk)
  model = from_sentencepiece.bpe_model(proto, of_text, vocabulary=ids, unknown=unknown, where=str(path))
  tokenizer = Tokenizer(model)
  tokenizer.normalizer = from_sentencepiece.normalizer(processor, proto.normalizer_spec, str(path))
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
  with `dict.txt` (the official code's, so words are split its way) or alone; `tokenizer.json`, as it is, or
  beside a `vocab.txt` if it is BERT's WordPiece; DeBERTa's `spm.model`, as the tokenizer.json that its class
  of transformers makes of it; `vocab.txt` with `tokenizer_config.json`, for whether case is kept. A
  `spm.model` is kept for exports.

  DataError: there is no tokenizer, or an unsupported one, or a special piece is missing. ConfigError:
  `output` exists and is not empty, or a `spm.model` needs transformers.
  """
  folder = pathlib.Path(folder)
  if (folder / vocabulary.NAME).is_file():
    return vocabulary.copy(folder, output)
  if (folder / "sp.model").is_file():
    processor, _ = tokenizer_files.read_sp_model(folder / "sp.model")
    split = "official" if (folder / "dict.txt").is_file() else "none"
    return _import(folder, output, cased=processor.normalize("A") != processor.normalize("a"), split=split)
  path, model = folder / tokenizer_json.NAME, folder / tokenizer_json.SPM
  if model.is_file() or (path.is_file() and not _is_bert(path)):
    with tempfile.TemporaryDirectory() as temporary:
      if not path.is_file():
        path = _of_deberta(folder, pathlib.Path(temporary))
      words = vocabulary_train.import_files(output, tokenizer=str(path), cased=True)
    if model.is_file():
      shutil.copyfile(model, pathlib.Path(output) / tokenizer_json.SPM)
    return words
  pieces, cased = _read_wordpiece(folder)
  with tempfile.TemporaryDirectory() as temporary:
    made = pathlib.Path(temporary) / "vocab.txt"
    made.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    words = _import(folder, output, cased=cased, split="none", vocab_txt=str(made))
  if path.is_file():
    shutil.copyfile(path, pathlib.Path(output) / tokenizer_json.NAME)
  return words


def _of_deberta(folder: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
  """Writes the tokenizer.json that transformers makes of a folder's `spm.model`, and returns its path."""
  tokenizer_files.read_sp_model(folder / tokenizer_json.SPM)
  if importlib.util.find_spec("transformers") is None:
    raise ConfigError(
      f"{folder / tokenizer_json.SPM}: reading it needs transformers\n"
      "  pip install -r requirements-export.txt"
    )
  import transformers

  try:
    tokenizer = transformers.DebertaV2Tokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.save_pretrained(output)
  except Exception as error:  # of any type, on files beside it
    raise DataError(f"{folder}: transformers cannot read its tokenizer ({reason(error)[:120]})") from error
  return output / tokenizer_json.NAME


def _is_bert(path: pathlib.Path) -> bool:
  """Returns whether a tokenizer.json is BERT's WordPiece, without tokens that a user added."""
  opened, content = tokenizer_json.read(path)
  if tokenizer_json.model_of(opened) != "WordPiece":
    return False
  try:
    _read_wordpiece(path.parent)
  except DataError:
    return False
  return not tokenizer_json.own_tokens(content, tokenizer_files.special_names(path.parent))


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


def _read_wordpiece(folder: pathlib.Path) -> tuple[list[str], bool]:
  """Reads a WordPiece `tokenizer.json` or `vocab.txt`: its pieces by id, and whether case is kept.

  Special pieces get our names. Only BERT's pipeline is supported, which our vocabularies have, because a
  model is useless with other ids. DataError: files are missing or damaged, or have another pipeline.
  """
  path, separators = folder / "tokenizer.json", None
  if path.is_file():
    pieces, cased, separators = _from_tokenizer(path)
  elif (folder / "vocab.txt").is_file():
    path = folder / "vocab.txt"
    tokenizer_files.refuse_added(path)
    pieces, cased = tokenizer_files.read_vocab_txt(path), _case(folder)
  else:
    # A library may number the pieces of such a file in its own way.
    others = [f"; write a tokenizer.json of {each.name}\n  {tokenizer_files.to_json(folder)}" for each in
              folder.glob("*.model")]  # fmt: skip
    raise DataError(
      f"{folder}: no tokenizer in it; expected sp.model (with dict.txt), tokenizer.json, or vocab.txt"
      f"{''.join(others[:1])}"
    )
  pieces = _named(path, pieces, tokenizer_files.special_names(folder))
  unwritable = [piece for piece in pieces if not piece or set(piece) & set("\r\n")]
  if unwritable:
    raise DataError(f"{path}: the piece {unwritable[0]!r} cannot be written to a vocab.txt; {_ADVICE}")
  ids = {
    name: tokenizer_files.special_id(path, pieces, piece) for name, piece in tokenizer_files.PIECES.items()
  }
  expected = 2 if pieces[ids["sep"]] == "</s>" else 1  # as in our vocabularies
  if separators not in (None, expected):
    raise DataError(f"{path}: {separators} separators between two texts; expected {expected}; {_ADVICE}")
  return pieces, cased


def _from_tokenizer(path: pathlib.Path) -> tuple[list[str], bool, int | None]:
  """Reads a tokenizer.json: pieces by id, whether it keeps case, the number of [SEP] between two texts."""
  from tokenizers import Tokenizer, models

  try:
    theirs = Tokenizer.from_buffer(tokenizer_files.read_bytes(path))
  except Exception as error:  # the library raises bare Exceptions
    raise DataError(
      f"{path}: not a readable tokenizer ({reason(error)[:80]}); restore the original file"
    ) from error
  by_id = {number: piece for piece, number in theirs.get_vocab().items()}
  if sorted(by_id) != list(range(theirs.get_vocab_size())):  # before to_str(), which counts up to the largest
    raise DataError(
      f"{path}: the ids of its {theirs.get_vocab_size()} pieces are not 0, 1, 2, ...; restore the original "
      "file"
    )
  content = json.loads(theirs.to_str())
  rules = content["normalizer"] or {}
  cased = not rules.get("lowercase")
  if rules.get("strip_accents") == rules.get("lowercase"):
    rules["strip_accents"] = None  # null means the value of lowercase
  ours = Tokenizer(models.WordPiece({}, max_input_chars_per_word=100))
  tokenizer_files.configure_wordpiece(ours, cased=cased)
  expected = json.loads(ours.to_str())
  for part in ("model", "normalizer", "pre_tokenizer"):
    for name in expected[part].keys() - {"vocab", "unk_token"}:
      value = (content[part] or {}).get(name)
      if value != expected[part][name]:
        raise DataError(f"{path}: {part} {name} is {value!r}; expected {expected[part][name]!r}; {_ADVICE}")
  for token in theirs.get_added_tokens_decoder().values():
    if not token.special and not tokenizer_files.own_names([token.content]):
      raise DataError(f"{path}: the added token {token.content[:40]!r} is not supported; {_ADVICE}")
  added = theirs.num_special_tokens_to_add(is_pair=True)  # minus one before the texts and one after them
  return [by_id[number] for number in range(len(by_id))], cased, added - 2 if added else None


def _case(folder: pathlib.Path) -> bool:
  """Reads from tokenizer_config.json whether the `vocab.txt` beside it keeps case."""
  path = folder / "tokenizer_config.json"
  config = read_json(path) if path.is_file() else {}
  if type(config.get("do_lower_case")) is not bool:
    raise DataError(
      f"{path}: no do_lower_case in it, so it is unknown whether vocab.txt keeps case; make a vocabulary "
      "with (and --cased, if it does)\n"
      f"  python -m data.vocabulary import --vocab_txt={folder / 'vocab.txt'}"
    )
  if config.get("strip_accents") not in (None, config["do_lower_case"]):
    raise DataError(f"{path}: strip_accents is {config['strip_accents']!r}; expected null; {_ADVICE}")
  if config.get("tokenize_chinese_chars", True) is not True:
    raise DataError(f"{path}: tokenize_chinese_chars is not true, as expected; {_ADVICE}")
  return not config["do_lower_case"]


def _named(path: pathlib.Path, pieces: list[str], special: Mapping[str, str]) -> list[str]:
  """Renames pieces so that our names of special pieces are at their ids (<s> in MPNet)."""
  renamed = list(pieces)
  for role, piece in special.items():
    if piece not in pieces:
      raise DataError(f"{path}: no piece {piece[:40]!r}, the {role}_token of the files beside it")
    official = tokenizer_files.PIECES[role]
    names = [official, *(alias for alias, name in tokenizer_files.ALIASES.items() if name == official)]
    for name in names[: names.index(piece)] if piece in names else names:
      if name in renamed:
        renamed[renamed.index(name)] = f"[unused {name}]"
    if piece not in names:
      renamed[pieces.index(piece)] = official
  return renamed


if __name__ == "__main__":  # `data.vocabulary import` starts it, because `data` must not import `pretrain`
  print(warning(sys.argv[1]), end="")
