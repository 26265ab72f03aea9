"""Importing official checkpoints, with names from the published code (`test_names`), and our own."""

import functools
import json
import operator
import sys
from unittest import mock

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data import vocabulary
from data.errors import ConfigError, DataError, StorageError
from data.vocabulary import __main__ as vocabulary_command
from pretrain.checkpoints.checkpoint import Checkpoints, load_params
from pretrain.export import __main__, official
from pretrain.export.export_checkpoint import write_own
from pretrain.export.import_checkpoint import import_checkpoint
from tests import lines
from tests.pretrain.export.refusals import failing
from tests.pretrain.export.stock_cases import assert_same_params
from tests.pretrain.export.test_official import A, D, F, P, R, V, fairseq_state, hugging_face_state

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


def test_the_official_port_becomes_a_checkpoint_of_ours_without_pytorch(tmp_path, words, monkeypatch, capsys):
  for name in ("torch", "transformers"):
    monkeypatch.setitem(sys.modules, name, None)  # neither found nor importable
  said: list[str] = []
  with lines.heard(said.append):
    _import(_port(tmp_path / "in"), tmp_path / "out", words)
  params, meta = load_params(tmp_path / "out")
  assert_same_params(params, official.from_hugging_face(hugging_face_state(), num_heads=A).params)
  model, source = meta["config"]["model"], meta["source"]
  described = {"vocab_size": V, "hidden_size": D, "num_layers": 3, "num_heads": A, "mlp_size": F}
  described |= {"max_length": P, "num_segments": 2, "relative_position": "official", "relative_buckets": R}
  described |= {"relative_max_distance": 9, "layer_norm_eps": 2e-5, "dropout": 0.15, "attention_dropout": 0.2}
  assert {name: model[name] for name in described} == described
  assert (source["path"], source["family"]) == (str(tmp_path / "in"), "official")
  assert list(source["sha256"]) == ["model.safetensors"] and meta["config"]["recipe"] == "imported"
  assert source["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
  assert meta["vocabulary_digest"] == vocabulary.load(tmp_path / "out" / "vocabulary").digest
  text = "\n".join(said)
  assert "ignored: 1 (position_ids)" in text and "unmatched: 0\n" in text
  (tmp_path / "model.pt").write_bytes(b"PK")
  for flags in (["import", f"--from={tmp_path / 'model.pt'}"], [f"--checkpoint={tmp_path}"]):
    assert __main__.main([*flags, f"--output={tmp_path / 'no'}"]) == 2
    assert "  pip install -r requirements-export.txt" in capsys.readouterr().err
  assert not (tmp_path / "no").exists()


def test_official_fairseq_comes_with_its_generator(tmp_path, words):
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  import argparse

  moved = fairseq_state(mixture=True)  # of whose embeddings the norms are shared, and the positions are not
  moved["auxiliary.sentence_encoder.embed_positions.weight"] = np.ones((P, D), np.float32)
  states = {share: fairseq_state(share=share, mixture=True) for share in ("all", "tokens", "none")}
  for name, state in (states | {"moved": moved}).items():
    share = "tokens" if name == "moved" else name
    content = {"args": argparse.Namespace(**FAIRSEQ), "model": {n: torch.tensor(a) for n, a in state.items()}}
    content["model"]["encoder.sentence_encoder.version"] = torch.tensor([3.0])
    torch.save(content, tmp_path / f"{name}.pt")
    _import(tmp_path / f"{name}.pt", tmp_path / name, words)
    params, meta = load_params(tmp_path / name)
    expected = official.from_fairseq(state, num_heads=A, share_embeddings=share).params
    assert_same_params(params, expected)
    generator, model = meta["config"]["generator"], meta["config"]["model"]
    assert (generator["num_layers"], generator["share_embeddings"]) == (2, share)
    found = [model[name] for name in ("layer_norm_eps", "dropout", "attention_dropout", "num_segments")]
    assert found == [1e-5, 0.15, 0.2, 0] and meta["config"]["corruption"]["kind"] == "generator"


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
  headless = {"num_attention_heads": None, "rel_pos_bins": 0}

  def run(state, changes, options, words=words, output="out"):
    _import(_port(tmp_path / "in", state, **changes), tmp_path / output, words, **options)

  assert not failing(DAMAGED, run)
  rows = [(_PLAIN, headless, {}, "\n  --num_heads=12"), (None, {}, {"num_heads": 4}, f"\n  --num_heads={A}")]
  assert not failing(rows, run, ConfigError)
  many, nowhere = _words(tmp_path / "many", PIECES + tuple("defghi")), str(tmp_path / "nowhere")
  rows = [(None, {}, {}, many, f"has {V} rows, but the vocabulary has {V + 1} pieces")]
  rows += [(None, {}, {}, "", str(tmp_path / "in")), (None, {}, {}, nowhere, "holds no vocabulary")]
  assert not failing(rows, run)
  with monkeypatch.context() as patch, pytest.raises(StorageError, match="disk full"):
    patch.setattr(Checkpoints, "save", mock.Mock(side_effect=StorageError("disk full")))
    run(None, {}, {})
  assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "many", "words"]
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "thesis.txt").write_text("years of work")
  assert not failing([(None, {}, {}, "holds files already")], run, ConfigError)
  run(_MORE, {}, {"allow_unmatched": ["pooler.*", "count"]}, output="more")
  run(_PLAIN, headless, {"num_heads": A}, output="with heads")
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
  with pytest.raises(DataError, match=r"made from another vocabulary .*\n  python -m data.vocabulary"):
    _import(exported("homeless", "--to=torch").folder, tmp_path / "no", str(tmp_path / "v"))
