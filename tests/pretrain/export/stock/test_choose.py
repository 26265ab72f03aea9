"""Which stock class holds an encoder. Run: python -m pytest tests/pretrain/export/stock/test_choose.py"""

import dataclasses

import pytest

from data.errors import ConfigError
from pretrain.export.stock.choose import check_layout, choose
from pretrain.models.config import EncoderConfig

T5 = EncoderConfig(vocab_size=40, hidden_size=24, num_layers=1, num_heads=2, mlp_size=20, max_length=16)
NONE = dataclasses.replace(T5, relative_position="none")
PRE = dataclasses.replace(
  NONE,
  norm_placement="pre",
  norm_bias=False,
  position="rope",
  mlp="gated",
  attention_bias=False,
  mlp_bias=False,
)
RMS = dataclasses.replace(PRE, norm="rmsnorm", embedding_norm=False, activation="silu")


def _changed(config, **fields):
  return dataclasses.replace(config, **fields)


@pytest.mark.parametrize(
  ("config", "pad_id", "heads", "layout", "reason"),
  [
    (T5, 1, {"rtd", "mlm"}, "mpnet", "T5 buckets 32/128"),
    (T5, 0, set(), "layoutlmv3", "the padding id is 0"),
    (_changed(T5, relative_buckets=64), 1, set(), "layoutlmv3", "t5 64/128"),
    (_changed(T5, relative_max_distance=256), 1, set(), "layoutlmv3", "t5 32/256"),
    (_changed(T5, relative_position="official"), 1, {"rtd"}, "layoutlmv3", "official 32/128"),
    (_changed(T5, num_segments=2), 1, set(), "layoutlmv3", "2 segments"),
    (NONE, 1, {"rtd", "mlm"}, "electra", "RTD"),
    (NONE, 1, {"mlm"}, "bert", "no relative positions"),
    (NONE, 1, {"rtd", "classification"}, "bert", "tanh in the classification head"),
    (_changed(NONE, num_segments=2), 0, set(), "bert", "no relative positions"),
    (PRE, 1, {"rtd", "classification"}, "modernbert", "gated MLPs, LayerNorm"),
    (
      _changed(PRE, norm_bias=True, attention_bias=True, activation="silu"),
      1,
      set(),
      "modernbert",
      "LayerNorm",
    ),
    (RMS, 1, {"rtd"}, "eurobert", "RMSNorm and no windows"),
    (_changed(RMS, num_layers=2, global_every=2), 1, {"rtd"}, "ultrabert", "RMSNorm and windows"),
  ],
)
def test_the_exact_class_is_chosen_and_the_reason_told(config, pad_id, heads, layout, reason):
  choice = choose(config, pad_id=pad_id, heads=heads)
  assert choice.layout == layout and reason in choice.reason


@pytest.mark.parametrize(
  ("layout", "config", "pad_id", "heads", "reason"),
  [
    ("bert", T5, 1, set(), "relative positions are t5 32/128, but the class has none"),
    ("electra", T5, 1, {"rtd"}, "relative positions are t5 32/128, but the class has none"),
    ("electra", NONE, 1, {"classification"}, "gelu in its classification head, this model has tanh"),
    ("mpnet", NONE, 1, set(), "the class always adds them"),
    ("layoutlmv3", NONE, 1, set(), "the class always adds them"),
    ("mpnet", T5, 3, set(), "the padding id is 3"),
    ("mpnet", _changed(T5, relative_position="official"), 1, set(), "relative positions are official 32/128"),
    ("mpnet", _changed(T5, num_segments=2), 1, set(), "2 segments"),
    ("layoutlmv3", _changed(T5, hidden_size=9, num_heads=3), 1, set(), "hidden_size is 9"),
  ],
)
def test_a_class_that_would_only_come_near_is_refused(layout, config, pad_id, heads, reason):
  with pytest.raises(ConfigError, match=reason):
    check_layout(layout, config, pad_id=pad_id, heads=heads)


def test_a_gelu_head_goes_to_electra_or_nowhere():
  heads = {"classification"}
  assert choose(NONE, pad_id=1, heads=heads, activation="gelu").layout == "electra"
  for layout, config in (("bert", NONE), ("mpnet", T5), ("layoutlmv3", T5)):
    with pytest.raises(ConfigError, match="tanh in its classification head, this model has gelu"):
      check_layout(layout, config, pad_id=1, heads=heads, activation="gelu")
  with pytest.raises(ConfigError, match=r"^--to=mpnet cannot represent this model exactly: the class has"):
    choose(T5, pad_id=1, heads=heads, activation="gelu")


@pytest.mark.parametrize(
  ("config", "nearest", "reason"),
  [
    (_changed(RMS, embedding_norm=True), "eurobert", "model.embedding_norm is True, and the class has False"),
    (_changed(NONE, mlp="gated"), "bert", "model.mlp is 'gated', and the class has 'plain'"),
    (_changed(PRE, position="learned"), "modernbert", "model.position is 'learned'"),
    (_changed(NONE, norm="rmsnorm", norm_bias=False), "bert", "model.norm is 'rmsnorm'"),
    (_changed(T5, num_layers=2, global_every=2), "bert", "some layers have a window of 128 tokens"),
  ],
)
def test_an_encoder_without_a_class_is_refused_with_the_nearest(config, nearest, reason):
  with pytest.raises(ConfigError) as caught:
    choose(config, pad_id=1, heads=set())
  first, *ways = str(caught.value).splitlines()
  assert f"the nearest is {nearest}, but {reason}" in first and ways == ["  --to=torch"]


def test_an_encoder_that_no_class_holds_is_refused():
  config = _changed(T5, hidden_size=9, num_heads=3, relative_position="official")
  with pytest.raises(ConfigError, match="hidden_size is 9"):
    choose(config, pad_id=1, heads=set())
