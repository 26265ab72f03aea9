"""Stock folders with random weights go in and come out as the class they were, with the same head."""

import io
import json
import pathlib
import sys
import tempfile

import jax
import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from configs import base
from data import vocabulary
from data.errors import ConfigError
from data.vocabulary import SpecialIds
from finetune import predict
from pretrain.build import build
from pretrain.checkpoints.checkpoint import load_params
from pretrain.corruption.masking import TokenIds
from pretrain.export.import_checkpoint import import_checkpoint
from pretrain.export.recognise import recognise
from pretrain.export.stock.convert import to_stock
from pretrain.export.tokenizer.convert import read_tokenizer
from pretrain.export.weight_files import read_state
from pretrain.models import heads
from pretrain.models.layers import encoder_config
from pretrain.recipe import Batch
from tests import byte_level
from tests.pretrain import small_run
from tests.pretrain.export.refusals import failing
from tests.pretrain.export.stock.test_read import DEBERTA

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

_BERT = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
_FAIRSEQ = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_DECODER = {"cls": "<|begin|>", "pad": "<|end|>", "sep": "<|end|>", "mask": "<|mask|>"}
_SPECIAL = {
  "roberta": _FAIRSEQ,
  "unigram": _FAIRSEQ,
  "wordpiece": _BERT,
  "deberta": _BERT,
  "decoder": _DECODER,
}
LENGTH = 46
TEXTS = (
  "The people make time.",
  "Où est-elle?",
  "words",
  "It is more than two, the people know and make it.",
)
PAIRS = (TEXTS[:2], TEXTS[2:], TEXTS[1:3])


def _template(made: Tokenizer, special: dict[str, str], between: str, second: int = 0) -> None:
  cls, sep = special["cls"], special["sep"]
  made.post_processor = processors.TemplateProcessing(
    single=f"{cls} $A {sep}",
    pair=f"{cls} $A {between} $B:{second} {sep}:{second}",
    special_tokens=[(piece, made.token_to_id(piece)) for piece in (cls, sep)],
  )


def roberta() -> Tokenizer:
  """Byte-level BPE with the pair form `<s> a </s> </s> b </s>`."""
  made = Tokenizer(models.BPE(unk_token=None))
  made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
  alphabet, special = sorted(pre_tokenizers.ByteLevel.alphabet()), [*_FAIRSEQ.values()]
  made.train_from_iterator(
    byte_level.sentences(),
    trainers.BpeTrainer(
      vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    ),
  )
  made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
  return made


def decoder() -> Tokenizer:
  """EuroBERT's form: no unknown piece, the padding is the end, and a pair has a beginning in its middle."""
  made = Tokenizer(models.BPE())
  made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
  made.train_from_iterator(byte_level.sentences(), trainer)
  made.add_special_tokens([*dict.fromkeys(_DECODER.values()), "<|reserved_0|>", "<|reserved_1|>"])
  _template(made, _DECODER, "<|end|> <|begin|>")
  return made


def unigram() -> Tokenizer:
  """XLM-R's form: Unigram, whose `<mask>` is a piece, and two separators."""
  made = Tokenizer(models.Unigram())
  made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
  made.decoder = decoders.Metaspace()
  special = [*_FAIRSEQ.values()]
  made.train_from_iterator(
    byte_level.sentences(),
    trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False),
  )
  _template(made, _FAIRSEQ, "</s> </s>")
  return made


def spm(folder) -> None:
  """Writes DeBERTa-v3's `spm.model`, the only file of its released tokenizers, into a folder."""
  content, numbers = io.BytesIO(), {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
  pieces = dict(zip(numbers, ("[PAD]", "[CLS]", "[SEP]", "[UNK]")))
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(byte_level.sentences()),
    model_writer=content,
    model_type="unigram",
    vocab_size=400,
    byte_fallback=True,
    minloglevel=2,
    **{f"{role}_id": number for role, number in numbers.items()},
    **{f"{role}_piece": piece for role, piece in pieces.items()},
  )
  (folder / "spm.model").write_bytes(content.getvalue())


