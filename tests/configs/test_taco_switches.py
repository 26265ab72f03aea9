"""Run: pytest tests/configs/test_taco_switches.py. What every row of TACO's tables does to the model.

The docstring of a check says what must change and what must not, beside the recipe with the same seed,
parameters and batch.
"""

import functools
import hashlib
import pathlib
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_record.python import array_record_module

from configs.ablations.taco import ROWS
from data import manifest
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.saved_model import SavedModel
from pretrain.objectives.views import View
from pretrain.reading import prepared
from tests.configs.ablation_case import (
  BATCH,
  FAST_COMPILE,
  RTOL,
  SAME_PARAMETERS,
  Case,
  changed,
  config_of,
  flat,
  full_difference,
  full_recipe,
  full_shapes,
  measure,
  objective_loss,
  params_of,
  recipe_of,
  terms,
  view_of,
)
from tests.configs.rare_rows import marked
from tests.pretrain.small_recipe import LENGTH, TOKENS, small_batch

PARENT, MLM = Case("taco"), Case("taco", "mlm_small")
TABLE = "encoder/embeddings/token/embedding"
LONG = small_batch(8, length=64)  # two groups of four rows


class Alignment(NamedTuple):
  """Who is contrasted with whom, read from the loss of contextual parts that are all at right angles."""

  loss: float
  selected: np.ndarray  # [8, 64] bool, masked tokens
  is_anchor: np.ndarray  # [8, 64] bool
  positives: np.ndarray  # [8, 64] numbers of tokens, row * 64 + position
  negatives: np.ndarray  # [8, 64, 8 * 64] bool


@functools.cache
def _alignment(case: Case) -> Alignment:
  """An anchor's gradient points away from its positive and towards each of its negatives."""
  recipe = recipe_of(case)
  masked = recipe.mask(LONG)
  corrupted = masked.corrupted

  def loss(hidden):
    view = View(corrupted, jnp.zeros_like(hidden), hidden, None, jnp.zeros((1, 1)), {})
    (term,) = recipe.objectives["taco"](view, recipe.context).values()
    return term.loss / recipe.totals(masked)["taco_loss"]

  hidden = jnp.eye(8 * 64).reshape(8, 64, -1)
  value, gradient = jax.device_get(jax.jit(jax.value_and_grad(loss), compiler_options=FAST_COMPILE)(hidden))
  is_anchor = np.any(gradient != 0, axis=-1)
  selected = np.asarray(corrupted.masking.selected)
  return Alignment(float(value), selected, is_anchor, np.argmin(gradient, axis=-1), gradient > 0)


# Whole methods.


