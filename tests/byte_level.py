"""Makes tokenizer files of ModernBERT's form: byte-level BPE, added tokens, spare slots; no network."""

import json
import pathlib
from collections.abc import Sequence

from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

from data import vocabulary
from data.vocabulary import train as vocabulary_train
from tests.data.conftest import make_documents

SPECIAL = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
SPARE = 5  # slots [unused0], [unused1], ...
TEXTS = (
  "The people  make time, and\n\nmore (than two) words.",
  "Où est passée la clé? cafe\u0301 — 健太 😀.",
  "a[SEP]b [MASK] [CLS][PAD] [UNK] [unused0] [unused4]x",
  "  two   spaces\tand  a tab ",
  "",
  "it's 1895-1943",
)


def sentences() -> list[str]:
  """Returns the text on which the pieces are trained."""
  return [paragraph for document in make_documents(100, seed=9) for paragraph in document]


def tokenizer(*, size: int = 400, add_prefix_space: bool = False, text: Sequence[str] = ()) -> Tokenizer:
  """Returns a tokenizer of `size` pieces, two added ones, the special ones and spare slots."""
  made = Tokenizer(models.BPE())
  made.normalizer = normalizers.NFC()
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
  made.decoder = decoders.ByteLevel()
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  trainer = trainers.BpeTrainer(
    vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|padding|>"], show_progress=False
  )
  made.train_from_iterator(text or sentences(), trainer)
  made.add_tokens([AddedToken("  ", normalized=False), AddedToken("|||MAIL|||", normalized=False)])
  made.add_special_tokens([piece for piece in SPECIAL.values() if piece != "[MASK]"])
  made.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True, normalized=False)])
  made.add_tokens([AddedToken(f"[unused{number}]") for number in range(SPARE)])
  made.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B [SEP]",
    special_tokens=[(piece, made.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
  )
  return made


def write(folder: pathlib.Path, made: Tokenizer | None = None, **config: str) -> pathlib.Path:
  """Writes tokenizer.json and tokenizer_config.json, with the names of special pieces; returns the former."""
  folder.mkdir(parents=True, exist_ok=True)
  (made or tokenizer()).save(str(folder / "tokenizer.json"))
  named = {f"{role}_token": piece for role, piece in (SPECIAL | config).items()}
  content = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
  (folder / "tokenizer_config.json").write_text(json.dumps(content))
  return folder / "tokenizer.json"


def imported(folder: pathlib.Path, made: Tokenizer | None = None) -> vocabulary.Vocabulary:
  """Returns the vocabulary of such files; its directory is `folder`/v, the files are in `folder`/stock."""
  path = write(folder / "stock", made)
  return vocabulary_train.import_files(folder / "v", tokenizer=str(path), cased=True)
