"""Curves of metrics that runs have logged: planted lines come back."""

import types

import numpy as np
import pytest

from pretrain.analysis import logs
from pretrain.analysis.outcome import Needs

REQUEST = types.SimpleNamespace(names=["run"])
HEADS = [
  {
    "step": 10,
    "train/generator_loss": 6.0,
    "train/generator_loss_layer_1": 4.0,
    "train/generator_loss_layer_2": 2.0,
  },
  {
    "step": 20,
    "train/generator_loss": 4.0,
    "train/generator_loss_layer_1": 3.0,
    "train/generator_loss_layer_2": 1.0,
  },
]
WHOLE = [{"step": line["step"], "train/generator_loss": line["train/generator_loss"]} for line in HEADS]


@pytest.fixture
def plant(monkeypatch):
  def planted(lines: list[dict]) -> None:
    monkeypatch.setattr(logs, "_lines", lambda _: [("run", lines)])

  return planted


def test_the_sum_over_heads_is_left_out_where_there_are_several(plant):
  plant(HEADS)
  rows = logs.generator(REQUEST).rows
  assert len(rows) == 2
  first, second = rows
  assert (first["of"], first["points"], first["start"], first["highest"]) == ("layer 1", 2, 4.0, 4.0)
  # Of the newer value 0.1, of the older one 0.9 times as much.
  assert first["end"] == pytest.approx((0.1 * 3.0 + 0.09 * 4.0) / 0.19)
  assert second["of"] == "layer 2" and second["start"] == 2.0
  plant(WHOLE)
  (row,) = logs.generator(REQUEST).rows
  assert row["of"] == "generator" and row["start"] == 6.0
  with pytest.raises(Needs, match="mixture of generator layers"):
    logs.mixture(REQUEST)


def test_scores_stand_at_the_hours_of_their_steps(plant):
  speeds = [{"step": 10, "perf/steps_per_second": 10 / 3600}, {"step": 20, "perf/steps_per_second": 5 / 3600}]
  plant([*speeds, {"step": 5, "eval/loss": 7.0}, {"step": 20, "eval/loss": 6.0}])
  outcome = logs.efficiency(REQUEST)
  assert [(row["step"], row["value"]) for row in outcome.rows] == [(5, 7.0), (20, 6.0)]
  np.testing.assert_allclose([row["hours"] for row in outcome.rows], [0.5, 3.0])
  (plot,) = outcome.plots
  np.testing.assert_allclose(plot.curves[0].x, [0.5, 3.0])