def _whole(name: str, width: int, layers: int) -> None:
  """The recipe itself."""
  row = Case("taco", name)
  assert not changed(row) and terms(row) == {"masked_lm_loss", "taco_loss"}
  assert full_difference("taco", name) == SAME_PARAMETERS
  kernel = full_shapes("taco", name)["encoder/trunk/layers/attention/output/kernel"]
  assert kernel == (layers, width // 64, 64, width)
  assert full_recipe("taco", name) == full_recipe("", ROWS[name].recipe)


def _mlm(name: str) -> None:
  """No token alignment; masks, masked LM and parameters as they were."""
  row = Case("taco", name)
  assert changed(row) == {"objectives.taco"}
  assert terms(row) == {"masked_lm_loss"}
  assert full_difference("taco", name) == SAME_PARAMETERS
  assert recipe_of(row) == recipe_of(MLM)
  measured, parent = measure(MLM), measure(PARENT)
  assert not any("taco" in metric for metric in measured.sums)
  for metric in ("masked_lm_loss", "masked_lm_accuracy", "mask_rate"):
    np.testing.assert_allclose(measured.sums[metric], parent.sums[metric], rtol=RTOL, err_msg=metric)
  assert measured.loss < parent.loss


def mlm_tp() -> None:
  """No token alignment; the masked-LM head predicts every token, in one mean; masks as they were."""
  row = Case("taco", "mlm_tp")
  assert changed(row) == {"objectives.taco", "objectives.mlm.positions"}
  assert terms(row) == {"token_lm_loss"}
  assert full_difference("taco", "mlm_tp") == SAME_PARAMETERS
  tokens = BATCH.ids != TOKENS.pad
  assert recipe_of(row).totals(recipe_of(row).mask(BATCH))["token_lm_loss"] == jnp.sum(tokens)
  view = view_of(PARENT)
  # What the masked LM of the recipe says if every token counts as masked.
  everywhere = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
  all_chosen = view.corrupted.masking._replace(positions=everywhere, weights=tokens.astype(jnp.float32))
  told = view._replace(corrupted=view.corrupted._replace(masking=all_chosen))
  expected = objective_loss(PARENT, "mlm", told)
  np.testing.assert_allclose(objective_loss(row, "mlm", view), expected, rtol=RTOL)
  assert abs(objective_loss(PARENT, "mlm", view) / expected - 1) > 1e-3


# Token alignment.


def _anchors(name: str, *, masked: bool) -> None:
  """Those tokens are anchors, and the mean is over them; who is contrasted with an anchor stays."""
  row = Case("taco", name)
  assert changed(row) == {"objectives.taco.anchors"}
  assert full_difference("taco", name) == SAME_PARAMETERS
  found, parent = _alignment(row), _alignment(PARENT)
  assert np.all(parent.is_anchor)
  np.testing.assert_array_equal(found.is_anchor, found.selected == masked)
  np.testing.assert_array_equal(found.selected, parent.selected)
  np.testing.assert_allclose(found.loss, parent.loss, rtol=RTOL)
  for part, whole in ((found.positives, parent.positives), (found.negatives, parent.negatives)):
    np.testing.assert_array_equal(part[found.is_anchor], whole[found.is_anchor])


def _negatives(name: str, number: int) -> None:
  """That many negatives per anchor, of the other rows of its group; anchors and the window stay."""
  row = Case("taco", name)
  assert changed(row) == (set() if number == 50 else {"objectives.taco.num_negatives"})
  assert full_difference("taco", name) == SAME_PARAMETERS
  found, parent = _alignment(row), _alignment(PARENT)
  np.testing.assert_allclose(found.loss, np.log(1 + number), rtol=RTOL)  # all cosines are 0
  per_row = found.negatives.reshape(8, 64, 8, 64).sum(axis=(1, 3)) > 0
  same_group = np.kron(np.eye(2, dtype=bool), np.ones((4, 4), bool))
  np.testing.assert_array_equal(per_row, same_group & ~np.eye(8, dtype=bool))
  most = found.negatives.sum(axis=-1).max()
  assert number * 0.8 < most <= number  # fewer where one was drawn twice
  # K moves the places of all draws in the rows' random streams: other positives, by the same rule.
  steps = (found.positives - np.arange(8 * 64).reshape(8, 64))[:, 2:-2]
  assert set(np.unique(steps)) == {-2, -1, 1, 2}
  np.testing.assert_array_equal(found.is_anchor, parent.is_anchor)


def _window(name: str, furthest: int) -> None:
  """Positives at distance 1 to `furthest`, either side; anchors and the number of negatives stay."""
  row = Case("taco", name)
  assert changed(row) == (set() if name == "taco_w5" else {"objectives.taco.window"})
  assert full_difference("taco", name) == SAME_PARAMETERS
  found, parent = _alignment(row), _alignment(PARENT)
  steps = (found.positives - np.arange(8 * 64).reshape(8, 64))[:, furthest : 64 - furthest]
  assert steps.min() == -furthest and steps.max() == furthest and np.all(steps != 0)
  assert len(np.unique(steps)) > 1.5 * furthest  # of 2 * furthest; 112 draws leave some of 50 out
  np.testing.assert_array_equal(found.is_anchor, parent.is_anchor)
  np.testing.assert_allclose(found.loss, parent.loss, rtol=RTOL)


# Data.


def _shard(directory, name: str, ids: range) -> manifest.Shard:
  """Records [CLS] i [SEP]."""
  path = directory / name
  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  for i in ids:
    writer.write(np.array([TOKENS.cls, i, TOKENS.sep], "<u2").tobytes())
  writer.close()
  content = path.read_bytes()
  return manifest.Shard(name, len(ids), len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture(scope="module")
def records(tmp_path_factory):
  """A prepared directory: records with words 10, 11, ..., 49 in three files, and one held out."""
  directory = tmp_path_factory.mktemp("records")
  cuts = (10, 17, 32, 50)
  shards = [_shard(directory, f"train-{i}", range(*cuts[i : i + 2])) for i in range(3)]
  heldout = [_shard(directory, "heldout-0", range(60, 61))]
  splits = {
    name: manifest.Split(sum(s.records for s in parts), 3 * sum(s.records for s in parts), tuple(parts))
    for name, parts in (("train", shards), ("heldout", heldout))
  }
  special = {name: getattr(TOKENS, name) for name in ("cls", "pad", "sep", "unk", "mask")}
  words = manifest.VocabularyInfo("sentencepiece", False, TOKENS.vocab_size, "", special)
  manifest.write(directory, manifest.Manifest({}, "", words, 3, "concat", "uint16", 60, splits, {}, {}))
  return directory


def _quarter(name: str, whole: Case, records) -> None:
  """Two epochs hold the first quarter of the records twice and no other; the model is the whole data's."""
  row = Case("taco", name)
  assert recipe_of(row) == recipe_of(whole) and full_difference("taco", name) == full_difference(
    "taco", whole.row or "taco_small"
  )
  for case, expected in ((row, range(10, 20)), (whole, range(10, 50))):
    config = config_of(case)
    config.data.directory = str(records)
    train = prepared.open(config).train
    words = train.batch(0, 2 * len(expected))[:, 1]
    assert sorted(words.tolist()) == sorted([*expected, *expected])


# A token table that is not trained.


def _check_frozen(row: Case) -> None:
  """The token table has exactly no gradient; loss, masks and every other gradient as in masked LM."""
  assert changed(row) == {"objectives.taco", "freeze_token_table"}
  assert full_difference("taco", row.row) == SAME_PARAMETERS
  assert [path for path in full_shapes("taco", row.row) if recipe_of(row).is_frozen(path)] == [TABLE]
  assert recipe_of(row) == recipe_of(Case("taco", "mlm_frozen_random"))
  frozen, trained = measure(Case("taco", "mlm_frozen_random")), measure(MLM)
  np.testing.assert_allclose(frozen.loss, trained.loss, rtol=RTOL)
  # The softmax makes gradients of key biases zero: what is left there is rounding, measured by the largest.
  rounding = 1e-7 * max(np.max(np.abs(gradient)) for gradient in trained.gradient.values())
  for path, gradient in trained.gradient.items():
    assert np.any(gradient), path
    expected = np.zeros_like(gradient) if path == TABLE else gradient
    atol = max(1e-5 * np.max(np.abs(expected)), 0.0 if path == TABLE else rounding)
    np.testing.assert_allclose(frozen.gradient[path], expected, rtol=1e-4, atol=atol, err_msg=path)


def _start(row: Case) -> tuple[dict, dict, int]:
  """{path: array} before and after a new run's warm start, and how many checkpoints it read."""
  before = params_of(row)
  other = jax.tree.map(lambda leaf: leaf + 1, before)
  source = SavedModel(pathlib.Path("runs/finished"), other, {"vocabulary_digest": None})
  with mock.patch.object(warm_start, "open_model", return_value=source) as load:
    after = warm_start.load_into(before, config_of(row))
  return flat(before), flat(after), load.call_count


def mlm_frozen_random() -> None:
  """Masked LM on the token table as initialised."""
  row = Case("taco", "mlm_frozen_random")
  _check_frozen(row)
  before, after, loads = _start(row)
  assert not loads and all(after[path] is before[path] for path in before)


def mlm_frozen_trained() -> None:
  """Masked LM on another run's token table; nothing else is taken from it."""
  row = Case("taco", "mlm_frozen_trained", (("model.freeze_embeddings_from", "runs/finished"),))
  _check_frozen(row)
  before, after, loads = _start(row)
  assert loads == 1
  np.testing.assert_array_equal(after[TABLE], before[TABLE] + 1)
  assert all(after[path] is before[path] for path in before if path != TABLE)


CHECKS = {
  "mlm_small": functools.partial(_mlm, "mlm_small"),
  "mlm_base": functools.partial(_mlm, "mlm_base"),
  "taco_small": functools.partial(_whole, "taco_small", 512, 4),
  "taco_base": functools.partial(_whole, "taco_base", 768, 12),
  "taco_masked15": functools.partial(_anchors, "taco_masked15", masked=True),
  "taco_except_mlm": functools.partial(_anchors, "taco_except_mlm", masked=False),
  "mlm_tp": mlm_tp,
  "taco_k10": functools.partial(_negatives, "taco_k10", 10),
  "taco_k50": functools.partial(_negatives, "taco_k50", 50),
  "taco_w3": functools.partial(_window, "taco_w3", 1),
  "taco_w5": functools.partial(_window, "taco_w5", 2),
  "taco_w10": functools.partial(_window, "taco_w10", 5),
  "taco_w50": functools.partial(_window, "taco_w50", 25),
  "taco_25pct": functools.partial(_quarter, "taco_25pct", PARENT),
  "mlm_25pct": functools.partial(_quarter, "mlm_25pct", MLM),
  "mlm_frozen_random": mlm_frozen_random,
  "mlm_frozen_trained": mlm_frozen_trained,
}


def test_every_row_has_a_check_and_every_check_a_row():
  assert CHECKS.keys() == ROWS.keys()


RARE = ["mlm_base", "taco_base", "taco_k10", "taco_w3", "taco_w5", "taco_w10", "mlm_25pct"]


@pytest.mark.parametrize("name", marked(ROWS, RARE))
def test_a_row_changes_what_it_names_and_nothing_else(name, records):
  if name.endswith("25pct"):
    CHECKS[name](records)
  else:
    CHECKS[name]()
