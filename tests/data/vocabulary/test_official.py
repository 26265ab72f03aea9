"""The official tokeniser, and remembered words. Golden texts: tests/golden/tokenizer.py."""

import json
import pathlib
import random
import sys

import pytest
import sentencepiece

from data import errors, vocabulary
from data.vocabulary import official, tokenizer_files
from data.vocabulary import official as official_tokenizer
from data.vocabulary import train as vocabulary_train
from tests.byte_level import sentences
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


TEXTS = sentences()
SPACES = [chr(i) for i in range(sys.maxunicode + 1) if chr(i).isspace()]
SPACES += list("▁\u200b\u200c\u200d\u2060\ufeff\u00ad\x00\x01\x7f\u180e")
MARKS = [chr(i) for i in (*range(0x300, 0x340), *range(0x591, 0x5A0), 0x903, 0x20D0, 0x3099, 0xFE0F, 0x1F3FB)]
EMOJI = ["👨\u200d👩\u200d👧", "🏳️\u200d🌈", "👍🏽", "🇩🇪"]
QUOTES = ["''", "``", "'s", "' s", "' d", "' LL", "'RE", "n't", *"'‘’´\"“”-–—.,!?()[]{}$#@"]


def _plain(directory: pathlib.Path, kind: str, *, cased: bool):
  """Returns the encoder that a vocabulary would have without a memory."""
  if kind == "wordpiece":
    pieces = tokenizer_files.read_vocab_txt(directory / "vocab.txt")
    return tokenizer_files.wordpiece_encoder(pieces, cased=cased)
  processor, pieces = tokenizer_files.read_sp_model(directory / "sp.model")
  if kind == "sentencepiece":
    return tokenizer_files.sentencepiece_encoder(processor, pieces, pieces)
  ids, unknown = tokenizer_files.ids_of_text(pieces)
  return official.encoder(processor, ids, unknown=unknown)


@pytest.fixture(
  params=[("sentencepiece", False), ("official", True), ("official", False), ("wordpiece", True)], ids=str
)
def encoders(request, tmp_path):
  """A vocabulary, and its encoder without a memory."""
  kind, cased = request.param
  trained, size = ("wordpiece", 133) if kind == "wordpiece" else ("sentencepiece", 170)
  text = [*TEXTS, "It's (that) 'they' [make] people's."] * 3
  vocabulary_train.train(text, tmp_path / trained, kind=trained, cased=cased, size=size)
  if kind == "official":
    model = str(tmp_path / trained / "sp.model")
    vocabulary_train.import_files(tmp_path / kind, sp_model=model, cased=cased, pretokenization="official")
  return vocabulary.load(tmp_path / kind), _plain(tmp_path / kind, kind, cased=cased)


def _any_character(rng: random.Random) -> str:
  while True:
    number = rng.randrange(rng.choice((0x80, 0x800, 0x10000, sys.maxunicode + 1)))
    if not 0xD800 <= number < 0xE000:
      return chr(number)


def _part(rng: random.Random) -> str:
  """Returns a word, a space, or something that a tokeniser may stumble over."""
  choices = (TEXTS[0].split(), [" "], [" "], SPACES, MARKS, EMOJI, QUOTES)
  kind = rng.randrange(len(choices) + 1)
  if kind < len(choices):
    return rng.choice(choices[kind])
  if rng.random() < 0.02:
    return rng.choice(("x", "é", "中", " ab")) * rng.randrange(2_000)
  return "".join(_any_character(rng) for _ in range(rng.randint(1, 6)))


def test_any_text_has_the_ids_of_the_plain_way(encoders):
  words, plain = encoders
  rng = random.Random(0)
  for _ in range(5):
    texts = ["".join(_part(rng) for _ in range(rng.choice((0, 1, 3, 9, 20)))) for _ in range(250)]
    expected = plain(texts)
    assert words.encode_batch([*TEXTS, *texts])[len(TEXTS) :] == expected
    assert words.encode_batch(texts) == expected  # most words are remembered now
  assert words.encode_batch([]) == []
  assert [words.encode(text) for text in texts[:50]] == expected[:50]
  for end in ("'", "‘", "’", "´", "''", "'\u3000"):  # which counts for the next word
    texts = [f"the{end} s the{end} s of the of the of the of the of s s s"] * 2
    assert words.encode_batch(texts) == plain(texts) == words.encode_batch(texts), end


def test_a_word_is_encoded_once_unless_it_touches_others_or_is_long(monkeypatch):
  monkeypatch.setattr(tokenizer_files, "MAX_WORDS", 3)
  asked = []

  def plain(texts):
    asked.extend(texts)
    return [[len(word) for word in text.split(" ")] for text in texts]

  encode = tokenizer_files.remembering(plain, touches_others=lambda word: word.endswith("'"))
  long, whole = "b" * 33, ["a a a' a a a a a", f"a a a a a a {'b' * 33}"]
  for text, words in (
    ("a bb a a bb", ["a", "bb"]),
    ("bb a", []),
    ("ccc dddd", ["ccc dddd"]),  # nothing to gain: both words are new
    (whole[0], whole[:1]),
    (whole[1], whole[1:]),
    (f"a a a {long[1:]}", [long[1:]]),
    ("e e e e a", ["e"]),  # the memory is full: for this call alone
    ("e e e e a", ["e"]),
  ):
    asked.clear()
    assert encode([text]) == [[len(word) for word in text.split(" ")]]
    assert asked == words or sorted(asked) == words, text


def test_only_models_that_never_look_over_a_space_are_split_at_spaces(tmp_path):
  rules = {  # of a normaliser, as code points
    "65 20 74\t78": False,  # 'e t' -> 'x'
    "20 2E\t2E": False,  # ' .' -> '.'
    "2E\t2581": False,  # '.' -> the mark
    "65 74\t78": True,  # 'et' -> 'x'
    "3000\t20": True,  # a wide space -> a space
  }
  cases = [
    *(({"normalization_rule_name": f"{name}"}, True) for name in ("nmt_nfkc", "nmt_nfkc_cf", "identity")),
    ({"model_type": "unigram"}, False),
    ({"add_dummy_prefix": False}, False),
    ({"remove_extra_whitespaces": False}, False),
    ({"treat_whitespace_as_suffix": True}, False),
    ({"split_by_whitespace": False, "vocab_size": 700}, False),
    ({"byte_fallback": True, "vocab_size": 400}, False),
    ({"user_defined_symbols": ["the people"]}, False),
    ({"user_defined_symbols": ["<x>"]}, False),
  ]
  for number, (rule, is_split) in enumerate(rules.items()):
    (tmp_path / f"{number}.tsv").write_text(f"41\t61\n{rule}\n")
    cases.append(({"normalization_rule_tsv": str(tmp_path / f"{number}.tsv")}, is_split))
  for options, is_split in cases:
    values = {"model_type": "bpe", "vocab_size": 150, "minloglevel": 2, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(TEXTS), model_prefix=str(tmp_path / "m"), **(values | options)
    )
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "m.model"))
    assert tokenizer_files.splits_at_spaces(processor) == is_split, options
    if options == {"normalization_rule_name": "identity"}:  # other rules make a space of a mark in the text
      pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
      plain = tokenizer_files.sentencepiece_encoder(processor, pieces, pieces)
      encode = tokenizer_files.remembering(plain, touches_others=tokenizer_files.has_space_mark)
      texts = ["the▁ of the▁ of the of the of the of the"]
      assert encode(texts) == plain(texts)
  assert [tokenizer_files.has_space_mark(word) for word in ("the▁", "the")] == [True, False]
