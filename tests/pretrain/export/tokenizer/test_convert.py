"""tokenizer.json of our vocabularies against sentencepiece, and vocabularies of others' tokenizers."""

import json
import random

import pytest
import sentencepiece
from tokenizers import Tokenizer

from data import errors, vocabulary
from data.vocabulary import train as vocabulary_train
from pretrain.export.tokenizer import bpe, convert
from tests.data.conftest import make_documents

# Bases and marks that Unicode, the `tokenizers` library and sentencepiece treat in different ways.
_BASES = "aAeEuUxXzZcC êéüÜâαΩωカｶﾊかAB각가ㄱㅏﬁ①～…Ａ🅉İßſ日 \u3000\t\n.,'-"
_MARKS = (
  "\u0300\u0301\u0302\u0304\u0308\u0323\u0327\u0345\u0313\u3099\uff9e\uff9f\u0340\u0344\x01\x02\x0b\u200c\u200d"
  "\u20dd\ufe0f\u05b0\u05bc\u064e\u0651\u09be\u0e33\u1ad0\U0001f3fd\U000e0041"
)


def sentences():
  text = [paragraph for document in make_documents(100, seed=9) for paragraph in document]
  return [*text, "aAeEuUxXzZcC ababab aaaa café naïve ệ ậ がカ 日本 \u0301\u0302\u0323"]


@pytest.fixture(scope="module", params=[True, False], ids=["cased", "uncased"])
def directory(request, tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "v"
  vocabulary_train.train(sentences(), path, kind="sentencepiece", cased=request.param, size=220)
  return path


@pytest.fixture(scope="module")
def uncased(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "v"
  vocabulary_train.train(sentences(), path, kind="sentencepiece", cased=False, size=220)
  return path


def hard_texts(number, seed=0):
  rng = random.Random(seed)

  def text():
    pools = [rng.choice((_BASES, _BASES, _MARKS)) for _ in range(rng.randint(1, 9))]
    return "".join(rng.choice(pool) for pool in pools)

  return [text() for _ in range(number)]


def written(directory, folder, **fields):
  convert.write_tokenizer(directory, folder, max_length=64, **fields)
  return Tokenizer.from_file(str(folder / "tokenizer.json"))


def different(directory, tokenizer, texts):
  return list(convert.differences(vocabulary.load(directory), tokenizer, texts))


def test_hard_texts_get_the_ids_of_sentencepiece(directory, tmp_path):
  tokenizer = written(directory, tmp_path / "out")
  texts = hard_texts(2000) + [chr(i) for i in range(1, 0x3200)] + [f"A{chr(i)}b" for i in range(1, 0x3200)]
  texts += [
    "",
    " ",
    "x" * 20_000,
    "🙂" * 300 + "\u0301" * 300,
    "[MASK] [CLS]a[SEP]</s>",
    "\ufeff\u2581 \u2581a",
  ]
  assert different(directory, tokenizer, texts) == []
  # Unknown characters beside each other are one id: a lost mark would not show in the ids.
  processor = sentencepiece.SentencePieceProcessor(str(directory / "sp.model"))
  normalize = tokenizer.normalizer.normalize_str
  assert [text for text in texts if normalize(text) != processor.normalize(text).replace(" ", "▁")] == []


def test_pieces_that_overlap_themselves_are_joined_from_the_left(tmp_path):
  text = ["ababab bababa aabaab aaaaaaa abba abab babab ab ba aab aba"] * 9
  vocabulary_train.train(text, tmp_path / "v", kind="sentencepiece", cased=True, size=26)
  rng = random.Random(1)
  texts = ["".join(rng.choices("ab ", (5, 4, 1), k=rng.randint(1, 40))) for _ in range(2000)]
  assert different(tmp_path / "v", written(tmp_path / "v", tmp_path / "out"), texts) == []


@pytest.mark.parametrize("model_type", ["mpnet", "layoutlmv3", "bert", "electra"])
@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_auto_tokenizer_gives_our_ids_with_special_pieces(uncased, tmp_path, kind, model_type):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  source = uncased if kind == "sentencepiece" else wordpiece_vocabulary(tmp_path)
  written(source, tmp_path / "out")
  (tmp_path / "out" / "config.json").write_text(json.dumps({"model_type": model_type}))
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
  words = vocabulary.load(source)
  special, first, second = words.special_ids, words.encode("The unaffable É!"), words.encode("time")
  assert tokenizer("The unaffable É!")["input_ids"] == words.with_special_ids(first)
  pair = tokenizer("The unaffable É!", "time")
  separators = [special.sep] * (2 if kind == "sentencepiece" else 1)
  assert pair["input_ids"] == [special.cls, *first, *separators, *second, special.sep]
  assert pair["input_ids"] == words.with_special_ids(first, second)
  assert list(pair) == ["input_ids", "attention_mask"]
  batch = tokenizer(["time", "the time"], padding=True)
  assert special.pad in batch["input_ids"][0] and 0 in batch["attention_mask"][0]
  assert tokenizer.model_max_length == len(tokenizer("time " * 99, truncation=True)["input_ids"]) == 64
  assert tokenizer.mask_token_id == special.mask and tokenizer.unk_token_id == special.unk


def test_text_that_spells_a_special_piece_gives_its_id_unless_it_is_split(uncased, tmp_path):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  written(uncased, tmp_path / "out")
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
  words = vocabulary.load(uncased)
  ids = tokenizer("a [MASK] b", add_special_tokens=False)["input_ids"]
  assert ids == [*words.encode("a"), words.special_ids.mask, *words.encode("b")]
  for text in ("a [MASK] b", "[CLS][SEP]", "x[UNK]y"):
    split = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert split == words.encode(text)


def test_decoding_gives_the_text_of_the_vocabulary(uncased, tmp_path):
  words, tokenizer = vocabulary.load(uncased), written(uncased, tmp_path / "out")
  ids = words.encode("The people café time")
  assert tokenizer.decode(words.with_special_ids(ids)) == words.decode(ids)


def train_model(path, **fields):
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences()),
    model_prefix=str(path.with_suffix("")),
    **{"model_type": "bpe", "vocab_size": 220, "minloglevel": 2} | fields,
  )
  return path


