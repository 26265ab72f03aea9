"""Exact forms of heads and tables: they compute the same bits, and each has its inverse."""

import jax
import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.export.stock import config as stock_config
from pretrain.export.stock import heads as forms
from pretrain.models import heads as head_models
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import official_buckets, t5_buckets
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


def _span_head(scale=1.0, outputs=2):
  head = spread({"kernel": np.zeros((SIZE, outputs)), "bias": np.zeros(outputs)})
  return {name: (scale * array).astype(np.float32) for name, array in head.items()}


def test_two_opposite_rows_are_the_linear_rtd_head():
  linear = spread({"kernel": np.zeros((SIZE, 1)), "bias": np.zeros(1)})
  dense = forms.binary_head_as_dense(linear)
  expected = head_models.apply_rtd_head(linear, CONFIG, _hidden())
  np.testing.assert_allclose(head_models.apply_rtd_head(dense, CONFIG, _hidden()), expected, atol=1e-6)
  assert_same_params(forms.binary_head_from_dense(dense), linear)
  own = spread(dense, seed=1)  # a dense head of its own stays
  assert forms.binary_head_as_dense(own) is own and forms.binary_head_from_dense(own) is own


def test_tanh_changes_no_bit_of_a_scaled_linear_head():
  for scale, outputs in ((1e-6, 2), (1.0, 2), (1e5, 2), (1.0, SIZE)):
    head = _span_head(scale, outputs)
    form = forms.linear_head_as_tanh(head, NORM)
    small = _hidden() @ form["dense"]["kernel"] + form["dense"]["bias"]
    assert np.abs(small).max() <= forms.TANH_IS_LINEAR_BELOW == 2**-13
    np.testing.assert_array_equal(np.asarray(jax.numpy.tanh(small)), small)
    factor = form["output"]["kernel"][0, 0]
    np.testing.assert_array_equal(small[..., :outputs] * factor, _hidden() @ head["kernel"] + head["bias"])
    assert_same_params(forms.linear_head_from_tanh(form), head)
  # The scale is the largest power of two with which the longest vector along the kernel is below the bound.
  column = _span_head()["kernel"][:, 0]
  kernel, bias = np.float32(column)[:, None], np.float32([0.5])
  form = forms.linear_head_as_tanh({"kernel": kernel, "bias": bias}, NORM)
  longest = np.sqrt(SIZE) * 1.5 + np.linalg.norm(NORM["bias"])
  worst = np.linalg.norm(column) * longest + 0.5
  assert 2**-14 < worst / form["output"]["kernel"][0, 0] <= 2**-13
  with pytest.raises(ConfigError, match="9 labels"):
    forms.linear_head_as_tanh(_span_head(outputs=SIZE + 1), NORM)
  for factor in (0.0, np.nan, np.inf, 3.0, -2.0):  # another tanh head is not taken for ours
    form = forms.linear_head_as_tanh(_span_head(), NORM)
    form["output"]["kernel"][0, 0] = form["output"]["kernel"][1, 1] = factor
    assert forms.linear_head_from_tanh(form) is None, factor


def test_every_pair_of_positions_reads_the_row_of_its_distance():
  sizes = {"num_buckets": 8, "max_distance": 12}
  table = spread({"table": np.zeros((8, 2))})["table"]
  expected = {"t5": t5_buckets(21, **sizes), "official": official_buckets(21, max_length=21, **sizes)}
  for kind, buckets in expected.items():
    config = EncoderConfig(**{**vars(CONFIG), "relative_position": kind, "relative_max_distance": 12})
    rows = forms.distance_rows(table, config)
    assert rows.shape == (2, 84)
    for query in range(21):
      for key in range(21):
        # LayoutLMv3: keys to the right have the second half of the bins. sqrt(head_dim) is 2.
        column = abs(key - query) + (42 if key > query else 0)
        np.testing.assert_allclose(rows[:, column] / 2.0, table[buckets[query, key]], rtol=1e-6)


def test_places_on_a_page_fill_the_width():
  for hidden_size in (2, 8, 24, 128, 256, 384, 768, 1024):
    coordinate, shape = stock_config.spatial_sizes(hidden_size)
    assert 4 * coordinate + 2 * shape == hidden_size and shape >= 0, hidden_size
  assert stock_config.spatial_sizes(768) == (128, 128)  # as LayoutLMv3's own
