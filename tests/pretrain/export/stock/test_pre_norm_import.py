"""Imports of stock classes with pre-norm layers, which transformers itself writes here.

Run: python -m pytest tests/pretrain/export/stock/test_pre_norm_import.py
"""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data.errors import DataError
from pretrain.checkpoints.checkpoint import load_params, read_meta, step_path
from pretrain.export.check import comparison
from pretrain.export.import_checkpoint import import_checkpoint
from pretrain.export.stock.pre_norm_config import encoder_fields
from pretrain.export.stock.read import from_stock
from pretrain.models.config import EncoderConfig
from tests import lines
from tests.pretrain.export.stock.test_import_stock import PIECES

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

SIZES = {
  "hidden_size": 8,
  "num_hidden_layers": 4,
  "num_attention_heads": 2,
  "intermediate_size": 12,
  "vocab_size": 9,
  "max_position_embeddings": 60,
  "pad_token_id": 0,
  "bos_token_id": 2,
  "eos_token_id": 3,
  "initializer_range": 0.3,
}
MODERN = SIZES | {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 16}
ROPE = {
  "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
  "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
YARN = ROPE | {"full_attention": {"rope_type": "yarn"}}
CASES = {
  "modernbert": MODERN | {"rope_parameters": ROPE, "global_attn_every_n_layers": 3},
  "ultrabert": SIZES | {"sliding_window": 8, "rope_parameters": ROPE},
  "eurobert": SIZES | {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0}},
}


def write(folder, name: str, fields: dict | None = None, *, kind: str | None = None):
  """A random model of a stock class in a folder with a WordPiece tokenizer; its weights are spread."""
  config = transformers.AutoConfig.for_model(name, **CASES[name] | (fields or {}))
  torch.manual_seed(0)
  model = getattr(transformers, kind)(config) if kind else transformers.AutoModel.from_config(config)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.3)
  model.save_pretrained(folder)
  (folder / "vocab.txt").write_text("\n".join(PIECES["bert"]) + "\n")
  (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
  return model


def change(folder, *left_out: str, **fields) -> None:
  """Changes the folder's config.json."""
  config = json.loads((folder / "config.json").read_text()) | fields
  (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in left_out}))


def bring(tmp_path, **options) -> list[str]:
  """Imports `in` to `out`; returns the lines."""
  said: list[str] = []
  with lines.heard(said.append):
    import_checkpoint(str(tmp_path / "in"), str(tmp_path / "out"), **options)
  return said


def difference(said: list[str]) -> float:
  """Returns the largest difference between our hidden states and those of transformers."""
  (line,) = [line for line in said if line.startswith("Compared with transformers")]
  return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_a_class_is_read_and_compared_beyond_its_window(tmp_path, name):
  write(tmp_path / "in", name)
  assert difference(bring(tmp_path)) <= comparison.TOLERANCE
  model = read_meta(step_path(tmp_path / "out"))["config"]["model"]
  assert (model["position"], model["norm_placement"], model["mlp"]) == ("rope", "pre", "gated")
  assert model["norm"] == ("layernorm" if name == "modernbert" else "rmsnorm")
  assert model["window"] == (16 if name != "eurobert" else 1)


@pytest.mark.parametrize(
  ("name", "window", "word"), [("modernbert", 80, "local_attention"), ("ultrabert", 40, "sliding_window")]
)
def test_a_window_that_is_too_narrow_shows_in_the_comparison(tmp_path, name, window, word, monkeypatch):
  write(tmp_path / "in", name, {word: window + 2})  # a token or two more, in rows of more than 32
  read = comparison._hidden
  monkeypatch.setattr(
    comparison,
    "_hidden",
    lambda foreign, *rows: read(foreign._replace(config=foreign.config | {word: window}), *rows),
  )
  with pytest.raises(DataError, match="hidden states differ by"):
    bring(tmp_path)


def test_a_config_of_before_5_0_is_the_same_model(tmp_path):
  write(tmp_path / "in", "modernbert")
  new = encoder_fields(json.loads((tmp_path / "in" / "config.json").read_text()))
  old = {"global_attn_every_n_layers": 3, "global_rope_theta": 5000.0, "local_rope_theta": 100.0}
  change(tmp_path / "in", "layer_types", "rope_parameters", layer_norm_eps=0.5, **old)
  assert encoder_fields(json.loads((tmp_path / "in" / "config.json").read_text())) == new
  assert difference(bring(tmp_path)) <= comparison.TOLERANCE


