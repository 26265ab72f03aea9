"""Importing official checkpoints and our own, as the command does it.

Names and shapes come from `test_names`, which has them from the published code.
"""

import functools
import json
import operator
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data import vocabulary
from data.errors import ConfigError, DataError, StorageError
from data.vocabulary import __main__ as vocabulary_command
from pretrain.checkpoints.checkpoint import load_params, read_meta, step_path
from pretrain.export import __main__
from pretrain.export.folders import write_own
from pretrain.export.import_checkpoint import _reads_segments, import_checkpoint
from pretrain.export.official import names as official_names
from tests import lines
from tests.pretrain import small_run
from tests.pretrain.export.official.test_names import A, D, F, P, R, V, fairseq_state, hugging_face_state
from tests.pretrain.export.refusals import failing
from tests.pretrain.export.stock_cases import assert_same_params

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c")
PORT = {
  "model_type": "cocolm",
  "vocab_size": V,
  "hidden_size": D,
  "num_hidden_layers": 3,
  "num_attention_heads": A,
  "intermediate_size": F,
  "max_position_embeddings": P,
  "rel_pos_bins": R,
  "max_rel_pos": 9,
  "layer_norm_eps": 2e-5,
  "type_vocab_size": 2,
  "hidden_dropout_prob": 0.15,
  "attention_probs_dropout_prob": 0.2,
}
FAIRSEQ = {
  "encoder_layers": 3,
  "encoder_attention_heads": A,
  "rel_pos": 1,
  "rel_pos_bins": R,
  "max_rel_pos": 9,
}
FAIRSEQ |= {"dropout": 0.15, "attention_dropout": 0.2}


