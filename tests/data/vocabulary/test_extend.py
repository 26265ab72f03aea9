"""Vocabularies extended by the words of a text: spare slots, kept ids, the ids of the library."""

import json
import pathlib

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from data import errors, fertility, sources, vocabulary
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import table_rows, tokenizer_json
from data.vocabulary import train as vocabulary_train
from tests import byte_level
from tests.data.conftest import make_documents, write_text
from tests.data.vocabulary.test_tokenizer_json import unigram

NEW = ("cardiomyopathy", "naïveté", "ligand", "assay", "kinase", "plasma")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
  """A text in which the first word of NEW is most frequent, and one word is there once."""
  words = [word for number, word in enumerate(NEW) for _ in range(60 - 8 * number)]
  text = [f"the {word} is made, and ({word}) can be one {word}-like time." for word in words]
  path = tmp_path_factory.mktemp("corpus") / "text.txt"
  return write_text(path, [[line] for line in [*text, "once upon Zanzibar"]])


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("byte_level")
  byte_level.imported(folder)
  return folder / "v"


def extended(old, corpus, output, most) -> vocabulary.Vocabulary:
  request = sources.Request(str(corpus))
  cut = fertility.of_text(vocabulary.load(old), request, most=0, num_workers=1).counts.most_cut()
  return vocabulary_train.extend(pathlib.Path(old), cut, pathlib.Path(output), most=most)


@pytest.fixture(scope="module")
def seven(old, corpus, tmp_path_factory) -> vocabulary.Vocabulary:
  """Seven new words; its files are in `seven.folder`."""
  folder = tmp_path_factory.mktemp("seven") / "v"
  extended(old, corpus, folder, 7)
  return folder


def named(words: vocabulary.Vocabulary) -> dict[int, str]:
  assert words.extends
  return {number: words.piece(number) for number in words.extends.pieces}


def test_new_words_take_spare_slots_and_then_rows_at_the_end(old, seven):
  before, made = vocabulary.load(old), vocabulary.load(seven)
  first = before.size - byte_level.SPARE
  assert list(named(made)) == list(range(first, before.size + 2)) and made.size == before.size + 2
  found = list(named(made).values())
  assert found[0] == "Ġcardiomyopathy" and "cardiomyopathy" in found
  assert made.extends and (made.extends.digest, made.extends.size) == (before.digest, before.size)
  for number, pieces in made.extends.pieces.items():
    text, begins = made.letters(number)
    assert list(pieces) == before.encode(f" {text}" if begins else text)
    assert made.encode(f"the {text} is" if begins else f"({text} is").count(number) == 1
  assert [made.piece(i) for i in range(first)] == [before.piece(i) for i in range(first)]
  assert made.special_ids == before.special_ids
  texts = [*byte_level.TEXTS, "cardiomyopathyx ligands", *(p for d in make_documents(20, seed=1) for p in d)]
  assert made.encode_batch(texts) == before.encode_batch(texts)


def test_the_library_gives_the_same_ids(seven, corpus):
  made, stock = vocabulary.load(seven), Tokenizer.from_file(str(seven / "tokenizer.json"))
  for text in (*corpus.read_text().split("\n"), "cardiomyopathy naïveté", *byte_level.TEXTS[:2]):
    ids = made.encode(text)
    assert stock.encode(text).ids == made.with_special_ids(ids)
    assert stock.decode(ids, skip_special_tokens=False) == made.decode(ids)


def test_slots_alone_are_enough_for_few_words_and_all_that_occur_twice_are_taken(old, corpus, tmp_path):
  made = extended(old, corpus, tmp_path / "v", 2)
  assert made.size == vocabulary.load(old).size
  spare = [made.piece(i) for i in range(made.size) if tokenizer_json.SPARE.fullmatch(made.piece(i))]
  assert spare == ["[unused2]", "[unused3]", "[unused4]"]
  assert not {made.size - 1, made.size - 2} & set(made.encode("a [unused3] [unused4]"))
  found = named(extended(old, corpus, tmp_path / "w", 10_000)).values()
  assert "ĠZanzibar" not in found and "Ġplasma" in found  # the former occurs once


