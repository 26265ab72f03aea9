"""Encoders and heads in stock classes, loaded as a user loads them: they compute what ours compute."""

import dataclasses

import jax
import numpy as np
import pytest

from data.errors import ConfigError
from data.vocabulary import SpecialIds
from pretrain.export.self_check import logits_of
from pretrain.export.stock.config import config_json, encoder_fields
from pretrain.export.stock.convert import from_stock, to_stock
from pretrain.export.task_fields import class_activation
from pretrain.ops.positions import t5_buckets_of
from tests.pretrain.export import stock_cases
from tests.pretrain.export.refusals import failing
from tests.pretrain.export.stock_cases import CASES, assert_same_params, exported, in_class, random_params

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
BIASED = "modernbert with biases"
_ENDINGS = {"mlm": "ForMaskedLM", "clm": "ForMaskedLM", "tagging": "ForTokenClassification"}
_ENDINGS |= {"question_answering": "ForQuestionAnswering", "classification": "ForSequenceClassification"}
_OF_FOUR = ("classification rtd", "question_answering", "tagging")
# Encoder: the heads of a checkpoint, of which its class computes the first.
HEADS = {
  "mpnet": (*_OF_FOUR, "mlm clm"),
  "layoutlmv3": (*_OF_FOUR, "wide_tagging"),
  "bert": (*_OF_FOUR, "mlm clm"),
  "electra": (*_OF_FOUR, "mlm", "rtd", "dense_rtd"),
  "deberta-v2": (*_OF_FOUR, "mlm clm rtd", "mlm context_rtd"),
  "modernbert": ("mlm clm rtd", "clm rtd", "rtd", "tagging rtd", "question_answering", "classification"),
  BIASED: ("mlm", "classification"),
  "ultrabert": ("rtd clm mlm", "tagging", "question_answering"),
  "eurobert": ("rtd clm", "tagging"),
}


def _load(folder, kind):
  """A model that has all its tensors from the file, and what the file had for other classes."""
  model, info = kind.from_pretrained(folder, output_loading_info=True)
  assert not info["missing_keys"] and not info["mismatched_keys"] and not info["error_msgs"]
  return model, set(info["unexpected_keys"])


def _compare(name: str, params: dict, made, folder, pooling: str = "cls") -> dict:
  """The class's logits are ours within 1e-5 of the largest, and every parameter comes back; its output."""
  stock_cases.write_folder(folder, made)
  model, unexpected = _load(folder, getattr(transformers, made.architecture))
  assert all(".pooler.dense." in key for key in unexpected), unexpected
  (layout, config, _), (_, mask) = CASES[name], stock_cases.batch(name)
  if layout == "deberta-v2":  # transformers also reads other prefixes
    others = made.state.keys() - model.state_dict().keys()
    assert all(each.startswith("mask_predictions.") for each in others), others
  settings = {"activation": class_activation(layout), "pooling": pooling}
  with jax.default_matmul_precision("highest"):
    ours = np.asarray(
      logits_of(params, stock_cases.our_hidden(name), mask, config=config, head=made.head, **settings)
    )
  output = stock_cases.run_torch(model, name)
  found = output.get("logits")
  if found is None:
    found = np.stack([output["start_logits"], output["end_logits"]], axis=-1)
  where = slice(None) if made.head == "classification" else mask
  difference = np.abs(found[where] - ours[where]).max()
  assert difference <= 1e-5 * max(1.0, np.abs(ours[where]).max()), difference
  back = from_stock(made.state, made.config, extra=made.extra)
  assert all(key.startswith("pooler.") for key in back.unmatched)
  assert_same_params(back.params, params)
  return output


def test_hidden_states_of_auto_model_are_ours_and_every_parameter_comes_back(tmp_path):
  for name in CASES:
    params, made = exported(name, "rtd", "mlm", "clm", with_generator=True)
    back = from_stock(made.state, made.config, extra=made.extra)
    assert all(key.startswith("pooler.") for key in back.unmatched), name  # nothing trained it
    assert_same_params(back.params, params)
    _, made = exported(name)
    stock_cases.write_folder(tmp_path / name, made)
    model, unexpected = _load(tmp_path / name, transformers.AutoModel)
    assert not unexpected and type(model).__name__ == made.architecture and made.head == "", name
    output, mask = stock_cases.run_torch(model, name), stock_cases.batch(name)[1]
    found = output["last_hidden_state"][mask]
    assert np.abs(found - stock_cases.our_hidden(name)[mask]).max() < 1e-5, name
    if "pooler_output" in output:  # that nothing trained: the tanh of [CLS]
      expected = np.tanh(output["last_hidden_state"][:, 0])
      np.testing.assert_allclose(output["pooler_output"], expected, atol=1e-6)