def _words(directory, pieces=PIECES):
  directory.mkdir()
  (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
  vocabulary.write_description(directory, kind="wordpiece", cased=False)
  return str(directory)


@pytest.fixture
def words(tmp_path):
  return _words(tmp_path / "words")


def _port(folder, state=None, **changes):
  """A folder as the official Hugging Face port has it."""
  folder.mkdir(exist_ok=True)
  state = {"position_ids": np.arange(P), **(state or hugging_face_state("cocolm."))}
  save_file(state, folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps({**PORT, **changes}))
  return str(folder)


def _import(source, output, words="", **options):
  import_checkpoint(str(source), str(output), vocabulary_directory=words, **options)


def test_the_official_port_becomes_a_checkpoint_of_ours(tmp_path, words):
  said = []
  with lines.heard(said.append):
    _import(_port(tmp_path / "in"), tmp_path / "out", words)
  params, meta = load_params(tmp_path / "out")
  assert_same_params(params, official_names.from_hugging_face(hugging_face_state(), num_heads=A).params)
  model = meta["config"]["model"]
  described = {"vocab_size": V, "hidden_size": D, "num_layers": 3, "num_heads": A, "mlp_size": F}
  described |= {"max_length": P, "num_segments": 2, "relative_position": "official", "relative_buckets": R}
  described |= {"relative_max_distance": 9, "layer_norm_eps": 2e-5, "dropout": 0.15, "attention_dropout": 0.2}
  assert {name: model[name] for name in described} == described
  assert meta["config"]["recipe"] == "imported"
  source = meta["source"]
  assert (source["path"], source["family"]) == (str(tmp_path / "in"), "official")
  assert list(source["sha256"]) == ["model.safetensors"]
  assert source["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
  assert meta["vocabulary_digest"] == vocabulary.load(tmp_path / "out" / "vocabulary").digest
  text = "\n".join(said)
  assert "ignored: 1 (position_ids)" in text and "unmatched: 0\n" in text
  assert "encoder.layer.{}.output.dense.bias" in text


def test_official_fairseq_comes_with_its_generator(tmp_path, words):
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  import argparse

  for share in ("all", "tokens", "none"):
    state = fairseq_state(share=share, mixture=True)
    content = {"args": argparse.Namespace(**FAIRSEQ), "model": {n: torch.tensor(a) for n, a in state.items()}}
    content["model"]["encoder.sentence_encoder.version"] = torch.tensor([3.0])
    torch.save(content, tmp_path / f"{share}.pt")
    _import(tmp_path / f"{share}.pt", tmp_path / share, words)
    params, meta = load_params(tmp_path / share)
    expected = official_names.from_fairseq(state, num_heads=A, share_embeddings=share).params
    assert_same_params(params, expected)
    generator, model = meta["config"]["generator"], meta["config"]["model"]
    assert (generator["num_layers"], generator["share_embeddings"]) == (2, share)
    found = [model[name] for name in ("layer_norm_eps", "dropout", "attention_dropout", "num_segments")]
    assert found == [1e-5, 0.15, 0.2, 0] and meta["config"]["corruption"]["kind"] == "generator"
  moved = np.float32(state["auxiliary.sentence_encoder.embed_positions.weight"])
  state = fairseq_state(mixture=True) | {"auxiliary.sentence_encoder.embed_positions.weight": moved}
  content["model"] = {n: torch.tensor(a) for n, a in state.items()}
  torch.save(content, tmp_path / "moved.pt")  # whose norms alone are shared
  _import(tmp_path / "moved.pt", tmp_path / "moved", words)
  assert load_params(tmp_path / "moved")[1]["config"]["generator"]["share_embeddings"] == "tokens"


def test_without_pytorch_safetensors_are_imported_and_its_own_files_ask_for_it(
  tmp_path, words, monkeypatch, capsys
):
  for name in ("torch", "transformers"):
    monkeypatch.setitem(sys.modules, name, None)  # neither found nor importable
  flags = [f"--from={_port(tmp_path / 'in')}", f"--vocabulary={words}", f"--output={tmp_path / 'out'}"]
  assert __main__.main(["import", *flags]) == 0, capsys.readouterr().err
  expected = official_names.from_hugging_face(hugging_face_state(), num_heads=A).params
  assert_same_params(load_params(tmp_path / "out")[0], expected)
  for name in ("pytorch_model.bin", "model.pt"):
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_bytes(b"PK")
    flags = [f"--from={tmp_path / name}", f"--vocabulary={words}", f"--output={tmp_path / 'no'}"]
    assert __main__.main(["import", *flags]) == 2
    assert f"{name}: reading it needs PyTorch" in (error := capsys.readouterr().err)
    assert "  pip install -r requirements-export.txt" in error and "Traceback" not in error
  assert __main__.main([f"--checkpoint={tmp_path}", f"--output={tmp_path / 'no'}"]) == 2
  assert "  pip install -r requirements-export.txt" in capsys.readouterr().err
  assert not (tmp_path / "no").exists()


_POOLER = {"pooler.dense.weight": np.ones((D, D), np.float32), "pooler.norm": np.ones(D, np.float32)}
_MORE = hugging_face_state() | _POOLER | {"count": np.arange(3)}
_PLAIN = {name: array for name, array in hugging_face_state().items() if "relative" not in name}
_OTHER = {"model.layers.0.mlp.weight": np.ones((2, 2), np.float32)}
DAMAGED = [  # tensors, changes of config.json, options, a word of the refusal
  (_MORE, {}, {}, "count, pooler.dense.weight, pooler.norm;"),
  (_MORE, {}, {"allow_unmatched": ["pooler.*"]}, "model: count;"),
  (_MORE, {}, {}, "\n  --allow_unmatched count pooler.dense.weight pooler.norm"),
  (None, {"num_hidden_layers": 4}, {}, "num_layers is 4 in its settings, but 3 in its tensors"),
  (None, {"type_vocab_size": 3}, {}, "num_segments is 3 in its settings, but 2 in its tensors"),
  (None, {"hidden_act": "relu"}, {}, "hidden_act is 'relu'"),
  (None, {"layer_norm_type": "pre"}, {}, "layer_norm_type is 'pre'"),
  (None, {"layer_norm_eps": "small"}, {}, "layer_norm_eps is 'small'"),
  (None, {"layer_norm_eps": 1.0}, {}, "layer_norm_eps is 1.0"),
  (None, {"rel_pos_bins": 0}, {}, "have no relative positions"),
  (None, {"max_rel_pos": None}, {}, "max_rel_pos is None"),
  (None, {"max_rel_pos": 0}, {}, "max_rel_pos is 0"),
  (None, {"num_attention_heads": 0}, {}, "num_attention_heads is 0"),
  (_OTHER, {"model_type": "llama"}, {}, "'llama' with tensors model.layers.0.mlp"),
]


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path, words, monkeypatch):
  def run(state, changes, options):
    _import(_port(tmp_path / "in", state, **changes), tmp_path / "out", words, **options)

  assert not failing(DAMAGED, run)
  rows = [
    (_PLAIN, {"num_attention_heads": None, "rel_pos_bins": 0}, {}, "\n  --num_heads=12"),
    (None, {}, {"num_heads": 4}, f"\n  --num_heads={A}"),
  ]
  assert not failing(rows, run, ConfigError)
  many = _words(tmp_path / "many", PIECES + tuple("defghi"))
  rows = [
    (many, f"has {V} rows, but the vocabulary has {V + 1} pieces"),
    ("", str(tmp_path / "in")),
    (str(tmp_path / "nowhere"), "nowhere holds no vocabulary"),
  ]
  assert not failing(rows, lambda words: _import(_port(tmp_path / "in"), tmp_path / "out", words))

  def fail(*_, **__):
    raise StorageError("disk full")

  with monkeypatch.context() as patch, pytest.raises(StorageError, match="disk full"):
    patch.setattr("pretrain.checkpoints.checkpoint.Checkpoints.save", fail)
    run(None, {}, {})
  assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "many", "words"]
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "thesis.txt").write_text("years of work")
  assert not failing([(None, {}, {}, "holds files already")], run, ConfigError)
  (tmp_path / "out" / "thesis.txt").unlink()
  run(_MORE, {}, {"allow_unmatched": ["pooler.*", "count"]})
  _import(
    _port(tmp_path / "in", _PLAIN, num_attention_heads=None, rel_pos_bins=0),
    tmp_path / "with heads",
    words,
    num_heads=A,
  )
  model = load_params(tmp_path / "with heads")[1]["config"]["model"]
  assert (model["num_heads"], model["relative_position"]) == (A, "none")


