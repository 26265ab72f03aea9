"""A tokenizer.json as a vocabulary: the ids of AutoTokenizer, words after a space, and refused files."""

import json
import unicodedata

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from data import errors, vocabulary
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import tokenizer_json
from data.vocabulary import train as vocabulary_train
from tests import byte_level


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("byte_level")
  byte_level.imported(path)
  return path


@pytest.fixture(scope="module")
def words(folder):
  return vocabulary.load(folder / "v")


def changed(tmp_path, change, **config):
  """Writes the files with a change of the JSON content; returns the import of them."""
  path = byte_level.write(tmp_path / "stock", **config)
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))
  return vocabulary_train.import_files(tmp_path / "v", tokenizer=str(path), cased=True)


def test_the_file_is_carried_byte_for_byte(folder, words):
  assert (folder / "v/tokenizer.json").read_bytes() == (folder / "stock/tokenizer.json").read_bytes()
  assert (words.kind, words.cased, words.separators) == ("tokenizer_json", True, 1)
  assert words.size == 400 + 2 + 5 + byte_level.SPARE
  assert [words.piece(getattr(words.special_ids, role)) for role in byte_level.SPECIAL] == list(
    byte_level.SPECIAL.values()
  )


@pytest.mark.parametrize("text", byte_level.TEXTS)
def test_ids_are_those_of_auto_tokenizer(folder, words, text):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  stock = transformers.AutoTokenizer.from_pretrained(folder / "stock")
  if "[unused" not in text:
    assert words.encode(text) == stock(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
  if "[" not in text:
    assert words.with_special_ids(words.encode(text)) == stock(text)["input_ids"]
    pair = words.with_special_ids(words.encode(text), words.encode("a"))
    assert pair == stock(text, "a")["input_ids"]


@pytest.mark.parametrize("text", byte_level.TEXTS)
def test_text_reads_back_and_gives_no_special_id(words, text):
  ids = words.encode(text)
  assert words.decode(ids) == unicodedata.normalize("NFC", text)
  assert not {*vars(words.special_ids).values(), *range(words.size - byte_level.SPARE, words.size)} & set(ids)


def test_words_given_apart_have_the_ids_of_running_text(words):
  text = "The people make time (than two) words."
  assert words.reads_space
  (parts,) = words.encode_words([text.split()])
  assert [i for ids in parts for i in ids] == words.encode(text)
  assert words.encode_words([["make"], ["make", "make"], []])[1][1] == words.encode(" make")


def test_a_file_that_adds_the_space_itself_gets_none(tmp_path):
  words = byte_level.imported(tmp_path, byte_level.tokenizer(add_prefix_space=True))
  assert not words.reads_space and words.behind_space("make") == "make"
  (parts,) = words.encode_words([["the", "people"]])
  assert [i for ids in parts for i in ids] == words.encode("the people")


def test_pieces_are_shown_as_text(words):
  def shown(text):
    return [(words.letters(i), words.shown_piece(i)) for i in words.encode(text)]

  assert shown("people the,")[-2:] == [(("the", True), "the"), ((",", False), ",")]
  assert shown(" é")[0][0] == (" ", True)
  (first, _), *_ = shown("é")
  assert first == ("\ufffd", False)  # a byte of it
  assert words.letters(words.special_ids.mask) == ("[MASK]", False)


def test_names_of_special_pieces_are_those_of_the_files_beside(tmp_path):
  made = byte_level.tokenizer()
  made.add_special_tokens(["<m>", "<start>", "<end>"])
  made.post_processor = processors.TemplateProcessing(
    single="<start> $A <end>",
    pair="<start> $A <end> $B <end>",
    special_tokens=[(piece, made.token_to_id(piece)) for piece in ("<start>", "<end>")],
  )
  path = byte_level.write(tmp_path / "stock", made, mask="<m>")
  config = json.loads(path.with_name("tokenizer_config.json").read_text())
  del config["cls_token"], config["sep_token"]
  config |= {"bos_token": "<start>", "eos_token": {"content": "<end>"}}
  path.with_name("tokenizer_config.json").write_text(json.dumps(config))
  special = vocabulary_train.import_files(tmp_path / "v", tokenizer=str(path), cased=True)
  ids = [getattr(special.special_ids, role) for role in ("mask", "cls", "sep")]
  assert list(map(special.piece, ids)) == ["<m>", "<start>", "<end>"]
  assert vocabulary.load(tmp_path / "v").digest == special.digest
  assert "<m>" not in [special.piece(i) for i in special.encode("<m> <start>")]


def test_without_files_beside_the_names_are_those_of_bert_or_fairseq(tmp_path):
  path = byte_level.write(tmp_path / "stock")
  path.with_name("tokenizer_config.json").unlink()
  made = vocabulary_train.import_files(tmp_path / "v", tokenizer=str(path), cased=True)
  assert made.piece(made.special_ids.cls) == "[CLS]"


def unigram():
  """A model of which `<mask>` is an ordinary piece, as in XLM-R."""
  made = Tokenizer(models.Unigram())
  made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
  made.decoder = decoders.Metaspace()
  trainer = trainers.UnigramTrainer(
    vocab_size=120,
    special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    unk_token="<unk>",
    show_progress=False,
  )
  made.train_from_iterator(byte_level.sentences(), trainer)
  made.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
  )
  return made