_SYMBOLS = {"unk_piece": "[UNK]", "pad_id": 3, "control_symbols": ["[MASK]"]}


@pytest.mark.parametrize(
  "fields",
  [
    {"byte_fallback": True, "vocab_size": 450},
    {"remove_extra_whitespaces": False},
    {"add_dummy_prefix": False},
    {"bos_id": 5, "eos_id": 9, "character_coverage": 0.98},
  ],
)
def test_models_of_others_are_followed(tmp_path, fields):
  model = train_model(tmp_path / "sp.model", **{**_SYMBOLS, **fields})
  vocabulary_train.import_files(tmp_path / "v", sp_model=str(model), cased=True)
  tokenizer = written(tmp_path / "v", tmp_path / "out")
  assert (
    different(
      tmp_path / "v", tokenizer, [*hard_texts(500), "  a  b\n\n c ", "日本 中 🙂🙂 中", "\u2581 a\u2581"]
    )
    == []
  )


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"model_type": "unigram", "vocab_size": 60}, "not a BPE model"),
    ({"normalization_rule_name": "nfkc"}, "keeps control characters"),
    ({"user_defined_symbols": ["<x>"]}, "'<x>' has a type"),
    ({"treat_whitespace_as_suffix": True}, "the ids .* expected"),
    ({"normalization_rule_name": "identity"}, "the ids .* expected"),  # a '▁' in text is no space to it
  ],
)
def test_models_that_cannot_be_followed_are_refused(tmp_path, fields, message):
  model = train_model(tmp_path / "sp.model", **{**_SYMBOLS, **fields})
  vocabulary_train.import_files(tmp_path / "v", sp_model=str(model), cased=True)
  with pytest.raises(errors.DataError, match=message):
    convert.write_tokenizer(tmp_path / "v", tmp_path / "out", max_length=64)
  assert not (tmp_path / "out").exists()
  line = convert.warning(tmp_path / "v")
  assert line.startswith("models with this vocabulary cannot be exported") and "--to=torch" in line


