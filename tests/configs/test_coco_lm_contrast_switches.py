"""Run: pytest tests/configs/test_coco_lm_contrast_switches.py. The rows of COCO-LM's tables about contrast.

As `test_coco_lm_switches`: the docstring of a check says what must change and what must not.
"""

import functools
from unittest import mock

import jax
import numpy as np
import pytest

from pretrain import recipe as recipe_module
from pretrain.models import encoder as encoder_model
from tests.configs.ablation_case import (
  BATCH,
  FAST_COMPILE,
  RTOL,
  SAME_PARAMETERS,
  Case,
  changed,
  full_difference,
  objective_loss,
  params_of,
  recipe_of,
  view_of,
)
from tests.configs.rare_rows import marked
from tests.pretrain.small_recipe import TOKENS, small_batch

PARENT = Case("coco_lm")
_PROJECTION = ("dense/kernel", "dense/bias", "norm/scale", "norm/bias")


@functools.cache
def _crop_view(row: Case) -> np.ndarray:
  """The second view's ids, through an encoder that hands its input on."""

  def hand_on(params, config, ids, *arguments, **options):
    return None, encoder_model.Hidden(ids[:, None, :], None)

  with mock.patch.object(recipe_module.encoder_model, "encode", hand_on):
    view = jax.jit(
      lambda params: recipe_of(row).view(params, recipe_of(row).mask(BATCH), train=True)[0].crop_hidden,
      compiler_options=FAST_COMPILE,
    )
    return np.asarray(view(params_of(row)))


def _crops(name: str, fraction: float) -> None:
  """The second view is [CLS] and a contiguous piece, the stated part of the tokens; no other change."""
  row = Case("coco_lm", name)
  assert changed(row) == (set() if fraction == 0.9 else {"objectives.scl.crop_fraction"})
  assert full_difference("coco_lm", name) == SAME_PARAMETERS
  for crop, text in zip(_crop_view(row), np.asarray(BATCH.ids)):
    words, piece = text[text != TOKENS.pad], crop[crop != TOKENS.pad]
    assert piece.size == 1 + int(fraction * words.size) and piece[0] == TOKENS.cls
    starts = range(words.size - piece.size + 2)
    assert any(np.array_equal(words[start : start + piece.size - 1], piece[1:]) for start in starts)


def crop_100() -> None:
  """The second view is the original text itself, with the [CLS] it has."""
  row = Case("coco_lm", "crop_100")
  assert changed(row) == {"objectives.scl.crop_fraction", "objectives.scl.crop_add_cls"}
  np.testing.assert_array_equal(_crop_view(row), BATCH.ids)


def _contrast(name: str, *, temperature: float, group_size: int) -> None:
  """The softmax over cosines / tau within groups; the cosines and everything else as they were."""
  row = Case("coco_lm", name)
  field = "group_size" if name == "scl_gather" else "temperature"
  assert changed(row) == {f"objectives.scl.{field}"}
  view = view_of(PARENT)
  both = np.stack([np.asarray(view.hidden[:, 0]), np.asarray(view.crop_hidden)], axis=1).astype(np.float64)
  both /= np.linalg.norm(both, axis=-1, keepdims=True)
  losses = []
  for group in both.reshape(-1, group_size, 2, both.shape[-1]):
    scores = np.einsum("avd,bwd->avbw", group, group) / temperature
    for a, v in np.ndindex(group_size, 2):
      others = np.delete(scores[a, v].ravel(), 2 * a + v)
      losses.append(np.log(np.sum(np.exp(others))) - scores[a, v, a, 1 - v])
  np.testing.assert_allclose(objective_loss(row, "scl", view), np.mean(losses), rtol=RTOL)
  # The parent's own loss is another number, far beyond what rounding could make of this one.
  assert abs(objective_loss(PARENT, "scl", view) / np.mean(losses) - 1) > 20 * RTOL


def official() -> None:
  """Weighted LM loss, projected contrast, the released table of distances, [CLS] never chosen."""
  row = Case("coco_lm", "official")
  fields = ("objectives.clm.form", "objectives.scl.head", "encoder.relative_position")
  assert changed(row) == {*fields, "generator.members", "masking.mask_special"}
  found = full_difference("coco_lm", "official")
  assert found.added.keys() == {f"heads/scl/{leaf}" for leaf in _PROJECTION}
  assert not found.removed and not found.resized
  networks = (recipe_of(row).encoder, *recipe_of(row).generator.members)
  assert all(network.relative_position == "official" for network in networks)
  masked = [recipe_of(case).mask(small_batch(512)).corrupted.masking for case in (row, PARENT)]
  chosen, before = (masking.selected for masking in masked)
  assert not np.any(chosen[:, 0]) and np.any(before[:, 0])
  assert np.any(chosen[:, -1])  # [SEP] may be chosen
  _check_weighted_loss(row)


def _check_weighted_loss(row: Case) -> None:
  view = view_of(PARENT)
  selected = np.asarray(view.corrupted.masking.selected)
  hidden, targets = np.asarray(view.hidden)[selected], np.asarray(BATCH.ids)[selected]
  logits = hidden @ np.asarray(view.token_table).T + np.asarray(view.heads["clm"]["bias"])
  top = logits.max(axis=-1)
  entropy = (
    top + np.log(np.sum(np.exp(logits - top[:, None]), axis=-1)) - logits[range(len(targets)), targets]
  )
  copy = hidden @ np.asarray(view.heads["rtd"]["kernel"])[:, 0] + np.asarray(view.heads["rtd"]["bias"])
  expected = np.mean(entropy / (1 + np.exp(copy)))
  np.testing.assert_allclose(objective_loss(row, "clm", view), expected, rtol=1e-4)
  assert abs(objective_loss(PARENT, "clm", view) / expected - 1) > 1e-2


CHECKS = {
  "crop_70": functools.partial(_crops, "crop_70", 0.7),
  "crop_80": functools.partial(_crops, "crop_80", 0.8),
  "crop_90": functools.partial(_crops, "crop_90", 0.9),
  "crop_100": crop_100,
  "scl_tau_0p1": functools.partial(_contrast, "scl_tau_0p1", temperature=0.1, group_size=4),
  "scl_tau_0p5": functools.partial(_contrast, "scl_tau_0p5", temperature=0.5, group_size=4),
  "scl_gather": functools.partial(_contrast, "scl_gather", temperature=1.0, group_size=8),
  "official": official,
}


RARE = ["crop_70", "crop_80", "scl_tau_0p1"]


@pytest.mark.parametrize("name", marked(CHECKS, RARE))
def test_a_row_changes_what_it_names_and_nothing_else(name):
  CHECKS[name]()