def test_a_head_in_its_class_gives_our_logits_and_comes_back(tmp_path):
  for name, heads in [(encoder, row.split()) for encoder, rows in HEADS.items() for row in rows]:
    params, made = exported(name, *(each.replace("_rtd", " rtd").replace("wide_", "wide ") for each in heads))
    first, *others = [
      each.rpartition("_")[2] if "rtd" in each else each.replace("wide_", "") for each in heads
    ]
    ending = _ENDINGS.get(first, "ForPreTraining" if name == "electra" else "ForTokenClassification")
    assert (made.head, made.architecture.partition("For")[2]) == (first, ending[3:]), (name, heads)
    # What has no slot lies in the extra file; a slot may have been another head's.
    extra = {path.split("/")[1] for path in made.extra if path.startswith("heads")}
    placed = {"mlm"} if first == "clm" else {"rtd"} if "context_rtd" in heads else set()
    assert extra == {*others} - placed, (name, heads)
    output = _compare(name, params, made, tmp_path / f"{name} {'+'.join(heads)}")
    if first == "rtd" and name != "electra":
      assert made.config["id2label"] == {"0": "REPLACED", "1": "ORIGINAL"}
      assert made.config["label2id"] == {"REPLACED": 0, "ORIGINAL": 1}
      assert not output["logits"][..., 0].any()


def test_a_classifier_with_pre_norm_layers_pools_as_ours(tmp_path):
  for name, pooling in (("modernbert", "mean"), ("ultrabert", "cls"), ("ultrabert", "mean")):
    params = random_params(CASES[name][1], "classification")
    if name == "ultrabert":  # as imported: its class has no dense layer
      params["heads"]["classification"] = {"output": params["heads"]["classification"]["output"]}
    made = in_class(name, params, pooling=pooling, labels=["no", "maybe", "yes"])
    assert made.config["classifier_pooling"] == pooling and made.config["id2label"]["2"] == "yes"
    _compare(name, params, made, tmp_path / f"{name} {pooling}", pooling)
  params = random_params(CASES["modernbert"][1], "tagging", "mlm")
  transform = params["heads"].pop("mlm")  # a head with a norm is kept as it is
  params["heads"]["tagging"] |= {name: transform[name] for name in ("dense", "norm")}
  made = in_class("modernbert", params)
  assert made.config["classifier_activation"] == "gelu"
  _compare("modernbert", params, made, tmp_path / "out")


def test_a_head_without_a_slot_stays_in_the_extra_file_or_is_refused():
  extra = {}
  for fault, name in (("a scale of 0", "modernbert"), ("biases", BIASED), ("a dense layer", "modernbert")):
    params = random_params(CASES[name][1], "dense rtd" if fault == "a dense layer" else "rtd")
    if fault == "a scale of 0":  # which cannot be undone
      params["encoder"]["trunk"]["layers"]["mlp_norm"]["scale"][-1, 3] = 0
    made = in_class(name, params)
    assert made.architecture == "ModernBertModel" and made.head == "", fault
    assert_same_params(from_stock(made.state, made.config, extra=made.extra).params, params)
    extra[fault] = made.extra.keys()
  linear = {"heads/rtd/kernel", "heads/rtd/bias"}
  dense = {"heads/rtd/dense/kernel", "heads/rtd/dense/bias"}
  assert extra == {"a scale of 0": linear, "biases": linear, "a dense layer": linear | dense}
  rows = [("ultrabert", "classification"), ("eurobert", "classification"), (BIASED, "tagging")]
  rows = [(name, random_params(CASES[name][1], head), f"slot for a {head} head") for name, head in rows]
  assert not failing(rows, in_class, ConfigError)


