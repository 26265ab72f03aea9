"""Which ids begin a word, for every kind of vocabulary, and those that do not show it."""

import sentencepiece
from tokenizers import pre_tokenizers

from data import vocabulary
from data.vocabulary import train as vocabulary_train
from tests import byte_level
from tests.byte_level import sentences
from tests.data.vocabulary.test_tokenizer_json import unigram

TEXT = "the people make timeless"


def _sentencepiece(path, **options) -> vocabulary.Vocabulary:
  path.mkdir()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences()),
    model_prefix=str(path / "sp"),
    control_symbols=["[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    unk_piece="[UNK]",
    minloglevel=2,
    **options,
  )
  return vocabulary_train.import_files(path / "v", sp_model=str(path / "sp.model"), cased=False)


def test_every_word_of_a_text_begins_where_it_is_marked(tmp_path):
  unigram().save(str(tmp_path / "tokenizer.json"))
  path = str(tmp_path / "tokenizer.json")
  for words in (
    _sentencepiece(tmp_path / "bpe", model_type="bpe", vocab_size=80),
    _sentencepiece(tmp_path / "unigram", model_type="unigram", vocab_size=60),
    vocabulary_train.train(sentences(), tmp_path / "words", kind="wordpiece", cased=False, size=80),
    byte_level.imported(tmp_path / "bytes", byte_level.tokenizer(size=300)),
    vocabulary_train.import_files(tmp_path / "unigram_json", tokenizer=path, cased=True),
  ):
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


def test_a_vocabulary_whose_pieces_do_not_show_words_has_no_starts(tmp_path):
  options = {"model_type": "bpe", "vocab_size": 80, "treat_whitespace_as_suffix": True}
  assert _sentencepiece(tmp_path / "suffix", **options).word_starts == b""
  made = byte_level.tokenizer()
  made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), made.pre_tokenizer])
  assert byte_level.imported(tmp_path / "letters", made).word_starts == b""
  (tmp_path / "vocab.txt").write_text("[CLS]\n[PAD]\n[SEP]\n[UNK]\n[MASK]\na\nb\n")
  path = str(tmp_path / "vocab.txt")
  assert vocabulary_train.import_files(tmp_path / "v", vocab_txt=path, cased=False).word_starts == b""
