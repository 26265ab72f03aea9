"""Held-out figures: each row once, padding never, the same whatever the cut."""

import jax
import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.evaluate import evaluate
from tests.pretrain.small_run import LENGTH, devices, small_config, small_run


@pytest.fixture(scope="module")
def heldout(small_records):
  """All held-out records: not a multiple of any batch size used here."""
  records = PackedRecords(small_records, split="heldout", length=LENGTH, seed=0)
  assert len(records) > 16 and len(records) % 8
  return records


def _evaluate(recipe, directory, heldout, *, fields=None, number=1, params=None, **arguments):
  config = small_config(recipe, directory, {"train.eval_batches": 100, **(fields or {})})
  run = small_run(config, number=number)
  with devices(number), jax.set_mesh(run.mesh):
    params = run.init_state().params if params is None else params
    return evaluate(run, run.compile_eval_step(), params, heldout, progress=0.5, **arguments)


@pytest.fixture(scope="module")
def once(small_records, heldout):
  """The figures of COCO-LM on one device, eight rows at a time."""
  return _evaluate("coco_lm", small_records, heldout)


class _Counter:
  """In place of the eval step: remembers rows."""

  def __init__(self, pad):
    self.rows, self.pad, self.indices, self.shapes = [], pad, [], set()

  def __call__(self, params, batch, index, progress):
    ids = np.asarray(batch)
    self.shapes.add(ids.shape)
    real = ids[(ids != self.pad).any(axis=1)]
    self.rows += real.tolist()
    self.indices.append(int(index))
    return {"masked_lm_loss": (np.float32(real.sum()), np.float32(len(real)))}


@pytest.mark.parametrize("rows, parts", [(4, 1), (8, 1), (16, 1), (4, 4)])
def test_every_row_is_counted_once_and_padded_rows_never(small_records, heldout, rows, parts):
  fields = {"train.batch_size": rows * parts, "train.microbatches": parts, "train.eval_batches": 100}
  run = small_run(small_config("mlm", small_records, fields))
  counter = _Counter(run.recipe.tokens.pad)
  means = evaluate(run, counter, {}, heldout, progress=0.0)
  expected = heldout.rows(0, len(heldout))
  assert counter.rows == expected.tolist()
  # Never more rows at a time than the training step takes: a run that trains in its memory evaluates in it.
  assert counter.shapes == {(rows, LENGTH)}
  assert counter.indices == list(range(-(-len(heldout) // rows)))
  np.testing.assert_allclose(means["masked_lm_loss"], expected.sum() / len(expected), rtol=1e-6)
  assert means["loss"] == means["masked_lm_loss"]


@pytest.mark.parametrize("parts", [1, 4])
def test_eval_batches_bounds_the_rows(small_records, heldout, parts):
  fields = {"train.eval_batches": 2, "train.microbatches": parts}
  run = small_run(small_config("mlm", small_records, fields))
  counter = _Counter(run.recipe.tokens.pad)
  evaluate(run, counter, {}, heldout, progress=0.0)
  assert counter.rows == heldout.rows(0, 16).tolist()


def test_a_stop_request_ends_the_evaluation(small_records, heldout):
  run = small_run(small_config("mlm", small_records))
  counter = _Counter(run.recipe.tokens.pad)
  stopped = evaluate(run, counter, {}, heldout, progress=0.0, is_stopping=lambda: len(counter.indices) == 1)
  assert stopped is None
  assert counter.indices == [0]


def test_the_same_parameters_give_the_same_figures_twice(small_records, heldout, once):
  assert once == _evaluate("coco_lm", small_records, heldout)
  assert np.isfinite(list(once.values())).all()


def test_evaluation_has_no_dropout(small_records, heldout):
  without, with_much = (
    _evaluate("mlm", small_records, heldout, fields={"train.eval_batches": 1, "model.dropout": rate})
    for rate in (0.0, 0.5)
  )
  assert without == with_much


@pytest.mark.parametrize("rows, parts", [(16, 4), pytest.param(16, 1, marks=pytest.mark.nightly)])
def test_other_batch_sizes_and_microbatches_give_the_same_figures(small_records, heldout, once, rows, parts):
  fields = {"train.batch_size": rows, "train.microbatches": parts}
  found = _evaluate("coco_lm", small_records, heldout, fields=fields)
  assert found.keys() == once.keys()
  for name in once:
    # Rows are the same to the last bit, their sums differ in the order of the addition.
    assert found[name] == pytest.approx(once[name], rel=1e-6, abs=1e-6), name


def test_eight_devices_give_the_same_figures(small_records, heldout, once):
  found = _evaluate("coco_lm", small_records, heldout, number=8, fields={"train.batch_size": 16})
  for name in once:
    assert found[name] == pytest.approx(once[name], rel=1e-6, abs=1e-6), name


def test_the_loss_is_the_weighted_sum_of_the_terms(small_records, heldout):
  means = _evaluate("coco_lm", small_records, heldout)
  weights = small_run(small_config("coco_lm", small_records)).recipe.term_weights
  assert weights.keys() <= means.keys() and len(weights) >= 4
  assert means["loss"] == pytest.approx(sum(weight * means[name] for name, weight in weights.items()))