def test_our_own_layout_is_held_against_the_model_and_may_be_older(tmp_path, words):
  _import(_port(tmp_path / "in"), tmp_path / "first", words)
  params, meta = load_params(tmp_path / "first")
  fields, own = meta["config"]["model"], tmp_path / "own"
  own.mkdir()
  older = {name: fields[name] for name in fields if name not in ("position", "global_layers", "norm_bias")}
  write_own(own, params, older, tmp_path / "first" / "vocabulary")
  _import(own, tmp_path / "second")  # fields that an older version did not have have their defaults
  again, meta = load_params(tmp_path / "second")
  assert_same_params(again, params)
  assert meta["config"]["model"] == fields
  state, config = load_file(own / "model.safetensors"), json.loads((own / "config.json").read_text())

  def run(changes, model):
    changed = {name: array for name, array in (state | changes).items() if array is not None}
    save_file(changed, own / "model.safetensors")
    (own / "config.json").write_text(json.dumps(config | {"model": fields | model}))
    _import(own, tmp_path / "third")

  one = np.ones(2, np.float32)
  rows = [
    ({"encoder/trunk/layers/up/bias": None}, {}, "encoder/trunk/layers/up/bias is missing"),
    ({"encoder/more/kernel": one}, {}, "encoder/more/kernel is "),
    ({"encoder/trunk/layers/up/kernel/x": one}, {}, "inside another"),
    ({"other/kernel": one}, {}, "no place in this model: other/kernel"),
    ({}, {"global_layers": [1, "2"]}, "model.global_layers is [1, '2']"),
    ({}, {"mlp": "wide"}, "model.mlp is 'wide'"),
    ({}, {"num_layers": True}, "model.num_layers is True"),
  ]
  assert not failing(rows, run) and not (tmp_path / "third").exists()
  run({}, {"dropout": 1})  # an integer is a number
  assert load_params(tmp_path / "third")[1]["config"]["model"]["dropout"] == 1.0


