"""Exact forms of heads and tables. Run: python -m pytest tests/pretrain/export/stock/test_forms.py"""

import jax
import numpy as np
import pytest

from pretrain.export.stock import forms as stock_forms
from pretrain.models import heads as head_models
from pretrain.models.config import EncoderConfig
from pretrain.models.relative_position import official_buckets, t5_buckets
from tests.pretrain.export.stock_cases import assert_same_params, spread

SIZE = 8
CONFIG = EncoderConfig(
  vocab_size=9, hidden_size=SIZE, num_layers=1, num_heads=2, mlp_size=4, max_length=21, relative_buckets=8
)
NORM = {"scale": np.full(SIZE, 1.5, np.float32), "bias": np.full(SIZE, 0.25, np.float32)}


def _hidden():
  """Vectors as the last LayerNorm gives them."""
  x = np.random.default_rng(3).normal(size=(1, 50, SIZE))
  x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
  return (x * NORM["scale"] + NORM["bias"]).astype(np.float32)


def _span_head(scale=1.0):
  head = spread({"kernel": np.zeros((SIZE, 2)), "bias": np.zeros(2)})
  return {name: (scale * array).astype(np.float32) for name, array in head.items()}


def test_two_opposite_rows_are_the_linear_rtd_head():
  linear = spread({"kernel": np.zeros((SIZE, 1)), "bias": np.zeros(1)})
  dense = stock_forms.binary_head_as_dense(linear)
  expected = head_models.apply_rtd_head(linear, CONFIG, _hidden())
  np.testing.assert_allclose(head_models.apply_rtd_head(dense, CONFIG, _hidden()), expected, atol=1e-6)
  assert_same_params(stock_forms.binary_head_from_dense(dense), linear)


def test_a_dense_rtd_head_of_its_own_stays_dense():
  dense = spread(stock_forms.binary_head_as_dense({"kernel": np.ones((SIZE, 1)), "bias": np.ones(1)}))
  assert stock_forms.binary_head_as_dense(dense) is dense
  assert stock_forms.binary_head_from_dense(dense) is dense


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_tanh_changes_no_bit_of_a_scaled_question_answering_head(scale):
  head = _span_head(scale)
  form = stock_forms.linear_head_as_tanh(head, NORM)
  small = _hidden() @ form["dense"]["kernel"] + form["dense"]["bias"]
  assert np.abs(small).max() <= stock_forms.TANH_IS_LINEAR_BELOW
  np.testing.assert_array_equal(np.asarray(jax.numpy.tanh(small)), small)
  factor = form["output"]["kernel"][0, 0]
  np.testing.assert_array_equal(small[..., :2] * factor, _hidden() @ head["kernel"] + head["bias"])
  assert_same_params(stock_forms.linear_head_from_tanh(form), head)


@pytest.mark.parametrize("factor", [0.0, np.nan, np.inf, 3.0, -2.0])
def test_another_tanh_head_is_not_taken_for_ours(factor):
  form = stock_forms.linear_head_as_tanh(_span_head(), NORM)
  form["output"]["kernel"][0, 0] = form["output"]["kernel"][1, 1] = factor
  assert stock_forms.linear_head_from_tanh(form) is None


@pytest.mark.parametrize("kind", ["t5", "official"])
def test_every_pair_of_positions_reads_the_row_of_its_distance(kind):
  config = EncoderConfig(**{**vars(CONFIG), "relative_position": kind, "relative_max_distance": 12})
  table = spread({"table": np.zeros((8, 2))})["table"]
  rows = stock_forms.distance_rows(table, config)
  sizes = {"num_buckets": 8, "max_distance": 12}
  buckets = t5_buckets(21, **sizes) if kind == "t5" else official_buckets(21, max_length=21, **sizes)
  for query in range(21):
    for key in range(21):
      # LayoutLMv3: keys to the right have the second half of the bins.
      column = abs(key - query) + (rows.shape[1] // 2 if key > query else 0)
      np.testing.assert_allclose(rows[:, column] / 2.0, table[buckets[query, key]], rtol=1e-6)


@pytest.mark.parametrize("hidden_size", [2, 8, 24, 128, 256, 384, 768, 1024])
def test_places_on_a_page_fill_the_width(hidden_size):
  coordinate, shape = stock_forms.spatial_sizes(hidden_size)
  assert 4 * coordinate + 2 * shape == hidden_size and shape >= 0
