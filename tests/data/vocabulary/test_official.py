"""The official tokeniser's rules, and vocabularies that use it. Golden texts: `tests/golden/tokenizer.py`."""

import json

import pytest
import sentencepiece

from data import errors, vocabulary
from data.vocabulary import official as official_tokenizer
from data.vocabulary import train as vocabulary_train
from tests.data.conftest import make_documents

WORDS = [
  ("", []),
  (" \t\n\x1f ", []),
  ("...", ["..."]),
  ("a", ["a"]),
  ("(see 'that')", ["(", "see", "'", "that", "')"]),
  ("U.S.A. e-mail", ["U.S.A", ".", "e-mail"]),
  ("‘a’ “b” c—d – ´e", ["'", "a", "'", '"', "b", '"', "c-d", "-", "'", "e"]),
  ("``quoted''", ['"', "quoted", '"']),
  ("they' ll it' s we' VE' s", ["they", "'ll", "it", "'s", "we", "'VE", "'s"]),
  ("x' ll-y x' LL-y", ["x", "'ll-y", "x", "'LL", "-y"]),
  ("it' sad ' llama", ["it", "'", "sad", "'", "llama"]),
  ("¡hola! 「日本」 🙂", ["¡", "hola", "!", "「", "日本", "」", "🙂"]),
  ("a\u00a0b\u2028c\x00d", ["a", "b", "c\x00d"]),
  ("x" * 5000 + "!", ["x" * 5000, "!"]),
  ("[MASK] <s>", ["[", "MASK", "]", "<", "s", ">"]),
]


def test_words_are_set_apart_from_the_punctuation_around_them():
  assert [official_tokenizer.pretokenize(text) for text, _ in WORDS] == [words for _, words in WORDS]
  drop = official_tokenizer.drop_lone_spaces  # at the end and before punctuation
  assert drop(["▁", "a", "▁", "「", "▁b", "▁"]) == ["▁", "a", "「", "▁b"]
  assert drop(["▁", "▁", "."]) == ["▁", "."]
  assert drop([]) == []


def test_pairs_lose_ids_of_the_longer_and_then_of_the_second(vocabulary_directory):
  def cut(a, b, budget):
    first, second = official_tokenizer.truncate_pair(range(a), range(b), budget)
    assert first == list(range(len(first))) and second == list(range(len(second)))
    return len(first), len(second)

  assert [cut(10, 3, 9), cut(3, 10, 9), cut(9, 10, 5), cut(2, 2, 3)] == [(6, 3), (3, 6), (3, 2), (2, 1)]
  assert [cut(4, 4, 8), cut(2, 9, 0), cut(2, 2, -1)] == [(4, 4), (0, 0), (0, 0)]
  add = vocabulary.load(vocabulary_directory).with_special_ids  # which count within the length
  assert add([7, 8, 9], max_length=4) == [0, 7, 8, 2] and add([7, 8, 9], max_length=1) == [0, 2]
  assert add([7, 8], [5, 6], max_length=7) == [0, 7, 8, 2, 2, 5, 2]
  assert add([], [], max_length=512) == [0, 2, 2, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """sp.model and a dict.txt of most of its pieces, imported with the official split and without; a folder."""
  folder = tmp_path_factory.mktemp("official")
  text = [paragraph for document in make_documents(60, seed=3) for paragraph in document]
  text.append("“it's” (that) [is] $5!")
  made = vocabulary_train.train(text, folder / "model", kind="sentencepiece", cased=True, size=160)
  pieces = [made.piece(i) for i in range(5, made.size) if made.piece(i) != "m"]
  (folder / "dict.txt").write_text("".join(f"{piece} {i}\n" for i, piece in enumerate(pieces, 1)))
  paths = {"sp_model": str(folder / "model" / "sp.model"), "dictionary": str(folder / "dict.txt")}
  for name in vocabulary.PRETOKENIZATIONS:
    vocabulary_train.import_files(folder / name, **paths, cased=True, pretokenization=name)
  return folder


def test_an_imported_vocabulary_encodes_and_decodes_as_the_official_code(model):
  words = vocabulary.load(model / "official")
  assert words.pretokenization == "official"
  processor = sentencepiece.SentencePieceProcessor(str(model / "model" / "sp.model"))
  pieces = processor.encode("it's ( that ) !", out_type=str)
  expected = [words.piece(i) for i in words.encode("  it's (that)!")]
  assert "".join(expected).replace("▁", "") == "it's(that)!"
  assert expected == official_tokenizer.drop_lone_spaces(pieces) != pieces
  assert words.decode(words.encode("the people 'make' time")) == "the people' make' time"
  assert words.encode_batch(["", "the"]) == [[], words.encode("the")]
  assert words.special_ids.unk in words.encode("xm") and words.special_ids.unk in words.encode("中")
  special = {getattr(words.special_ids, name) for name in ("cls", "pad", "sep", "mask")}
  assert not special & set(words.encode("[MASK] <mask> [CLS]x<s> a</s>b [PAD]"))


def test_the_pretokenization_is_part_of_what_a_vocabulary_is(model, tmp_path):
  official, plain = vocabulary.load(model / "official"), vocabulary.load(model / "none")
  assert official.digest != plain.digest
  assert official.encode("(the)") != plain.encode("(the)")
  described = json.loads((model / "none" / vocabulary.NAME).read_text())
  assert "pretokenization" not in described  # as in directories of before there was one
  vocabulary.copy(model / "official", tmp_path / "v")
  path = tmp_path / "v" / vocabulary.NAME
  for other, message in (("none", "files changed"), ("moses", "not a vocabulary description")):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pretokenization": other}))
    with pytest.raises(errors.DataError, match=message):
      vocabulary.load(tmp_path / "v")
