"""Encoders in stock classes. Run: python -m pytest tests/pretrain/export/stock/test_write.py

What is written is loaded as a user loads it, and must compute what ours computes.
"""

import dataclasses

import numpy as np
import pytest

from data.errors import DataError
from data.vocabulary import SpecialIds
from pretrain.export.stock.config import config_json, encoder_fields, size_fields
from pretrain.export.stock.read import from_stock
from pretrain.models import heads as head_models
from tests.pretrain.export import stock_cases
from tests.pretrain.export.stock_cases import CASES, exported, our_hidden, run_torch, write_folder

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")


def _load(folder, auto_class):
  """A model that has all its tensors from the file, and what the file had for other classes."""
  model, info = auto_class.from_pretrained(folder, output_loading_info=True)
  assert not info["missing_keys"] and not info["mismatched_keys"] and not info["error_msgs"]
  return model, set(info["unexpected_keys"])


@pytest.mark.parametrize("name", CASES)
def test_hidden_states_of_auto_model_are_ours(name, tmp_path):
  _, made = exported(name)
  write_folder(tmp_path, made)
  model, unexpected = _load(tmp_path, transformers.AutoModel)
  assert not unexpected and type(model).__name__ == made.architecture
  found = run_torch(model, name)["last_hidden_state"][stock_cases.batch(name)[1]]
  assert np.abs(found - our_hidden(name)).max() < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_comes_back_bit_equal(name):
  params, made = exported(name, "rtd", "mlm", "clm", with_generator=True)
  params_back, unmatched, _ = from_stock(made.state, made.config, extra=made.extra)
  assert all(name.startswith("pooler.") for name in unmatched)  # nothing trained it
  stock_cases.assert_same_params(params_back, params)


def test_sizes_have_the_names_that_transformers_gives_them():
  sizes = {"vocab_size": 11, "hidden_size": 24, "num_layers": 5, "num_heads": 3, "mlp_size": 7}
  rates = {"dropout": 0.1, "attention_dropout": 0.2, "init_stddev": 0.03, "layer_norm_eps": 0.004}
  config = dataclasses.replace(CASES["bert"][1], **sizes, **rates)
  names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
  names += ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps")
  written = size_fields(config)
  assert [written.get(name) for name in names] == [*sizes.values(), *rates.values()]
  read = encoder_fields({"model_type": "bert", "max_position_embeddings": 16} | written)
  assert {name: read[name] for name in sizes | rates} == sizes | rates


def test_sequences_begin_and_end_with_the_ids_that_config_json_names():
  special = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
  written = config_json(CASES["bert"][1], layout="bert", architecture="BertModel", special_ids=special)
  ids = {name: written[f"{name}_token_id"] for name in ("pad", "bos", "eos")}
  assert ids == {"pad": 0, "bos": 2, "eos": 3}


def _our_logits(params, name, head):
  hidden, own = our_hidden(name), params["heads"][head]
  if head == "rtd":
    return head_models.apply_rtd_head(own, CASES[name][1], hidden)
  if head == "mlm":
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    return head_models.apply_transform(own, CASES[name][1], hidden) @ table.T + own["bias"]
  return hidden @ own["kernel"] + own["bias"]


@pytest.mark.parametrize("head", ["rtd", "dense rtd"])
def test_electra_says_replaced_where_ours_says_original(head, tmp_path):
  params, made = exported("electra", head)
  assert (made.architecture, made.head, made.extra) == ("ElectraForPreTraining", "rtd", {})
  write_folder(tmp_path, made)
  model, unexpected = _load(tmp_path, transformers.AutoModelForPreTraining)
  assert not unexpected
  found = run_torch(model, "electra")["logits"][stock_cases.batch("electra")[1]]
  np.testing.assert_allclose(-found, _our_logits(params, "electra", "rtd"), atol=1e-5)
  stock_cases.assert_same_params(from_stock(made.state, made.config).params, params)


@pytest.mark.parametrize("name", ["mpnet", "bert", "electra"])
def test_masked_language_models_predict_as_ours(name, tmp_path):
  params, made = exported(name, "mlm", "clm")
  assert made.architecture.endswith("ForMaskedLM") and set(made.extra) == {"heads/clm/bias"}
  write_folder(tmp_path, made)
  _load(tmp_path, transformers.AutoModel)
  model, unexpected = _load(tmp_path, transformers.AutoModelForMaskedLM)
  assert all("pooler" in key for key in unexpected)
  found = run_torch(model, name)["logits"][stock_cases.batch(name)[1]]
  np.testing.assert_allclose(found, _our_logits(params, name, "mlm"), atol=1e-5)


