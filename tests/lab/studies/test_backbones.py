"""The arms of E8 differ in the backbone or the objective alone, and train for equally many FLOPs."""

import pathlib

import pytest

from lab.studies import backbones, cells, table
from lab.studies.cells import Asked
from lab.studies.studies import STUDIES
from pretrain.plan.flops import training_flops_per_token

_KEPT = pathlib.Path(__file__).parents[3] / "docs" / "lab" / "cells" / "e8_rates"
_STUDY = STUDIES["e8"]
_CONFIGS = {
  name: cells.run_config(Asked(_STUDY, [0], _STUDY.budget, pathlib.Path("e8"), "", "", ()), name)
  for name in _STUDY.arms
}


def _training_flops(name: str) -> float:
  config = _CONFIGS[name]
  tokens = config.train.total_steps * config.train.batch_size * config.data.length
  return tokens * training_flops_per_token(config.to_dict())


@pytest.mark.parametrize("name", _STUDY.arms)
def test_every_arm_trains_for_as_many_flops_as_masked_lm(name):
  # The counter of that day left out a product of ELECTRA's generator; docs/results/proof.md says so.
  more = 0.053 if name.startswith(("electra", "gdes")) else 0.0
  assert _training_flops(name) == pytest.approx((1 + more) * _training_flops("mlm"), rel=2e-3)


@pytest.mark.parametrize("name", [name for name in _STUDY.arms if name.endswith("_modern")])
def test_the_backbones_have_equal_layers_and_their_kernels_equally_many_weights(name):
  models = [_CONFIGS[one].model for one in (name, name.removesuffix("_modern"))]
  sizes = {(model.num_layers, model.hidden_size, model.num_heads, model.vocab_size) for model in models}
  assert len(sizes) == 1
  weights = {(3 if model.mlp == "gated" else 2) * model.mlp_size for model in models}
  assert len(weights) == 1


def test_every_arm_and_rate_is_swept_once():
  rate = "optimizer.learning_rate"
  swept = [(arm.config, dict(arm.fields)) for arm in backbones.sweep().values()]
  arms = _STUDY.arms.values()
  assert swept == [(arm.config, arm.fields | {rate: value}) for arm in arms for value in backbones.SWEPT]


def test_every_arm_has_the_rate_that_was_best_in_the_sweep():
  study, records = STUDIES["e8_rates"], ["--config.data.directory=records_4096"]
  asked, (primary,) = Asked(study, [0], study.budget, _KEPT, "annotated", "pos", records), study.primary
  figures = {
    cell.arm: figure
    for cell, values in table.read(asked).values.items()
    for (_, name), figure in values.items()
    if name == primary
  }
  assert figures.keys() == backbones.sweep().keys()
  for name, arm in _STUDY.arms.items():
    best = max(backbones.SWEPT, key=lambda rate, name=name: figures[f"{name}_{rate:g}"])
    assert arm.fields["optimizer.learning_rate"] == best, name


def test_contrasts_weigh_the_objectives_alike():
  backbone, detection, _ = _STUDY.contrasts.values()
  assert backbone == {
    name: pytest.approx(1 / 6 if name.endswith("_modern") else -1 / 6) for name in _STUDY.arms
  }
  masked = {"mlm": -0.5, "mlm_modern": -0.5}
  found = {"electra", "gdes", "coco_lm", "amos"}
  assert detection == masked | {name + end: 1 / 8 for name in found for end in ("", "_modern")}
