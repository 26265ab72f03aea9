"""Lines of the log."""

import math
import types

from ml_collections import ConfigDict

from pretrain.logs.intervals import Intervals
from pretrain.logs.metrics import Throughput


def test_a_term_that_was_not_measured_is_not_in_the_line():
  config = ConfigDict({"train": {"log_every": 1, "total_steps": 9}})
  run = types.SimpleNamespace(config=config, recipe=types.SimpleNamespace(term_weights={"a": 1.0, "b": 1.0}))
  made = Intervals(run, {}, None, None, has_lines=True)  # type: ignore[arg-type]
  line = made._line(1, {"train/loss": 1.0, "train/a": 2.0})  # no token of the interval was chosen for b
  assert line == "step 1/9  loss 1.0000  a 2.0000"


def test_an_update_that_was_not_applied_is_counted_and_not_in_the_means(caplog):
  config = ConfigDict({"train": {"log_every": 3, "total_steps": 9}})
  run = types.SimpleNamespace(config=config, recipe=types.SimpleNamespace(term_weights={}))
  rows: list[dict] = []
  written = types.SimpleNamespace(write=lambda step, values: rows.append(values))
  speed = Throughput(tokens_before=lambda step: step, flops_per_token=1.0, peak_flops=None)
  made = Intervals(run, {}, written, speed, has_lines=True)  # type: ignore[arg-type]
  caplog.set_level("INFO")

  def see(step: int, loss: float, in_a_row: int) -> None:
    last = {
      "skipped_updates": (in_a_row, 1.0),
      "skipped_in_a_row": (in_a_row, 1.0),
      "learning_rate": (0.1, 1.0),
    }
    made.seen(step, {"loss": (loss, 1.0), **last}, None)

  for step, (loss, in_a_row) in enumerate([(1.0, 0), (math.nan, 1), (3.0, 0)], 1):
    see(step, loss, in_a_row)
  assert rows[0]["train/loss"] == 2.0 and caplog.messages[0].endswith(
    "skipped updates that were not finite: 1"
  )
  for step in (4, 5, 6):
    see(step, math.nan, step - 3)
  assert (
    "train/loss" not in rows[1] and "loss nan" in caplog.messages[1] and caplog.messages[1].endswith(": 3")
  )
