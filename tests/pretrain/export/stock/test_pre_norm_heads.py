"""Heads in stock classes with pre-norm layers, as a user loads them, and back.

Run: python -m pytest tests/pretrain/export/stock/test_pre_norm_heads.py
"""

import dataclasses

import jax
import numpy as np
import pytest

from data.errors import ConfigError
from data.vocabulary import SpecialIds
from pretrain.export.check.reference import hidden_states, logits_of
from pretrain.export.stock import write as stock_write
from pretrain.export.stock.read import from_stock
from pretrain.models import heads as head_models
from tests.pretrain.export import stock_cases
from tests.pretrain.export.stock_cases import CASES, batch, random_params, run_torch, write_folder

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")


def _params(name: str, *heads: str) -> dict:
  """Random parameters with scales around 1, as of a model that was trained."""

  def moved(path, array):
    return array + np.float32(1) if path[-1].key == "scale" else array

  return jax.tree_util.tree_map_with_path(moved, random_params(CASES[name][1], *heads))


def _stock(name: str, params: dict, **task) -> stock_write.StockModel:
  layout, config, pad_id = CASES[name]
  ids = SpecialIds(cls=2, pad=pad_id, sep=4, unk=5, mask=6)
  return stock_write.to_stock(params, config, layout=layout, special_ids=ids, task=task)


def _compare(name: str, params: dict, made: stock_write.StockModel, folder, pooling: str = "cls"):
  """The class's logits are ours within 1e-5 of the largest, and every parameter comes back; its output."""
  write_folder(folder, made)
  kind = getattr(transformers, made.architecture)
  model, info = kind.from_pretrained(folder, output_loading_info=True)
  assert not info["missing_keys"] and not info["unexpected_keys"]
  (ids, mask), (_, config, pad_id) = batch(name), CASES[name]
  hidden = hidden_states(params["encoder"], ids, mask, config=config, pad_id=pad_id)
  settings = {"config": config, "head": made.head, "activation": "tanh", "pooling": pooling}
  with jax.default_matmul_precision("highest"):
    ours = np.asarray(logits_of(params, hidden, mask, **settings))
  output = run_torch(model, name)
  found = output.get("logits")
  if found is None:
    found = np.stack([output["start_logits"], output["end_logits"]], axis=-1)
  where = slice(None) if made.head == "classification" else mask
  difference = np.abs(found[where] - ours[where]).max()
  assert difference <= 1e-5 * max(1.0, np.abs(ours[where]).max())
  back = from_stock(made.state, made.config, extra=made.extra)
  assert not back.unmatched
  stock_cases.assert_same_params(back.params, params)
  return output


@pytest.mark.parametrize(
  ("name", "heads", "architecture", "head"),
  [
    ("modernbert", ("mlm", "clm", "rtd"), "ModernBertForMaskedLM", "mlm"),
    ("modernbert with biases", ("mlm",), "ModernBertForMaskedLM", "mlm"),
    ("modernbert", ("clm", "rtd"), "ModernBertForMaskedLM", "clm"),
    ("modernbert", ("rtd",), "ModernBertForTokenClassification", "rtd"),
    ("modernbert", ("tagging", "rtd"), "ModernBertForTokenClassification", "tagging"),
    ("modernbert", ("question_answering",), "ModernBertForQuestionAnswering", "question_answering"),
    ("modernbert", ("classification",), "ModernBertForSequenceClassification", "classification"),
    ("modernbert with biases", ("classification",), "ModernBertForSequenceClassification", "classification"),
    ("ultrabert", ("mlm", "clm", "rtd"), "UltrabertForTokenClassification", "rtd"),
    ("ultrabert", ("tagging",), "UltrabertForTokenClassification", "tagging"),
    ("ultrabert", ("question_answering",), "UltrabertForQuestionAnswering", "question_answering"),
    ("eurobert", ("clm", "rtd"), "EuroBertForTokenClassification", "rtd"),
    ("eurobert", ("tagging",), "EuroBertForTokenClassification", "tagging"),
  ],
)
def test_a_head_in_its_class_gives_our_logits_and_comes_back(name, heads, architecture, head, tmp_path):
  params = _params(name, *heads)
  made = _stock(name, params)
  assert (made.architecture, made.head) == (architecture, head)
  output = _compare(name, params, made, tmp_path)
  if head == "rtd":
    assert made.config["id2label"] == {"0": "REPLACED", "1": "ORIGINAL"}
    assert not output["logits"][..., 0].any()


