"""Stock models as ours, on arrays: config.json, names, heads, and what is refused.

The models are made by transformers with random numbers, not by our tables.
"""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pretrain.export.stock.config import encoder_fields
from pretrain.export.stock.convert import from_stock
from pretrain.models import encoder
from pretrain.models.layers import EncoderConfig
from tests.pretrain.export.refusals import failing
from tests.pretrain.export.stock_cases import assert_same_params, exported

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
SIZES = {
  "vocab_size": 40,
  "hidden_size": 24,
  "num_hidden_layers": 3,
  "num_attention_heads": 2,
  "intermediate_size": 20,
  "max_position_embeddings": 40,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
CLS = {"cls_token_id": 2, "sep_token_id": 3}
FULL, SLIDING = ("full_attention", "sliding_attention")
ROPE = {
  FULL: {"rope_type": "default", "rope_theta": 5000.0},
  SLIDING: {"rope_type": "default", "rope_theta": 100.0},
}
DEBERTA = {  # v3's form of deberta-v2
  "relative_attention": True,
  "position_buckets": 8,
  "pos_att_type": "c2p|p2c",
  "share_att_key": True,
  "norm_rel_ebd": "layer_norm",
  "position_biased_input": False,
}
FIELDS = {  # what a class needs beside the sizes
  "bert": {},
  "mpnet": {"pad_token_id": 1},
  "electra": {"embedding_size": 24},
  "modernbert": SPECIAL | CLS | {"local_attention": 16, "rope_parameters": ROPE},
  "ultrabert": SPECIAL | {"sliding_window": 8, "rope_parameters": ROPE},
  "eurobert": SPECIAL | {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0}},
}


@functools.cache
def stock_model(name: str, **fields):
  """A model of random numbers, its tensors and its config.json; read only."""
  torch.manual_seed(0)
  kind = name.partition("For")[0].removesuffix("Model").lower()
  architecture = getattr(transformers, name)
  model = architecture(architecture.config_class(**SIZES | FIELDS[kind] | fields)).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.3)
  state = {key: value.numpy() for key, value in model.state_dict().items()}
  return model, state, model.config.to_dict() | {"architectures": [name]}


def test_a_stock_encoder_computes_the_same_as_ours():
  pooler = {"pooler.dense.bias", "pooler.dense.weight"}
  for name in ("Bert", "MPNet", "Electra", "ModernBert", "Ultrabert", "EuroBert"):
    model, state, config = stock_model(f"{name}Model")
    imported = from_stock(state, config)
    assert set(imported.unmatched) == (pooler if name in ("Bert", "MPNet") else set()), name
    assert set(imported.matched) | set(imported.unmatched) == {*state} - {"embeddings.position_ids"}, name
    sizes, pad_id = EncoderConfig(**encoder_fields(config)), config["pad_token_id"]
    mask = np.arange(38) < np.array([[38], [11]])
    ids = np.where(mask, np.random.default_rng(1).integers(2, 40, (2, 38)), pad_id)
    ours = jax.jit(functools.partial(encoder.encode, config=sizes, ids=ids, token_mask=mask, pad_id=pad_id))
    with torch.no_grad():
      output = model(torch.tensor(ids), torch.tensor(mask).long()).last_hidden_state.numpy()
    difference = output - np.asarray(ours(imported.params["encoder"])[1].last)
    assert np.abs(difference[mask]).max() < 1e-5, name


def test_what_config_json_leaves_out_has_the_value_of_the_class():
  for kind in (*FIELDS, "roberta", "camembert", "xlm-roberta", "nomic_bert", "distilbert", "deberta-v2"):
    short = SIZES | {"vocab_size": 130_000, "model_type": kind}  # EuroBERT pads with 128001
    short |= {"dim": 24, "n_layers": 3, "n_heads": 2, "hidden_dim": 20} if kind == "distilbert" else {}
    short |= {"pad_token_id": 1} if kind == "mpnet" else DEBERTA if kind == "deberta-v2" else {}
    config = transformers.AutoConfig.for_model(**short)
    assert encoder_fields(short) == encoder_fields(config.to_dict()), kind


