"""Training, importing, loading and refusing vocabularies."""

import dataclasses
import json
import shutil

import pytest
import sentencepiece

from data import errors, vocabulary
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import tokenizer_files
from data.vocabulary import train as vocabulary_train
from tests.data.conftest import SHARED, make_documents

SPECIAL_TEXTS = ("[CLS] [PAD] [SEP] [MASK]", "[MASK][MASK]", "<s> </s> <pad> <mask>", "a[SEP]b", "[mask]")


def sentences():
  return [paragraph for document in make_documents(100, seed=9) for paragraph in document]


@pytest.fixture(params=["sentencepiece", "wordpiece"])
def trained(request, tmp_path, vocabulary_directory):
  if request.param == "sentencepiece":
    return vocabulary.load(vocabulary_directory)
  # 29 letters as they are and 26 as continuations, and the words: about all there is in this text.
  return vocabulary_train.train(
    [*sentences(), *["[MASK] [SEP] [CLS] [PAD]"] * 9], tmp_path / "v", kind="wordpiece", cased=False, size=120
  )


def test_trained_vocabularies_have_the_size_and_read_back(trained):
  assert trained.size in (150, 120)
  assert len({trained.piece(i) for i in range(trained.size)}) == trained.size
  text = "the people make time"
  assert trained.decode(trained.encode(text)) == text
  assert trained.encode_batch([text, "THE"]) == [trained.encode(text), trained.encode("the")]


def test_sentencepiece_ids_follow_the_official_order(vocabulary_directory):
  special = vocabulary.load(vocabulary_directory).special_ids
  assert (special.cls, special.pad, special.sep, special.unk, special.mask) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("text", SPECIAL_TEXTS)
def test_no_text_gives_a_special_id(trained, text):
  special = trained.special_ids
  assert not {special.cls, special.pad, special.sep, special.mask} & set(trained.encode(text))


def test_a_model_of_others_that_makes_special_pieces_of_text_is_kept_from_it(tmp_path):
  model = tmp_path / "sp.model"
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences()),
    model_prefix=str(tmp_path / "sp"),
    model_type="bpe",
    vocab_size=150,
    user_defined_symbols=["[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    unk_piece="[UNK]",
    minloglevel=2,
  )
  assert "[MASK]" in sentencepiece.SentencePieceProcessor(str(model)).encode("a [MASK]", out_type=str)
  made = vocabulary_train.import_files(tmp_path / "v", sp_model=str(model), cased=False)
  special = made.special_ids
  ids = made.encode("[CLS] the [SEP] people [PAD] [MASK]")
  assert not {special.cls, special.pad, special.sep, special.mask} & set(ids)
  assert made.encode("people")[-1] in ids


def test_trained_special_pieces_are_control_pieces(vocabulary_directory):
  processor = sentencepiece.SentencePieceProcessor(str(vocabulary_directory / "sp.model"))
  assert [i for i in range(150) if processor.is_control(i)] == [0, 1, 2, 4]
  assert processor.is_unknown(3)


def test_unknown_characters_give_the_unknown_id(trained):
  assert trained.special_ids.unk in trained.encode("中")


def test_training_twice_gives_the_same_bytes(trained, tmp_path):
  again = tmp_path / "again"
  extra = ["[MASK] [SEP] [CLS] [PAD]"] * 9 if trained.kind == "wordpiece" else []
  made = vocabulary_train.train(
    [*sentences(), *extra], again, kind=trained.kind, cased=False, size=trained.size
  )
  assert made.digest == trained.digest


def test_a_piece_of_wordpiece_is_there_twice_in_the_text(tmp_path):
  with pytest.raises(errors.DataError, match=r"gave 10; .*\n  --size=10$"):  # q, ##z, ##x and what is special
    vocabulary_train.train(["qzx"], tmp_path / "v", kind="wordpiece", cased=True, size=90)


def test_case_is_kept_only_where_asked(tmp_path):
  made = vocabulary_train.train(sentences(), tmp_path / "v", kind="sentencepiece", cased=True, size=150)
  assert made.encode("The") != made.encode("the")
  assert made.cased
  model = str(tmp_path / "v" / "sp.model")
  assert vocabulary_train.import_files(tmp_path / "import", sp_model=model, cased=False).cased


def test_ids_outside_the_vocabulary_are_refused(trained):
  for token_id in (-1, trained.size):
    with pytest.raises(errors.DataError, match="outside the vocabulary"):
      trained.piece(token_id)