def test_windows_and_bases_for_each_layer_are_read_as_ultrabert_does():
  new = CASES["ultrabert"] | {"layer_types": ["sliding_attention", "full_attention"] * 2}
  old = CASES["ultrabert"] | {"attention_windows": [8, 0, 8, 0], "rope_theta": [100.0, 5000.0] * 2}
  del old["rope_parameters"], old["sliding_window"]
  kind = {"model_type": "ultrabert"}
  assert encoder_fields(old | kind) == encoder_fields(new | kind)
  assert encoder_fields(new | kind)["global_layers"] == (1, 3)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_local_base_of_minus_one_is_the_global_one_and_is_said(tmp_path, is_new):
  write(tmp_path / "in", "modernbert", {"rope_parameters": dict.fromkeys(ROPE, ROPE["full_attention"])})
  if is_new:
    rope = ROPE | {"sliding_attention": {"rope_type": "default", "rope_theta": -1}}
    change(tmp_path / "in", rope_parameters=rope)
  else:
    change(tmp_path / "in", "rope_parameters", global_rope_theta=5000.0, local_rope_theta=-1)
  said = bring(tmp_path)
  assert difference(said) <= comparison.TOLERANCE
  assert any(
    "local_rope_theta is -1: layers with a window get the base of the others, 5000" in line for line in said
  )


def test_dropouts_that_have_no_place_are_said(tmp_path):
  write(tmp_path / "in", "modernbert", {"mlp_dropout": 0.25})
  assert any("mlp_dropout=0.25: dropout for training" in line for line in bring(tmp_path))


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_checkpoint_of_the_training_code_is_read(tmp_path, suffix):
  folder = tmp_path / "in"
  write(folder, "modernbert", kind="ModernBertForMaskedLM")
  state = load_file(folder / "model.safetensors")
  expected = from_stock(state, json.loads((folder / "config.json").read_text())).params
  raw = {}
  for name, array in state.items():
    flex = re.sub(r"^model\.", "model.bert.", name).replace("bert.layers", "bert.encoder.layers")
    raw[flex if flex.startswith("model.") else f"model.{name}"] = array
  raw["model.decoder.weight"] = raw["model.bert.embeddings.tok_embeddings.weight"].copy()
  assert "model.bert.encoder.layers.0.attn.Wqkv.weight" in raw and "model.bert.final_norm.weight" in raw
  if suffix == "pt":
    (folder / "model.safetensors").unlink()
    content = {
      "state": {"model": {name: torch.tensor(array) for name, array in raw.items()}},
      "rng": [np.array(1)],
    }
    torch.save(content, folder / "ep0-ba10-rank0.pt")
  else:
    save_file(raw, folder / "model.safetensors")
  assert difference(bring(tmp_path)) <= comparison.TOLERANCE
  found, _ = load_params(tmp_path / "out")
  jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
  ("kind", "head"),
  [
    ("ModernBertForMaskedLM", "mlm"),
    ("ModernBertForSequenceClassification", "classification"),
    ("ModernBertForTokenClassification", "tagging"),
    ("ModernBertForQuestionAnswering", "question_answering"),
    ("UltrabertForSequenceClassification", "classification"),
    ("UltrabertForTokenClassification", "tagging"),
    ("UltrabertForQuestionAnswering", "question_answering"),
    ("EuroBertForTokenClassification", "tagging"),
  ],
)
def test_the_head_of_a_class_is_read(tmp_path, kind, head):
  name = kind.partition("For")[0].lower()
  write(tmp_path, name, {"num_labels": 2}, kind=kind)
  config = json.loads((tmp_path / "config.json").read_text())
  imported = from_stock(load_file(tmp_path / "model.safetensors"), config)
  assert not imported.unmatched and set(imported.params["heads"]) == {head}
  assert ("norm" in imported.params["heads"][head]) == (name == "modernbert")