@pytest.mark.parametrize(
  ("name", "activation"), [("mpnet", "tanh"), ("layoutlmv3", "tanh"), ("bert", "tanh"), ("electra", "gelu")]
)
def test_classifiers_answer_as_ours(name, activation, tmp_path):
  labels = ["no", "maybe", "yes"]
  params, made = exported(
    name,
    "classification",
    "rtd",
    labels=labels,
    problem_type="single_label_classification",
    activation=activation,
  )
  assert made.head == "classification" and "heads/rtd/kernel" in made.extra
  write_folder(tmp_path, made)
  _load(tmp_path, transformers.AutoModel)
  model, unexpected = _load(tmp_path, transformers.AutoModelForSequenceClassification)
  assert unexpected <= {"mpnet.pooler.dense.weight", "mpnet.pooler.dense.bias"}
  assert model.config.id2label == dict(enumerate(labels)) and model.config.label2id["yes"] == 2
  assert model.config.problem_type == "single_label_classification"
  mask = stock_cases.batch(name)[1]
  first = our_hidden(name)[np.cumsum(mask.sum(1)) - mask.sum(1)]
  head = params["heads"]["classification"]
  ours = head_models.apply_classification_head(head, first, activation=activation)
  np.testing.assert_allclose(run_torch(model, name)["logits"], ours, atol=1e-5)
  back = from_stock(made.state, made.config, extra=made.extra)
  assert all(name.startswith("pooler.") for name in back.unmatched)
  stock_cases.assert_same_params(back.params, params)


@pytest.mark.parametrize("name", ["mpnet", "layoutlmv3", "bert", "electra"])
def test_question_answering_points_where_ours_does(name, tmp_path):
  params, made = exported(name, "question_answering")
  write_folder(tmp_path, made)
  _load(tmp_path, transformers.AutoModel)
  model, _ = _load(tmp_path, transformers.AutoModelForQuestionAnswering)
  assert type(model).__name__ == made.architecture
  output, mask = run_torch(model, name), stock_cases.batch(name)[1]
  found = np.stack([output["start_logits"][mask], output["end_logits"][mask]], axis=-1)
  ours = _our_logits(params, name, "question_answering")
  np.testing.assert_allclose(found, ours, atol=1e-5)
  stock_cases.assert_same_params(from_stock(made.state, made.config, extra=made.extra).params, params)


@pytest.mark.parametrize(
  ("name", "head"),
  [(name, "tagging") for name in ("mpnet", "layoutlmv3", "bert", "electra")]
  + [("layoutlmv3", "wide tagging")],
)
def test_tags_have_our_logits_at_every_token(name, head, tmp_path):
  count = 12 if "wide" in head else 4
  params, made = exported(name, head, labels=[f"tag {number}" for number in range(count)])
  write_folder(tmp_path, made)
  model, _ = _load(tmp_path, transformers.AutoModelForTokenClassification)
  assert type(model).__name__ == made.architecture and model.config.id2label[3] == "tag 3"
  mask = stock_cases.batch(name)[1]
  found = run_torch(model, name)["logits"][mask]
  np.testing.assert_allclose(found, _our_logits(params, name, "tagging"), atol=1e-5)
  stock_cases.assert_same_params(from_stock(made.state, made.config, extra=made.extra).params, params)


def test_a_pooler_that_nothing_trained_is_the_tanh_of_cls(tmp_path):
  _, made = exported("mpnet")
  write_folder(tmp_path, made)
  output = run_torch(_load(tmp_path, transformers.AutoModel)[0], "mpnet")
  np.testing.assert_allclose(output["pooler_output"], np.tanh(output["last_hidden_state"][:, 0]), atol=1e-6)


def test_mpnet_of_transformers_has_our_buckets_at_every_distance():
  from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

  from pretrain.models.relative_position import t5_buckets_of

  delta = np.arange(-5000, 5001)
  theirs = MPNetEncoder.relative_position_bucket(torch.tensor(delta)).numpy()
  np.testing.assert_array_equal(t5_buckets_of(delta, num_buckets=32, max_distance=128), theirs)


def test_distances_without_their_buckets_are_refused():
  _, made = exported("layoutlmv3")
  with pytest.raises(DataError, match=r"relative_position/embedding in extra.safetensors is missing"):
    from_stock(made.state, made.config)
  extra = {name: array + 1 for name, array in made.extra.items()}
  with pytest.raises(DataError, match=r"rel_pos_bias.weight .* use both files from the same export"):
    from_stock(made.state, made.config, extra=extra)