def deberta() -> Tokenizer:
  """The form in which transformers saves DeBERTa's tokenizer: [MASK] is behind the pieces."""
  with tempfile.TemporaryDirectory() as folder:
    spm(pathlib.Path(folder))
    return transformers.DebertaV2Tokenizer.from_pretrained(folder).backend_tokenizer


def wordpiece() -> Tokenizer:
  """BERT's form, with the ids of segments."""
  made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  made.train_from_iterator(
    byte_level.sentences(),
    trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False),
  )
  _template(made, _BERT, "[SEP]", second=1)
  return made


INPUTS, TYPES = ["input_ids", "attention_mask"], ["token_type_ids"]
COUNTED = ("Bert", "Electra", "NomicBert")  # the second text of a pair is segment 1
_SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
_DISTIL = {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 20}
FAMILIES = {  # class with its head: tokenizer, fields of config.json
  "RobertaForMaskedLM": (roberta, _SIZES | {"type_vocab_size": 1}),
  "XLMRobertaForMaskedLM": (unigram, _SIZES | {"type_vocab_size": 1}),
  "CamembertForMaskedLM": (unigram, _SIZES | {"type_vocab_size": 1}),
  "DistilBertForMaskedLM": (wordpiece, _DISTIL),
  "NomicBertForMaskedLM": (wordpiece, _SIZES),
  "BertForMaskedLM": (wordpiece, _SIZES),
  "ElectraForMaskedLM": (wordpiece, _SIZES | {"embedding_size": 10}),
  "ElectraForPreTraining": (wordpiece, _SIZES | {"embedding_size": 10}),
  "MPNetForMaskedLM": (unigram, _SIZES),
  "EuroBertForMaskedLM": (decoder, _SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}),
  "ModernBertForMaskedLM": (roberta, _SIZES),
  "DebertaV2ForMaskedLM": (deberta, _SIZES | DEBERTA),
}


def write(folder, name: str, **fields) -> None:
  """Writes a random model of a class with its tokenizer, as its users save it."""
  make, own = FAMILIES.get(name, (wordpiece, _SIZES))
  made = make()
  special = _SPECIAL[make.__name__]
  names = {f"{role}_token": piece for role, piece in special.items()}
  names |= {"model_input_names": INPUTS + TYPES} if name.startswith(COUNTED) else {}
  transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
  ids = {f"{role}_token_id": made.token_to_id(special[piece]) for role, piece in
         (("pad", "pad"), ("bos", "cls"), ("eos", "sep"))}  # fmt: skip
  kind, rows = getattr(transformers, name), made.get_vocab_size() + 3
  positions = LENGTH + (ids["pad_token_id"] + 1) * (special is _FAIRSEQ)
  config = kind.config_class(**ids, vocab_size=rows, max_position_embeddings=positions, **own | fields)
  torch.manual_seed(0)
  model = kind(config)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.3)
  model.save_pretrained(folder)


