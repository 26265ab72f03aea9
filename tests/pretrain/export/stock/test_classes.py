"""Which stock class holds an encoder."""

import dataclasses

from data.errors import ConfigError
from pretrain.export.stock.classes import check_layout, choose
from pretrain.models.layers import EncoderConfig
from tests.pretrain.export.refusals import failing

T5 = EncoderConfig(vocab_size=40, hidden_size=24, num_layers=1, num_heads=2, mlp_size=20, max_length=16)
NONE = dataclasses.replace(T5, relative_position="none")
_PRE = {"norm_placement": "pre", "norm_bias": False, "position": "rope", "mlp": "gated"}
PRE = dataclasses.replace(NONE, **_PRE, attention_bias=False, mlp_bias=False)
DEBERTA = dataclasses.replace(T5, relative_position="disentangled", position="none")
RMS = dataclasses.replace(PRE, norm="rmsnorm", embedding_norm=False, activation="silu")
WINDOWS = {"num_layers": 2, "global_every": 2}
_WORDY = {"norm_bias": True, "attention_bias": True, "activation": "silu"}


def _with(config: EncoderConfig, **fields) -> EncoderConfig:
  return dataclasses.replace(config, **fields)


CHOSEN = [  # encoder, id of [PAD], heads, class, a word of the reason
  (T5, 1, {"rtd", "mlm"}, "mpnet", "T5 buckets 32/128"),
  (T5, 0, set(), "layoutlmv3", "the padding id is 0"),
  (_with(T5, relative_buckets=64), 1, set(), "layoutlmv3", "relative_buckets is 64"),
  (_with(T5, relative_max_distance=256), 1, set(), "layoutlmv3", "relative_max_distance is 256"),
  (_with(T5, relative_position="official"), 1, {"rtd"}, "layoutlmv3", "relative_position is 'official'"),
  (_with(T5, num_segments=2), 1, set(), "layoutlmv3", "num_segments is 2"),
  (NONE, 1, {"rtd", "mlm"}, "electra", "RTD"),
  (NONE, 1, {"mlm"}, "bert", "no relative positions"),
  (NONE, 1, {"rtd", "classification"}, "bert", "tanh in the classification head"),
  (DEBERTA, 0, {"rtd", "mlm"}, "deberta-v2", "disentangled attention"),
  (_with(NONE, num_segments=2), 0, set(), "bert", "no relative positions"),
  (PRE, 1, {"rtd", "classification"}, "modernbert", "gated MLPs, LayerNorm"),
  (_with(PRE, **_WORDY), 1, set(), "modernbert", "LayerNorm"),
  (RMS, 1, {"rtd"}, "eurobert", "RMSNorm and no windows"),
  (RMS, 1, {"question_answering"}, "ultrabert", "no class for question_answering"),
  (_with(RMS, **WINDOWS), 1, {"rtd"}, "ultrabert", "RMSNorm and windows"),
]
ONLY_NEAR = [  # class, encoder, id of [PAD], heads, a word of the refusal
  ("bert", T5, 1, set(), "relative_position is 't5', and the class has 'none'"),
  ("electra", T5, 1, {"rtd"}, "relative_position is 't5'"),
  ("electra", NONE, 1, {"classification"}, "gelu in its classification head, this model has tanh"),
  ("mpnet", NONE, 1, set(), "relative_position is 'none', and the class has 't5'"),
  ("layoutlmv3", NONE, 1, set(), "relative_position is 'none', but the class has biases"),
  ("layoutlmv3", _with(DEBERTA, position="learned"), 1, set(), "is 'disentangled', but the class has biases"),
  ("deberta-v2", T5, 1, set(), "position is 'learned', and the class has 'none'"),
  ("deberta-v2", _with(DEBERTA, num_segments=2), 1, set(), "num_segments is 2"),
  ("mpnet", T5, 3, set(), "padding id is 3"),
  ("mpnet", _with(T5, relative_position="official"), 1, set(), "is 'official'"),
  ("mpnet", _with(T5, num_segments=2), 1, set(), "num_segments is 2, and the class has 0"),
  ("layoutlmv3", _with(T5, hidden_size=9, num_heads=3), 1, set(), "hidden_size is 9"),
  ("eurobert", _with(RMS, **WINDOWS), 1, set(), "a window of 128 tokens"),
  ("bert", _with(NONE, **WINDOWS), 1, set(), "a window of 128 tokens"),
]
# One switch of the encoder each, that a class fixes: {class: (encoder it holds, {field: other value})}.
_PLAIN = {"mlp": "gated", "activation": "silu", "attention_bias": False, "mlp_bias": False}
_PLAIN |= {"norm_placement": "pre", "norm_bias": False, "embedding_norm": False, "position": "rope"}
_ROTARY = {"norm_placement": "post", "position": "learned", "mlp": "plain", "num_segments": 2}
SWITCHES = {
  "bert": (NONE, _PLAIN),
  "modernbert": (PRE, _ROTARY | {"embedding_norm": False}),
  "ultrabert": (RMS, _ROTARY | {"embedding_norm": True, "norm": "layernorm"}),
}
NEAREST = [  # encoder, words of the refusal
  (_with(RMS, embedding_norm=True), "nearest is eurobert, but model.embedding_norm is True"),
  (_with(DEBERTA, position="learned"), "nearest is deberta-v2, but model.position is 'learned'"),
  (_with(NONE, mlp="gated"), "the nearest is bert, but model.mlp is 'gated'"),
  (_with(T5, **WINDOWS), "the nearest is layoutlmv3, but some layers have a window of 128 tokens"),
  (_with(T5, hidden_size=9, num_heads=3, relative_position="official"), "hidden_size is 9"),
]  # fmt: skip


def test_the_exact_class_is_chosen_and_the_reason_told():
  wrong = []
  for config, pad_id, heads, layout, reason in CHOSEN:
    found = choose(config, pad_id=pad_id, heads=heads)
    if found.layout != layout or reason not in found.reason:
      wrong.append(f"{layout}, {reason}: {found}")
  assert not wrong, "\n".join(wrong)


def test_a_class_that_would_only_come_near_is_refused():
  def check(layout, config, pad_id, heads):
    check_layout(layout, config, pad_id=pad_id, heads=heads)

  assert not failing(ONLY_NEAR, check, ConfigError)
  rows = []
  for layout, (config, fields) in SWITCHES.items():
    check(layout, config, 1, set())
    rows += [
      (layout, _with(config, **{name: value}), 1, set(), f"model.{name} is {value!r}")
      for name, value in fields.items()
    ]
  assert not failing(rows, check, ConfigError)
  assert not failing(NEAREST, lambda config: choose(config, pad_id=1, heads=set()), ConfigError)


def test_a_gelu_head_goes_to_electra_or_deberta_or_nowhere():
  given = {"pad_id": 1, "heads": {"classification"}, "activation": "gelu"}
  assert choose(NONE, **given).layout == "electra"
  assert choose(DEBERTA, **given).layout == "deberta-v2"
  check_layout("modernbert", PRE, **given)  # whose head has the encoder's
  word = "the class has tanh in its classification head, this model has gelu"
  rows = [(layout, config, word) for layout, config in (("bert", NONE), ("mpnet", T5), ("layoutlmv3", T5))]
  assert not failing(rows, lambda layout, config: check_layout(layout, config, **given), ConfigError)
  assert not failing([(T5, word)], lambda config: choose(config, **given), ConfigError)