def test_a_unigram_model_whose_special_pieces_are_ordinary_ones_is_kept_from_them(tmp_path):
  path = tmp_path / "tokenizer.json"
  unigram().save(str(path))
  made = vocabulary_train.import_files(tmp_path / "v", tokenizer=str(path), cased=True)
  assert not made.reads_space and made.mark == "▁"
  assert made.decode(made.encode("the people make")) == "the people make"
  special = made.special_ids
  ids = made.encode("<mask> the <s> people</s> <pad>")
  assert not {special.cls, special.pad, special.sep, special.mask} & set(ids)
  assert special.unk in ids  # in their place, as in a sentencepiece vocabulary


def test_a_wordpiece_model_continues_words_by_its_own_mark(tmp_path):
  pieces = {piece: i for i, piece in enumerate((*byte_level.SPECIAL.values(), "the", "a", "@@s"))}
  made = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]", continuing_subword_prefix="@@"))
  made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
  made.add_special_tokens(list(byte_level.SPECIAL.values()))
  made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
  words = byte_level.imported(tmp_path, made)
  assert words.mark == "@@" and not words.cased and not words.reads_space
  assert [words.letters(i) for i in words.encode("The as")] == [("the", True), ("a", True), ("s", False)]


def _set(name, value):
  return lambda content: content.update({name: value})


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      _set("truncation", {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}),
      r'it has truncation, expected none; .*\n  "truncation": null',
    ),
    (
      _set(
        "padding",
        {
          "strategy": "BatchLongest",
          "direction": "Right",
          "pad_to_multiple_of": None,
          "pad_id": 0,
          "pad_type_id": 0,
          "pad_token": "[PAD]",
        },
      ),
      r'it has padding, expected none; .*\n  "padding": null',
    ),
    (
      _set("post_processor", None),
      r"its input is 'a' \[\d+\]; expected '\[CLS\] a \[SEP\]' \[402, \d+, 404\]",
    ),
    (
      lambda content: content["post_processor"]["pair"].insert(2, content["post_processor"]["pair"][2]),
      r"its input is '\[CLS\] a \[SEP\] \[SEP\] a \[SEP\]' .*; expected '\[CLS\] a \[SEP\] a \[SEP\]'",
    ),
    (
      _set("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
      "its model is WordLevel; expected BPE",
    ),
    (
      lambda content: content["model"].update(end_of_word_suffix="</w>"),
      "BPE with end_of_word_suffix; expected",
    ),
    (_set("model", {}), "not a readable tokenizer"),
  ],
)
def test_files_of_another_form_are_refused_in_one_line(tmp_path, change, message):
  with pytest.raises(errors.DataError, match=message) as caught:
    changed(tmp_path, change)
  assert str(tmp_path / "stock/tokenizer.json") in str(caught.value).splitlines()[0]
  assert not (tmp_path / "v").exists()


def test_a_special_piece_that_lacks_is_refused_and_named(tmp_path):
  with pytest.raises(
    errors.DataError, match=r"no special piece <m>; .*\n  .*tokenizer_config.json: \"mask_token\""
  ):
    changed(tmp_path, lambda content: None, mask="<m>")
  with pytest.raises(errors.DataError, match="expected five different ones"):
    changed(tmp_path, lambda content: None, mask="[UNK]")
  (tmp_path / "stock/tokenizer_config.json").write_text("[]")
  with pytest.raises(errors.DataError, match=r"tokenizer_config\.json: not a JSON object"):
    vocabulary_train.import_files(
      tmp_path / "v", tokenizer=str(tmp_path / "stock/tokenizer.json"), cased=True
    )


def test_an_import_that_was_changed_is_refused(folder, tmp_path):
  words = vocabulary.copy(folder / "v", tmp_path / "v")
  assert words.digest == vocabulary.load(folder / "v").digest
  path = tmp_path / "v" / vocabulary.NAME
  described = json.loads(path.read_text())
  path.write_text(json.dumps(described | {"special_pieces": {**byte_level.SPECIAL, "mask": "[UNK]"}}))
  with pytest.raises(errors.DataError, match="changed after"):
    vocabulary.load(tmp_path / "v")
  path.write_text(json.dumps(described | {"special_pieces": {"cls": "[CLS]"}}))
  with pytest.raises(errors.DataError, match="special_pieces has an unknown value"):
    vocabulary.load(tmp_path / "v")
  other = json.dumps(described | {"special_pieces": {**byte_level.SPECIAL, "mask": "<of another>"}})
  path.write_text(other)
  with pytest.raises(errors.DataError, match="no piece <of another>"):
    vocabulary.load(tmp_path / "v")


def test_the_command_imports_it_without_a_warning(folder, tmp_path, capfd):
  flags = [f"--tokenizer_json={folder}/stock/tokenizer.json", f"--output={tmp_path}/v"]
  assert vocabulary_command.main(["import", *flags]) == 0
  assert "cannot be exported" not in "".join(capfd.readouterr())
  assert vocabulary.load(tmp_path / "v").digest == vocabulary.load(folder / "v").digest


def test_spare_slots_are_names_of_a_number():
  assert tokenizer_json.SPARE.fullmatch("[unused12]") and not tokenizer_json.SPARE.fullmatch("[unused]")
