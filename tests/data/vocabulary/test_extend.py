"""Vocabularies extended by the words of a text: spare slots, kept ids, the ids of AutoTokenizer."""

import json
import pathlib

import pytest
from tokenizers import Tokenizer

from data import errors, sources, vocabulary
from data.inspect import look
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import extend, extension, tokenizer_json
from data.vocabulary import train as vocabulary_train
from tests import byte_level, lines
from tests.data.conftest import make_documents, write_text
from tests.data.vocabulary.test_tokenizer_json import unigram

NEW = ("cardiomyopathy", "naïveté", "ligand", "assay", "kinase", "plasma")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
  """A text in which the first word of NEW is most frequent, and one word is there once."""
  words = [word for number, word in enumerate(NEW) for _ in range(60 - 8 * number)]
  lines = [f"the {word} is made, and ({word}) can be one {word}-like time." for word in words]
  path = tmp_path_factory.mktemp("corpus") / "text.txt"
  return write_text(path, [[line] for line in [*lines, "once upon Zanzibar"]])


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("byte_level")
  byte_level.imported(folder)
  return folder / "v"


def extended(old, corpus, output, most) -> vocabulary.Vocabulary:
  request = sources.Request(str(corpus))
  counted = look.with_text(look.at_vocabulary(str(old)), request, look.Asked(records=0), num_workers=1)
  assert counted.counts
  cut = counted.counts.most_cut(len(counted.counts.cut))
  return extend.extend(pathlib.Path(old), cut, pathlib.Path(output), most=most)


def named(words: vocabulary.Vocabulary) -> dict[int, str]:
  assert words.extends
  return {number: words.piece(number) for number in words.extends.pieces}


def test_new_words_take_spare_slots_and_then_rows_at_the_end(old, corpus, tmp_path):
  before, made = vocabulary.load(old), extended(old, corpus, tmp_path / "v", 7)
  assert list(named(made)) == [
    *range(before.size - byte_level.SPARE, before.size),
    before.size,
    before.size + 1,
  ]
  found = list(named(made).values())
  assert found[0] == "Ġcardiomyopathy" and "cardiomyopathy" in found
  assert made.size == before.size + 2
  assert made.extends and (made.extends.digest, made.extends.size) == (before.digest, before.size)
  for number, pieces in made.extends.pieces.items():
    text = made.letters(number)[0]
    assert list(pieces) == before.encode(f" {text}" if made.letters(number)[1] else text)
    assert made.encode(f"the {text} is" if made.letters(number)[1] else f"({text} is").count(number) == 1
  kept = [i for i in range(before.size) if before.piece(i) == made.piece(i)]
  assert len(kept) == before.size - byte_level.SPARE
  assert made.special_ids == before.special_ids
  assert vocabulary.load(tmp_path / "v").extends == made.extends


def test_other_text_keeps_its_ids(old, corpus, tmp_path):
  before, made = vocabulary.load(old), extended(old, corpus, tmp_path / "v", 7)
  texts = [*byte_level.TEXTS, "cardiomyopathyx ligands", *(p for d in make_documents(20, seed=1) for p in d)]
  assert made.encode_batch(texts) == before.encode_batch(texts)


def test_auto_tokenizer_gives_the_same_ids(old, corpus, tmp_path):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  made = extended(old, corpus, tmp_path / "v", 7)
  (tmp_path / "v" / "tokenizer_config.json").write_text(
    json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
  )
  stock = transformers.AutoTokenizer.from_pretrained(tmp_path / "v")
  for text in (*corpus.read_text().split("\n"), "cardiomyopathy naïveté", *byte_level.TEXTS[:2]):
    ids = made.encode(text)
    assert stock(text)["input_ids"] == made.with_special_ids(ids)
    assert stock.decode(ids) == made.decode(ids)


def test_slots_alone_are_enough_for_few_words(old, corpus, tmp_path):
  made = extended(old, corpus, tmp_path / "v", 2)
  assert made.size == vocabulary.load(old).size
  spare = [made.piece(i) for i in range(made.size) if tokenizer_json.SPARE.fullmatch(made.piece(i))]
  assert spare == ["[unused2]", "[unused3]", "[unused4]"]
  assert not {made.size - 1, made.size - 2} & set(made.encode("a [unused3] [unused4]"))


def test_a_word_that_occurs_once_is_not_taken(old, corpus, tmp_path):
  assert "ĠZanzibar" not in named(extended(old, corpus, tmp_path / "v", 10_000)).values()


def test_wordpiece_takes_words_into_its_list(corpus, tmp_path):
  text = byte_level.sentences()
  vocabulary_train.train(text, tmp_path / "w", kind="wordpiece", cased=False, size=120)
  pieces = (tmp_path / "w/vocab.txt").read_text().replace("[MASK]\n", "[MASK]\n[unused0]\n")
  (tmp_path / "w/vocab.txt").write_text(pieces)
  before = vocabulary.write_description(tmp_path / "w", kind="wordpiece", cased=False)
  made = extended(tmp_path / "w", corpus, tmp_path / "v", 2)
  slot = pieces.split("\n").index("[unused0]")
  assert named(made) == {slot: "cardiomyopathy", before.size: "naivete"}
  assert made.encode("The cardiomyopathy") == [before.encode("the")[0], slot]
  assert made.extends and list(made.extends.pieces[slot]) == before.encode("cardiomyopathy")
  assert made.kind == "wordpiece" and made.size == before.size + 1


