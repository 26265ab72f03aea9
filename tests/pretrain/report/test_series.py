"""Curves: hours by measured speeds, thinning that keeps peaks, round ticks, which curves share a chart."""

import pathlib

import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.logs import metrics
from pretrain.report import series
from pretrain.report.runs import ShownRun


def run(lines, name="run", **fields) -> ShownRun:
  return ShownRun(name, pathlib.Path(name), fields, lines, {}, (), (), ())


def loss(runs, axis):
  """The label of the axis, and the curve of the held-out loss over it."""
  found, _ = series.charts(runs, axis)
  (plot,) = found["Loss and its terms"]
  return plot.x_label, plot.curves[0]


def test_hours_are_the_steps_over_their_speeds():
  lines = [
    {"step": 0, "eval/loss": 1.0},
    {"step": 100, "perf/steps_per_second": 1.0},
    {"step": 100, "eval/loss": 0.5},
    {"step": 300, "perf/steps_per_second": 2.0},
    {"step": 200, "perf/steps_per_second": 9.0},  # of another start, and measured before
  ]
  steps, taken = metrics.hours(lines)
  np.testing.assert_array_equal(steps, [0, 100, 300])
  np.testing.assert_allclose(taken, [0, 100 / 3600, 200 / 3600])
  one = [run(lines, **{"train.batch_size": 10, "data.length": 100})]
  assert loss(one, "step")[0] == "step"
  label, curve = loss(one, "token")
  assert label == "tokens (thousands)" and curve.x.tolist() == [0, 100]
  label, curve = loss(one, "hour")
  assert label == "minutes of training" and curve.x.tolist() == pytest.approx(
    [0, 100 / 60]
  )  # less than an hour in all
  for axis in ("token", "hour"):
    with pytest.raises(ConfigError, match=f"--over={axis} needs"):
      series.charts([run(lines[:1])], axis)


def test_every_run_has_its_own_tokens_and_hours():
  runs = [
    run(
      [{"step": 100, "perf/steps_per_second": size, "perf/mfu": size}],
      **{"train.batch_size": size, "data.length": 50},
    )
    for size in (10, 20)
  ]
  for axis, ends in (("token", [50, 100]), ("hour", [10 / 60, 5 / 60])):
    found, _ = series.charts(runs, axis)
    (speed,) = found["Learning rate and speed"]
    assert [curve.x[-1] for curve in speed.curves] == pytest.approx(ends)


def test_a_long_curve_keeps_its_ends_and_its_peak():
  values = np.sin(np.arange(10_000) / 500)
  values[4_321] = 9.0
  steps, kept = series._thinned(np.arange(10_000), values, 300)
  assert len(steps) <= 300 and steps[0] == 0 and steps[-1] == 9_999 and kept.max() == 9.0


def test_parts_of_a_metric_share_a_chart_and_what_never_changes_has_none():
  lines = [
    {"step": step, "train/loss": 1.0 / (step + 1), "eval/loss": 2.0 / (step + 1), "train/mask_overflow": 0.0}
    | {f"eval/rtd_accuracy{part}": step / 9 for part in ("", "_original", "_replaced")}
    for step in range(10)
  ]
  found, constant = series.charts([run(lines)])
  assert constant == {"mask_overflow": 0.0}
  (loss,) = found["Loss and its terms"]
  assert [curve.name for curve in loss.curves] == ["training", "held out"] and loss.y_label == "nats"
  (accuracy,) = found["Accuracy"]
  assert [curve.name for curve in accuracy.curves] == [
    f"{part}, held out" for part in ("all", "original", "replaced")
  ]
  many = [{"step": step} | {f"eval/source_loss/my_{at}": 1.0 + step for at in range(10)} for step in range(2)]
  ((chart,),) = series.charts([run(many)])[0].values()
  assert [curve.colour for curve in chart.curves] == [*range(10)]
  assert [curve.name for curve in chart.curves] == [f"my_{at}, held out" for at in range(10)]
  two, _ = series.charts([run(lines, "a"), run(lines, "b")])
  assert len(two["Accuracy"]) == 3  # of several runs a chart for each, a colour for each run
  assert [curve.colour for curve in two["Loss and its terms"][0].curves] == [0, 0, 1, 1]


def test_probes_have_their_own_section_and_units():
  names = ("probe/similarity/STS-B_dev/cls", "probe/part_of_speech/ambiguous/last")
  found, _ = series.charts([run([{"step": step} | dict.fromkeys(names, step / 9) for step in range(3)])])
  (charts,) = found.values()
  assert {chart.title: chart.y_label for chart in charts} == {
    "similarity, STS-B dev": "Spearman's correlation",
    "part of speech, ambiguous": "accuracy, fraction",
  }


def test_a_few_leaping_values_do_not_flatten_a_curve():
  values = [*np.linspace(2, 3, 60), 1e6]
  found, _ = series.charts([run([{"step": at, "train/loss": value} for at, value in enumerate(values)])])
  (loss,) = found["Loss and its terms"]
  assert loss.y_limits is not None and loss.y_limits[0] == 2 and loss.y_limits[1] < 6