def test_rotary_classes_are_read_in_each_spelling():
  _, _, new = stock_model("ModernBertModel")
  fields = encoder_fields(new)
  described = {"position": "rope", "norm_placement": "pre", "mlp": "gated", "norm": "layernorm", "window": 16}
  described |= {"rope_theta": 5000.0, "rope_theta_local": 100.0, "max_length": 40, "global_every": 3}
  described |= {"embedding_norm": True, "activation": "gelu", "num_segments": 0, "global_layers": ()}
  assert {name: fields[name] for name in described} == described
  old = {name: new[name] for name in new if name not in ("layer_types", "rope_parameters")}
  old |= {"global_attn_every_n_layers": 3, "global_rope_theta": 5000.0, "local_rope_theta": 100.0}
  assert encoder_fields(old | {"layer_norm_eps": 0.5}) == fields
  assert encoder_fields(new | {"layer_types": [FULL, SLIDING, FULL]})["global_every"] == 2
  assert encoder_fields(new | {"layer_types": [SLIDING, FULL, FULL]})["global_layers"] == (1, 2)
  _, _, ultra = stock_model("UltrabertModel")
  new = ultra | {"layer_types": [SLIDING, FULL, SLIDING]}
  old = ultra | {"attention_windows": [8, 0, 8], "rope_theta": [100.0, 5000.0, 100.0]}
  for name in ("rope_parameters", "sliding_window", "layer_types"):
    del old[name]
  assert encoder_fields(old) == encoder_fields(new)
  found = encoder_fields(new)
  assert (found["global_layers"], found["window"], found["rope_theta_local"]) == ((1,), 16, 100.0)
  assert (found["norm"], found["embedding_norm"], found["activation"]) == ("rmsnorm", False, "silu")
  # Dropout goes where the class has it.
  names = ("attention_dropout", "dropout", "init_stddev", "dropout_at", "init")
  for name, expected in (
    ("ModernBertModel", [0.25, 0.25, 0.03, "attention", "megatron_cut"]),
    ("EuroBertModel", [0.25, 0.0, 0.03, "attention", "normal"]),
  ):
    _, _, config = stock_model(name)
    found = encoder_fields(config | {"attention_dropout": 0.25, "initializer_range": 0.03})
    assert [found[name] for name in names] == expected


def test_heads_that_ours_has_are_read_and_the_others_named():
  kinds = "ElectraForSequenceClassification ModernBertForMaskedLM ModernBertForSequenceClassification "
  kinds += "ModernBertForTokenClassification ModernBertForQuestionAnswering UltrabertForQuestionAnswering "
  kinds += "UltrabertForSequenceClassification UltrabertForTokenClassification EuroBertForTokenClassification"
  heads = {"SequenceClassification": "classification", "MaskedLM": "mlm", "TokenClassification": "tagging"}
  for kind in kinds.split():
    head = heads.get(kind.partition("For")[2], "question_answering")
    _, state, config = stock_model(kind, num_labels=2)
    imported = from_stock(state, config)
    assert not imported.unmatched and set(imported.params["heads"]) == {head}, kind
    assert ("norm" in imported.params["heads"][head]) == kind.startswith("Modern"), kind
  _, state, config = stock_model("ElectraForSequenceClassification", num_labels=2)
  found = from_stock(state, config).params["heads"]["classification"]
  np.testing.assert_array_equal(found["dense"]["kernel"], state["classifier.dense.weight"].T)
  np.testing.assert_array_equal(found["output"]["kernel"], state["classifier.out_proj.weight"].T)
  _, state, config = stock_model("BertForPreTraining")
  imported = from_stock(state, config)
  pooler, sentences = ("pooler.dense.bias", "pooler.dense.weight"), "cls.seq_relationship"
  assert imported.unmatched == (f"{sentences}.bias", f"{sentences}.weight", *pooler)
  np.testing.assert_array_equal(imported.params["heads"]["mlm"]["bias"], state["cls.predictions.bias"])
  # A classifier of text needs its class named: alone, `classifier` may be a tagger's.
  _, state, config = stock_model("BertForTokenClassification", num_labels=2)
  assert set(from_stock(state, config).params["heads"]) == {"tagging"}
  assert "heads" not in from_stock(state, config | {"architectures": ["BertModel"]}).params


def test_names_of_2019_are_understood_and_the_segment_table_stays():
  _, state, config = stock_model("BertForMaskedLM")
  renames = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
  old = {functools.reduce(lambda text, each: text.replace(*each), renames.items(), name): array
         for name, array in state.items()}  # fmt: skip
  found = from_stock(old, config)
  assert old.keys() != state.keys() and found.unmatched == ()
  assert_same_params(found.params, from_stock(state, config).params)
  table = found.params["encoder"]["embeddings"]["segment"]["embedding"]
  np.testing.assert_array_equal(table, state["bert.embeddings.token_type_embeddings.weight"])
  assert encoder_fields(config)["num_segments"] == 2


