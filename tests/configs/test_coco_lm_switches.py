"""Run: pytest tests/configs/test_coco_lm_switches.py. What every row of COCO-LM's tables does to the model.

The docstring of a check says what must change and what must not, beside the recipe with the same seed,
parameters and batch.
"""

import pathlib
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from configs.ablations.coco_lm import ROWS
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.saved_model import SavedModel
from pretrain.corruption import replace
from tests.configs.ablation_case import (
  BATCH,
  RTOL,
  SAME_PARAMETERS,
  Case,
  Measured,
  changed,
  config_of,
  full_difference,
  full_shapes,
  measure,
  metric_names,
  params_of,
  propose,
  recipe_of,
  terms,
  with_leaves,
)
from tests.configs.test_coco_lm_contrast_switches import CHECKS as CONTRAST_CHECKS
from tests.pretrain.small_recipe import TOKENS, VOCAB_SIZE, small_batch

PARENT = Case("coco_lm")
PARENT_TERMS = {"generator_loss", "rtd_loss", "clm_loss", "scl_loss"}


def _row(name: str, **fields) -> Case:
  return Case("coco_lm", name, tuple((f"generator.{field}", value) for field, value in fields.items()))


def _assert_same_sums(row: Measured, parent: Measured, *names: str) -> None:
  for name in names:
    np.testing.assert_allclose(row.sums[name], parent.sums[name], rtol=RTOL, err_msg=name)


# Objectives.


def rtd_only() -> None:
  """No correction, no contrast, no LM bias; the same detection of the same samples."""
  row = _row("rtd_only")
  assert changed(row) == {"objectives.clm", "objectives.scl"}
  assert terms(row) == {"generator_loss", "rtd_loss"}
  assert full_difference("coco_lm", "rtd_only") == ({"heads/clm/bias"}, {}, {})
  measured, parent = measure(row), measure(PARENT)
  _assert_same_sums(measured, parent, "rtd_loss", "generator_loss", "replace_rate", "rtd_accuracy")
  assert not any("clm" in name or "scl" in name or "copy" in name for name in measured.sums)
  tokens, masked = np.sum(BATCH.ids != TOKENS.pad), np.sum(propose(PARENT).selected)
  expected = 50 * parent.sums["rtd_loss"] / tokens + parent.sums["generator_loss"] / masked
  np.testing.assert_allclose(measured.loss, expected, rtol=RTOL)


def clm_only() -> None:
  """No contrast and no second pass; detection and correction as they were."""
  row = _row("clm_only")
  assert changed(row) == {"objectives.scl"}
  assert terms(row) == PARENT_TERMS - {"scl_loss"}
  assert full_difference("coco_lm", "clm_only") == SAME_PARAMETERS
  assert recipe_of(row).objectives.get("scl") is None
  _assert_same_sums(measure(row), measure(PARENT), "rtd_loss", "clm_loss", "generator_loss", "replace_rate")


def scl_rtd() -> None:
  """No correction and no LM bias; everything else as it was."""
  row = _row("scl_rtd")
  assert changed(row) == {"objectives.clm"}
  assert terms(row) == PARENT_TERMS - {"clm_loss"}
  assert full_difference("coco_lm", "scl_rtd") == ({"heads/clm/bias"}, {}, {})
  assert metric_names(row) == {n for n in metric_names(PARENT) if "clm" not in n and "copy" not in n}


def all_token_lm() -> None:
  """One likelihood at every token trains the copy head; no detection, correction or contrast term."""
  row = _row("all_token_lm")
  assert changed(row) == {f"objectives.{name}" for name in ("all_token", "rtd", "clm", "scl")}
  assert terms(row) == {"generator_loss", "all_token_loss"}
  assert full_difference("coco_lm", "all_token_lm") == SAME_PARAMETERS
  totals = recipe_of(row).totals(recipe_of(row).mask(BATCH))
  assert totals["all_token_loss"] == np.sum(BATCH.ids != TOKENS.pad)
  measured = measure(row)
  _assert_same_sums(measured, measure(PARENT), "generator_loss", "replace_rate")
  assert measured.is_everywhere("heads/rtd") and measured.is_everywhere("heads/clm")
  assert "rtd_loss" not in measured.sums