def test_an_extended_vocabulary_brings_rows_for_its_words(exported, tmp_path, capsys, export, bring):
  """The stock folder of a model, imported with the vocabulary that extends its own, has the mean rows."""
  workdir, folder, _ = exported("byte_level")
  old, text = vocabulary.load(folder), tmp_path / "text.txt"
  text.write_text("\n".join(["A kinase and a ligand, an assay, a plasma, a chelate, a zymogen."] * 5))
  flags = [f"--from={folder}", f"--source={text}", f"--output={tmp_path}/v", "--words=7"]
  assert vocabulary_command.main(["extend", *flags]) == 0, capsys.readouterr().err
  made = vocabulary.load(tmp_path / "v")
  back = bring(folder, tmp_path / "back", f"--vocabulary={tmp_path / 'v'}")
  (before, _), (after, meta) = load_params(workdir), load_params(back)
  assert meta["config"]["model"]["vocab_size"] == 448 and meta["vocabulary_digest"] == made.digest
  assert made.extends and made.extends.digest == old.digest and made.size > old.size
  for path in (("encoder", "embeddings", "token", "embedding"), ("heads", "mlm", "bias")):
    table, wider = (functools.reduce(operator.getitem, path, tree) for tree in (before, after))
    assert len(wider) == 448
    kept = [number for number in range(old.size) if number not in made.extends.pieces]
    np.testing.assert_array_equal(wider[kept], table[kept])
    for number, pieces in made.extends.pieces.items():
      np.testing.assert_allclose(wider[number], table[list(pieces)].mean(0), rtol=1e-5, atol=1e-6)
  # An export of the model with the words comes back, also with its own vocabulary named.
  assert export(back, tmp_path / "again") == 0, capsys.readouterr().err
  third = bring(tmp_path / "again", tmp_path / "third", f"--vocabulary={tmp_path / 'v'}")
  assert_same_params(load_params(third)[0], after)
  again = tmp_path / "again"
  for name in (vocabulary.NAME, "sha256.txt"):
    (again / name).unlink()
  content = json.loads((again / "tokenizer_config.json").read_text())
  content["unk_token"], content["pad_token"] = content["pad_token"], content["unk_token"]
  (again / "tokenizer_config.json").write_text(json.dumps(content))
  with pytest.raises(DataError, match=r"extends another vocabulary .*\n  python -m data.vocabulary"):
    _import(again, tmp_path / "other", str(tmp_path / "v"))


def test_it_is_said_where_another_segment_would_count():
  """The one reader of a private function: the warning is the only way in which segments are seen."""
  rows = [(1.0, "classification", True), (1.0, "question_answering", True)]
  rows += [(0.0, "classification", False), (1.0, "mlm", False)]
  for second, head, is_said in rows:
    table = np.asarray([[0.0], [second]])
    params = {"encoder": {"embeddings": {"segment": {"embedding": table}}}, "heads": {head: {}}}
    assert _reads_segments(params) == is_said, (second, head)
  params["encoder"]["embeddings"] = {}
  assert not _reads_segments(params | {"heads": {"classification": {}}})


def test_a_stock_model_is_trained_on_and_fills_masks(small_records, tmp_path, capsys, export):
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  import transformers

  sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
  sizes |= {"vocab_size": small_run.VOCAB_SIZE + 4, "local_attention": 8, "pad_token_id": 1}
  torch.manual_seed(0)
  stock = transformers.ModernBertForMaskedLM(
    transformers.ModernBertConfig(**sizes, max_position_embeddings=64, global_attn_every_n_layers=2)
  )
  stock.save_pretrained(tmp_path / "stock")
  vocabulary = str(small_records / "vocabulary")
  _import(tmp_path / "stock", tmp_path / "in", vocabulary)
  config = small_run.small_config("mlm", small_records)
  config.model.update(read_meta(step_path(tmp_path / "in"))["config"]["model"])
  steps = {"train.total_steps": 20, "train.eval_every": 20, "train.checkpoint_every": 20}
  start = {"train.init_from": str(tmp_path / "in"), "optimizer.learning_rate": 1e-2}
  config.update_from_flattened_dict(steps | start)
  assert small_run.run_training(config, tmp_path / "run") == 0
  losses = [line["train/loss"] for line in small_run.metric_lines(tmp_path / "run") if "train/loss" in line]
  assert losses[-1] < losses[0] - 0.3, losses
  assert export(tmp_path / "run", tmp_path / "out", "--to=modernbert") == 0, capsys.readouterr().err
  fill = transformers.pipeline("fill-mask", model=str(tmp_path / "out"))
  tokenizer = fill.tokenizer
  found = fill(f"Ba {tokenizer.mask_token} ba.", top_k=3)
  model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
  inputs = tokenizer(f"Ba {tokenizer.mask_token} ba.", return_tensors="pt")
  at = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
  with torch.no_grad():
    best = np.argsort(model(**inputs).logits[0, at].numpy())[::-1][:3]
  assert [each["token"] for each in found] == best.tolist()
