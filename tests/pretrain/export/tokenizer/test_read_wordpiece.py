"""Vocabularies of WordPiece tokenizers that others saved."""

import json
import shutil

import pytest

from data import errors
from pretrain.export.tokenizer import convert

_PIECES = ["the", "un", "##aff", "##able", "!", "[", "]", "mask", "e", "é"]


@pytest.fixture
def stock(tmp_path):
  """A function that saves a stock WordPiece tokenizer of transformers and returns it with its folder."""
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

  def save(kind, *, lowercase=True):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "MPNet":
      special = ["<s>", "<pad>", "</s>", "<unk>", *special, "<mask>"]
    vocab = {piece: i for i, piece in enumerate([*special, *_PIECES])}
    tokenizer = getattr(transformers, f"{kind}Tokenizer")(vocab=vocab, do_lower_case=lowercase)
    tokenizer.save_pretrained(tmp_path / "stock")
    return tokenizer, tmp_path / "stock"

  return save


@pytest.mark.parametrize("kind", ["Bert", "Electra", "MPNet"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_stock_wordpiece_tokenizers_give_the_same_ids_as_vocabularies(stock, tmp_path, kind, lowercase):
  tokenizer, folder = stock(kind, lowercase=lowercase)
  words = convert.read_tokenizer(folder, tmp_path / "v")
  assert words.cased != lowercase
  for text in ("The unaffable É!", "the zzz", "[MASK] [CLS] <s> <mask>", "e\u0301 中!", "", "x" * 101):
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert words.with_special_ids(words.encode(text)) == ids
  pair = tokenizer("the", "un", split_special_tokens=True)["input_ids"]
  assert words.with_special_ids(words.encode("the"), words.encode("un")) == pair
  for name in ("cls", "pad", "sep", "unk", "mask"):
    assert getattr(words.special_ids, name) == getattr(tokenizer, f"{name}_token_id")
  convert.write_tokenizer(tmp_path / "v", tmp_path / "out", max_length=64)
  back = convert.read_tokenizer(tmp_path / "out", tmp_path / "w")
  assert back.digest == words.digest


def test_vocab_txt_needs_to_know_its_case(stock, tmp_path):
  tokenizer, folder = stock("Bert")
  (folder / "tokenizer.json").unlink()
  (folder / "vocab.txt").write_text("\n".join(sorted(tokenizer.vocab, key=tokenizer.vocab.get)) + "\n")
  words = convert.read_tokenizer(folder, tmp_path / "v")
  assert words.encode("The un") == tokenizer("The un", add_special_tokens=False)["input_ids"]
  (folder / "tokenizer_config.json").unlink()
  with pytest.raises(errors.DataError, match="no do_lower_case"):
    convert.read_tokenizer(folder, tmp_path / "w")


_TWO_SEPARATORS = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
_TWO_SEPARATORS |= {"trim_offsets": True, "add_prefix_space": False}


def _set(*path):
  *way, name, value = path

  def change(content):
    for step in way:
      content = content[step]
    content[name] = value

  return change


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (_set("model", "continuing_subword_prefix", "@@"), "continuing_subword_prefix is '@@'; expected '##'"),
    (_set("model", "vocab", []), "not a readable tokenizer"),
    (_set("model", "vocab", "the", 99), "are not 0, 1, 2"),
    (_set("normalizer", None), "normalizer .* is None"),
    (_set("normalizer", "strip_accents", False), "strip_accents is False"),
    (_set("pre_tokenizer", "type", "Whitespace"), "pre_tokenizer type is 'Whitespace'"),
    (_set("added_tokens", 0, "special", False), "is not supported"),
    (_set("post_processor", _TWO_SEPARATORS), "2 separators between two texts; expected 1"),
    (lambda content: content["model"]["vocab"].update({"a\nb": 15}), "cannot be written to a vocab.txt"),
  ],
)
def test_other_pipelines_are_refused_with_the_reason(stock, tmp_path, change, message):
  _, folder = stock("Bert")
  path = folder / "tokenizer.json"
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))
  with pytest.raises(errors.DataError, match=message) as caught:
    convert.read_tokenizer(folder, tmp_path / "v")
  assert str(path) in str(caught.value) and "\n" not in str(caught.value)
  assert not (tmp_path / "v").exists()


def test_a_special_piece_that_lacks_is_named(stock, tmp_path):
  _, folder = stock("Bert")
  path = folder / "tokenizer.json"
  path.write_text(path.read_text().replace("[MASK]", "[mask]"))
  with pytest.raises(errors.DataError, match=r"no piece '\[MASK\]', the mask_token"):
    convert.read_tokenizer(folder, tmp_path / "v")
  (folder / "tokenizer_config.json").unlink()
  with pytest.raises(errors.DataError, match=r"no piece \[MASK\] among its 15"):
    convert.read_tokenizer(folder, tmp_path / "v")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_files_that_are_no_tokenizer_are_refused(tmp_path, content):
  (tmp_path / "tokenizer.json").write_bytes(content)
  with pytest.raises(errors.DataError, match=r"tokenizer\.json"):
    convert.read_tokenizer(tmp_path, tmp_path / "v")
  shutil.rmtree(tmp_path)
  tmp_path.mkdir()
  with pytest.raises(errors.DataError, match="no tokenizer in it"):
    convert.read_tokenizer(tmp_path, tmp_path / "v")
