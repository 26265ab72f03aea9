"""Ablations of COCO-LM: every row of its table 3, the crops of figure 4, and variants of our own.

Command: python -m pretrain.main --config=configs/ablations/coco_lm.py:rtd_only
Source: COCO-LM (Meng et al., NeurIPS 2021), table 3 and figure 4. The paper does not state which rows keep
  the contrast objective; the notes state the choice made here.
Expected: `ROWS[name].paper`: GLUE dev MNLI m/mm and average; the whole method has 88.5/88.3, 87.2.
Cost: about that of coco_lm_base, 131.1 B tokens; `--dry_run` prints it.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.ablations.row import Row, build

_NO_CLM = {"objectives.clm.weight": 0.0}
_NO_SCL = {"objectives.scl.weight": 0.0}
_NO_RTD = {"objectives.rtd.weight": 0.0}


def _row(paper: str, note: str, changes: dict[str, Any], **others: Any) -> Row:
  return Row("coco_lm_base", changes, paper, note, **others)


WHOLE = {"coco_lm_base": "MNLI 88.5/88.3, average 87.2"}  # {recipe: the paper's result for the whole method}

ROWS = {
  "rtd_only": _row(
    "MNLI 88.4/88.2, average 86.8", "detection only, with the shallow generator", _NO_CLM | _NO_SCL
  ),
  "clm_only": _row("MNLI 88.6/88.4, average 86.9", "detection and correction, no contrast", _NO_SCL),
  "scl_rtd": _row("MNLI 88.6/88.2, average 86.9", "detection and contrast, no correction", _NO_CLM),
  "no_relpos": _row(
    "MNLI 88.2/87.7, average 87.6",
    "absolute positions only",
    {"model.relative_position": "none"},
  ),
  "electra_aux": _row(
    "MNLI 88.0/87.7, average 86.3",
    "ELECTRA's generator: as deep as the encoder, a third as wide, so with its own positions and norm; "
    "sampling without dropout is kept",
    {
      "generator.num_layers": 12,
      "generator.hidden_size": 256,
      "generator.mlp_size": 1_024,
      "generator.num_heads": 4,
      "generator.share_embeddings": "tokens",
    },
    tiny_changes={
      "generator.num_layers": 2,
      "generator.hidden_size": 64,
      "generator.mlp_size": 256,
      "generator.num_heads": 1,
      "generator.share_embeddings": "tokens",
    },
  ),
  "random_replace": _row(
    "MNLI 84.9/84.7, average 80.6",
    "chosen tokens become uniformly random ones; no generator",
    {"corruption.kind": "random"},
  ),
  "converged_aux": _row(
    "MNLI 88.3/88.1, average 86.3",
    "the generator of a finished run, no longer trained; give its checkpoint in generator.init_from",
    {"generator.frozen": True},
    required=("generator.init_from",),
  ),
  "all_token_lm": _row(
    "MNLI 87.2/87.0, average 84.7",
    "one likelihood at every position instead of detection and correction; no contrast, because of 'only'",
    {"objectives.all_token.weight": 1.0} | _NO_RTD | _NO_CLM | _NO_SCL,
  ),
  "clm_no_copy": _row(
    "MNLI 88.0/87.9, average 86.3",
    "plain cross-entropy of the LM head, no detection; no contrast, as in the CLM rows",
    {"objectives.clm.copy": False} | _NO_RTD | _NO_SCL,
  ),
  "clm_no_stopgrad": _row(
    "MNLI 88.5/88.2, average 86.9",
    "the LM loss also trains the copy probability; no contrast, as in the CLM rows",
    {"objectives.clm.stop_gradient": False} | _NO_SCL,
  ),
  "crop_70": _row("figure 4", "crops of 70 %", {"objectives.scl.crop_fraction": 0.7}),
  "crop_80": _row("figure 4", "crops of 80 %", {"objectives.scl.crop_fraction": 0.8}),
  "crop_90": _row("MNLI 88.5/88.3, average 87.2", "the paper's crops", {"objectives.scl.crop_fraction": 0.9}),
  "crop_100": _row(
    "figure 4",
    "the whole text with its own [CLS]; a second one would exceed the position table",
    {"objectives.scl.crop_fraction": 1.0, "objectives.scl.crop_add_cls": False},
  ),
  "scl_tau_0p1": _row("", "a sharper contrast", {"objectives.scl.temperature": 0.1}),
  "scl_tau_0p5": _row("", "a sharper contrast", {"objectives.scl.temperature": 0.5}),
  "scl_gather": _row("", "contrast over the whole batch", {"objectives.scl.group_size": 0}),
  "official": _row(
    "",
    "the code where it differs from the paper: weighted LM loss, projected contrast, the released models' "
    "table of relative positions, [CLS] never masked",
    {
      "objectives.clm.form": "weighted",
      "objectives.scl.head": "projection",
      "model.relative_position": "official",
      "corruption.mask_special": "sep_only",
    },
  ),
}


def get_config(name: str) -> ConfigDict:
  """Returns the config of a row, or of its tiny counterpart for 'NAME:tiny'."""
  return build(ROWS, name, family="coco_lm")
