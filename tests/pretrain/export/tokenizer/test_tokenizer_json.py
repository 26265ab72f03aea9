"""A vocabulary that is a tokenizer.json: its export is the file itself, and its import the vocabulary."""

import json

import pytest

from data import vocabulary
from data.errors import DataError
from pretrain.export.tokenizer import convert
from tests import byte_level


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  folder = tmp_path_factory.mktemp("byte_level")
  byte_level.imported(folder)
  return folder


def test_an_export_has_the_file_byte_for_byte_and_auto_tokenizer_reads_it(source, tmp_path):
  convert.write_tokenizer(source / "v", tmp_path, max_length=9)
  assert (tmp_path / "tokenizer.json").read_bytes() == (source / "stock/tokenizer.json").read_bytes()
  config = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert (config["tokenizer_class"], config["mask_token"]) == ("PreTrainedTokenizerFast", "[MASK]")
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  tokenizer, words = transformers.AutoTokenizer.from_pretrained(tmp_path), vocabulary.load(source / "v")
  first, second = (words.encode(text) for text in ("The people make  time.", "Où est-elle?"))
  rows = tokenizer("The people make  time.", "Où est-elle?", truncation=True)
  assert rows["input_ids"] == words.with_special_ids(first, second, max_length=9)
  assert tokenizer.mask_token_id == words.special_ids.mask and tokenizer.pad_token_id == words.special_ids.pad
  assert len(tokenizer) == words.size


def test_an_import_keeps_the_file_with_or_without_our_description(source, tmp_path):
  convert.write_tokenizer(source / "v", tmp_path / "out", max_length=9)
  expected = vocabulary.load(source / "v").digest
  assert convert.read_tokenizer(tmp_path / "out", tmp_path / "with").digest == expected
  (tmp_path / "out" / vocabulary.NAME).unlink()
  assert convert.read_tokenizer(tmp_path / "out", tmp_path / "without").digest == expected
  assert convert.read_tokenizer(source / "stock", tmp_path / "stock").digest == expected
  content = (source / "stock/tokenizer.json").read_bytes()
  assert (tmp_path / "stock/tokenizer.json").read_bytes() == content


def test_no_warning_says_that_it_cannot_be_exported(source):
  assert convert.warning(source / "v") == ""


def test_a_file_of_another_model_names_the_way_to_carry_it(source, tmp_path):
  content = json.loads((source / "stock/tokenizer.json").read_text())
  content["model"] = {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
  content["model"] |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
  (tmp_path / "tokenizer.json").write_text(json.dumps(content))
  with pytest.raises(DataError, match=r"data\.vocabulary import --tokenizer_json"):
    convert.read_tokenizer(tmp_path, tmp_path / "v")
