"""A tokenizer.json as a vocabulary: ids of the library, words after a space, refusals, word starts."""

import json
import unicodedata

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from data import errors, vocabulary
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import train as vocabulary_train
from tests import byte_level

NAMES = byte_level.SPECIAL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("byte_level")
  byte_level.imported(path)
  return path


@pytest.fixture(scope="module")
def words(folder):
  return vocabulary.load(folder / "v")


def changed(tmp_path, change, config=lambda config: None, made=None, **special):
  """Imports the files with a change of their JSON content and of the config beside it."""
  path = byte_level.write(tmp_path / "stock", made, **special)
  for file, edit in ((path, change), (path.with_name("tokenizer_config.json"), config)):
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))
  return vocabulary_train.import_files(tmp_path / "v", tokenizer=str(path), cased=True)


def special_of(made) -> dict[str, str]:
  return {role: made.piece(getattr(made.special_ids, role)) for role in NAMES}


def test_the_command_carries_the_file_byte_for_byte_without_a_warning(folder, words, tmp_path, capfd):
  flags = [f"--tokenizer_json={folder}/stock/tokenizer.json", f"--output={tmp_path}/v"]
  assert vocabulary_command.main(["import", *flags]) == 0
  assert "cannot be exported" not in "".join(capfd.readouterr())
  assert (tmp_path / "v/tokenizer.json").read_bytes() == (folder / "stock/tokenizer.json").read_bytes()
  assert vocabulary.load(tmp_path / "v").digest == words.digest
  assert (words.kind, words.cased, words.between) == ("tokenizer_json", True, (words.special_ids.sep,))
  assert words.size == 400 + 2 + 5 + byte_level.SPARE
  assert special_of(words) == NAMES


def test_ids_are_those_of_the_library_and_no_text_gives_a_special_one(folder, words):
  """As AutoTokenizer has them, which takes seconds to import; the tests of the export compare it."""
  stock = Tokenizer.from_file(str(folder / "stock" / "tokenizer.json"))
  plain = Tokenizer.from_file(str(folder / "stock" / "tokenizer.json"))
  plain.encode_special_tokens = True
  never = {*vars(words.special_ids).values(), *range(words.size - byte_level.SPARE, words.size)}
  for text in byte_level.TEXTS:
    ids = words.encode(text)
    assert words.decode(ids) == unicodedata.normalize("NFC", text)
    assert not never & set(ids), text
    if "[unused" not in text:
      assert ids == plain.encode(text, add_special_tokens=False).ids, text
    if "[" not in text:
      assert words.with_special_ids(ids) == stock.encode(text).ids, text
      assert words.with_special_ids(ids, words.encode("a")) == stock.encode(text, "a").ids, text


def test_words_given_apart_have_the_ids_of_running_text(words, tmp_path):
  text = "The people make time (than two) words."
  assert words.reads_space
  (parts,) = words.encode_words([text.split()])
  assert [i for ids in parts for i in ids] == words.encode(text)
  assert words.encode_words([["make"], ["make", "make"], []])[1][1] == words.encode(" make")
  # A file that adds the space itself gets none.
  words = byte_level.imported(tmp_path, byte_level.tokenizer(add_prefix_space=True))
  assert not words.reads_space and words.behind_space("make") == "make"
  (parts,) = words.encode_words([["the", "people"]])
  assert [i for ids in parts for i in ids] == words.encode("the people")


def test_pieces_are_shown_as_text(words):
  def shown(text):
    return [(words.letters(i), words.shown_piece(i)) for i in words.encode(text)]

  assert shown("people the,")[-2:] == [(("the", True), "the"), ((",", False), ",")]
  assert shown(" é")[0][0] == (" ", True)
  assert shown("é")[0][0] == ("\ufffd", False)  # a byte of it
  assert words.letters(words.special_ids.mask) == ("[MASK]", False)


def test_special_pieces_are_those_that_the_files_beside_name(tmp_path):
  """cls and sep before bos and eos, which decoders' tokenizers have; without files BERT's or fairseq's."""
  made = byte_level.tokenizer()
  made.add_special_tokens(["<m>", "<start>", "<end>"])
  both = {"bos_token": "<start>", "eos_token": {"content": "<end>"}}
  named = changed(tmp_path / "a", lambda _: None, lambda config: config.update(both), made, mask="<m>")
  assert special_of(named) == NAMES | {"mask": "<m>"}
  made.post_processor = processors.TemplateProcessing(
    single="<start> $A <end>",
    pair="<start> $A <end> $B <end>",
    special_tokens=[(piece, made.token_to_id(piece)) for piece in ("<start>", "<end>")],
  )

  def of_decoders(config):
    del config["cls_token"], config["sep_token"]
    config.update(both)

  named = changed(tmp_path / "b", lambda _: None, of_decoders, made, mask="<m>")
  assert special_of(named) == NAMES | {"mask": "<m>", "cls": "<start>", "sep": "<end>"}
  assert vocabulary.load(tmp_path / "b" / "v").digest == named.digest
  assert "<m>" not in [named.piece(i) for i in named.encode("<m> <start>")]
  assert special_of(changed(tmp_path / "c", lambda _: None, lambda config: config.clear())) == NAMES


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
  pieces = {piece: i for i, piece in enumerate((*NAMES.values(), "the", "a", "@@s"))}
  made = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]", continuing_subword_prefix="@@"))
  made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
  made.add_special_tokens(list(NAMES.values()))
  made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
  words = byte_level.imported(tmp_path, made)
  assert words.mark == "@@" and not words.cased and not words.reads_space
  assert [words.letters(i) for i in words.encode("The as")] == [("the", True), ("a", True), ("s", False)]


PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
TRUNCATION = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
FORMS = [  # change of the file, what the error must contain
  (lambda it: it["model"]["vocab"].update({"far": 2**31 - 5}), "2,147,483,643"),  # no list so long is made
  (lambda it: it.update(post_processor=None), "expected '[CLS] a [SEP]' [402, "),
  (lambda it: it["post_processor"]["pair"].append(it["post_processor"]["pair"][2]), "[SEP] a [SEP]' [402, "),
  (lambda it: it.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}), "WordLevel"),
  (lambda it: it["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
  (lambda it: it.update(model={}), "not a readable tokenizer"),
]


def test_the_truncation_and_padding_of_the_last_call_are_not_those_of_the_vocabulary(folder, words, tmp_path):
  made = changed(tmp_path, lambda it: it.update(truncation=TRUNCATION, padding=PADDING))
  assert [made.encode(text) for text in byte_level.TEXTS] == [words.encode(text) for text in byte_level.TEXTS]


def test_roles_that_no_file_names_are_those_that_the_tokenizer_gives(tmp_path):
  made = Tokenizer(models.WordPiece({"<u>": 0, "a": 1, "<b>": 2, "<e>": 3}, unk_token="<u>"))
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  made.add_special_tokens(["<u>", "<b>", "<e>", "<p>", "[MASK]"])
  made.enable_padding(pad_id=4, pad_token="<p>", length=9)
  made.enable_truncation(3)
  path, special = tmp_path / "tokenizer.json", [("<b>", 2), ("<e>", 3)]
  for between, ids in (("<e> <b>", [3, 2]), ("<b>", [2])):
    pair = f"<b> $A {between} $B <e>"
    made.post_processor = processors.TemplateProcessing(
      single="<b> $A <e>", pair=pair, special_tokens=special
    )
    made.save(str(path))
    words = vocabulary_train.import_files(tmp_path / between, tokenizer=str(path), cased=True)
    assert special_of(words) == {"cls": "<b>", "pad": "<p>", "sep": "<e>", "unk": "<u>", "mask": "[MASK]"}
    assert words.between == tuple(ids) and words.encode("a a b a <e>") == [1, 1, 0, 1, 0, 0, 0]
    assert words.with_special_ids([1], [0, 1]) == [2, 1, *ids, 0, 1, 3]


def test_files_of_another_form_are_refused_in_one_line(tmp_path):
  failures = []
  cases = [({"change": change}, word) for change, word in FORMS]
  cases += [
    ({"change": lambda _: None, "mask": "<m>"}, 'tokenizer_config.json: "mask_token"'),
    ({"change": lambda _: None, "mask": "[UNK]"}, "five different"),
  ]
  for options, word in cases:
    with pytest.raises(errors.DataError) as caught:
      changed(tmp_path, **options)
    first = str(caught.value).splitlines()[0]
    if word not in str(caught.value) or str(tmp_path / "stock/tokenizer.json") not in first:
      failures.append(f"{word}: {caught.value}")
    assert not (tmp_path / "v").exists()
  assert not failures, "\n".join(failures)
  (tmp_path / "stock/tokenizer_config.json").write_text("[]")
  with pytest.raises(errors.DataError, match=r"tokenizer_config\.json: not a JSON object"):
    vocabulary_train.import_files(tmp_path / "v", tokenizer=f"{tmp_path}/stock/tokenizer.json", cased=True)


def test_an_import_that_was_changed_is_refused(folder, tmp_path):
  words = vocabulary.copy(folder / "v", tmp_path / "v")
  assert words.digest == vocabulary.load(folder / "v").digest
  path = tmp_path / "v" / vocabulary.NAME
  described = json.loads(path.read_text())
  for special, word in (
    (NAMES | {"mask": "[UNK]"}, "changed after"),
    ({"cls": "[CLS]"}, "special_pieces"),
    (NAMES | {"mask": "<of another>"}, "<of another>"),
  ):
    path.write_text(json.dumps(described | {"special_pieces": special}))
    with pytest.raises(errors.DataError, match=word):
      vocabulary.load(tmp_path / "v")


def _sentencepiece(path, **options) -> vocabulary.Vocabulary:
  path.mkdir()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(byte_level.sentences()),
    model_prefix=str(path / "sp"),
    control_symbols=["[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    unk_piece="[UNK]",
    minloglevel=2,
    **options,
  )
  return vocabulary_train.import_files(path / "v", sp_model=str(path / "sp.model"), cased=False)


def test_every_word_of_a_text_begins_where_it_is_marked_for_every_kind_of_vocabulary(tmp_path):
  text = "the people make timeless"
  unigram().save(str(tmp_path / "tokenizer.json"))
  path = str(tmp_path / "tokenizer.json")
  for words in (
    _sentencepiece(tmp_path / "bpe", model_type="bpe", vocab_size=80),
    _sentencepiece(tmp_path / "unigram", model_type="unigram", vocab_size=60),
    vocabulary_train.train(
      byte_level.sentences(), tmp_path / "words", kind="wordpiece", cased=False, size=80
    ),
    byte_level.imported(tmp_path / "bytes", byte_level.tokenizer(size=300)),
    vocabulary_train.import_files(tmp_path / "unigram_json", tokenizer=path, cased=True),
  ):
    starts = words.word_starts
    assert len(starts) == words.size and {*starts} == {0, 1}
    assert all(starts[number] for number in vars(words.special_ids).values())
    ids = words.encode(f" {text}" if words.reads_space else text)
    parts, word = [], []
    for number in ids:
      if starts[number] and word:
        parts, word = [*parts, word], []
      word.append(number)
    assert [words.decode(part).strip() for part in [*parts, word]] == text.split()
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
