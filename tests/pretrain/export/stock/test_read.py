"""Stock models as ours. Run: python -m pytest tests/pretrain/export/stock/test_read.py

The models are made by transformers with random numbers, not by our tables.
"""

import jax
import numpy as np
import pytest

from data.errors import DataError
from pretrain.export.stock.config import encoder_fields
from pretrain.export.stock.read import from_stock
from pretrain.models import encoder
from pretrain.models.config import EncoderConfig
from tests.pretrain.export.stock_cases import exported

SIZES = {
  "vocab_size": 40,
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 20,
  "max_position_embeddings": 30,
}


def stock_model(name: str, **fields):
  """A model of random numbers, its tensors and its config.json."""
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  torch.manual_seed(0)
  architecture = getattr(transformers, name)
  width = {"embedding_size": 24} if name.startswith("Electra") else {}
  model = architecture(architecture.config_class(**SIZES, **width, **fields)).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.3)
  state = {key: value.numpy() for key, value in model.state_dict().items()}
  config = model.config.to_dict() | {"architectures": [name]}
  return model, state, config


def _assert_same_hidden(model, imported, config):
  import torch

  sizes = EncoderConfig(**encoder_fields(config))
  pad_id = config["pad_token_id"]
  mask = np.arange(20) < np.array([[20], [11]])
  ids = np.where(mask, np.random.default_rng(1).integers(2, 40, (2, 20)), pad_id)
  ours = jax.jit(lambda params: encoder.encode(params, sizes, ids, mask, pad_id=pad_id)[1].last)
  with torch.no_grad():
    output = getattr(model, model.base_model_prefix, model)(torch.tensor(ids), torch.tensor(mask).long())
  difference = output.last_hidden_state.numpy() - np.asarray(ours(imported.params["encoder"]))
  assert np.abs(difference[mask]).max() < 1e-5


@pytest.mark.parametrize(
  ("name", "unmatched"),
  [
    ("BertModel", {"pooler.dense.bias", "pooler.dense.weight"}),
    ("MPNetModel", {"pooler.dense.bias", "pooler.dense.weight"}),
    ("ElectraModel", set()),
  ],
)
def test_a_stock_encoder_computes_the_same_as_ours(name, unmatched):
  model, state, config = stock_model(name)
  imported = from_stock(state, config)
  assert set(imported.unmatched) == unmatched
  _assert_same_hidden(model, imported, config)


def test_heads_that_ours_has_are_read_and_the_others_named():
  _, state, config = stock_model("BertForPreTraining")
  imported = from_stock(state, config)
  assert set(imported.params["heads"]) == {"mlm"}
  pooler, sentences = ("pooler.dense.bias", "pooler.dense.weight"), "cls.seq_relationship"
  assert imported.unmatched == (f"{sentences}.bias", f"{sentences}.weight", *pooler)
  np.testing.assert_array_equal(imported.params["heads"]["mlm"]["bias"], state["cls.predictions.bias"])


def test_names_of_2019_are_understood():
  _, state, config = stock_model("BertForMaskedLM")
  renames = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
  old = {}
  for name, array in state.items():
    for new, former in renames.items():
      name = name.replace(new, former)
    old[name] = array
  expected, found = from_stock(state, config), from_stock(old, config)
  assert found.unmatched == ()
  jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_the_classification_head_of_electra_is_read():
  _, state, config = stock_model("ElectraForSequenceClassification")
  params, unmatched, *_ = from_stock(state, config)
  assert unmatched == ()
  head = params["heads"]["classification"]
  np.testing.assert_array_equal(head["dense"]["kernel"], state["classifier.dense.weight"].T)
  np.testing.assert_array_equal(head["output"]["kernel"], state["classifier.out_proj.weight"].T)


def test_the_segment_table_stays():
  _, made = exported("bert with segments")
  params = from_stock(made.state, made.config).params
  assert params["encoder"]["embeddings"]["segment"]["embedding"].shape == (2, 24)
  assert encoder_fields(made.config)["num_segments"] == 2


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"model_type": "roberta"}, "model_type is 'roberta'; expected one of mpnet"),
    ({"model_type": None}, "model_type is None"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'gelu'"),
    ({"is_decoder": True}, "is_decoder is True"),
    ({"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of hidden_size 24"),
    ({"hidden_size": "24"}, "hidden_size is '24'; expected an integer"),
    ({"vocab_size": True}, "vocab_size is True; expected an integer"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
    ({"embedding_size": 12}, "embedding_size is 12; expected hidden_size, 24"),
    ({"type_vocab_size": 0}, "type_vocab_size is 0"),
    (
      {"source_model": {"num_segments": 7}},
      "source_model is .*; expected an object with num_segments 0 or 2",
    ),
    ({"vocab_size": 41}, r"word_embeddings.weight has shape \(40, 24\)"),
  ],
)
def test_a_config_of_another_model_is_refused(fields, message):
  _, made = exported("electra")
  with pytest.raises(DataError, match=message):
    from_stock(made.state, made.config | fields)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"source_model": None}, "source_model is None"),
    ({"source_model": {"num_segments": 0}}, "relative_position 't5' or 'official'"),
  ],
)
def test_a_layoutlmv3_of_others_is_refused(fields, message):
  _, made = exported("layoutlmv3")
  with pytest.raises(DataError, match=message):
    from_stock(made.state, made.config | fields, extra=made.extra)


def test_an_mpnet_of_other_buckets_is_refused():
  _, made = exported("mpnet")
  with pytest.raises(DataError, match="relative_attention_num_buckets is 64"):
    from_stock(made.state, made.config | {"relative_attention_num_buckets": 64})


def test_a_segment_table_trained_elsewhere_is_not_dropped():
  _, made = exported("bert")
  made.state["embeddings.token_type_embeddings.weight"][1, 3] = 1e-9
  with pytest.raises(DataError, match=r"token_type_embeddings.weight is not 0"):
    from_stock(made.state, made.config)


def test_one_tensor_under_two_names_is_refused():
  _, made = exported("bert")
  made.state["bert.embeddings.LayerNorm.weight"] = made.state["embeddings.LayerNorm.weight"]
  with pytest.raises(DataError, match=r"two tensors have the name embeddings.LayerNorm.weight"):
    from_stock(made.state, made.config)


def test_an_extra_file_of_another_export_is_refused():
  _, made = exported("bert", "mlm")
  with pytest.raises(DataError, match=r"heads/mlm/bias occurs twice, .* of one export"):
    from_stock(made.state, made.config, extra={"heads/mlm/bias": np.zeros(40, np.float32)})
