"""Ablations of AMOS: its tables 4, 6 and 7, and a control without the encoder's gradient.

Command: python -m pretrain.main --config=configs/ablations/amos.py:no_adv
Source: AMOS (Meng et al., ICLR 2022), section 5.1 (table 4), appendix E (table 6), appendix F (table 7).
Expected: `ROWS[name].paper`: MNLI m/mm and SQuAD 2.0 dev EM/F1; the whole method has 88.9/88.7, 84.2/87.2.
Cost: about that of amos_base, 131.1 B tokens; `--dry_run` prints it.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.ablations.row import Row, build


def _row(paper: str, note: str, changes: dict[str, Any], **others: Any) -> Row:
  return Row("amos_base", changes, paper, note, **others)


def _single(depth: int) -> dict[str, Any]:
  """Returns the changes for a generator with a single head after `depth` layers."""
  return {"generator.num_layers": depth, "generator.mlm_layers": (), "generator.mixture": "none"}


def _heads(*layers: int) -> dict[str, Any]:
  return {"generator.num_layers": layers[-1], "generator.mlm_layers": layers}


def _separate(*depths: int) -> dict[str, Any]:
  return {"generator.mlm_layers": (), "generator.separate_layers": depths}


WHOLE = {"amos_base": "MNLI 88.9/88.7, SQuAD 84.2/87.2"}  # {recipe: the paper's result for the whole method}

ROWS = {
  "random_layer": _row(
    "MNLI 88.6/88.3, SQuAD 83.6/86.6",
    "a head drawn uniformly for every masked position (the paper does not say if per position or sequence)",
    {"generator.mixture": "random_layer"},
  ),
  "layer_switch": _row(
    "MNLI 88.6/88.4, SQuAD 83.3/86.2",
    "the shallow, the middle and the deep head for a third of the run each",
    {"generator.mixture": "schedule"},
  ),
  "no_adv": _row("MNLI 88.7/88.5, SQuAD 83.9/86.8", "equal weights", {"generator.mixture": "uniform"}),
  "adv_mlm": _row(
    "MNLI 88.6/88.7, SQuAD 84.2/87.2",
    "the reversed gradient also reaches the heads' logits, times 0.1",
    {"generator.adv_mlm_multiplier": 0.1},
  ),
  "final_weights": _row(
    "MNLI 88.4/88.0, SQuAD 83.5/86.5",
    "the final mean weights of a finished AMOS run from the start; give them in generator.mixture_weights",
    {"generator.mixture": "fixed"},
    required=("generator.mixture_weights",),
  ),
  "no_stopgrad": _row(
    "MNLI 88.4/88.6, SQuAD 83.6/86.6",
    "a head's gradient reaches the blocks below its own",
    {"generator.detach_blocks": False},
  ),
  "separate_gens": _row(
    "MNLI 88.8/88.7, SQuAD 83.4/86.5",
    "three generators of 4, 6 and 8 layers with heads of their own; the token table is shared",
    _separate(4, 6, 8),
    tiny_changes=_separate(1, 2, 3),
  ),
  "three_4layer": _row(
    "MNLI 88.6/88.4, SQuAD 83.0/85.9",
    "three generators of 4 layers that differ by their initialisation",
    _separate(4, 4, 4),
    tiny_changes=_separate(1, 1, 1),
  ),
  "gen_4": _row("MNLI 88.4/88.2, SQuAD 83.1/86.0", "one head, 4 layers", _single(4), tiny_changes=_single(1)),
  "gen_6": _row("MNLI 88.6/88.3, SQuAD 83.2/86.1", "one head, 6 layers", _single(6), tiny_changes=_single(2)),
  "gen_8": _row("MNLI 88.3/88.1, SQuAD 83.3/86.3", "one head, 8 layers", _single(8), tiny_changes=_single(3)),
  "gen_12": _row(
    "MNLI 87.8/87.5, SQuAD 82.4/85.5", "one head, 12 layers", _single(12), tiny_changes=_single(4)
  ),
  "heads_48": _row("MNLI 88.6/88.4, SQuAD 83.8/86.7", "two heads", _heads(4, 8), tiny_changes=_heads(1, 3)),
  "heads_2468": _row(
    "MNLI 88.4/88.3, SQuAD 83.8/86.8", "four heads", _heads(2, 4, 6, 8), tiny_changes=_heads(1, 2, 3, 4)
  ),
  "heads_all8": _row(
    "MNLI 88.2/88.0, SQuAD 83.1/86.0",
    "a head on every layer",
    _heads(*range(1, 9)),
    tiny_changes=_heads(*range(1, 6)),
  ),
  "no_reversal": _row(
    "",
    "a control: no gradient from the encoder to the weights, which change only by the trunk and weight decay",
    {"generator.reversal_multiplier": 0.0},
  ),
}


def get_config(name: str) -> ConfigDict:
  """Returns the config of a row, or of its tiny counterpart for 'NAME:tiny'."""
  return build(ROWS, name, family="amos")