@pytest.mark.parametrize("kind", ["sentencepiece", "Unigram"])
def test_pieces_that_are_chosen_by_score_are_refused(corpus, tmp_path, kind, capfd):
  if kind == "Unigram":
    path = tmp_path / "tokenizer.json"
    unigram().save(str(path))
    vocabulary_train.import_files(tmp_path / "v", tokenizer=str(path), cased=True)
  else:
    vocabulary_train.train(byte_level.sentences(), tmp_path / "v", kind=kind, cased=False, size=150)
  with pytest.raises(errors.DataError, match=f"{kind} chooses pieces by their scores"):
    extended(tmp_path / "v", corpus, tmp_path / "out", 3)
  assert not (tmp_path / "out").exists()
  # Before the text is read.
  flags = [f"--from={tmp_path}/v", "--source=gone.txt", "--words=3", f"--output={tmp_path}/out"]
  assert vocabulary_command.main(["extend", *flags]) == errors.DataError.exit_code
  assert "by their scores" in "".join(capfd.readouterr())


def test_a_text_without_words_to_take_is_refused(old, tmp_path):
  text = write_text(tmp_path / "text.txt", [["the the the people."]])
  with pytest.raises(errors.DataError, match=r"is in this text 2 times; name a longer text\n  --source=FILE"):
    extended(old, text, tmp_path / "out", 3)
  assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_never_sees_a_word_apart_is_refused(corpus, tmp_path):
  made = byte_level.tokenizer()
  content = json.loads(made.to_str())
  content["pre_tokenizer"]["use_regex"] = False  # a text is one word
  byte_level.imported(tmp_path, Tokenizer.from_str(json.dumps(content)))
  with pytest.raises(errors.DataError, match="no word of several pieces that it could take"):
    extended(tmp_path / "v", corpus, tmp_path / "out", 3)


def test_the_command_says_how_many_rows_a_model_needs(old, corpus, tmp_path, capfd):
  flags = [f"--from={old}", f"--source={corpus}", f"--output={tmp_path}/v"]
  assert vocabulary_command.main(["extend", *flags, "--words=7"]) == 0
  printed = "".join(capfd.readouterr())
  assert "5 in spare slots, 2 behind the 412 ids" in printed
  assert "\n  --config.model.vocab_size=448\n" in printed
  assert "Pieces per word and character" in printed
  assert vocabulary_command.main(["extend", *flags, "--words=7"]) == 2  # it exists
  assert vocabulary_command.main(["extend", *flags[:2], f"--output={tmp_path}/w", "--words=0"]) == 2
  assert "--words=0: expected at least 1" in "".join(capfd.readouterr())
  wrong = ("--words=7", "--workers=-1", f"--output={tmp_path}/w")
  assert vocabulary_command.main(["extend", *flags[:2], *wrong]) == 2
  assert "--workers and --limit must not be negative" in "".join(capfd.readouterr())


@pytest.mark.parametrize("pieces", [{"3": [412]}, {"3": []}, {"3": [-1]}, {"x": [1]}, [1], None])
def test_a_damaged_extension_is_refused(old, corpus, tmp_path, pieces):
  extended(old, corpus, tmp_path / "v", 1)
  path = tmp_path / "v" / vocabulary.NAME
  content = json.loads(path.read_text())
  content["extends"]["pieces"] = pieces
  path.write_text(json.dumps(content))
  with pytest.raises(errors.DataError, match="not a vocabulary description"):
    vocabulary.load(tmp_path / "v")
  content["extends"]["pieces"] = {"3": [1]}
  path.write_text(json.dumps(content))
  with pytest.raises(errors.DataError, match="changed after"):
    vocabulary.load(tmp_path / "v")


def test_rows_are_a_multiple_of_64():
  assert [extension.table_rows(size) for size in (1, 64, 65, 50_368)] == [64, 64, 128, 50_368]


def test_a_piece_that_merges_never_made_is_reported(old, corpus, tmp_path):
  content = json.loads((old / "tokenizer.json").read_text())
  added = {token["content"]: token["id"] for token in content["added_tokens"]}
  content["model"]["vocab"] |= added | {"Ġwxyz": 412}
  byte_level.imported(tmp_path, Tokenizer.from_str(json.dumps(content)))
  said = []
  with lines.heard(said.append):
    extended(tmp_path / "v", corpus, tmp_path / "out", 3)
  (line,) = [line for line in said if "never made" in line]
  assert "1 pieces that its merges never made, such as 'Ġwxyz'" in line
  assert vocabulary.load(tmp_path / "out").encode("a wxyz")[1:] == [412]
  said.clear()
  with lines.heard(said.append):
    extended(old, corpus, tmp_path / "other", 3)
  assert not [line for line in said if "never made" in line]