def test_a_vocabulary_that_can_be_held_needs_no_warning(uncased):
  assert convert.warning(uncased) == ""


def with_dictionary(directory, output, *, left_out=(), pretokenization="none"):
  """The vocabulary with its pieces in the reverse order."""
  words = vocabulary.load(directory)
  pieces = [words.piece(i) for i in range(5, words.size) if words.piece(i) not in left_out]
  path = output.with_suffix(".txt")
  path.write_text("".join(f"{piece} 1\n" for piece in reversed(pieces)), encoding="utf-8")
  return vocabulary_train.import_files(
    output,
    sp_model=str(directory / "sp.model"),
    dictionary=str(path),
    cased=False,
    pretokenization=pretokenization,
  )


def test_a_dictionary_decides_the_ids(uncased, tmp_path):
  made = with_dictionary(uncased, tmp_path / "v")
  assert made.special_ids.mask == made.size - 1
  assert different(tmp_path / "v", written(tmp_path / "v", tmp_path / "out"), hard_texts(300)) == []
  assert (tmp_path / "out" / "dict.txt").read_bytes() == (tmp_path / "v" / "dict.txt").read_bytes()


@pytest.mark.parametrize(
  ("fields", "message"),
  [({"left_out": ["e"]}, "of their own: 1 .* 'e'"), ({"pretokenization": "official"}, "does not support")],
)
def test_dictionaries_that_cannot_be_held_are_refused(uncased, tmp_path, fields, message):
  with_dictionary(uncased, tmp_path / "v", **fields)
  with pytest.raises(errors.DataError, match=message):
    convert.write_tokenizer(tmp_path / "v", tmp_path / "out", max_length=64)
  assert not (tmp_path / "out").exists()


def test_a_model_that_is_gone_is_named_once(tmp_path):
  gone = tmp_path / "sp.model"
  with pytest.raises(errors.DataError) as raised:
    bpe.read_proto(gone)
  line = f"{gone}: not a sentencepiece model (No such file or directory); restore the original file"
  assert str(raised.value) == line


def test_scores_must_order_the_pieces(uncased):
  proto = bpe.read_proto(uncased / "sp.model")
  proto.pieces[8].score = proto.pieces[9].score
  ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
  with pytest.raises(errors.DataError, match="same score"):
    bpe.bpe_model(proto, ids, vocabulary=ids, unknown="[UNK]", where="sp.model")


def test_an_export_is_read_back_as_the_same_vocabulary(uncased, tmp_path):
  written(uncased, tmp_path / "out")
  assert convert.read_tokenizer(tmp_path / "out", tmp_path / "v").digest == vocabulary.load(uncased).digest
  wordpiece = wordpiece_vocabulary(tmp_path)
  written(wordpiece, tmp_path / "out2")
  made = convert.read_tokenizer(tmp_path / "out2", tmp_path / "w")
  assert made.digest == vocabulary.load(wordpiece).digest


def test_the_official_files_are_read_as_the_official_code_reads_them(uncased, tmp_path):
  with_dictionary(uncased, tmp_path / "v")
  (tmp_path / "v" / vocabulary.NAME).unlink()
  made = convert.read_tokenizer(tmp_path / "v", tmp_path / "w")
  assert (made.pretokenization, made.cased) == ("official", False)
  (tmp_path / "v" / "dict.txt").unlink()
  assert convert.read_tokenizer(tmp_path / "v", tmp_path / "x").pretokenization == "none"


def wordpiece_vocabulary(folder):
  pieces = [
    "[PAD]",
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
    "]",
    "e",
    "time",
  ]
  (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
  vocabulary_train.import_files(folder / "wordpiece", vocab_txt=str(folder / "vocab.txt"), cased=False)
  return folder / "wordpiece"
