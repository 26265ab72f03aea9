"""Figures of a recipe on held-out blocks: those of the evaluation, and cases whose value is known."""

import functools
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.analysis import blocks, cases, figures
from pretrain.evaluate import evaluate
from pretrain.objectives import scl
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests.pretrain import small_run
from tests.pretrain.small_recipe import TOKENS

ROWS, LENGTH = 4, 8
RUN = types.SimpleNamespace(
  recipe=types.SimpleNamespace(tokens=TOKENS, has_segments=False),
  config=types.SimpleNamespace(train=types.SimpleNamespace(batch_size=ROWS)),
)


def arrays(**changes) -> dict[str, np.ndarray]:
  """Blocks whose hidden states are the same vector within a block and orthogonal to those of the others."""
  ids = np.random.default_rng(0).integers(5, 97, (ROWS, LENGTH))
  vectors = np.eye(ROWS)
  return {
    "ids": ids,
    "input_ids": ids,
    "targets": ids[:, 1:3],
    "inputs_at_slots": ids[:, 1:3],
    "slot_weights": np.ones((ROWS, 2)),
    "cls": vectors,
    "crop_cls": vectors,
    "clean_hidden": np.repeat(vectors[:, None], LENGTH, axis=1),
  } | changes


@pytest.mark.parametrize("slots", [0, 1])
def test_losses_and_rates_are_those_of_the_evaluation(slots, small_records, segment_records, monkeypatch):
  monkeypatch.setattr(scl, "SHORTEST", 1)
  fields = {"objectives.scl.head": "projection", "objectives.scl.max_segments": slots}
  fields |= {"data.packing": "segments"} if slots else {}
  config = small_run.small_config("union", segment_records if slots else small_records, fields)
  with small_run.devices(1):
    run = small_run.small_run(config)
    heldout = prepared.open(reading_settings(config)).heldout
    params = run.init_state().params
    expected = evaluate(run, run.compile_eval_step(), params, heldout, progress=1.0)
    found = figures.measure(run, params, heldout, np.ones(small_run.VOCAB_SIZE), batches=2)
  assert expected is not None
  same = {
    "generator_loss_head_0": "generator_loss_layer_1",
    "generator_loss_head_1": "generator_loss_layer_2",
    "mixture_weight_head_1": "mixture_weight_layer_2",
    "replace_rate": "replace_rate",
    "clm_top1_replaced": "clm_lm_accuracy_replaced",
    "sequence_head_cosine_positive": "scl_cosine_positive",
  }
  for name, metric in same.items():
    assert found[name] == pytest.approx(expected[metric], rel=1e-5), name
  assert found["unigram_cross_entropy"] == pytest.approx(np.log(small_run.VOCAB_SIZE))


def test_blocks_unlike_each_other_are_retrieved_and_have_the_largest_scores():
  found = figures.figures(arrays(), RUN, np.ones(97))
  assert found["sequence_retrieval_top1"] == 1.0
  assert found["sequence_cosine_gap"] == pytest.approx(1.0)
  assert found["contextual_score"] == pytest.approx(1.0)
  assert found["unigram_cross_entropy"] == pytest.approx(np.log(97))
  assert "sequence_head_cosine_gap" not in found
  swapped = arrays(head_cls=np.eye(ROWS), head_crop_cls=-np.eye(ROWS))
  found_of_head = figures.figures(swapped, RUN, np.ones(97))
  assert found_of_head["sequence_head_cosine_positive"] == pytest.approx(-1.0)
  assert found_of_head["sequence_head_cosine_negative"] == pytest.approx(0.0)
  assert found_of_head | found == found_of_head  # the series of [CLS] stays as it is