@pytest.mark.parametrize(
  ("name", "fields", "message"),
  [
    ("modernbert", {"local_rope_theta": 0}, r"rope_theta is 0; expected a number above 0"),
    ("modernbert", {"local_rope_theta": -2.0}, r"rope_theta is -2.0; expected a number above 0"),
    ("modernbert", {"rope_scaling": {"type": "yarn"}}, "rope_scaling is .*; expected None"),
    ("modernbert", {"rope_parameters": YARN}, "rope_parameters.full_attention is .* rope_type 'default'"),
    ("modernbert", {"rope_parameters": {"rope_theta": 3.0}}, "expected full_attention and sliding_attention"),
    ("modernbert", {"head_dim": 8}, "head_dim is 8; expected None, 4"),
    ("modernbert", {"hidden_activation": "relu"}, "hidden_activation is 'relu'; expected 'gelu', 'silu'"),
    ("modernbert", {"classifier_activation": "silu"}, "classifier_activation is 'silu'; expected 'gelu'"),
    ("modernbert", {"classifier_activation": "linear"}, "classifier_activation is 'linear'; expected 'gelu'"),
    ("modernbert", {"tie_word_embeddings": False}, "tie_word_embeddings is False; expected True"),
    ("modernbert", {"decoder_bias": False}, "decoder_bias is False; expected True"),
    ("modernbert", {"pad_token_id": 50283}, "pad_token_id is 50283; expected an id below vocab_size 9"),
    ("modernbert", {"vocab_size": 10}, r"tok_embeddings.weight has shape \(9, 8\); expected \(V=10, D=8\)"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types is .*; expected 4 of full_attention"),
    ("modernbert", {"layer_types": [["full_attention"]] * 4}, "layer_types is .*; expected 4 of full_"),
    ("eurobert", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected at most 1000"),
    ("modernbert", {"layer_types": ["sliding_attention"] * 4}, "one at least full_attention"),
    ("modernbert", {"norm_bias": True}, "norm.bias is missing"),
    ("modernbert", {"local_attention": "16"}, "local_attention is '16'; expected an integer"),
    ("modernbert", {"source_model": {"init": "zeros"}}, "init is 'zeros'; expected 'megatron_cut', 'normal'"),
    ("ultrabert", {"num_key_value_heads": 1}, "num_key_value_heads is 1; expected None, 2"),
    ("eurobert", {"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'; expected 'silu', 'gelu'"),
  ],
)  # fmt: skip
def test_a_config_that_this_encoder_does_not_hold_is_refused_in_one_line(tmp_path, name, fields, message):
  kind = "ModernBertForMaskedLM" if name == "modernbert" else None
  write(tmp_path, name, kind=kind)
  left_out = ("rope_parameters",) if "local_rope_theta" in fields else ()
  change(tmp_path, *left_out, **fields)
  config = json.loads((tmp_path / "config.json").read_text())
  with pytest.raises(DataError, match=message) as caught:
    from_stock(load_file(tmp_path / "model.safetensors"), config)
  assert len(str(caught.value).splitlines()[0]) <= 260


def test_a_norm_in_the_first_layer_of_modernbert_is_refused(tmp_path):
  write(tmp_path, "modernbert")
  state = load_file(tmp_path / "model.safetensors")
  state["layers.0.attn_norm.weight"] = state["layers.1.attn_norm.weight"]
  with pytest.raises(
    DataError, match=r"tensor layers.0.attn_norm.weight is there, but the class has no such"
  ):
    from_stock(state, json.loads((tmp_path / "config.json").read_text()))


def test_a_vocabulary_larger_than_the_table_is_refused_and_a_smaller_one_is_not(tmp_path):
  write(tmp_path / "in", "modernbert", {"vocab_size": 16})  # rows to spare
  assert difference(bring(tmp_path)) <= comparison.TOLERANCE
  (tmp_path / "in" / "vocab.txt").write_text("\n".join((*PIECES["bert"], *"cdefghijk")) + "\n")
  with pytest.raises(DataError, match="the token table has 16 rows, but the vocabulary has 17 pieces"):
    import_checkpoint(str(tmp_path / "in"), str(tmp_path / "again"))


def test_the_fields_of_a_folder_describe_an_encoder():
  for name, fields in CASES.items():
    config = EncoderConfig(**encoder_fields(fields | {"model_type": name}))
    assert config.has_windows == (name != "eurobert")


def test_a_tokenizer_json_that_is_not_wordpiece_is_refused(tmp_path):
  from tokenizers import Tokenizer, models

  write(tmp_path / "in", "modernbert")
  (tmp_path / "in" / "vocab.txt").unlink()
  Tokenizer(models.BPE({"a": 0, "b": 1}, [])).save(str(tmp_path / "in" / "tokenizer.json"))
  with pytest.raises(DataError, match=r"tokenizer\.json"):
    bring(tmp_path)
  assert not (tmp_path / "out").exists()