def clm_no_copy() -> None:
  """No copy head and no detection; the LM head has the cross-entropy of all its probability."""
  row, clm = _row("clm_no_copy"), _row("clm_only")
  assert changed(row) == {"objectives.rtd", "objectives.clm.copy", "objectives.scl"}
  assert terms(row) == {"generator_loss", "clm_loss"}
  assert full_difference("coco_lm", "clm_no_copy") == ({"heads/rtd/kernel", "heads/rtd/bias"}, {}, {})
  never = with_leaves(params_of(clm), jnp.zeros_like, "heads/rtd/kernel")
  never = with_leaves(never, lambda bias: bias - 1e4, "heads/rtd/bias")  # a copy probability of 0
  measured = measure(row)
  _assert_same_sums(measured, measure(clm, never), "clm_loss", "generator_loss", "replace_rate")
  assert abs(measured.sums["clm_loss"] / measure(clm).sums["clm_loss"] - 1) > 1e-2


def clm_no_stopgrad() -> None:
  """The LM loss has a gradient in the copy head, where it had exactly none; every value stays."""
  row, clm = _row("clm_no_stopgrad"), _row("clm_only")
  assert changed(row) == {"objectives.clm.stop_gradient", "objectives.scl"}
  assert full_difference("coco_lm", "clm_no_stopgrad") == SAME_PARAMETERS
  measured, stopped, detection = measure(row), measure(clm), measure(_row("rtd_only"))
  _assert_same_sums(measured, stopped, "rtd_loss", "clm_loss", "generator_loss")
  np.testing.assert_allclose(measured.loss, stopped.loss, rtol=RTOL)
  for leaf in ("heads/rtd/kernel", "heads/rtd/bias"):
    scale = np.max(np.abs(detection.gradient[leaf]))
    np.testing.assert_allclose(stopped.gradient[leaf], detection.gradient[leaf], atol=1e-5 * scale)
    assert np.max(np.abs(measured.gradient[leaf] - detection.gradient[leaf])) > 1e-3 * scale


# Networks and corruption.


def no_relpos() -> None:
  """Neither network has relative positions, as if all their biases were 0; absolute ones stay."""
  row = _row("no_relpos")
  gone = {f"{net}/trunk/relative_position/embedding" for net in ("encoder", "generator")}
  assert changed(row) == {"encoder.relative_position", "generator.members"}
  assert full_difference("coco_lm", "no_relpos") == (gone, {}, {})
  assert full_shapes("coco_lm", "no_relpos")["encoder/embeddings/position/embedding"] == (512, 768)
  assert terms(row) == PARENT_TERMS
  params = params_of(PARENT)
  for table in gone:
    params = with_leaves(params, jnp.zeros_like, table)
  measured, zeroed = measure(row), measure(PARENT, params)
  _assert_same_sums(measured, zeroed, *PARENT_TERMS, "replace_rate")
  with_positions = measure(PARENT).gradient["heads/rtd/kernel"]
  assert not np.allclose(measured.gradient["heads/rtd/kernel"], with_positions, rtol=1e-2)


def electra_aux() -> None:
  """A generator as deep as the encoder, 256 wide, behind a projection of the shared token table."""
  found, shapes = full_difference("coco_lm", "electra_aux"), full_shapes("coco_lm", "electra_aux")
  layers = "generator/trunk/layers"
  assert shapes[f"{layers}/attention/query/kernel"] == (12, 256, 4, 64)
  assert shapes[f"{layers}/up/kernel"] == (12, 256, 1_024)
  assert found.added == {
    "generator/projection/kernel": (768, 256),
    "generator/projection/bias": (256,),
    "generator/embeddings/position/embedding": (512, 256),
    "generator/embeddings/norm/scale": (256,),
    "generator/embeddings/norm/bias": (256,),
  }
  assert not found.removed and all(path.startswith("generator/") for path in found.resized)
  row = _row("electra_aux", hidden_size=16, mlp_size=32)
  sizes = {"generator.members", "generator.mlm_layers"}
  assert changed(row) == sizes | {"generator.share_embeddings"}
  assert terms(row) == PARENT_TERMS
  np.testing.assert_array_equal(propose(row).selected, propose(PARENT).selected)
  # Sampling without dropout is kept: the same tokens in training as in evaluation.
  np.testing.assert_array_equal(propose(row).input_ids, propose(row, train=False).input_ids)
  assert measure(row).is_everywhere("generator")


