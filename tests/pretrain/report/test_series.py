"""Curves: hours by measured speeds, thinning that keeps peaks, which curves share a chart."""

import pathlib

import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.logs import metrics
from pretrain.report import series
from pretrain.report.runs import ShownRun
from tests.pretrain.export.refusals import failing


def run(lines, name="run", **fields) -> ShownRun:
  return ShownRun(name, pathlib.Path(name), fields, lines, {}, (), (), ())


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
  for rows, axis, label, ends in (
    (10, "step", "step", [0, 100]),
    (10, "token", "tokens (thousands)", [0, 100]),
    (10_000, "token", "tokens (millions)", [0, 100]),
    (10, "hour", "minutes of training", [0, 100 / 60]),  # less than an hour in all
  ):
    found, _ = series.charts([run(lines, **{"train.batch_size": rows, "data.length": 100})], axis)
    (plot,) = found["Loss and its terms"]
    assert plot.x_label == label and plot.curves[0].x.tolist() == pytest.approx(ends)
  rows = [("token", "--over=token needs"), ("hour", "--over=hour needs")]
  assert not failing(rows, lambda axis: series.charts([run(lines[:1])], axis), ConfigError)
  runs = [
    run(
      [{"step": 100, "perf/steps_per_second": size, "perf/mfu": size}],
      **{"train.batch_size": size, "data.length": 50},
    )
    for size in (10, 20)
  ]
  for axis, ends in (("token", [50, 100]), ("hour", [10 / 60, 5 / 60])):  # each its own
    (speed,) = series.charts(runs, axis)[0]["Learning rate and speed"]
    assert [curve.x[-1] for curve in speed.curves] == pytest.approx(ends)


def test_a_long_curve_keeps_its_ends_and_its_peaks_and_leaping_values_do_not_flatten_it():
  values = np.sin(np.arange(10_000) / 500)
  values[4_321], values[7_777] = 9.0, -9.0
  lines = [{"step": at, "train/loss": value} for at, value in enumerate(values)]
  (curve,) = series.charts([run(lines)])[0]["Loss and its terms"][0].curves
  assert len(curve.x) <= 300 and curve.x[0] == 0 and curve.x[-1] == 9_999
  assert curve.x[curve.y.argmax()] == 4_321 and curve.x[curve.y.argmin()] == 7_777
  few = run(list(reversed(lines[:300])))  # sorted, and all of them
  (curve,) = series.charts([few])[0]["Loss and its terms"][0].curves
  np.testing.assert_array_equal(curve.x, np.arange(300))
  values = [*np.linspace(2, 3, 60), 1e6]
  found, _ = series.charts([run([{"step": at, "train/loss": value} for at, value in enumerate(values)])])
  (loss,) = found["Loss and its terms"]
  near, far = np.quantile(values, [0.02, 0.98])
  assert loss.y_limits == (2, pytest.approx(far + 1.5 * (far - near)))
  for values in ([2.0] * 59 + [3.0], np.linspace(2, 3, 60), [*np.linspace(2, 3, 18), 1e6]):
    found, _ = series.charts([run([{"step": at, "train/loss": value} for at, value in enumerate(values)])])
    assert found["Loss and its terms"][0].y_limits is None  # a step, no outlier, too few values


def test_parts_of_a_metric_share_a_chart_and_what_never_changes_has_none():
  lines = [
    {"step": step, "train/loss": 1.0 / (step + 1), "eval/loss": 2.0 / (step + 1), "train/mask_overflow": 0.0}
    | {f"eval/rtd_accuracy{part}": step / 9 for part in ("", "_original", "_replaced")}
    | dict.fromkeys(("probe/similarity/STS-B_dev/cls", "probe/part_of_speech/ambiguous/last"), step / 9)
    | {"train/a_loss": 1.0 + step, "perf/mfu": float("nan")}
    for step in range(10)
  ]
  found, constant = series.charts([run(lines)])
  assert constant == {"mask_overflow": 0.0}
  assert [*found] == ["Loss and its terms", "Probes of frozen states", "Accuracy"]
  loss, term = found["Loss and its terms"]
  assert [curve.name for curve in loss.curves] == ["training", "held out"] and loss.y_label == "nats"
  assert [curve.is_dashed for curve in loss.curves] == [False, True] and term.title == "a loss"
  (accuracy,) = found["Accuracy"]
  names = [f"{part}, held out" for part in ("all", "original", "replaced")]
  assert [curve.name for curve in accuracy.curves] == names and accuracy.y_label == "fraction"
  assert {chart.title: chart.y_label for chart in found["Probes of frozen states"]} == {
    "similarity, STS-B dev": "Spearman's correlation",
    "part of speech, ambiguous": "accuracy, fraction",
  }
  many = [{"step": step} | {f"eval/source_loss/my_{at}": 1.0 + step for at in range(10)} for step in range(2)]
  ((chart,),) = series.charts([run(many)])[0].values()
  assert [curve.colour for curve in chart.curves] == [*range(10)]
  assert [curve.name for curve in chart.curves] == [f"my_{at}, held out" for at in range(10)]
  two, _ = series.charts([run(lines, "a"), run(lines, "b")])
  assert len(two["Accuracy"]) == 3  # of several runs a chart for each, a colour for each run
  assert [curve.colour for curve in two["Loss and its terms"][0].curves] == [0, 0, 1, 1]


def test_masked_lms_loss_has_one_chart_with_the_baseline_of_one_run():
  lines = [
    {"step": step, "train/loss": 3.0 - step, "train/masked_lm_loss": 3.0 - step, "eval/frequency_loss": 2.5}
    | dict.fromkeys(("eval/loss", "eval/masked_lm_loss"), 3.5 - step)
    for step in range(2)
  ]
  for names, expected in (("a", ["training", "held out", "token frequencies alone"]), ("ab", None)):
    found, constant = series.charts([run(lines, name) for name in names])
    (chart,) = found["Loss and its terms"]
    assert chart.title == "masked lm loss" and not constant
    assert expected is None or [curve.name for curve in chart.curves] == expected
  assert chart.curves[-1].name == "b, held out"
  lines[1]["eval/loss"] = 9.0
  assert len(series.charts([run(lines)])[0]["Loss and its terms"]) == 2
