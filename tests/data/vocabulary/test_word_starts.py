"""Which ids begin a word, for every kind of vocabulary, and those that do not show it."""

import pytest
import sentencepiece
from tokenizers import pre_tokenizers

from data import vocabulary
from data.vocabulary import train as vocabulary_train
from tests import byte_level
from tests.data.vocabulary.test_tokenizer_json import unigram
from tests.data.vocabulary.test_vocabulary import sentences

TEXT = "the people make timeless"


def _sentencepiece(tmp_path, **options) -> vocabulary.Vocabulary:
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences()),
    model_prefix=str(tmp_path / "sp"),
    control_symbols=["[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    unk_piece="[UNK]",
    minloglevel=2,
    **options,
  )
  return vocabulary_train.import_files(tmp_path / "v", sp_model=str(tmp_path / "sp.model"), cased=False)


def _unigram_json(tmp_path) -> vocabulary.Vocabulary:
  unigram().save(str(tmp_path / "tokenizer.json"))
  return vocabulary_train.import_files(tmp_path / "v", tokenizer=str(tmp_path / "tokenizer.json"), cased=True)


MAKERS = {
  "bpe": lambda path: _sentencepiece(path, model_type="bpe", vocab_size=80),
  "unigram": lambda path: _sentencepiece(path, model_type="unigram", vocab_size=60),
  "wordpiece": lambda path: vocabulary_train.train(
    sentences(), path / "v", kind="wordpiece", cased=False, size=80
  ),
  "byte_level": lambda path: byte_level.imported(path, byte_level.tokenizer(size=300)),
  "unigram_json": _unigram_json,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_word_of_a_text_begins_where_it_is_marked(kind, tmp_path):
  words = MAKERS[kind](tmp_path)
  starts = words.word_starts
  assert len(starts) == words.size and {*starts} == {0, 1}
  assert all(starts[number] for number in vars(words.special_ids).values())
  ids = words.encode(f" {TEXT}" if words.reads_space else TEXT)
  parts, word = [], []
  for number in ids:
    if starts[number] and word:
      parts, word = [*parts, word], []
    word.append(number)
  assert [words.decode(part).strip() for part in [*parts, word]] == TEXT.split()
  assert len(ids) > 4  # so that some words have several pieces


def test_white_space_among_byte_level_pieces_begins_a_word(tmp_path):
  words = byte_level.imported(tmp_path)
  begins = [bool(words.word_starts[number]) for number in words.encode("a\n\tb ,c")]
  assert begins == [False, True, True, False, True, False, False]


def _without_spaces():
  made = byte_level.tokenizer()
  made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), made.pre_tokenizer])
  return made


@pytest.mark.parametrize("kind", ["suffix", "letters", "no_continuation"])
def test_a_vocabulary_whose_pieces_do_not_show_words_has_no_starts(kind, tmp_path):
  if kind == "suffix":
    words = _sentencepiece(tmp_path, model_type="bpe", vocab_size=80, treat_whitespace_as_suffix=True)
  elif kind == "letters":
    words = byte_level.imported(tmp_path, _without_spaces())
  else:
    (tmp_path / "vocab.txt").write_text("[CLS]\n[PAD]\n[SEP]\n[UNK]\n[MASK]\na\nb\n")
    words = vocabulary_train.import_files(tmp_path / "v", vocab_txt=str(tmp_path / "vocab.txt"), cased=False)
  assert words.word_starts == b""