@pytest.mark.parametrize("name", ["modernbert", "ultrabert"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_classifier_pools_as_ours(name, pooling, tmp_path):
  params = _params(name, "classification")
  if name == "ultrabert":  # as imported: its class has no dense layer
    params["heads"]["classification"] = {"output": params["heads"]["classification"]["output"]}
  made = _stock(name, params, pooling=pooling, labels=["no", "maybe", "yes"])
  assert made.config["classifier_pooling"] == pooling and made.config["id2label"]["2"] == "yes"
  _compare(name, params, made, tmp_path, pooling)


@pytest.mark.parametrize("name", ["ultrabert", "eurobert"])
def test_a_fine_tuned_head_without_a_slot_is_refused(name):
  with pytest.raises(
    ConfigError, match=f"--to={name} .*no slot for a classification head of dense, norm, output"
  ):
    _stock(name, _params(name, "classification"))


@pytest.mark.parametrize("fault", ["a scale of 0", "biases"])
def test_a_final_norm_that_cannot_be_undone_leaves_the_head_in_the_extra_file(fault):
  name = "modernbert" if fault == "a scale of 0" else "modernbert with biases"
  params = _params(name, "rtd")
  params["encoder"]["trunk"]["layers"]["mlp_norm"]["scale"][-1, 3] = 0 if fault == "a scale of 0" else 1
  made = _stock(name, params)
  assert made.architecture == "ModernBertModel" and {"heads/rtd/kernel"} <= {*made.extra}
  stock_cases.assert_same_params(from_stock(made.state, made.config, extra=made.extra).params, params)
  tagger = params | {"heads": {"tagging": params["heads"]["rtd"]}}
  with pytest.raises(ConfigError, match="no slot for a tagging head of bias, kernel"):
    _stock(name, tagger)


def test_a_head_that_google_gave_electra_has_no_slot():
  params = _params("modernbert", "dense rtd")
  assert _stock("modernbert", params).architecture == "ModernBertModel"


def test_config_json_has_both_spellings():
  made = _stock("modernbert", _params("modernbert", "mlm")).config
  full, sliding = "full_attention", "sliding_attention"
  expected = {
    "layer_types": [full, sliding, sliding, full],
    "global_attn_every_n_layers": 3,
    "rope_parameters": {
      full: {"rope_type": "default", "rope_theta": 160_000.0},
      sliding: {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "local_attention": 12,
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "cls_token_id": 2,
    "sep_token_id": 4,
    "bos_token_id": 2,
    "eos_token_id": 4,
    "tie_word_embeddings": True,
  }
  assert {name: made.get(name) for name in expected} == expected
  irregular = _stock("modernbert with biases", _params("modernbert with biases")).config
  assert irregular["layer_types"] == [sliding, full] and "global_attn_every_n_layers" not in irregular
  ultra = _stock("ultrabert", _params("ultrabert")).config
  assert (ultra["sliding_window"], ultra["layer_types"]) == (6, [full, sliding])


def test_fields_of_training_come_back():
  layout, config, _ = CASES["modernbert"]
  other = dataclasses.replace(
    config, dropout=0.2, dropout_at="attention", attention_dropout=0.05, init="megatron_cut"
  )
  ids = SpecialIds(cls=2, pad=1, sep=4, unk=5, mask=6)
  made = stock_write.to_stock(_params("modernbert"), other, layout=layout, special_ids=ids, task={})
  from pretrain.export.stock.config import encoder_fields

  found = encoder_fields(made.config)
  assert dataclasses.replace(other, **found) == other


def test_a_head_with_a_norm_is_kept_as_it_is(tmp_path):
  params = _params("modernbert", "tagging")
  transform = head_models.init_mlm_head(jax.random.key(1), CASES["modernbert"][1], output_size=24)
  params["heads"]["tagging"] |= jax.tree.map(
    np.asarray, {name: transform[name] for name in ("dense", "norm")}
  )
  made = _stock("modernbert", params)
  assert made.config["classifier_activation"] == "gelu"
  _compare("modernbert", params, made, tmp_path)
