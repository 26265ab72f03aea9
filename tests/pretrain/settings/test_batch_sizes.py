"""Sizes of growing batches: by hand, by counting, and on the device."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from pretrain.corruption.masking import TokenIds
from pretrain.run import make_run
from pretrain.settings.batch_sizes import BatchSizes, batch_sizes
from tests.pretrain.small_run import get_config


def test_each_smaller_size_has_the_same_number_of_updates():
  sizes = BatchSizes(batch_size=20, microbatches=5, batch_size_start=8, batch_warmup_steps=6)
  assert [sizes.rows(step) for step in range(8)] == [8, 8, 12, 12, 16, 16, 20, 20]
  assert [sizes.rows_before(step) for step in range(8)] == [0, 8, 16, 28, 40, 56, 72, 92]
  assert sizes.shown(3) == "24 to 60 (after 6 updates)" and BatchSizes(2_048, 8).shown(512) == "1,048,576"
  assert batch_sizes({"batch_size": 8}).rows_before(3) == 24  # of a config without the other fields
  # The device counts the microbatches of a batch.
  config = get_config()
  config.train.update({"batch_size": 20, "microbatches": 5, "batch_size_start": 8, "batch_warmup_steps": 6})
  run = make_run(config, TokenIds(0, 1, 2, 3, 4, 300), devices=jax.devices()[:1])
  assert [4 * int(run.turns(jnp.int32(step))) for step in range(8)] == [sizes.rows(step) for step in range(8)]


def test_sizes_take_the_tokens_of_the_recipe():
  # ModernBERT-base: 768 to 4,608 rows of 1,024 tokens over 50 B tokens: 3.3, 6.7, 10, 13.3, 16.7 B.
  sizes = BatchSizes(4_608, 6, 768, 5 * 4_239)
  ends = [sizes.rows_before(4_239 * number) * 1_024 for number in range(6)]
  taken = [(end - start) / 1e9 for start, end in itertools.pairwise(ends)]
  assert taken == pytest.approx([10 / 3, 20 / 3, 10, 40 / 3, 50 / 3], rel=1e-3)


def test_rows_before_a_step_are_the_sum_of_all_batches():
  for fields in ((64, 8, 16, 18), (36, 9, 4, 8), (36, 9, 32, 100), (64, 8), (64, 1)):
    sizes, rows = BatchSizes(*fields), 0
    for step in range(120):
      assert sizes.rows_before(step) == rows, (fields, step)
      rows += sizes.rows(step)
    assert sizes.rows(10_000) == sizes.batch_size