def random_replace() -> None:
  """No generator: chosen tokens become tokens drawn uniformly from all but the special ones."""
  row = _row("random_replace")
  assert changed(row) == {"masking.kind", "generator"}
  found = full_difference("coco_lm", "random_replace")
  assert not any(path.startswith("generator") for path in full_shapes("coco_lm", "random_replace"))
  assert all(path.startswith("generator/") for path in found.removed) and not found.added | found.resized
  assert terms(row) == PARENT_TERMS - {"generator_loss"}
  proposed = propose(row)
  np.testing.assert_array_equal(proposed.selected, propose(PARENT).selected)
  np.testing.assert_array_equal(proposed.input_ids[~proposed.selected], BATCH.ids[~proposed.selected])
  many, recipe = small_batch(4_096), recipe_of(row)
  masking = recipe.mask(many).corrupted.masking
  ids = np.asarray(replace.replace_at_random(many.ids, many.row_keys, masking, TOKENS))
  counts = np.bincount(ids[np.asarray(masking.selected)], minlength=VOCAB_SIZE)
  assert not np.any(counts[list(TOKENS.special)])
  words = np.delete(counts, TOKENS.special)
  chi_squared = np.sum((words - words.mean()) ** 2) / words.mean()
  assert chi_squared < 91 + 5 * np.sqrt(2 * 91)  # 92 words: mean 91, deviation sqrt(182)


def converged_aux() -> None:
  """A finished run's generator goes on proposing as it did, on a token table of its own, untrained."""
  row = _row("converged_aux", init_from="runs/finished")
  assert changed(row) == {"generator.frozen", "generator.share_embeddings"}
  assert terms(row) == PARENT_TERMS - {"generator_loss"}
  added = full_difference("coco_lm", "converged_aux").added
  assert added["generator/embeddings/token/embedding"] == (32_768, 768)
  assert all(path.startswith("generator/embeddings/") for path in added)
  paths = full_shapes("coco_lm", "converged_aux")
  assert all(recipe_of(row).is_frozen(path) == path.startswith("generator/") for path in paths)
  meta = {"config": config_of(PARENT).to_dict(), "vocabulary_digest": None}
  source = SavedModel(pathlib.Path("runs/finished"), params_of(PARENT), meta)
  with mock.patch.object(warm_start, "open_model", return_value=source):
    params = warm_start.load_into(params_of(row), config_of(row))
  np.testing.assert_array_equal(propose(row, params).input_ids, propose(PARENT).input_ids)
  measured = measure(row, params)
  _assert_same_sums(measured, measure(PARENT), "rtd_loss", "clm_loss", "scl_loss", "replace_rate")
  assert measured.is_zero("generator") and measured.is_everywhere("encoder")
  assert measure(PARENT).is_everywhere("generator")


CHECKS = {
  "rtd_only": rtd_only,
  "clm_only": clm_only,
  "scl_rtd": scl_rtd,
  "no_relpos": no_relpos,
  "electra_aux": electra_aux,
  "random_replace": random_replace,
  "converged_aux": converged_aux,
  "all_token_lm": all_token_lm,
  "clm_no_copy": clm_no_copy,
  "clm_no_stopgrad": clm_no_stopgrad,
}


def test_every_row_has_a_check_and_every_check_a_row():
  assert {*CHECKS, *CONTRAST_CHECKS} == ROWS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_a_row_changes_what_it_names_and_nothing_else(name):
  CHECKS[name]()
