"""Training, importing, loading and refusing vocabularies."""

import dataclasses
import os
import shutil

import pytest
import sentencepiece

from data import errors, vocabulary
from data.vocabulary import tokenizer_files
from data.vocabulary import train as vocabulary_train
from tests.byte_level import sentences

SPECIAL_TEXTS = ("[CLS] [PAD] [SEP] [MASK]", "[MASK][MASK]", "<s> </s> <pad> <mask>", "a[SEP]b", "[mask]")
TEXT = [*sentences(), *["[MASK] [SEP] [CLS] [PAD]"] * 9]


@pytest.mark.parametrize(
  ("kind", "size", "special", "separators"),
  # 29 letters as they are and 26 as continuations, and the words: about all there is in this text.
  [("sentencepiece", 150, (0, 1, 2, 3, 4), 2), ("wordpiece", 120, (2, 0, 3, 1, 4), 1)],
)
def test_a_trained_vocabulary_reads_back_and_text_gives_no_special_id(
  tmp_path, kind, size, special, separators
):
  """The ids of special pieces are in the order of the official dictionaries."""
  made, again = (
    vocabulary_train.train(TEXT, tmp_path / name, kind=kind, cased=False, size=size) for name in "ab"
  )
  assert made.digest == again.digest
  assert made.size == size == len({made.piece(i) for i in range(size)})
  assert dataclasses.astuple(made.special_ids) == special
  text = "the people make time"
  assert made.decode(made.encode(text)) == text
  assert made.encode_batch([text, "THE"]) == [made.encode(text), made.encode("the")]
  cls, pad, sep, unk, mask = special
  for text in SPECIAL_TEXTS:
    assert not {cls, pad, sep, mask} & set(made.encode(text)), text
  assert unk in made.encode("中")
  assert made.with_special_ids([7, 8], [5]) == [cls, 7, 8, *[sep] * separators, 5, sep]
  for token_id in (-1, size):
    with pytest.raises(errors.DataError, match="outside the vocabulary"):
      made.piece(token_id)
  if kind == "sentencepiece":
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "a" / "sp.model"))
    assert [i for i in range(size) if processor.is_control(i)] == [0, 1, 2, 4] and processor.is_unknown(3)


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


def test_wordpieces_are_the_most_frequent_letters_and_what_is_there_twice(tmp_path, monkeypatch):
  def train(text, size):
    return vocabulary_train.train(
      text, tmp_path / f"{len(text)}-{size}", kind="wordpiece", cased=True, size=size
    )

  with pytest.raises(errors.DataError, match=r"gave 10; .*\n  --size=10$"):  # q, ##z, ##x and what is special
    train(["qzx"], 90)
  monkeypatch.setattr(vocabulary_train, "MAX_LETTERS", 3)
  made = train(["ab ab ca d", "b e e f"], 11)  # a and b three times, e twice; c, d and f once
  assert [made.piece(i) for i in range(5, 11)] == ["##a", "##b", "a", "b", "e", "ab"]


def test_case_is_kept_only_where_asked(tmp_path):
  made = vocabulary_train.train(sentences(), tmp_path / "v", kind="sentencepiece", cased=True, size=150)
  assert made.encode("The") != made.encode("the")
  assert made.cased
  model = str(tmp_path / "v" / "sp.model")
  assert vocabulary_train.import_files(tmp_path / "import", sp_model=model, cased=False).cased
  sizes = [vocabulary_train.default_size(kind, cased=cased) for kind in vocabulary.KINDS for cased in (0, 1)]
  assert sizes == [32_768, 64_000, 30_522, 30_522]


def test_pieces_are_shown_for_people(vocabulary_directory):
  words = vocabulary.load(vocabulary_directory)
  failures = []
  for kind, piece, shown, letters in (
    ("sentencepiece", "▁the", "the", ("the", True)),
    ("sentencepiece", "ing", "-ing", ("ing", False)),
    ("sentencepiece", ",", ",", (",", False)),
    ("sentencepiece", "▁", "▁", (" ", True)),
    ("wordpiece", "the", "the", ("the", True)),
    ("wordpiece", "##ing", "-ing", ("ing", False)),
    ("wordpiece", "##,", ",", (",", False)),
    ("wordpiece", "##", "##", (" ", False)),
  ):
    made = dataclasses.replace(words, kind=kind, size=1, _pieces=(piece,))
    if (made.shown_piece(0), made.letters(0)) != (shown, letters):
      failures.append(f"{kind} {piece}: {made.shown_piece(0)} {made.letters(0)}")
  assert not failures, "\n".join(failures)


def test_a_size_that_cannot_be_is_refused_with_the_one_that_can(tmp_path):
  def train(size, kind="sentencepiece", text=TEXT):
    return vocabulary_train.train(text, tmp_path / "v", kind=kind, cased=False, size=size)

  with pytest.raises(errors.DataError, match=r"largest possible size is (\d+); .*\n  --size=\1$") as caught:
    train(30_000)
  largest = int(str(caught.value).split("--size=")[1])
  with pytest.raises(errors.DataError, match=r"20 pieces is too small: (\d+) are needed .*:\n  --size=\1$"):
    train(20)
  with pytest.raises(errors.DataError, match=r"20 pieces is too small for .* gave (\d+); use:\n  --size=\1$"):
    train(20, kind="wordpiece")
  for kind in vocabulary.KINDS:
    with pytest.raises(errors.DataError, match="no usable text"):
      train(100, kind=kind, text=[])
  assert list(tmp_path.iterdir()) == []
  assert train(largest).size == largest


