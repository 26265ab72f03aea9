"""Importing official checkpoints and our own, as the command does it.

Names and shapes come from `test_official_names`, which has them from the published code.
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
from pretrain.checkpoints.checkpoint import load_params
from pretrain.export import __main__
from pretrain.export.folders import write_own
from pretrain.export.import_checkpoint import _reads_segments, import_checkpoint
from pretrain.export.official import names as official_names
from tests import lines
from tests.pretrain.export.official.test_names import A, D, F, P, R, V, fairseq_state, hugging_face_state

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
  "layer_norm_eps": 1e-5,
  "type_vocab_size": 2,
}
FAIRSEQ = {
  "encoder_layers": 3,
  "encoder_attention_heads": A,
  "rel_pos": 1,
  "rel_pos_bins": R,
  "max_rel_pos": 9,
}


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
  save_file(
    {"position_ids": np.arange(P), **(state or hugging_face_state("cocolm."))}, folder / "model.safetensors"
  )
  (folder / "config.json").write_text(json.dumps({**PORT, **changes}))
  return str(folder)


def _import(source, output, words="", **options):
  import_checkpoint(str(source), str(output), vocabulary_directory=words, **options)


def _assert_equal(first, second):
  assert jax.tree.structure(first) == jax.tree.structure(second)
  jax.tree.map(np.testing.assert_array_equal, first, second)


def _refused(tmp_path, source, words, pattern, *, error=DataError, **options):
  before = sorted(path.name for path in tmp_path.iterdir())
  with pytest.raises(error, match=pattern) as caught:
    _import(source, tmp_path / "out", words, **options)
  assert all(line.startswith("  ") for line in str(caught.value).splitlines()[1:])
  assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_official_port_becomes_a_checkpoint_of_ours(tmp_path, words):
  said = []
  with lines.heard(said.append):
    _import(_port(tmp_path / "in"), tmp_path / "out", words)
  params, meta = load_params(tmp_path / "out")
  expected = official_names.from_hugging_face(hugging_face_state(), num_heads=A).params
  _assert_equal(params, expected)
  model = meta["config"]["model"]
  sizes = {"vocab_size": V, "hidden_size": D, "num_layers": 3, "num_heads": A, "mlp_size": F, "max_length": P}
  sizes |= {
    "num_segments": 2,
    "relative_position": "official",
    "relative_buckets": R,
    "relative_max_distance": 9,
  }
  assert {name: model[name] for name in sizes} == sizes
  assert meta["config"]["recipe"] == "imported"
  assert meta["source"]["path"] == str(tmp_path / "in") and list(meta["source"]["sha256"]) == [
    "model.safetensors"
  ]
  assert meta["vocabulary_digest"] == vocabulary.load(tmp_path / "out" / "vocabulary").digest
  text = "\n".join(said)
  assert "ignored: 1 (position_ids)" in text and "unmatched: 0\n" in text
  assert "encoder.layer.{}.output.dense.bias" in text


@pytest.mark.parametrize("share", ["all", "tokens", "none"])
def test_official_fairseq_comes_with_its_generator(tmp_path, words, share):
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  import argparse

  state = fairseq_state(share=share, mixture=True)
  content = {"args": argparse.Namespace(**FAIRSEQ), "model": {n: torch.tensor(a) for n, a in state.items()}}
  content["model"]["encoder.sentence_encoder.version"] = torch.tensor([3.0])
  torch.save(content, tmp_path / "model.pt")
  _import(tmp_path / "model.pt", tmp_path / "out", words)
  params, meta = load_params(tmp_path / "out")
  _assert_equal(params, official_names.from_fairseq(state, num_heads=A, share_embeddings=share).params)
  generator = meta["config"]["generator"]
  assert (generator["num_layers"], generator["share_embeddings"]) == (2, share)
  assert meta["config"]["model"]["layer_norm_eps"] == 1e-5


def _without_the_extra(monkeypatch):
  for name in ("torch", "transformers"):
    monkeypatch.setitem(sys.modules, name, None)  # neither found nor importable


def test_safetensors_are_imported_without_pytorch(tmp_path, words, monkeypatch, capsys):
  _without_the_extra(monkeypatch)
  flags = [f"--from={_port(tmp_path / 'in')}", f"--vocabulary={words}", f"--output={tmp_path / 'out'}"]
  assert __main__.main(["import", *flags]) == 0, capsys.readouterr().err
  expected = official_names.from_hugging_face(hugging_face_state(), num_heads=A).params
  _assert_equal(load_params(tmp_path / "out")[0], expected)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pytorchs_own_files_ask_for_it_and_an_export_does(tmp_path, words, monkeypatch, capsys, name):
  _without_the_extra(monkeypatch)
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / name).write_bytes(b"PK")
  flags = [f"--from={tmp_path / 'in'}", f"--vocabulary={words}", f"--output={tmp_path / 'out'}"]
  assert __main__.main(["import", *flags]) == 2
  error = capsys.readouterr().err.strip()
  assert f"{name}: reading it needs PyTorch" in error and "Traceback" not in error
  assert __main__.main([f"--checkpoint={tmp_path}", f"--output={tmp_path / 'out'}"]) == 2
  assert "export needs packages that are not installed: torch, transformers" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()


def test_names_nobody_allowed_are_refused(tmp_path, words):
  pooler = {"pooler.dense.weight": np.ones((D, D), np.float32), "pooler.norm": np.ones(D, np.float32)}
  state = hugging_face_state() | pooler | {"count": np.arange(3)}
  source = _port(tmp_path / "in", state)
  _refused(tmp_path, source, words, "no place in this model: count, pooler.dense.weight, pooler.norm;")
  _refused(tmp_path, source, words, "no place in this model: count;", allow_unmatched=["pooler.*"])
  _refused(
    tmp_path,
    source,
    words,
    r"--allow_unmatched count pooler.dense.weight pooler.norm",
  )
  import_checkpoint(
    source,
    str(tmp_path / "out"),
    vocabulary_directory=words,
    allow_unmatched=["pooler.*", "count"],
  )


@pytest.mark.parametrize(
  "changes, pattern",
  [
    ({"num_hidden_layers": 4}, "num_layers is 4 in its settings, but 3 in its tensors"),
    ({"type_vocab_size": 3}, "num_segments is 3 in its settings, but 2 in its tensors"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ({"layer_norm_type": "pre"}, "layer_norm_type is 'pre'"),
    ({"layer_norm_eps": "small"}, "layer_norm_eps is 'small'"),
    ({"rel_pos_bins": 0}, "have no relative positions"),
    ({"max_rel_pos": None}, "max_rel_pos is None"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0"),
  ],
)
def test_settings_that_disagree_with_the_tensors_are_refused(tmp_path, words, changes, pattern):
  _refused(tmp_path, _port(tmp_path / "in", **changes), words, pattern)


def test_heads_that_nothing_says_are_asked_for(tmp_path, words):
  state = {name: array for name, array in hugging_face_state().items() if "relative" not in name}
  source = _port(tmp_path / "in", state, num_attention_heads=None, rel_pos_bins=0)
  _refused(tmp_path, source, words, "do not contain the number of attention heads", error=ConfigError)
  other = _port(tmp_path / "other")
  _refused(tmp_path, other, words, "--num_heads=4: the checkpoint has", error=ConfigError, num_heads=4)
  _import(source, tmp_path / "out", words, num_heads=A)


def test_another_architecture_is_refused(tmp_path, words):
  source = _port(
    tmp_path / "in", {"model.layers.0.mlp.weight": np.ones((2, 2), np.float32)}, model_type="llama"
  )
  _refused(tmp_path, source, words, "unsupported architecture; .*'llama' with tensors model.layers.0.mlp")


def test_a_vocabulary_larger_than_the_table_is_refused(tmp_path):
  words = _words(tmp_path / "many", PIECES + tuple("defghi"))
  _refused(tmp_path, _port(tmp_path / "in"), words, f"has {V} rows, but the vocabulary has {V + 1} pieces")


def test_a_missing_vocabulary_is_refused(tmp_path):
  _refused(tmp_path, _port(tmp_path / "in"), "", str(tmp_path / "in"))
  _refused(tmp_path, _port(tmp_path / "in"), str(tmp_path / "nowhere"), "nowhere holds no vocabulary")


def test_an_output_that_is_there_is_left_alone(tmp_path, words):
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "thesis.txt").write_text("years of work")
  _refused(tmp_path, _port(tmp_path / "in"), words, "holds files already", error=ConfigError)


def test_a_save_that_fails_leaves_nothing(tmp_path, words, monkeypatch):
  def fail(*_, **__):
    raise StorageError("disk full")

  monkeypatch.setattr("pretrain.checkpoints.checkpoint.Checkpoints.save", fail)
  _refused(tmp_path, _port(tmp_path / "in"), words, "disk full", error=StorageError)


@pytest.mark.parametrize(
  "changes, pattern",
  [
    ({"encoder/trunk/layers/up/bias": None}, "encoder/trunk/layers/up/bias is missing"),
    ({"encoder/more/kernel": np.ones(2, np.float32)}, "encoder/more/kernel is "),
    ({"encoder/trunk/layers/up/kernel/x": np.ones(2, np.float32)}, "inside another"),
    ({"other/kernel": np.ones(2, np.float32)}, "tensors with no place in this model: other/kernel"),
  ],
)
def test_our_own_layout_is_held_against_the_model(tmp_path, words, changes, pattern):
  _import(_port(tmp_path / "in"), tmp_path / "first", words)
  params, meta = load_params(tmp_path / "first")
  own = tmp_path / "own"
  own.mkdir()
  write_own(own, params, meta["config"]["model"], tmp_path / "first" / "vocabulary")
  state = load_file(own / "model.safetensors") | changes
  state = {name: array for name, array in state.items() if array is not None}
  save_file(state, own / "model.safetensors")
  _refused(tmp_path, str(own), "", pattern)


def test_fields_that_an_older_version_did_not_have_have_their_defaults(tmp_path, words):
  _import(_port(tmp_path / "in"), tmp_path / "first", words)
  params, meta = load_params(tmp_path / "first")
  fields = meta["config"]["model"]
  older = {name: fields[name] for name in fields if name not in ("position", "global_layers", "norm_bias")}
  (tmp_path / "own").mkdir()
  write_own(tmp_path / "own", params, older, tmp_path / "first" / "vocabulary")
  _import(str(tmp_path / "own"), tmp_path / "second")
  _assert_equal(load_params(tmp_path / "second")[0], params)
  assert load_params(tmp_path / "second")[1]["config"]["model"] == fields
  write = {"global_layers": [1, "2"]}
  (tmp_path / "wrong").mkdir()
  write_own(tmp_path / "wrong", params, fields | write, tmp_path / "first" / "vocabulary")
  pattern = r"model.global_layers is \[1, '2'\]; expected a list of integers"
  _refused(tmp_path, str(tmp_path / "wrong"), "", pattern)


def test_an_extended_vocabulary_brings_rows_for_its_words(make_workdir, tmp_path, capsys, export):
  """The stock folder of a model, imported with the vocabulary that extends its own, has the mean rows."""
  assert export(make_workdir("byte_level"), tmp_path / "out") == 0, capsys.readouterr().err
  old = vocabulary.load(tmp_path / "out")
  text = tmp_path / "text.txt"
  text.write_text("\n".join(["A kinase and a ligand, an assay, a plasma, a chelate, a zymogen."] * 5))
  flags = [f"--from={tmp_path}/out", f"--source={text}", f"--output={tmp_path}/v", "--words=7"]
  assert vocabulary_command.main(["extend", *flags]) == 0, capsys.readouterr().err
  made = vocabulary.load(tmp_path / "v")
  _import(tmp_path / "out", tmp_path / "back", str(tmp_path / "v"))
  (before, _), (after, meta) = load_params(make_workdir("byte_level")), load_params(tmp_path / "back")
  assert meta["config"]["model"]["vocab_size"] == 448 and meta["vocabulary_digest"] == made.digest
  assert made.extends and made.extends.digest == old.digest and made.size > old.size
  for path in (("encoder", "embeddings", "token", "embedding"), ("heads", "mlm", "bias")):
    table, wider = (
      functools.reduce(operator.getitem, path, before),
      functools.reduce(operator.getitem, path, after),
    )
    assert len(wider) == 448
    for number, pieces in made.extends.pieces.items():
      np.testing.assert_allclose(wider[number], table[list(pieces)].mean(0), rtol=1e-5, atol=1e-6)
  for at, layout in enumerate(("auto", "torch")):  # an export of the model with the words comes back
    assert export(tmp_path / "back", tmp_path / f"again_{at}", f"--to={layout}") == 0, capsys.readouterr().err
    _import(tmp_path / f"again_{at}", tmp_path / f"third_{at}")
    _assert_equal(load_params(tmp_path / f"third_{at}")[0], after)
  for name in (vocabulary.NAME, "sha256.txt"):
    (tmp_path / "out" / name).unlink()
  content = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
  content["unk_token"], content["pad_token"] = content["pad_token"], content["unk_token"]
  (tmp_path / "out/tokenizer_config.json").write_text(json.dumps(content))
  with pytest.raises(
    DataError, match=r"--vocabulary extends another vocabulary .*\n  python -m data.vocabulary"
  ):
    _import(tmp_path / "out", tmp_path / "other", str(tmp_path / "v"))


@pytest.mark.parametrize(
  ("second", "head", "is_said"),
  [
    (1.0, "classification", True),
    (1.0, "question_answering", True),
    (0.0, "tagging", False),
    (1.0, "mlm", False),
  ],
)
def test_it_is_said_where_another_segment_would_count(second, head, is_said):
  table = np.asarray([[0.0], [second]])
  params = {"encoder": {"embeddings": {"segment": {"embedding": table}}}, "heads": {head: {}}}
  assert _reads_segments(params) == is_said
