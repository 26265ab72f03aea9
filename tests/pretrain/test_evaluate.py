"""Held-out figures: each row once, padding never, the same whatever the cut."""

from unittest import mock

import jax
import numpy as np
import pytest

from data.records import MixedRecords, PackedRecords
from pretrain.evaluate import evaluate, frequency_loss, trivial_loss
from tests.pretrain.small_run import LENGTH, devices, small_config, small_run


@pytest.fixture(scope="module")
def heldout(small_records):
  """All held-out records: not a multiple of any batch size used here."""
  records = PackedRecords(small_records, split="heldout", length=LENGTH, seed=0)
  assert len(records) > 16 and len(records) % 8
  return records


def _evaluate(recipe, directory, heldout, fields=None, *, number=1):
  config = small_config(recipe, directory, {"train.eval_batches": 100, **(fields or {})})
  run = small_run(config, number=number)
  with devices(number), jax.set_mesh(run.mesh):
    return evaluate(run, run.compile_eval_step(), run.init_state().params, heldout, progress=0.5)


@pytest.fixture(scope="module")
def once(small_records, heldout):
  """The figures of COCO-LM on one device, eight rows at a time."""
  return _evaluate("coco_lm", small_records, heldout)


class _Counter:
  """In place of the eval step: remembers rows."""

  def __init__(self, run):
    self.rows, self.run, self.indices, self.shapes, self.progress = [], run, [], set(), set()

  def __call__(self, params, batch, index, progress):
    ids = np.asarray(batch)
    self.shapes.add(ids.shape)
    self.progress.add(float(progress))
    real = ids[(ids != self.run.recipe.tokens.pad).any(axis=1)]
    self.rows += real.tolist()
    self.indices.append(int(index))
    return {"masked_lm_loss": (np.float32(real.sum()), np.float32(len(real)))}

  def evaluate(self, heldout, **arguments):
    """The means of what this counts."""
    return evaluate(self.run, self, {}, heldout, progress=0.25, **arguments)


def test_every_row_is_counted_once_and_padded_rows_never(small_records, heldout, subtests):
  expected = heldout.rows(0, len(heldout))
  for rows, parts in ((4, 1), (8, 1), (16, 1), (4, 4)):
    with subtests.test(f"{parts} times {rows}"):
      fields = {"train.batch_size": rows * parts, "train.microbatches": parts, "train.eval_batches": 100}
      counter = _Counter(small_run(small_config("mlm", small_records, fields)))
      means = counter.evaluate(heldout)
      assert counter.rows == expected.tolist() and counter.progress == {0.25}
      # Never more rows at a time than the training step takes: evaluation fits where training does.
      assert counter.shapes == {(rows, LENGTH)}
      assert counter.indices == list(range(-(-len(heldout) // rows)))
      np.testing.assert_allclose(means["masked_lm_loss"], expected.sum() / len(expected), rtol=1e-6)
      assert means["loss"] == means["masked_lm_loss"]


def test_eval_batches_bounds_the_rows(small_records, heldout):
  for parts in (1, 4):
    fields = {"train.eval_batches": 2, "train.microbatches": parts}
    counter = _Counter(small_run(small_config("mlm", small_records, fields)))
    counter.evaluate(heldout)
    rows, special = heldout.rows(0, 16), counter.run.recipe.tokens.special
    assert counter.rows == rows.tolist()
    assert trivial_loss(counter.run, heldout) == frequency_loss(rows, heldout.unigram(), special) > 0


def test_the_baseline_of_a_mixture_is_the_mean_by_its_shares(small_records, heldout):
  run = small_run(small_config("mlm", small_records, {"train.eval_batches": 1}))
  rows, counts, special = heldout.rows(0, 8), heldout.unigram(), run.recipe.tokens.special
  few = mock.Mock(rows=lambda start, stop: rows[:2])
  of = mock.Mock(spec=MixedRecords, sources={"all": heldout, "few": few}, shares={"all": 0.25, "few": 0.75})
  of.unigram.return_value = counts
  expected = frequency_loss(rows, counts, special) / 4 + frequency_loss(rows[:2], counts, special) * 3 / 4
  assert trivial_loss(run, of) == pytest.approx(expected)


def test_a_stop_request_ends_the_evaluation(small_records, heldout):
  counter = _Counter(small_run(small_config("mlm", small_records)))
  assert counter.evaluate(heldout, is_stopping=lambda: len(counter.indices) == 1) is None
  assert counter.indices == [0]


def test_evaluation_has_no_dropout(small_records, heldout):
  without, with_much = (
    _evaluate("mlm", small_records, heldout, {"train.eval_batches": 1, "model.dropout": rate})
    for rate in (0.0, 0.5)
  )
  assert without == with_much


def test_the_same_parameters_give_the_same_figures_twice_and_the_loss_is_their_weighted_sum(
  small_records, heldout, once
):
  assert once == _evaluate("coco_lm", small_records, heldout)
  assert np.isfinite(list(once.values())).all()
  weights = {"generator_loss": 1.0, "rtd_loss": 50.0, "clm_loss": 1.0, "scl_loss": 1.0}
  assert once["loss"] == pytest.approx(sum(weight * once[name] for name, weight in weights.items()))


def _assert_same(found, once) -> None:
  assert found.keys() == once.keys()
  for name in once:
    # Rows are the same to the last bit, their sums differ in the order of the addition.
    assert found[name] == pytest.approx(once[name], rel=1e-6, abs=1e-6), name


def test_other_batch_sizes_and_microbatches_give_the_same_figures(small_records, heldout, once):
  fields = {"train.batch_size": 16, "train.microbatches": 4}
  _assert_same(_evaluate("coco_lm", small_records, heldout, fields), once)


def test_eight_devices_give_the_same_figures(small_records, heldout, once):
  _assert_same(_evaluate("coco_lm", small_records, heldout, {"train.batch_size": 16}, number=8), once)
