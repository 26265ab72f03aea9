"""Ablations of TACO: its tables 1 to 3, figures 4 and 6, and search grid.

Command: python -m pretrain.main --config=configs/ablations/taco.py:taco_masked15
Source: TACO (Fu et al., ACL 2022), sections 4 and 5; the grid and the variants of anchors are the official
  code's (FUZHIYI/TACO, train_small.sh).
Expected: `ROWS[name].paper`: GLUE dev average of 8 tasks.
Cost: about that of taco_base:small, 81.9 B tokens; `--dry_run` prints it.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.ablations.row import Row, build

_NO_TACO = {"objectives.taco.weight": 0.0}


def _row(paper: str, note: str, changes: dict[str, Any], *, size: str = ":small", **others: Any) -> Row:
  return Row(f"taco_base{size}", changes, paper, note, **others)


WHOLE = {
  "taco_base:small": "76.2 (TACO-250k, table 1)",
  "taco_base": "81.8 (TACO-500k, table 3)",
}  # {recipe: the paper's result for the whole method}

ROWS = {
  "mlm_small": _row("75.0 (MLM-250k, table 1)", "masked LM only", _NO_TACO),
  "mlm_base": _row("80.9 (MLM-500k, table 3)", "masked LM only", _NO_TACO, size=""),
  "taco_small": _row("76.2 (TACO-250k, table 1)", "the whole method", {}),
  "taco_base": _row("81.8 (TACO-500k, table 3)", "the whole method", {}, size=""),
  "taco_masked15": _row(
    "figure 6", "only masked positions are anchors", {"objectives.taco.anchors": "masked"}
  ),
  "taco_except_mlm": _row(
    "", "only positions that are not masked are anchors", {"objectives.taco.anchors": "unmasked"}
  ),
  "mlm_tp": _row(
    "figure 6",
    "masked LM, and every other token predicts itself; one mean over all positions",
    _NO_TACO | {"objectives.mlm.positions": "all"},
  ),
  "taco_k10": _row("", "10 negatives per anchor", {"objectives.taco.num_negatives": 10}),
  "taco_k50": _row("76.2 (table 1)", "the paper's negatives", {"objectives.taco.num_negatives": 50}),
  "taco_w3": _row("", "positives at distance 1", {"objectives.taco.window": 3}),
  "taco_w5": _row("76.2 (table 1)", "the paper's window", {"objectives.taco.window": 5}),
  "taco_w10": _row("", "positives at distance 5 at most", {"objectives.taco.window": 10}),
  "taco_w50": _row("", "positives at distance 25 at most", {"objectives.taco.window": 50}),
  "taco_25pct": _row("84.9 to 84.5 on 4 tasks (table 2)", "a quarter of the data", {"data.fraction": 0.25}),
  "mlm_25pct": _row(
    "84.5 to 84.1 on 4 tasks (table 2)",
    "a quarter of the data, masked LM only",
    _NO_TACO | {"data.fraction": 0.25},
  ),
  "mlm_frozen_random": _row(
    "figure 4",
    "masked LM on a token table that stays as initialised",
    _NO_TACO | {"model.freeze_embeddings": "random"},
  ),
  "mlm_frozen_trained": _row(
    "figure 4",
    "masked LM on the token table of a finished run; give its checkpoint in model.freeze_embeddings_from",
    _NO_TACO | {"model.freeze_embeddings": "checkpoint"},
    required=("model.freeze_embeddings_from",),
  ),
}


def get_config(name: str) -> ConfigDict:
  """Returns the config of a row, or of its tiny counterpart for 'NAME:tiny'."""
  return build(ROWS, name, family="taco")
