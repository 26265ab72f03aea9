"""The command line of the learning study: budgets, and mistakes in one line."""

import argparse
import types

from lab.speed import learning
from pretrain.reading import prepared


def _config(**changes):
  fields = {"recipe": "bert", "seed": 0, "without": [], "set": []}
  return learning.make_config(argparse.Namespace(**fields | changes))


def test_values_are_read_as_those_of_the_trainer_and_the_warm_up_takes_at_most_a_fifth():
  fields = ["optimizer.learning_rate=2e-3", "corruption.mask_special=none", "train.checkpoint_steps=5,7"]
  config = _config(set=fields, steps=10)
  assert (config.train.total_steps, config.optimizer.warmup_steps) == (10, 2)
  assert config.optimizer.learning_rate == 2e-3
  assert config.corruption.mask_special == "none"
  assert config.train.checkpoint_steps == (5, 7)


CASES = [
  (["run", "--recipe=brt", "--steps=9"], 2, "--recipe=brt"),
  (["run", "--recipe=bert", "--steps=9", "--without=mml"], 2, "--without=mml"),
  (["run", "--recipe=bert", "--steps=9", "--set", "model.layers=2"], 2, "model.num_layers"),
  (["run", "--recipe=bert", "--steps=0"], 2, "--steps=0"),
  (["run", "--recipe=bert", "--steps=9", "--set", "train.batch_size=8"], 3, "7 blocks"),
  (["run", "--recipe=bert", "--steps=9", "--set", "train.eval_batches=0"], 2, "train.eval_batches=0"),
  (["run", "--recipe=bert", "--steps=9", "--name=mine"], 2, "--name=NAME"),
  (["report"], 3, "no results in"),
]


def test_a_mistake_ends_before_anything_is_trained(monkeypatch, capsys, tmp_path):
  # Records are found by code of others; here they hold out seven blocks, or none.
  records = types.SimpleNamespace(directory="here")
  monkeypatch.setattr(prepared, "ensure_records", lambda config, download: "here")
  monkeypatch.setattr(prepared, "open", lambda config: records)
  failures = []
  for flags, code, word in CASES:
    output = tmp_path / ("mine" if "--name=mine" in flags else "none")
    if output.name == "mine":
      output.mkdir()
      (output / "mine-seed0.jsonl").write_text("{}\n")
    records.heldout = range(7) if word == "7 blocks" else None
    found = learning.main([*flags, f"--output={output}"])
    error = capsys.readouterr().err
    if found != code or word not in error or (tmp_path / "none").exists():
      failures.append(f"{flags}: {found} {error}")
  assert not failures, "\n".join(failures)