def outputs(folder, name: str) -> dict:
  """Returns the ids, hidden states and logits that transformers computes with a folder."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
  unread = [key for key in info["unexpected_keys"] if ".pooler." not in key]  # AutoModel has a pooler
  assert not info["missing_keys"] and not info["mismatched_keys"] and not unread
  base = model.base_model.eval()
  batches = [*([text] for text in TEXTS), list(TEXTS), *([pair] for pair in PAIRS), list(PAIRS)]
  batches.append([" ".join(TEXTS) * 3])
  found = {"ids": [], "hidden": [], "logits": []}
  for batch in batches:
    columns = zip(*(batch if isinstance(batch[0], tuple) else zip(batch)))
    rows = tokenizer(
      *map(list, columns), padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    assert rows.keys() == {*INPUTS, *TYPES * name.startswith(COUNTED)}
    is_token = rows["attention_mask"].numpy() > 0
    with torch.no_grad():
      found["hidden"].append(base(**rows).last_hidden_state.numpy()[is_token])
      found["logits"].append(model.eval()(**rows).logits.numpy()[is_token])
    found["ids"].append(np.where(is_token, rows["input_ids"], -1))
  assert found["ids"][-1].shape == (1, LENGTH)
  return found


def assert_same(found: dict, expected: dict, name: str) -> None:
  """Ids are equal, hidden states to 1e-5 and logits to 1e-4."""
  for what, bound in (("ids", 0), ("hidden", 1e-5), ("logits", 1e-4)):
    for one, other in zip(found[what], expected[what], strict=True):
      assert one.shape == other.shape and np.abs(one - other).max() <= bound, (name, what)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_comes_out_as_it_went_in(name, tmp_path, bring, export):
  write(tmp_path / "in", name)
  imported = bring(tmp_path / "in", tmp_path / "imported")
  assert export(imported, tmp_path / "out") == 0
  assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [name]
  content = (tmp_path / "in/tokenizer.json").read_bytes()
  assert (tmp_path / "out/tokenizer.json").read_bytes() == content
  assert_same(outputs(tmp_path / "out", name), outputs(tmp_path / "in", name), name)


@pytest.mark.parametrize("name", ("BertForSequenceClassification", "ElectraForSequenceClassification"))
def test_a_cross_encoder_gives_the_same_scores_of_pairs(name, tmp_path, bring, export):
  write(tmp_path / "in", name, num_labels=1)
  imported = bring(tmp_path / "in", tmp_path / "imported")
  assert export(imported, tmp_path / "out") == 0
  words = " ".join(TEXTS).split()
  pairs = [(" ".join(words[at % 7 : at % 7 + 1 + at % 6]), words[at % 13]) for at in range(100)]
  scores = {}
  for folder in ("in", "out"):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
    model = getattr(transformers, name).from_pretrained(tmp_path / folder).eval()
    rows = tokenizer(*map(list, zip(*pairs)), padding=True, return_tensors="pt")
    with torch.no_grad():
      scores[folder] = model(**rows).logits.numpy()
      rows["token_type_ids"][:] = 0
      assert np.abs(model(**rows).logits.numpy() - scores[folder]).max() > 1e-3  # segments have an effect
  np.testing.assert_allclose(scores["out"], scores["in"], atol=1e-5)
  rows = "".join(json.dumps({"query": first, "text": second}) + "\n" for first, second in pairs)
  (tmp_path / "pairs.jsonl").write_text(rows)
  flags = [f"--model={imported}", f"--input={tmp_path}/pairs.jsonl", f"--output={tmp_path}/scores.jsonl"]
  assert predict.main([*flags, "--text=query", "--text_pair=text"]) == 0
  lines = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
  found = [[line["predicted"]] for line in lines]
  np.testing.assert_allclose(found, scores["in"], atol=1e-5)


@pytest.mark.parametrize("name", ("RobertaForMaskedLM", "ElectraForMaskedLM", "DebertaV2ForMaskedLM"))
def test_gradients_of_masked_lm_are_those_of_the_stock_class(name, tmp_path):
  write(tmp_path, name)
  foreign = read_state(tmp_path)
  recognised = recognise(foreign)
  config, special = base.get_config(), SpecialIds(*(foreign.config[f"{role}_token_id"] for role in
                                                    ("bos", "pad", "eos")), unk=5, mask=6)  # fmt: skip
  config.model.update(recognised.fields)
  fields = {"mask_token_rate": 1.0, "random_token_rate": 0.0, "mask_rate": 0.3, "kind": "mask"}
  config.corruption.update(fields)
  config.objectives.mlm.weight = 1.0
  rows = config.model.vocab_size
  recipe = build(config, TokenIds(**vars(special), vocab_size=rows))
  rng, is_token = np.random.default_rng(0), np.arange(20) < np.array([[20], [13]])
  ids = np.where(is_token, rng.integers(7, rows, (2, 20)), special.pad).astype(np.int32)
  selected = is_token & (np.arange(20) % 5 == 2)
  keys = jax.random.split(jax.random.key(0), 2)
  masked = recipe.mask(Batch(ids, keys, np.zeros(2, np.float32), {"selected": selected}))
  totals = recipe.totals(masked)
  params = {name: recognised.params[name] for name in ("encoder", "heads")}
  loss = lambda params: recipe.loss_fn(params, masked, totals, train=False)[0]  # noqa: E731
  value, found = jax.jit(jax.value_and_grad(loss))(params)
  model = getattr(transformers, name).from_pretrained(tmp_path).eval()
  inputs = torch.tensor(np.asarray(masked.corrupted.input_ids)).long()
  labels = torch.tensor(np.where(selected, ids, -100)).long()
  stock = model(input_ids=inputs, attention_mask=torch.tensor(is_token).long(), labels=labels).loss
  stock.backward()
  assert abs(float(value) - stock.item()) < 1e-5
  layout, gradients = foreign.config["model_type"], jax.tree.map(np.asarray, found)
  made = to_stock(gradients, recipe.encoder, layout=layout, special_ids=special, task={})
  compared = {each: tensor for each, tensor in model.named_parameters() if tensor.grad is not None}
  assert len(compared) > 30
  for each, tensor in compared.items():
    difference = np.abs(made.state[each] - tensor.grad.numpy()).max()
    assert difference < 1e-4, (each, difference)
    assert tensor.grad.abs().max() > 1e-6 or each.endswith("key.bias"), each  # which has no effect


@pytest.mark.parametrize("name", ("RobertaForMaskedLM", "EuroBertForMaskedLM"))
def test_a_model_that_was_trained_on_comes_out_as_its_class_with_the_trained_head(
  name, tmp_path, bring, export
):
  write(tmp_path / "in", name)
  imported = bring(tmp_path / "in", tmp_path / "imported")
  text = tmp_path / "text.txt"
  text.write_text("\n\n".join(" ".join(byte_level.sentences()[at::20]) for at in range(20)))
  config = small_run.get_config("mlm")
  config.model.update({each: value for each, value in load_params(imported)[1]["config"]["model"].items()
                       if each not in ("vocab_chunk_rows", "global_layers")})  # fmt: skip
  fields = {"data.source": str(text), "data.vocabulary": str(imported / "vocabulary"), "data.length": 40}
  fields |= {"data.directory": str(tmp_path / "records"), "train.init_from": str(imported)}
  fields |= {"objectives.mlm.head": "table" if name.startswith("Euro") else "transform"}
  config.update_from_flattened_dict(fields | {"train.total_steps": 2, "optimizer.warmup_steps": 1})
  said: list[str] = []
  assert small_run.run_training(config, tmp_path / "run", say=said.append) == 0
  assert any("loaded encoder, heads/mlm; fresh: optimizer, step" in line for line in said)
  assert export(tmp_path / "run", tmp_path / "out") == 0
  found, before = outputs(tmp_path / "out", name), outputs(tmp_path / "in", name)
  assert np.abs(found["logits"][0] - before["logits"][0]).max() > 1e-3
  head = "lm_head.weight" if name.startswith("Euro") else "lm_head.dense.weight"
  trained, given = (read_state(tmp_path / folder).state[head] for folder in ("out", "in"))
  assert np.abs(trained - given).max() > 1e-4


def test_a_released_folder_of_deberta_v3_has_spm_model_alone_and_heads_for_masks_and_replacements(
  tmp_path, bring, export
):
  name, folder, out, rng = "DebertaV2ForMaskedLM", tmp_path / "in", tmp_path / "out", np.random.default_rng(0)
  write(folder, name, legacy=False)
  shapes = {"dense.weight": (24, 24), "dense.bias": (24,), "LayerNorm.weight": (24,), "LayerNorm.bias": (24,)}
  shapes |= {"classifier.weight": (1, 24), "classifier.bias": (1,)}
  head = {f"mask_predictions.{each}": np.float32(rng.normal(size=shape)) for each, shape in shapes.items()}
  unread = {"deberta.embeddings.position_embeddings.weight": np.ones((LENGTH, 24), np.float32)}
  save_file(load_file(folder / "model.safetensors") | head | unread, folder / "model.safetensors")
  expected = outputs(folder, name)
  for each in ("tokenizer.json", "tokenizer_config.json"):
    (folder / each).unlink()
  spm(folder)
  config = json.loads((folder / "config.json").read_text())
  for each in ("legacy", "architectures"):
    del config[each]
  (folder / "config.json").write_text(json.dumps(config))
  imported = bring(folder, tmp_path / "imported")
  assert export(imported, out) == 0
  assert_same(outputs(out, name), expected, name)
  assert (out / "spm.model").read_bytes() == (folder / "spm.model").read_bytes()
  theirs, words = transformers.AutoTokenizer.from_pretrained(folder), vocabulary.load(imported / "vocabulary")
  assert type(theirs) is transformers.DebertaV2Tokenizer
  for texts in (*((text,) for text in (*TEXTS, *byte_level.TEXTS) if "[" not in text), *PAIRS):
    assert words.with_special_ids(*map(words.encode, texts)) == theirs(*texts).input_ids, texts
  assert vars(words.special_ids) == {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": 400}
  written = load_file(out / "model.safetensors")
  for each, array in head.items():
    np.testing.assert_array_equal(written[each], array)
  # As the official replaced_token_detection_model.py, whose positive logits mean "replaced".
  dense, norm, classifier = (
    [torch.tensor(head[f"mask_predictions.{layer}.{leaf}"]) for leaf in ("weight", "bias")]
    for layer in ("dense", "LayerNorm", "classifier")
  )
  hidden = torch.tensor(rng.normal(size=(2, 5, 24)), dtype=torch.float32)
  of_text = torch.nn.functional.layer_norm(hidden + hidden[:, :1], (24,), *norm, eps=1e-7)
  replaced = torch.nn.functional.linear(
    torch.nn.functional.gelu(torch.nn.functional.linear(of_text, *dense)), *classifier
  )
  params, meta = load_params(imported)
  sizes = encoder_config(meta["config"]["model"], dtype="float32")
  original = heads.apply_rtd_head(params["heads"]["rtd"], sizes, hidden.numpy())
  np.testing.assert_allclose(original, -replaced[..., 0].numpy(), atol=1e-5)


def test_a_damaged_spm_model_and_one_without_transformers_are_refused(tmp_path, monkeypatch):
  def run(content):
    (tmp_path / "in/spm.model").write_bytes(content)
    read_tokenizer(tmp_path / "in", tmp_path / "out")

  (tmp_path / "in").mkdir()
  spm(tmp_path / "in")
  whole = (tmp_path / "in/spm.model").read_bytes()
  assert not failing([(whole[:500], "spm.model: not a sentencepiece model, or a damaged one")], run)
  monkeypatch.setitem(sys.modules, "transformers", None)
  assert not failing([(whole, "spm.model: reading it needs transformers")], run, ConfigError)
  assert not (tmp_path / "out").exists()


_ABSENT = object()  # a field that config.json lacks
_GONE = "encoder.layer.1.output.dense.weight"
REFUSED = {  # class: (change of config.json, or of the tensors, what the one line says)
  "RobertaForMaskedLM": [
    ({"model_type": "deberta"}, {}, "found model_type 'deberta' with tensors "),
    ({"hidden_act": "gelu_new"}, {}, "hidden_act is 'gelu_new'; expected 'gelu'"),
    ({"position_embedding_type": "relative_key"}, {}, "'relative_key'; expected 'absolute'"),
    ({"tie_word_embeddings": False}, {}, "tie_word_embeddings is False; expected True"),
    ({"pad_token_id": 60}, {}, "max_position_embeddings is 48; expected an integer of at least 62"),
    ({}, {f"roberta.{_GONE}": None}, f"tensor {_GONE} is missing"),
    ({}, {"roberta.adapter.weight": np.zeros(3, np.float32)}, "no place in this model: adapter.weight"),
  ],
  "DebertaV2ForMaskedLM": [  # v2-xlarge's convolution, and what v3 does not use
    ({"conv_kernel_size": 3}, {}, "conv_kernel_size is 3; expected None, 0; other"),
    ({"share_att_key": False}, {}, "share_att_key is False; expected True"),
    ({"pos_att_type": ["c2p"]}, {}, "pos_att_type is ['c2p']; expected 'p2c|c2p', "),
    ({"norm_rel_ebd": "none"}, {}, "norm_rel_ebd is 'none'; expected 'layer_norm'"),
    ({"position_biased_input": True}, {}, "position_biased_input is True; expected False"),
    ({"embedding_size": 12}, {}, "embedding_size is 12; expected None, 24"),
    ({"attention_head_size": 8}, {}, "attention_head_size is 8; expected None, 12"),
    ({"relative_attention": False}, {}, "relative_attention is False; expected True"),
    ({"type_vocab_size": 2}, {}, "type_vocab_size is 2; expected 0"),
    ({"position_buckets": -1}, {}, "position_buckets is -1; expected an integer of at least 2"),
    ({"max_relative_positions": 5}, {}, "max_relative_positions is 5; expected an integer of at least 6"),
    ({"pooler_hidden_act": "tanh"}, {}, "pooler_hidden_act is 'tanh'; expected 'gelu'"),
    ({"pos_att_type": _ABSENT}, {}, "pos_att_type is None; expected"),
    ({"norm_rel_ebd": _ABSENT}, {}, "norm_rel_ebd is 'none'; expected"),
    ({"position_biased_input": _ABSENT}, {}, "position_biased_input is True; expected"),
    ({}, {"deberta.encoder.rel_embeddings.weight": None}, "tensor encoder.rel_embeddings.weight is missing"),
  ],
  "DistilBertForMaskedLM": [
    ({"activation": "relu"}, {}, "activation is 'relu'; expected 'gelu'"),
    ({"n_heads": 5}, {}, "n_heads is 5; expected a divisor of dim 24"),
  ],
  "NomicBertForMaskedLM": [
    ({"hidden_act": "relu"}, {}, "hidden_act is 'relu'; expected 'silu', 'gelu'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, {}, "expected rope_type 'default'"),
    ({"head_dim": 8}, {}, "head_dim is 8; expected None, 12"),
  ],
  "EuroBertForMaskedLM": [
    ({"num_key_value_heads": 3}, {}, "num_key_value_heads is 3; expected a divisor of num_attention_heads 4"),
    ({"hidden_act": "relu"}, {}, "hidden_act is 'relu'; expected 'silu', 'gelu'"),
  ],
}


def test_what_is_not_supported_is_refused_in_one_line_and_nothing_is_written(tmp_path):
  for name, rows in REFUSED.items():
    folder = tmp_path / name
    write(folder, name)
    config, state = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")

    def run(fields, tensors, folder=folder, config=config, state=state):
      left = {each: value for each, value in (config | fields).items() if value is not _ABSENT}
      (folder / "config.json").write_text(json.dumps(left))
      kept = {each: array for each, array in (state | tensors).items() if array is not None}
      save_file(kept, folder / "model.safetensors")
      import_checkpoint(str(folder), str(tmp_path / "out"))

    assert not failing(rows, run) and not list(tmp_path.glob("*out*")), name
