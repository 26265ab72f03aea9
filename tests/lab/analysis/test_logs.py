"""Curves from the metrics of runs, and fine-tuned scores of their saved steps: planted numbers come back."""

import json
import types

import numpy as np
import pytest

from lab.analysis import logs, scores
from lab.analysis.__main__ import main
from lab.analysis.outcome import Needs
from pretrain.checkpoints import checkpoint
from pretrain.mesh import trees

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
SPEED = 0.5  # steps a second: 7200 seconds are an hour and 3600 steps two


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


def lines_of(losses: dict[int, float]) -> list[dict]:
  """Speeds at steps, and held-out losses."""
  return [{"step": step, "perf/steps_per_second": SPEED, "eval/loss": loss} for step, loss in losses.items()]


def test_planted_losses_and_probes_come_back_over_hours(monkeypatch):
  lines = [*lines_of({1_800: 4.0, 3_600: 3.0}), {"step": 2_700, "probe/pos all words": 0.75}]
  silent = [{"step": 5, "eval/loss": 1.0}]  # no speed, so no hours
  speeds = [{"step": 10, "perf/steps_per_second": 10 / 3600}, {"step": 20, "perf/steps_per_second": 5 / 3600}]
  slower = [*speeds, {"step": 5, "eval/loss": 7.0}, {"step": 20, "eval/loss": 6.0}]
  asked = request(monkeypatch, {"run": lines, "silent": silent, "slower": slower})
  loss, probe = logs.efficiency(asked).plots
  assert (loss.stem, loss.y_label) == ("efficiency_eval_loss", "nats")
  found = {curve.name: (curve.x.tolist(), curve.y.tolist()) for curve in loss.curves}
  assert found["run"] == ([1.0, 2.0], [4.0, 3.0])
  assert found["slower"] == (pytest.approx([0.5, 3.0]), [7.0, 6.0]) and len(found) == 2
  assert probe.stem == "efficiency_probe_pos_all_words"
  np.testing.assert_allclose((probe.curves[0].x, probe.curves[0].y), ([1.5], [0.75]))
  with pytest.raises(Needs, match="silent"):
    logs.efficiency(request(monkeypatch, {"silent": silent}))


def tuned(folder, digest: str, rows: list[dict], *, data: str = "d", task: str = "mnli") -> str:
  """Writes what `finetune.main` leaves of a search: its report and a cell."""
  (folder / task).mkdir(parents=True)
  cell = {"fingerprint": {"checkpoint": digest, "data": data, "protocol": "coco_lm", "numbers": 1}}
  (folder / task / "bs32_lr1e-05.json").write_text(json.dumps(cell))
  (folder / "results.json").write_text(json.dumps({"title": "GLUE dev", "rows": rows}))
  return str(folder)


def mnli(matched: float, mismatched: float) -> list[dict]:
  """The rows of a report on MNLI."""
  named = {"accuracy": matched, "accuracy_mm": mismatched}
  return [{"task": "mnli", "metric": metric, "value": value} for metric, value in named.items()]


def test_planted_scores_of_saved_steps_come_back_over_hours(monkeypatch, tmp_path):
  runs = {"a": lines_of({1_800: 4.0, 3_600: 3.0}), "b": lines_of({3_600: 5.0})}
  steps = {"first": ("a", 1_800), "last": ("a", 3_600), "other": ("b", 3_600)}
  monkeypatch.setattr(scores, "_steps", lambda request: steps)
  planted = {"last": (0.8, 0.79), "other": (0.6, 0.61), "first": (0.7, 0.69)}
  folders = [tuned(tmp_path / digest, digest, mnli(*values)) for digest, values in planted.items()]
  read = [score for folder in folders for score in scores.read(folder)]
  plots = {plot.stem: plot for plot in logs.efficiency(request(monkeypatch, runs), read).plots}
  assert list(plots) == ["efficiency_eval_loss"] + [
    f"efficiency_fine_tuned_mnli_{metric}" for metric in ("accuracy", "accuracy_mm")
  ]
  matched = plots["efficiency_fine_tuned_mnli_accuracy"]
  assert [curve.name for curve in matched.curves] == ["a", "b"] and matched.y_label == "accuracy"
  np.testing.assert_allclose((matched.curves[0].x, matched.curves[0].y), ([1.0, 2.0], [0.7, 0.8]))
  np.testing.assert_allclose((matched.curves[1].x, matched.curves[1].y), ([2.0], [0.6]))
  np.testing.assert_allclose(plots["efficiency_fine_tuned_mnli_accuracy_mm"].curves[0].y, [0.69, 0.79])
  assert len(logs.efficiency(request(monkeypatch, runs)).plots) == 1  # as before without scores
  with pytest.raises(Needs, match="speeds of b"):
    logs.efficiency(request(monkeypatch, runs | {"b": [{"step": 1, "eval/loss": 1.0}]}), read)


def test_the_command_knows_a_saved_step_by_its_digest(finished, tmp_path):
  params, _ = checkpoint.load_params(finished, 4)
  digest = trees.digest({"encoder": params["encoder"], "heads": params["heads"]})
  folder = tuned(tmp_path / "tuned", digest, mnli(0.8, 0.7))
  flags = [f"--checkpoints={finished}", f"--output={tmp_path / 'out'}", f"--scores={folder}"]
  assert main([*flags, "--only=efficiency"]) == 0
  rows = json.loads((tmp_path / "out" / "efficiency.json").read_text())["rows"]
  found = [row for row in rows if row["metric"] == "fine-tuned mnli accuracy"]
  assert [(row["step"], row["value"]) for row in found] == [(4, 0.8)]
  assert (tmp_path / "out" / "efficiency_fine_tuned_mnli_accuracy.svg").is_file()
