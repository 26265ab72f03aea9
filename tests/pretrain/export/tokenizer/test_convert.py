"""tokenizer.json of our vocabularies against sentencepiece, and what transformers reads of them."""

import json
import random

import pytest
import sentencepiece
from tokenizers import Tokenizer

from data import vocabulary
from data.errors import DataError
from data.vocabulary import train as vocabulary_train
from pretrain.export.tokenizer import convert, from_sentencepiece
from tests import byte_level
from tests.pretrain.export.refusals import failing

# Bases and marks that Unicode, the `tokenizers` library and sentencepiece treat in different ways.
_BASES = "aAeEuUxXzZcC êéüÜâαΩωカｶﾊかAB각가ㄱㅏﬁ①～…Ａ🅉İßſ日 \u3000\t\n.,'-"
_MARKS = (
  "\u0300\u0301\u0302\u0304\u0308\u0323\u0327\u0345\u0313\u3099\uff9e\uff9f\u0340\u0344\x01\x02\x0b\u200c\u200d"
  "\u20dd\ufe0f\u05b0\u05bc\u064e\u0651\u09be\u0e33\u1ad0\U0001f3fd\U000e0041"
)
_SYMBOLS = {"unk_piece": "[UNK]", "pad_id": 3, "control_symbols": ["[MASK]"]}
_WORDPIECES = (
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
)


def sentences():
  return [*byte_level.sentences(), "aAeEuUxXzZcC ababab aaaa café naïve ệ ậ がカ 日本 \u0301\u0302\u0323"]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
  """Vocabularies of 220 sentencepieces, cased and uncased, of 14 word pieces, and of a tokenizer.json."""
  root = tmp_path_factory.mktemp("vocabulary")
  for name in ("cased", "uncased"):
    vocabulary_train.train(sentences(), root / name, kind="sentencepiece", cased=name == "cased", size=220)
  (root / "vocab.txt").write_text("".join(f"{piece}\n" for piece in _WORDPIECES), encoding="utf-8")
  vocabulary_train.import_files(root / "wordpiece", vocab_txt=str(root / "vocab.txt"), cased=False)
  byte_level.imported(root / "byte_level")
  return root


def hard_texts(number, seed=0):
  rng = random.Random(seed)

  def text():
    pools = [rng.choice((_BASES, _BASES, _MARKS)) for _ in range(rng.randint(1, 9))]
    return "".join(rng.choice(pool) for pool in pools)

  return [text() for _ in range(number)]


def written(directory, folder):
  convert.write_tokenizer(directory, folder, max_length=64)
  return Tokenizer.from_file(str(folder / "tokenizer.json"))


def different(directory, tokenizer, texts):
  return list(convert.differences(vocabulary.load(directory), tokenizer, texts))


def test_hard_texts_get_the_ids_of_sentencepiece(directories, tmp_path):
  texts = hard_texts(2000) + [chr(i) for i in range(1, 0x3200)] + [f"A{chr(i)}b" for i in range(1, 0x3200)]
  texts += [
    "",
    " ",
    "x" * 20_000,
    "🙂" * 300 + "\u0301" * 300,
    "[MASK] [CLS]a[SEP]</s>",
    "\ufeff\u2581 \u2581a",
  ]
  for name in ("cased", "uncased"):
    directory = directories / name
    tokenizer = written(directory, tmp_path / name)
    assert different(directory, tokenizer, texts) == []
    # Unknown characters beside each other are one id: a lost mark would not show in the ids.
    processor = sentencepiece.SentencePieceProcessor(str(directory / "sp.model"))
    normalize = tokenizer.normalizer.normalize_str
    assert [text for text in texts if normalize(text) != processor.normalize(text).replace(" ", "▁")] == []
    words = vocabulary.load(directory)
    ids = words.encode("The people café time")
    assert tokenizer.decode(words.with_special_ids(ids)) == words.decode(ids)


def test_auto_tokenizer_gives_our_ids_with_special_pieces(directories, tmp_path):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  for kind, model_type, separators in (
    ("uncased", "mpnet", 2),
    ("uncased", "layoutlmv3", 2),
    ("wordpiece", "bert", 1),
    ("wordpiece", "electra", 1),
  ):
    folder = tmp_path / model_type
    written(directories / kind, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = vocabulary.load(directories / kind)
    special, first, second = words.special_ids, words.encode("The unaffable É!"), words.encode("time")
    assert tokenizer("The unaffable É!")["input_ids"] == words.with_special_ids(first)
    pair = tokenizer("The unaffable É!", "time")
    expected = [special.cls, *first, *[special.sep] * separators, *second, special.sep]
    assert pair["input_ids"] == expected == words.with_special_ids(first, second)
    assert list(pair) == ["input_ids", "attention_mask"]
    batch = tokenizer(["time", "the time"], padding=True)
    assert special.pad in batch["input_ids"][0] and 0 in batch["attention_mask"][0]
    assert tokenizer.model_max_length == len(tokenizer("time " * 99, truncation=True)["input_ids"]) == 64
    assert tokenizer.mask_token_id == special.mask and tokenizer.unk_token_id == special.unk
    # Text that spells a special piece gives its id, unless it is split.
    ids = tokenizer("e [MASK] e", add_special_tokens=False)["input_ids"]
    assert ids == [*words.encode("e"), special.mask, *words.encode("e")]
    for text in ("e [MASK] e", "[CLS][SEP]", "x[UNK]y"):
      split = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
      assert split == words.encode(text)
    assert convert.read_tokenizer(folder, tmp_path / f"back {model_type}").digest == words.digest


def _models(tmp_path, rows):
  """(directory, ...) of a sentencepiece model with the fields of each row (fields, ...)."""
  for at, (fields, *rest) in enumerate(rows):
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences()),
      model_prefix=str(tmp_path / f"sp{at}"),
      **{"model_type": "bpe", "vocab_size": 220, "minloglevel": 2} | _SYMBOLS | fields,
    )
    model = str(tmp_path / f"sp{at}.model")
    vocabulary_train.import_files(tmp_path / f"v{at}", sp_model=model, cased=True)
    yield tmp_path / f"v{at}", *rest


