"""Lines of the log."""

import types

from ml_collections import ConfigDict

from pretrain.logs.intervals import Intervals


def test_a_term_that_was_not_measured_is_not_in_the_line():
  config = ConfigDict({"train": {"log_every": 1, "total_steps": 9}})
  run = types.SimpleNamespace(config=config, recipe=types.SimpleNamespace(term_weights={"a": 1.0, "b": 1.0}))
  made = Intervals(run, {}, None, None, has_lines=True)  # type: ignore[arg-type]
  line = made._line(1, {"train/loss": 1.0, "train/a": 2.0})  # no token of the interval was chosen for b
  assert line == "step 1/9  loss 1.0000  a 2.0000"
