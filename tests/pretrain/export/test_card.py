"""The model card: what it says of a run is what was really read, taken and measured."""

import json

import numpy as np

from configs import base
from pretrain.export import card

FACTS = card.Facts(
  "Tiny", "torch", "asked for with --to", "Checked.", extra=("heads/mlm/bias", "generator/trunk/a")
)


def _meta(fields: dict | None = None, **more) -> dict:
  config = base.get_config()
  config.update_from_flattened_dict(fields or {})
  return {"config": config.to_dict(), "step": 7, "packages": {"jax": "0"}, **more}


def _rows(fields: dict | None = None, **meta) -> dict[str, str]:
  """{name: value} of the table about pretraining."""
  lines = card.training(_meta(fields, **meta), 0.0)
  rows = [line.strip("| ").split(" | ") for line in lines if " | " in line]
  return {row[0]: row[1] for row in rows if len(row) == 2}


def test_figures_are_those_of_the_last_evaluation_before_the_step_and_hours_add_up(tmp_path):
  lines = [
    {"step": 0, "eval/loss": 9.0},
    {"step": 100, "train/loss": 5.0},
    {"step": 200, "train/loss": 4.0, "perf/steps_per_second": 0.5},
    {"step": 200, "eval/loss": 4.5, "eval/rtd_loss": None},
    {"step": 300, "train/loss": 4.0, "perf/steps_per_second": 0.25},
    {"step": 400, "eval/loss": 1.0},
  ]
  text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4'
  (tmp_path / "metrics.jsonl").write_text(text)
  figures, hours = card.read_metrics(tmp_path, 300)
  assert figures == {"loss": 4.5, "rtd_loss": None}
  assert hours == (200 / 0.5 + 100 / 0.25) / 3_600
  assert card.read_metrics(tmp_path / "nothing", 300) == ({}, 0.0)
  shown = card.write(FACTS, {"encoder": {}}, _meta() | {"step": 300}, tmp_path)
  assert "| loss | 4.5000 |" in shown and "| hours | 0.22 (from logged speeds) |" in shown


def test_a_card_claims_no_more_than_is_known(tmp_path):
  text = card.write(FACTS, {"encoder": {"a": np.zeros(3)}}, _meta(), tmp_path)
  assert "3 parameters in the encoder" in text and "2 tensors of `generator/trunk`, `heads/mlm`" in text
  assert "No held-out metrics" in text and "| hours | not recorded |" in text
  assert not text.startswith("---") and "$" not in text
  meta = _meta(source={"path": "/home/me/cocolm-base/"}) | {"step": 0}
  text = card.write(FACTS, {"encoder": {}}, meta, tmp_path)
  assert "Imported from `cocolm-base` and not pretrained further" in text and "/home" not in text


def test_numbers_of_the_run_are_those_of_its_config():
  fields = {"train.batch_size": 10, "data.length": 100, "model.dropout": 0.1, "model.attention_dropout": 0.2}
  rows = _rows(fields | {"optimizer.adam_b1": 0.8, "optimizer.adam_b2": 0.9}, started_from={})
  assert rows["updates"] == "7" and rows["tokens seen"] == "7,000 (padding counted)"
  assert rows["batch"].startswith("10 x 100 tokens") and rows["dropout"] == "0.1, attention 0.2"
  assert rows["corruption"] == "mask, mask rate 0.15" and rows["Adam"].startswith("b1 0.8, b2 0.9, ")
  assert rows["initialised from"] == "random values"
  fields = {"train.batch_size": 10, "train.microbatches": 5, "data.length": 100}
  fields |= {"train.batch_size_start": 4, "train.batch_warmup_steps": 3}  # 4, 6, 8, 10, 10, 10, 10 rows
  rows = _rows(fields | {"corruption.mask_rates": [[0.0, 0.3], [0.8, 0.15]], "corruption.whole_words": True})
  assert rows["tokens seen"] == "5,800 (padding counted)"
  assert rows["batch"].startswith("4 to 10 (after 3 updates) x 100 tokens")
  assert rows["corruption"] == "mask, mask rate 0.3, 0.15 from 80% on, whole words"