ELECTRA = [  # a change of config.json of electra, a word of the refusal
  ({"model_type": "albert"}, "model_type is 'albert'; expected one of mpnet"),
  ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'gelu'"),
  ({"is_decoder": True}, "is_decoder"),
  ({"num_attention_heads": 5}, "num_attention_heads is 5"),
  ({"num_attention_heads": 0}, "num_attention_heads is 0; expected an integer of at least 1"),
  ({"hidden_size": "24"}, "hidden_size is '24'"),
  ({"vocab_size": True}, "vocab_size is True"),
  ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
  ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
  ({"hidden_dropout_prob": -0.1}, "hidden_dropout_prob is -0.1"),
  ({"embedding_size": 12}, "word_embeddings.weight has shape (40, 24); expected (V=40, E=12)"),
  ({"embedding_size": 0}, "embedding_size is 0"),
  (
    {"position_embedding_type": "relative_key"},
    "position_embedding_type is 'relative_key'; expected 'absolute'",
  ),
  ({"type_vocab_size": 0}, "type_vocab_size is 0"),
  ({"source_model": {"num_segments": 7}}, "expected an object with num_segments 0 or 2"),
  ({"vocab_size": 41}, "word_embeddings.weight has shape (40, 24)"),
]
MODERN, _YARN = "ModernBertForMaskedLM", ROPE | {FULL: {"rope_type": "yarn"}}
PRE_NORM = [  # class, a change of its config.json, a word of the refusal
  (MODERN, {"local_rope_theta": 0}, "rope_theta is 0"),
  (MODERN, {"local_rope_theta": float("inf")}, "rope_theta is inf"),
  (MODERN, {"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
  (MODERN, {"rope_parameters": _YARN}, "rope_parameters.full_attention"),
  (MODERN, {"rope_parameters": {"rope_theta": 3.0}}, "expected full_attention and sliding"),
  (MODERN, {"head_dim": 8}, "head_dim is 8"),
  (MODERN, {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
  (MODERN, {"classifier_activation": "silu"}, "classifier_activation is 'silu'"),
  (MODERN, {"classifier_activation": "linear"}, "classifier_activation is 'linear'"),
  (MODERN, {"tie_word_embeddings": False}, "tie_word_embeddings"),
  (MODERN, {"decoder_bias": False}, "decoder_bias"),
  (MODERN, {"pad_token_id": 40}, "expected an id below vocab_size 40"),
  (MODERN, {"vocab_size": 41}, "tok_embeddings.weight has shape (40, 24)"),
  (MODERN, {"layer_types": [FULL]}, "expected 3 of full_attention"),
  (MODERN, {"layer_types": [SLIDING] * 3}, "one at least full_attention"),
  ("EuroBertModel", {"num_hidden_layers": 1001}, "expected at most 1000"),
  (MODERN, {"norm_bias": True}, "norm.bias is missing"),
  (MODERN, {"local_attention": "16"}, "local_attention"),
  (MODERN, {"source_model": {"init": "zeros"}}, "init is 'zeros'"),
  (
    "UltrabertModel",
    {"num_key_value_heads": 3},
    "num_key_value_heads is 3; expected a divisor of num_attention_heads 2",
  ),
]


def test_configs_and_tensors_of_other_models_are_refused():
  def in_rope(name, fields):
    _, state, config = stock_model(name)
    left_out = ("rope_parameters",) if "local_rope_theta" in fields else ()
    from_stock(state, {key: config[key] for key in config if key not in left_out} | fields)

  assert not failing(PRE_NORM, in_rope)
  segments, norm = "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm.weight"
  first, twice = "layers.0.attn_norm.weight", {"heads/mlm/bias": np.zeros(40, np.float32)}
  made = {name: exported(name)[1] for name in ("bert", "electra", "mpnet", "layoutlmv3")}
  made |= {"mlm": exported("bert", "mlm")[1], "modern": SimpleNamespace(extra={})}
  _, made["modern"].state, made["modern"].config = stock_model("ModernBertModel")
  bert, layout = made["bert"].state, made["layoutlmv3"]
  trained, moved = bert[segments].copy(), {name: array + 1 for name, array in layout.extra.items()}
  trained[1, 3] = 1e-9
  rows = [("electra", {}, fields, None, word) for fields, word in ELECTRA] + [
    ("layoutlmv3", {}, {"source_model": None}, None, "source_model is None"),
    ("layoutlmv3", {}, {"source_model": {"num_segments": 0}}, None, "relative_position 't5' or 'official'"),
    ("layoutlmv3", {}, {}, {}, "relative_position/embedding in extra.safetensors is missing"),
    ("layoutlmv3", {}, {}, moved, "use both files from the same export"),
    ("mpnet", {}, {"relative_attention_num_buckets": 64}, None, "relative_attention_num_buckets is 64"),
    ("bert", {segments: trained}, {}, None, "token_type_embeddings.weight is not 0"),
    ("bert", {f"bert.{norm}": bert[norm]}, {}, None, f"two tensors have the name {norm}"),
    ("bert", {norm: None}, {}, None, f"{norm} is missing"),
    ("bert", {segments: None}, {}, None, f"{segments} is missing"),
    ("mlm", {}, {}, twice, "heads/mlm/bias occurs twice"),
    ("modern", {first: np.ones(24, np.float32)}, {}, None, f"tensor {first} is there"),
  ]

  def run(name, tensors, fields, extra):
    state = {key: array for key, array in (made[name].state | tensors).items() if array is not None}
    from_stock(state, made[name].config | fields, extra=made[name].extra if extra is None else extra)

  assert not failing(rows, run)