@pytest.mark.parametrize(
  ("kind", "piece", "shown", "letters"),
  [
    ("sentencepiece", "▁the", "the", ("the", True)),
    ("sentencepiece", "ing", "-ing", ("ing", False)),
    ("sentencepiece", ",", ",", (",", False)),
    ("sentencepiece", "▁", "▁", (" ", True)),
    ("wordpiece", "the", "the", ("the", True)),
    ("wordpiece", "##ing", "-ing", ("ing", False)),
    ("wordpiece", "##,", ",", (",", False)),
    ("wordpiece", "##", "##", (" ", False)),
  ],
)
def test_pieces_are_shown_for_people(vocabulary_directory, kind, piece, shown, letters):
  words = dataclasses.replace(vocabulary.load(vocabulary_directory), kind=kind, size=1, _pieces=(piece,))
  assert words.shown_piece(0) == shown
  assert words.letters(0) == letters


def test_a_size_that_is_too_large_is_refused_with_the_largest_possible(tmp_path):
  with pytest.raises(errors.DataError, match="largest possible size is") as caught:
    vocabulary_train.train(sentences(), tmp_path / "v", kind="sentencepiece", cased=False, size=30_000)
  largest = int(str(caught.value).split("--size=")[1].split()[0])
  assert not (tmp_path / "v").exists()
  made = vocabulary_train.train(sentences(), tmp_path / "v", kind="sentencepiece", cased=False, size=largest)
  assert made.size == largest


def test_a_size_that_is_too_small_is_refused(tmp_path):
  with pytest.raises(errors.DataError, match=r"20 pieces is too small: (\d+) are needed .*:\n  --size=\1$"):
    vocabulary_train.train(sentences(), tmp_path / "v", kind="sentencepiece", cased=False, size=20)
  with pytest.raises(errors.DataError, match=r"20 pieces is too small for .* gave (\d+); use:\n  --size=\1$"):
    vocabulary_train.train(sentences(), tmp_path / "v", kind="wordpiece", cased=False, size=20)


@pytest.mark.parametrize("kind", vocabulary.KINDS)
def test_no_text_is_refused(tmp_path, kind):
  with pytest.raises(errors.DataError, match="no usable text"):
    vocabulary_train.train([], tmp_path / "v", kind=kind, cased=False, size=100)
  assert list(tmp_path.iterdir()) == []


def test_an_official_vocab_txt_keeps_its_ids(tmp_path):
  lines = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "un",
    "##aff",
    "##able",
    "!",
    "[",
  ]
  (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
  made = vocabulary_train.import_files(tmp_path / "v", vocab_txt=str(tmp_path / "vocab.txt"), cased=False)
  assert made.special_ids == vocabulary.SpecialIds(cls=3, pad=0, sep=4, unk=2, mask=5)
  assert made.encode("The Unaffable!") == [6, 7, 8, 9, 10]
  assert made.encode("zzz") == [2]
  assert 5 not in made.encode("[MASK]")
  assert made.decode([6, 7, 8, 9]) == "the unaffable"


def test_a_dictionary_gives_the_ids_of_the_official_code(tmp_path):
  folder = SHARED / "goldens" / "tokenizer"
  if not (folder / "dict.txt").is_file():
    pytest.skip("no golden files beside the repository")
  golden = json.loads((SHARED / "goldens" / "k_tokenizer.json").read_text())
  made = vocabulary_train.import_files(
    tmp_path / "v", sp_model=str(folder / "sp.model"), dictionary=str(folder / "dict.txt"), cased=True
  )
  assert made.size == int(golden["dict_len"])
  assert [made.piece(i) for i in range(12)] == golden["symbols_first12"]
  assert made.piece(made.size - 1) == golden["last_symbol"]
  special = made.special_ids
  assert [special.cls, special.pad, special.sep, special.unk, special.mask] == [0, 1, 2, 3, 4]
  # One word has no punctuation to set apart, so the official pre-tokeniser changes nothing.
  for text, pieces in golden["tokens"].items():
    if text.isalpha() and pieces:
      assert made.encode(text) == golden["ids"][text]


def test_dictionary_rules(tmp_path):
  path = tmp_path / "dict.txt"
  path.write_text("<pad> 5\n▁a 3\n▁a 2\n▁b 1 #fairseq:overwrite\na b 1\n")
  symbols = tokenizer_files.read_dictionary(path)
  assert symbols == ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "▁a", "▁b", "a b", "[MASK]"]
  path.write_text("▁a 3\n<mask> 2\n▁b 1\n")
  assert tokenizer_files.read_dictionary(path)[4:] == ["▁a", "[MASK]", "▁b"]
  path.write_text("▁a 3\n▁b 2\n▁a 1 #fairseq:overwrite\n")
  with pytest.raises(errors.DataError, match="line 3 gives '▁a' a second id"):
    tokenizer_files.read_dictionary(path)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (None, "cannot read this vocabulary file"),
    (b"", "is empty"),
    (b"\xff\xfe\x80", "not UTF-8"),
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"no piece \[MASK\]"),
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nthe\n", "'the' is in lines 6 and 7"),
    (b"[PAD]\n\n[UNK]\n", "line 2 is empty"),
  ],
)
def test_bad_vocab_txt_files_are_refused(tmp_path, content, message):
  path = tmp_path / "vocab.txt"
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(errors.DataError, match=message) as caught:
    vocabulary_train.import_files(tmp_path / "v", vocab_txt=str(path), cased=False)
  assert str(path) in str(caught.value)
  assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("damage", ["truncated", "random", "empty", "missing", "other", "no dictionary"])