def test_the_contrast_head_has_curves_of_its_own_where_a_run_has_one(monkeypatch):
  of_cls = dict.fromkeys(blocks._SHOWN[:5], 0.5)
  of_head = {"sequence_head_cosine_positive": 0.9, "sequence_head_cosine_negative": -0.1}
  monkeypatch.setattr(figures, "measure", lambda run, *_, **__: of_cls | (of_head if run == "head" else {}))
  steps = [("scl", step, types.SimpleNamespace(run="head")) for step in (4, 8)]
  steps.append(("mlm", 8, types.SimpleNamespace(run="none")))
  for _, _, opened in steps:
    vars(opened).update(heldout=mock.MagicMock(**{"__len__.return_value": 8}), records="", params={})
  asked = types.SimpleNamespace(names=["scl", "mlm"], rows=8, batch_size=4, every_step=lambda _: iter(steps))
  outcome = blocks.measure(asked)
  curves = {curve.name: (curve.x.tolist(), curve.y.tolist()) for curve in outcome.plots[0].curves}
  assert curves["scl, crop of the same block, head"] == ([4, 8], [0.9, 0.9])
  assert curves["scl, other blocks, head"] == ([4, 8], [-0.1, -0.1])
  assert curves["scl, other blocks"] == ([4, 8], [0.5, 0.5]) and len(curves) == 6
  assert "sequence_head_cosine_positive" not in outcome.rows[-1]


def test_blocks_that_are_all_the_same_are_retrieved_by_chance():
  same = np.ones((ROWS, 5))
  hidden = np.ones((ROWS, LENGTH, 5))
  found = figures.figures(arrays(cls=same, crop_cls=same, clean_hidden=hidden), RUN, np.ones(97))
  assert found["sequence_retrieval_top1"] == found["sequence_retrieval_top1_baseline"] == 1 / ROWS
  assert found["sequence_cosine_gap"] == pytest.approx(0.0)
  assert found["contextual_score"] == pytest.approx(0.0)


def test_detection_that_knows_and_detection_that_guesses():
  made = arrays()
  replaced = np.zeros((ROWS, LENGTH), bool)
  replaced[:, 3] = True
  inputs = np.where(replaced, 4 + (made["ids"] - 3) % 93, made["ids"])
  knows = figures.figures(arrays(input_ids=inputs, probability_replaced=1.0 * replaced), RUN, np.ones(97))
  assert knows["replace_rate"] == 1 / LENGTH
  assert knows["rtd_auc"] == knows["rtd_balanced_accuracy_at_prior"] == 1.0
  guess = arrays(input_ids=inputs, probability_replaced=np.full((ROWS, LENGTH), 0.3))
  guesses = figures.figures(guess, RUN, np.ones(97))
  assert guesses["rtd_auc"] == guesses["rtd_balanced_accuracy_at_prior"] == 0.5


def test_a_training_run_that_stores_a_difference_of_token_tables_is_measured(small_records):
  config = small_run.small_config("gdes", small_records)
  with small_run.devices(1):
    run = small_run.small_run(config)
    heldout = prepared.open(reading_settings(config)).heldout
    found = figures.measure(run, run.init_state().params, heldout, np.ones(small_run.VOCAB_SIZE), batches=2)
  assert 0 < found["replace_rate"] < 1 and np.isfinite(found["contextual_score"])


def test_samples_of_the_generators_layers_do_not_see_other_texts_of_the_row(segment_records):
  config = small_run.small_config("union", segment_records, {"data.packing": "segments"})
  config.objectives.scl.weight = 0.0
  with small_run.devices(1):
    run = small_run.small_run(config)
    ids = prepared.open(reading_settings(config)).train.batch(0, 8)
    params = jax.tree.map(lambda leaf: 4 * leaf, run.init_state().params)  # so that a text matters
    tokens = run.recipe.tokens
    is_first = np.cumsum(ids == tokens.cls, axis=1) == 1
    others = np.where(is_first | np.isin(ids, tokens.special), ids, 9 + ids % 5)
    describe = jax.jit(functools.partial(cases.describe, run))
    before, after = (jax.device_get(describe(params, rows, jnp.int32(0))) for rows in (ids, others))
  assert (others != ids).any()
  np.testing.assert_array_equal(before["selected"], after["selected"])
  for layer in ("layer 1", "layer 2"):
    assert (before[layer][is_first] != 0).any()
    np.testing.assert_array_equal(before[layer][is_first], after[layer][is_first])