def test_models_of_others_are_followed(tmp_path):
  text = ["ababab bababa aabaab aaaaaaa abba abab babab ab ba aab aba"] * 9
  vocabulary_train.train(text, tmp_path / "v", kind="sentencepiece", cased=True, size=26)
  rng = random.Random(1)  # pieces that overlap themselves are joined from the left
  texts = ["".join(rng.choices("ab ", (5, 4, 1), k=rng.randint(1, 40))) for _ in range(2000)]
  assert different(tmp_path / "v", written(tmp_path / "v", tmp_path / "out"), texts) == []
  rows = [({"byte_fallback": True, "vocab_size": 450},), ({"remove_extra_whitespaces": False},)]
  rows += [({"add_dummy_prefix": False},), ({"bos_id": 5, "eos_id": 9, "character_coverage": 0.98},)]
  texts = [*hard_texts(500), "  a  b\n\n c ", "日本 中 🙂🙂 中", "\u2581 a\u2581"]
  for (directory,) in _models(tmp_path, rows):
    assert different(directory, written(directory, tmp_path / "out"), texts) == [], directory
    assert convert.warning(directory) == ""


def with_dictionary(directory, output, *, left_out=(), pretokenization="none"):
  """The vocabulary with its pieces in the reverse order."""
  words = vocabulary.load(directory)
  pieces = [words.piece(i) for i in range(5, words.size) if words.piece(i) not in left_out]
  path = output.with_suffix(".txt")
  path.write_text("".join(f"{piece} 1\n" for piece in reversed(pieces)), encoding="utf-8")
  files = {"sp_model": str(directory / "sp.model"), "dictionary": str(path)}
  return vocabulary_train.import_files(output, **files, cased=False, pretokenization=pretokenization)


def test_models_that_cannot_be_followed_are_refused(directories, tmp_path):
  rows = [
    ({"model_type": "unigram", "vocab_size": 60}, "not a BPE model"),
    ({"normalization_rule_name": "nfkc"}, "keeps control characters"),
    ({"user_defined_symbols": ["<x>"]}, "'<x>' has a type"),
    ({"treat_whitespace_as_suffix": True}, "the ids"),
    ({"normalization_rule_name": "identity"}, "the ids"),  # a '▁' in text is no space to it
  ]
  with_dictionary(directories / "uncased", tmp_path / "shorter", left_out=["e"])
  with_dictionary(directories / "uncased", tmp_path / "official", pretokenization="official")
  found = [
    *_models(tmp_path, rows),
    (tmp_path / "shorter", "of their own: 1"),
    (tmp_path / "official", "official"),
  ]

  def run(directory):
    convert.write_tokenizer(directory, tmp_path / "out", max_length=64)

  assert not failing([(directory, "\n  --to=torch") for directory, _ in found], run)
  assert not failing(found, run) and not (tmp_path / "out").exists()
  assert all(word in convert.warning(directory) for directory, word in found)
  with pytest.raises(DataError, match=r"sp.model: not a sentencepiece model \(No such file"):
    from_sentencepiece.read_proto(tmp_path / "sp.model")


def test_a_dictionary_decides_the_ids_and_is_read_as_the_official_code_reads_it(directories, tmp_path):
  made = with_dictionary(directories / "uncased", tmp_path / "v")
  assert made.special_ids.mask == made.size - 1
  assert different(tmp_path / "v", written(tmp_path / "v", tmp_path / "out"), hard_texts(300)) == []
  assert (tmp_path / "out" / "dict.txt").read_bytes() == (tmp_path / "v" / "dict.txt").read_bytes()
  (tmp_path / "v" / vocabulary.NAME).unlink()
  made = convert.read_tokenizer(tmp_path / "v", tmp_path / "w")
  assert (made.pretokenization, made.cased) == ("official", False)
  (tmp_path / "v" / "dict.txt").unlink()
  assert convert.read_tokenizer(tmp_path / "v", tmp_path / "x").pretokenization == "none"


def test_a_tokenizer_json_stays_byte_for_byte_and_comes_back(directories, tmp_path):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  source, out = directories / "byte_level", tmp_path / "out"
  convert.write_tokenizer(source / "v", out, max_length=9)
  content = (source / "stock/tokenizer.json").read_bytes()
  assert (out / "tokenizer.json").read_bytes() == content and convert.warning(source / "v") == ""
  config = json.loads((out / "tokenizer_config.json").read_text())
  assert (config["tokenizer_class"], config["mask_token"]) == ("PreTrainedTokenizerFast", "[MASK]")
  tokenizer, words = transformers.AutoTokenizer.from_pretrained(out), vocabulary.load(source / "v")
  texts = ("The people make  time.", "Où est-elle?")
  rows = tokenizer(*texts, truncation=True)
  assert rows["input_ids"] == words.with_special_ids(*map(words.encode, texts), max_length=9)
  assert tokenizer.mask_token_id == words.special_ids.mask and tokenizer.pad_token_id == words.special_ids.pad
  assert convert.read_tokenizer(out, tmp_path / "with").digest == words.digest
  (out / vocabulary.NAME).unlink()
  assert convert.read_tokenizer(out, tmp_path / "without").digest == words.digest
  assert convert.read_tokenizer(source / "stock", tmp_path / "stock").digest == words.digest
  assert (tmp_path / "stock/tokenizer.json").read_bytes() == content
