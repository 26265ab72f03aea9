"""Rows of the papers' tables learn for 20 steps.

One row of each paper nightly; `make rows` (ALL_ROWS=1) takes all of them, half a minute of a core each.
"""

import os

import jax
import numpy as np
import pytest

from configs.ablations import amos, coco_lm, taco
from pretrain.mesh import sharding
from pretrain.mesh.trees import by_path as flat
from pretrain.run import make_run
from tests.pretrain.small_recipe import LENGTH, TOKENS, VOCAB_SIZE
from tests.pretrain.small_run import devices

STEPS = 20
SMALL = {
  "model.vocab_size": VOCAB_SIZE,
  "model.hidden_size": 32,
  "model.mlp_size": 64,
  "model.max_length": LENGTH,
  "model.relative_buckets": 8,
  "model.relative_max_distance": 12,
  "model.init_stddev": 0.1,  # at 0.02 so small a model learns too slowly
  "model.dtype": "float32",
  "corruption.mask_rate": 0.3,  # 38 chosen tokens instead of 19
  "objectives.scl.group_size": 4,
  "objectives.taco.group_size": 4,
  "data.length": LENGTH,
  "train.batch_size": 8,
  "optimizer.learning_rate": 1e-2,
  "optimizer.warmup_steps": 0,
  "train.total_steps": STEPS,
}


def _text(step: int) -> np.ndarray:
  """[8, LENGTH] int32 of a language in which ten words make up half of the text."""
  random = np.random.default_rng(step)
  frequency = 1.0 / np.arange(1, VOCAB_SIZE - 4)
  ids = random.choice(np.arange(5, VOCAB_SIZE), (8, LENGTH), p=frequency / frequency.sum()).astype(np.int32)
  ids[:, 0], ids[:, -1] = TOKENS.cls, TOKENS.sep
  return ids


FAMILIES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}
# What a row does not train; every other parameter of every row must move.
FROZEN = {
  ("coco_lm", "converged_aux"): "generator",
  ("taco", "mlm_frozen_random"): "encoder/embeddings/token",
  ("taco", "mlm_frozen_trained"): "encoder/embeddings/token",
}
# What a user must give with a row.
GIVEN = {("amos", "final_weights"): {"generator.mixture_weights": (0.2, 0.3, 0.5)}}
NIGHTLY_ROWS = [
  pytest.param(*row, marks=pytest.mark.nightly)
  for row in (("taco", "mlm_frozen_random"), ("coco_lm", "converged_aux"), ("amos", "heads_48"))
]
ROWS = [(family, row) for family in FAMILIES for row in FAMILIES[family].ROWS]


@pytest.mark.parametrize(("family", "row"), ROWS if os.environ.get("ALL_ROWS") else NIGHTLY_ROWS)
def test_a_row_learns_finitely_and_leaves_frozen_parameters_as_they_were(family, row):
  entry, config = FAMILIES[family].ROWS[row], FAMILIES[family].get_config(f"{row}:tiny")
  named = entry.changes if entry.tiny_changes is None else entry.tiny_changes
  smaller = {field: value for field, value in SMALL.items() if field not in named}
  config.update_from_flattened_dict(smaller | GIVEN.get((family, row), {}))
  with devices(1):
    run = make_run(config, TOKENS)
  losses = []
  with jax.set_mesh(run.mesh):
    state = run.init_state()
    before = flat(jax.device_get(state.params))
    first = sharding.to_global(run.mesh, _text(0))
    step = run.compile_train_step().lower(state, first).compile()
    for number in range(STEPS):
      state, metrics = step(state, sharding.to_global(run.mesh, _text(number)))
      losses.append(float(metrics["loss"][0]))
  assert np.all(np.isfinite(losses)) and int(state.skipped) == 0
  assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])
  after = flat(jax.device_get(state.params))
  untouched = {path for path in before if np.array_equal(before[path], after[path])}
  frozen = FROZEN.get((family, row), "")
  assert untouched == {path for path in before if frozen and path.startswith(frozen)}