def test_a_word_with_unknown_letters_is_not_taken(tmp_path):
  """BPE of letters, not bytes, which reads whatever stands between spaces as a word."""
  made = Tokenizer(models.BPE(unk_token="[UNK]"))
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  trainer = trainers.BpeTrainer(
    vocab_size=60, special_tokens=[*byte_level.SPECIAL.values()], show_progress=False
  )
  made.train_from_iterator(byte_level.sentences(), trainer)
  made.add_special_tokens([AddedToken("[MASK]", special=True)])
  ids = [(piece, made.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")]
  made.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
  )
  before = byte_level.imported(tmp_path, made)
  text = write_text(tmp_path / "text.txt", [["the naïve humanoids and naïve humanoids"]] * 9)
  assert before.special_ids.unk in before.encode("naïve")
  assert list(named(extended(tmp_path / "v", text, tmp_path / "out", 9)).values()) == ["▁humanoids", "▁and"]


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


def test_what_cannot_be_extended_is_refused(old, corpus, tmp_path, capfd):
  (tmp_path / "tokenizer.json").write_text(unigram().to_str())
  path = str(tmp_path / "tokenizer.json")
  vocabulary_train.import_files(tmp_path / "unigram", tokenizer=path, cased=True)
  text = byte_level.sentences()
  vocabulary_train.train(text, tmp_path / "sp", kind="sentencepiece", cased=False, size=150)
  content = json.loads(byte_level.tokenizer().to_str())
  content["pre_tokenizer"]["use_regex"] = False  # a text is one word
  byte_level.imported(tmp_path / "whole", Tokenizer.from_str(json.dumps(content)))
  short = write_text(tmp_path / "text.txt", [["the the the people."]])
  for source, text, word in (
    (tmp_path / "unigram", corpus, "Unigram chooses pieces by their scores"),
    (tmp_path / "sp", corpus, "sentencepiece chooses pieces by their scores"),
    (tmp_path / "whole" / "v", corpus, "no word of several pieces that it could take"),
    (old, short, "name a longer text\n  --source=FILE"),
  ):
    with pytest.raises(errors.DataError, match=word):
      extended(source, text, tmp_path / "out", 3)
    assert not (tmp_path / "out").exists()
  flags = [f"--from={tmp_path}/sp", "--source=gone.txt", f"--output={tmp_path}/out"]
  for more, code in (["--words=1"], 3), (["--words=0"], 2), (["--words=7", "--workers=-1"], 2):
    assert vocabulary_command.main(["extend", *flags, *more]) == code  # before the text is read
  assert "gone.txt" not in "".join(capfd.readouterr())


def test_the_command_says_how_many_rows_a_model_needs(old, seven, corpus, tmp_path, capfd):
  flags = [f"--from={old}", f"--source={corpus}", f"--output={tmp_path}/v", "--words=7"]
  assert vocabulary_command.main(["extend", *flags]) == 0
  printed = "".join(capfd.readouterr())
  assert "5 in spare slots, 2 behind the 412 ids" in printed
  assert "\n  --config.model.vocab_size=448\n" in printed
  assert vocabulary.load(tmp_path / "v").digest == vocabulary.load(seven).digest
  assert vocabulary_command.main(["extend", *flags]) == 2  # it exists
  assert [table_rows(size) for size in (1, 64, 65, 50_368)] == [64, 64, 128, 50_368]


def test_a_damaged_extension_is_refused(seven, tmp_path):
  vocabulary.copy(seven, tmp_path / "v")
  path = tmp_path / "v" / vocabulary.NAME
  content = json.loads(path.read_text())
  for pieces in ({"3": [412]}, {"3": []}, {"3": [-1]}, {"x": [1]}, [1], None, {"3": [1, 411]}):
    content["extends"]["pieces"] = pieces
    path.write_text(json.dumps(content))
    word = "changed after" if pieces == {"3": [1, 411]} else "not a vocabulary description"
    with pytest.raises(errors.DataError, match=word):
      vocabulary.load(tmp_path / "v")