def test_training_reads_at_most_so_many_characters(tmp_path, monkeypatch):
  monkeypatch.setattr(vocabulary_train, "MAX_TRAINING_CHARACTERS", 30)
  text = ["ab ab ab ab ab", "cd cd cd cd cd cd", "ef ef ef ef"]  # 14 and 17 characters, and more than 30
  made = vocabulary_train.train(text, tmp_path / "v", kind="wordpiece", cased=True, size=12)
  assert [made.piece(i) for i in range(5, 12)] == ["##b", "##d", "a", "b", "c", "d", "cd"]


def test_an_official_vocab_txt_keeps_its_ids(tmp_path):
  pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  pieces += ["the", "un", "##aff", "##able", "!", "["]
  (tmp_path / "vocab.txt").write_text("\r\n".join(pieces) + "\r\n", encoding="utf-8-sig")
  made = vocabulary_train.import_files(tmp_path / "v", vocab_txt=str(tmp_path / "vocab.txt"), cased=False)
  assert made.special_ids == vocabulary.SpecialIds(cls=3, pad=0, sep=4, unk=2, mask=5)
  assert made.encode("The Unaffable!") == [6, 7, 8, 9, 10]
  assert made.encode("zzz") == [2]
  assert 5 not in made.encode("[MASK]")
  assert made.decode([6, 7, 8, 9]) == "the unaffable" and made.decode([9, 6]) == "able the"
  pieces[:6] = ["<pad>", "[unused0]", "<unk>", "<s>", "</s>", "<mask>"]  # MPNet's
  (tmp_path / "vocab.txt").write_text("\n".join(pieces))
  made = vocabulary_train.import_files(tmp_path / "w", vocab_txt=str(tmp_path / "vocab.txt"), cased=False)
  assert made.special_ids == vocabulary.SpecialIds(cls=3, pad=0, sep=4, unk=2, mask=5)
  assert (made.between, made.encode("zzz")) == ((4, 4), [2])


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


def test_files_that_are_no_vocabulary_are_refused(tmp_path, vocabulary_directory):
  model, given = (vocabulary_directory / "sp.model").read_bytes(), tmp_path / "given"
  five = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
  cases = [  # kind of file, its content, what the error must contain
    ("vocab_txt", None, "cannot read"),
    ("vocab_txt", b"", "empty"),
    ("vocab_txt", b"\xff\xfe\x80", "not UTF-8"),
    ("vocab_txt", five.replace(b"[MASK]", b"the"), "no piece [MASK]"),
    ("vocab_txt", five + b"the\nthe\n", "lines 6 and 7"),
    ("vocab_txt", b"[PAD]\n\n[UNK]\n", "line 2 is empty"),
    ("sp_model", b"", "empty"),
    ("sp_model", model[:100], "sentencepiece"),
    ("sp_model", bytes(range(7, 250)) * 9, "sentencepiece"),
    ("dictionary", b"the\nof\n", "line 1"),
    ("dictionary", None, "cannot read"),
  ]
  failures = []
  for kind, content, word in cases:
    given.unlink(missing_ok=True) if content is None else given.write_bytes(content)
    paths = {"sp_model": f"{vocabulary_directory}/sp.model"} if kind == "dictionary" else {}
    with pytest.raises(errors.DataError) as caught:
      vocabulary_train.import_files(tmp_path / "v", **paths, **{kind: str(given)}, cased=False)
    if not (str(caught.value).startswith(f"{given}: ") and word in str(caught.value)):
      failures.append(f"{kind} {word}: {caught.value}")
    assert not (tmp_path / "v").exists()
  assert not failures, "\n".join(failures)
  for options, flag in (
    ({}, "--vocab_txt"),
    ({"vocab_txt": "a", "pretokenization": "official"}, "--pretokenization"),
    ({"vocab_txt": "a", "dictionary": "a"}, "--dict"),
  ):
    with pytest.raises(errors.ConfigError, match=flag):
      vocabulary_train.import_files(tmp_path / "v", **options, cased=False)


def test_a_damaged_directory_is_refused(tmp_path, vocabulary_directory):
  described = (vocabulary_directory / vocabulary.NAME).read_text()
  other = described.replace('"digest": "', '"digest": "0')
  texts = ["{", described.replace("sentencepiece", "bytes"), described.replace('"format": 1', '"format": 2')]
  texts += ["[" * 100_000, "[]", "{}", '{"format": 1, "kind": [], "cased": null}', other, None]
  for text in texts:
    directory = tmp_path / "v"
    shutil.copytree(vocabulary_directory, directory)
    (directory / vocabulary.NAME).unlink() if text is None else (directory / vocabulary.NAME).write_text(text)
    with pytest.raises(errors.DataError) as caught:
      vocabulary.load(directory)
    word = {None: "holds no vocabulary", other: "files changed"}.get(text, "not a vocabulary description")
    assert str(directory) in str(caught.value) and word in str(caught.value)
    shutil.rmtree(directory)


def test_a_vocabulary_is_loaded_once_and_again_when_it_changed(tmp_path, vocabulary_directory):
  vocabulary.copy(vocabulary_directory, tmp_path / "v")
  path = tmp_path / "v" / vocabulary.NAME
  first = vocabulary.load_cached(str(tmp_path / "v"))
  assert vocabulary.load_cached(str(tmp_path / "v")) is first
  os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
  assert vocabulary.load_cached(str(tmp_path / "v")) is not first
