"""Remembered words give the ids of the whole text, for any text, and only models that allow it use them."""

import pathlib
import random
import sys

import pytest
import sentencepiece

from data import vocabulary
from data.vocabulary import official, tokenizer_files
from data.vocabulary import train as vocabulary_train
from tests.byte_level import sentences

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


class _Counting:
  """Gives the lengths of words as their ids, and remembers what it was asked."""

  def __init__(self):
    self.asked: list[str] = []

  def __call__(self, texts):
    self.asked += texts
    return [[len(word) for word in text.split(" ") if word] for text in texts]


def test_a_word_is_encoded_once_and_a_text_of_new_words_whole():
  plain = _Counting()
  encode = tokenizer_files.remembering(plain)
  assert encode(["a bb a a bb", "a a  a"]) == [[1, 2, 1, 1, 2], [1, 1, 1]]
  assert sorted(plain.asked) == ["", "a", "bb"]
  assert encode(["bb a", ""]) == [[2, 1], []]
  assert len(plain.asked) == 3
  assert encode(["ccc dddd"]) == [[3, 4]]  # nothing to gain: both words are new
  assert plain.asked[3:] == ["ccc dddd"]
  assert encode(["ccc dddd ccc dddd ccc"]) == [[3, 4, 3, 4, 3]]  # two new words and four spaces
  assert sorted(plain.asked[4:]) == ["ccc", "dddd"]


def test_words_that_touch_others_or_are_long_are_never_remembered():
  plain = _Counting()
  encode = tokenizer_files.remembering(plain, touches_others=lambda word: word.endswith("'"))
  texts = ["a a a' a a a a a", f"a a a a a a {'b' * 33}", f"a a a a a a {'b' * 32}"]
  for asked in (["a", "b" * 32, *texts[:2]], texts[:2]):
    plain.asked.clear()
    assert encode(texts) == [[1, 1, 2, 1, 1, 1, 1, 1], [1] * 6 + [33], [1] * 6 + [32]]
    assert sorted(plain.asked) == sorted(asked)


def test_a_full_memory_keeps_the_first_words(monkeypatch):
  monkeypatch.setattr(tokenizer_files, "MAX_WORDS", 2)
  plain = _Counting()
  encode = tokenizer_files.remembering(plain)
  assert encode(["a a a bb bb bb"]) == [[1, 1, 1, 2, 2, 2]]
  for _ in range(2):  # the third word is learned for its batch alone
    plain.asked.clear()
    assert encode(["a bb ccc ccc a"]) == [[1, 2, 3, 3, 1]]
    assert plain.asked == ["ccc"]
  plain.asked.clear()
  encode(["a bb a bb"])
  assert plain.asked == []


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
