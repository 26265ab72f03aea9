"""Curves from the metrics of runs: planted numbers come back."""

import types

import pytest

from lab.analysis import logs
from lab.analysis.request import Needs

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


def request(monkeypatch, runs: dict[str, list[dict]]):
  """A request for runs with these lines of metrics."""
  monkeypatch.setattr(logs, "_lines", lambda request: list(runs.items()))
  return types.SimpleNamespace(names=list(runs), directories=list(runs))


def test_the_sum_over_heads_is_left_out_where_there_are_several(monkeypatch):
  rows = logs.generator(request(monkeypatch, {"run": HEADS})).rows
  assert len(rows) == 2
  first, second = rows
  assert (first["of"], first["points"], first["start"], first["highest"]) == ("layer 1", 2, 4.0, 4.0)
  # Of the newer value 0.1, of the older one 0.9 times as much.
  assert first["end"] == pytest.approx((0.1 * 3.0 + 0.09 * 4.0) / 0.19)
  assert second["of"] == "layer 2" and second["start"] == 2.0
  whole = request(monkeypatch, {"run": WHOLE})
  (row,) = logs.generator(whole).rows
  assert row["of"] == "generator" and row["start"] == 6.0
  with pytest.raises(Needs, match="mixture"):
    logs.mixture(whole)


def test_the_best_head_of_a_mixture_is_the_one_with_the_lowest_loss(monkeypatch):
  weights = {"train/mixture_weight_layer_1": 0.7, "train/mixture_weight_layer_2": 0.3}
  lines = [line | weights for line in HEADS]
  turned = [{name.replace("_layer_2", "_layer_0"): value for name, value in line.items()} for line in lines]
  rows = logs.mixture(
    request(monkeypatch, {"run": lines, "other": turned, "bare": [weights | {"step": 1}]})
  ).rows
  best = {row["checkpoint"]: row["end"] for row in rows if row["of"] == "best head"}
  assert best == {"run": pytest.approx(0.3), "other": pytest.approx(0.3)}
  assert len(rows) == 2 * 3 + 2