def test_bad_sentencepiece_files_are_refused(tmp_path, vocabulary_directory, damage):
  model, dictionary = tmp_path / "sp.model", tmp_path / "dict.txt"
  content = (vocabulary_directory / "sp.model").read_bytes()
  dictionary.write_text("▁a 1\n")
  content = {"truncated": content[:100], "random": bytes(range(7, 250)) * 9, "empty": b""}.get(
    damage, content
  )
  if damage != "missing":
    model.write_bytes(content)
  if damage == "other":
    dictionary.write_text("the\nof\n")
  if damage == "no dictionary":
    dictionary.unlink()
  with pytest.raises(errors.DataError) as caught:
    vocabulary_train.import_files(
      tmp_path / "v", sp_model=str(model), dictionary=str(dictionary), cased=False
    )
  place = dictionary if damage in ("other", "no dictionary") else model
  assert str(place) in str(caught.value)
  assert not (tmp_path / "v").exists()


def test_neither_or_both_kinds_of_file_are_refused(tmp_path):
  with pytest.raises(errors.ConfigError, match="one of --vocab_txt"):
    vocabulary_train.import_files(tmp_path / "v", cased=False)


@pytest.mark.parametrize("damage", ["no json", "bad json", "other model", "unknown kind"])
def test_a_damaged_directory_is_refused(tmp_path, vocabulary_directory, damage):
  directory = tmp_path / "v"
  shutil.copytree(vocabulary_directory, directory)
  path = directory / vocabulary.NAME
  if damage == "no json":
    path.unlink()
  elif damage == "bad json":
    path.write_text("{")
  elif damage == "unknown kind":
    path.write_text(path.read_text().replace("sentencepiece", "bytes"))
  else:
    other = vocabulary_train.train(
      sentences(), tmp_path / "other", kind="sentencepiece", cased=False, size=140
    )
    assert other.digest != json.loads(path.read_text())["digest"]
    shutil.copy(tmp_path / "other" / "sp.model", directory / "sp.model")
  with pytest.raises(errors.DataError) as caught:
    vocabulary.load(directory)
  assert str(directory) in str(caught.value)


def test_the_command_trains_and_imports(tmp_path, corpus, capsys):
  arguments = ["train", f"--source={corpus}/*.txt", "--size=150", f"--output={tmp_path}/v", "--workers=1"]
  assert vocabulary_command.main(arguments) == 0
  assert vocabulary.load(tmp_path / "v").size == 150
  model = f"--sp_model={tmp_path}/v/sp.model"
  assert vocabulary_command.main(["import", model, f"--output={tmp_path}/w"]) == 0
  assert vocabulary.load(tmp_path / "w").digest == vocabulary.load(tmp_path / "v").digest
  capsys.readouterr()
  assert vocabulary_command.main(["import", model, f"--output={tmp_path}/w"]) == 2
  assert vocabulary_command.main(["train", "--source=x", "--output=y", "--sise=3"]) == 2
  lines = capsys.readouterr().err.strip().split("\n")
  assert "holds files already" in lines[0]
  assert "did you mean '--size'?" in lines[1]


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{}", '{"format": 1, "kind": [], "cased": null}'])
def test_a_description_that_is_none_is_refused(tmp_path, content):
  (tmp_path / vocabulary.NAME).write_text(content)
  with pytest.raises(errors.DataError, match="not a vocabulary description"):
    vocabulary.load(tmp_path)