def test_sizes_rates_and_special_ids_have_the_names_of_transformers():
  sizes = {"vocab_size": 11, "hidden_size": 24, "num_layers": 5, "num_heads": 3, "mlp_size": 7}
  rates = {"dropout": 0.1, "attention_dropout": 0.2, "init_stddev": 0.03, "layer_norm_eps": 0.004}
  other, ids = dataclasses.replace(CASES["bert"][1], **sizes, **rates), SpecialIds(2, 1, 4, 5, 6)
  expected = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 3}
  expected |= {"intermediate_size": 7, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
  expected |= {"initializer_range": 0.03, "layer_norm_eps": 0.004, "hidden_act": "gelu"}
  written = config_json(other, layout="bert", architecture="BertModel", special_ids=ids)
  written = {name: written[name] for name in expected}
  assert written == expected
  read = encoder_fields({"model_type": "bert", "max_position_embeddings": 16} | written)
  assert {name: read[name] for name in sizes | rates} == sizes | rates and read["max_length"] == 16
  made = exported("bert")[1].config
  assert [made[f"{name}_token_id"] for name in ("pad", "bos", "eos")] == [0, 2, 4]
  assert (made["architectures"], made["type_vocab_size"]) == (["BertModel"], 2)
  assert exported("mpnet")[1].config["relative_attention_num_buckets"] == 32


def test_config_json_of_pre_norm_classes_has_both_spellings_and_the_fields_of_training():
  full, sliding = "full_attention", "sliding_attention"
  rope = {full: {"rope_type": "default", "rope_theta": 50_000.0}}
  rope |= {sliding: {"rope_type": "default", "rope_theta": 10_000.0}}
  expected = {"layer_types": [full, sliding, sliding, full], "global_attn_every_n_layers": 3}
  expected |= {"rope_parameters": rope, "global_rope_theta": 50_000.0, "local_rope_theta": 10_000.0}
  expected |= {"local_attention": 12, "norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_bias": False}
  expected |= {"pad_token_id": 1, "cls_token_id": 2, "sep_token_id": 4, "bos_token_id": 2, "eos_token_id": 4}
  expected |= {"tie_word_embeddings": True, "decoder_bias": True, "classifier_pooling": "cls"}
  made = exported("modernbert", "mlm")[1].config
  assert {name: made.get(name) for name in expected} == expected
  for left_out in (
    ("layer_types", "rope_parameters"),
    ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
  ):
    alone = transformers.AutoConfig.for_model(**{name: made[name] for name in made if name not in left_out})
    assert (alone.layer_types, alone.rope_parameters, alone.sliding_window) == (made["layer_types"], rope, 6)
  irregular = exported(BIASED)[1].config
  assert irregular["layer_types"] == [sliding, full] and "global_attn_every_n_layers" not in irregular
  ultra, euro = (exported(name)[1].config for name in ("ultrabert", "eurobert"))
  assert (ultra["sliding_window"], ultra["layer_types"]) == (6, [full, sliding])
  assert [ultra["rope_parameters"][kind]["rope_theta"] for kind in (full, sliding)] == [160_000.0, 500.0]
  names = ("rope_theta", "head_dim", "num_key_value_heads", "hidden_act", "rms_norm_eps", "mask_token_id")
  assert [euro[name] for name in names] == [900.0, 12, 2, "silu", 1e-5, 6]
  layout, config, _ = CASES["modernbert"]
  rates = {"dropout": 0.2, "dropout_at": "attention", "attention_dropout": 0.05, "init_stddev": 0.03}
  other = dataclasses.replace(config, **rates, init="megatron_cut", layer_norm_eps=0.004)
  ids = SpecialIds(cls=2, pad=1, sep=4, unk=5, mask=6)
  made = to_stock(random_params(config), other, layout=layout, special_ids=ids, task={})
  assert dataclasses.replace(config, **encoder_fields(made.config)) == other


def test_mpnet_of_transformers_has_our_buckets_at_every_distance():
  from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

  delta = np.arange(-5000, 5001)
  theirs = MPNetEncoder.relative_position_bucket(torch.tensor(delta)).numpy()
  np.testing.assert_array_equal(t5_buckets_of(delta, num_buckets=32, max_distance=128), theirs)
