"""Vocabularies of WordPiece tokenizers that others saved."""

import json

import pytest
from tokenizers import Tokenizer

from data.errors import DataError
from pretrain.export.tokenizer import convert
from tests.pretrain.export.refusals import failing

_PIECES = ["the", "un", "##aff", "##able", "!", "[", "]", "mask", "e", "é"]


def save(kind, folder, *, lowercase=True):
  """Saves a stock WordPiece tokenizer of transformers and returns it."""
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  if kind == "MPNet":
    special = ["<s>", "<pad>", "</s>", "<unk>", *special, "<mask>"]
  vocab = {piece: i for i, piece in enumerate([*special, *_PIECES])}
  tokenizer = getattr(transformers, f"{kind}Tokenizer")(vocab=vocab, do_lower_case=lowercase)
  tokenizer.save_pretrained(folder)
  return tokenizer


def test_stock_wordpiece_tokenizers_give_the_same_ids_as_vocabularies(tmp_path):
  for kind, lowercase in (
    ("Bert", True),
    ("Bert", False),
    ("Electra", True),
    ("MPNet", True),
    ("MPNet", False),
  ):
    folder = tmp_path / f"{kind} {lowercase}"
    tokenizer = save(kind, folder, lowercase=lowercase)
    words = convert.read_tokenizer(folder, folder / "v")
    assert words.cased != lowercase
    for text in ("The unaffable É!", "the zzz", "[MASK] [CLS] <s> <mask>", "e\u0301 中!", "", "x" * 101):
      ids = tokenizer(text, split_special_tokens=True)["input_ids"]
      assert words.with_special_ids(words.encode(text)) == ids
    pair = tokenizer("the", "un", split_special_tokens=True)["input_ids"]
    assert words.with_special_ids(words.encode("the"), words.encode("un")) == pair
    for name in ("cls", "pad", "sep", "unk", "mask"):
      assert getattr(words.special_ids, name) == getattr(tokenizer, f"{name}_token_id")
    convert.write_tokenizer(folder / "v", folder / "out", max_length=64)
    assert convert.read_tokenizer(folder / "out", folder / "w").digest == words.digest


def test_vocab_txt_needs_to_know_its_case(tmp_path):
  tokenizer, folder = save("Bert", tmp_path / "in"), tmp_path / "in"
  (folder / "tokenizer.json").unlink()
  (folder / "vocab.txt").write_text("\n".join(sorted(tokenizer.vocab, key=tokenizer.vocab.get)) + "\n")
  words = convert.read_tokenizer(folder, tmp_path / "v")
  assert words.encode("The un") == tokenizer("The un", add_special_tokens=False)["input_ids"]
  config = json.loads((folder / "tokenizer_config.json").read_text())

  def run(changes):
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes))
    convert.read_tokenizer(folder, tmp_path / "w")

  rows = [({"strip_accents": False}, "strip_accents is False")]
  rows += [
    ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
    ({"do_lower_case": None}, "--vocab_txt="),
  ]
  assert not failing(rows, run) and not (tmp_path / "w").exists()


def _set(*path):
  *way, name, value = path

  def change(content):
    for step in way:
      content = content[step]
    content[name] = value

  return change


_TWO_SEPARATORS = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
_TWO_SEPARATORS |= {"trim_offsets": True, "add_prefix_space": False}
OTHERS = [  # a change of tokenizer.json that a vocab.txt cannot hold
  _set("model", "vocab", "the", 99),
  _set("normalizer", "strip_accents", False),
  _set("pre_tokenizer", "type", "Whitespace"),
  _set("post_processor", _TWO_SEPARATORS),
  lambda content: content["model"]["vocab"].update({"a\nb": 15}),
]


def test_other_pipelines_are_carried_as_they_are(tmp_path):
  folder = tmp_path / "in"
  save("Bert", folder)
  text = (folder / "tokenizer.json").read_text()
  for number, change in enumerate(OTHERS):
    change(content := json.loads(text))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    words = convert.read_tokenizer(folder, tmp_path / f"v{number}")
    pair = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the é!", "un").ids
    assert words.kind == "tokenizer_json" and len(words.between) == 1 + (number == 3)
    assert words.with_special_ids(*map(words.encode, ("the é!", "un"))) == pair


def test_damaged_files_are_refused(tmp_path):
  folder = tmp_path / "in"
  save("Bert", folder)
  path = folder / "tokenizer.json"
  text = path.read_text()

  def run(content):
    path.write_bytes(content)
    convert.read_tokenizer(folder, tmp_path / "v")

  rows = [(content, "tokenizer.json") for content in (b"", b"{", b"[]", b"\xff", b"[" * 100_000)]
  rows.append((text.replace("[MASK]", "[mask]").encode(), '"mask_token"'))
  assert not failing(rows, run)
  (folder / "tokenizer_config.json").unlink()
  assert not failing([(rows[-1][0], "no special piece [MASK] or <mask>")], run)
  path.unlink()
  (folder / "sentencepiece.bpe.model").write_bytes(b"model")
  with pytest.raises(DataError, match=r"no tokenizer in it.*bpe\.model\n  python -c .*save_pretrained"):
    convert.read_tokenizer(folder, tmp_path / "v")
  assert not (tmp_path / "v").exists()
