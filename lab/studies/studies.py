"""This project's studies: arms that differ in one idea, and metrics that were chosen before the runs.

Command: python -m pretrain.ablations --study=e1 --data=annotated --output=e1
Source: docs/results/proof.md has hypotheses, targets and results; a study here lists its arms.
"""

from collections.abc import Mapping
from typing import Any

from lab.studies import backbones
from lab.studies.fine_tunings import TAGGING
from lab.studies.study import Arm, Study

_VOCAB = {"model.vocab_size": 8_192}
_AMBIGUOUS = "part of speech, ambiguous, last"
_DEPENDENCY = "dependency, all words, last"
_CLS = "similarity, STS-B dev, cls"


_SMALL = {  # for half an hour of one H100
  "model.vocab_size": 16_384,
  "data.length": 128,
  "optimizer.warmup_steps": 1_700,
  "train.batch_size": 256,
}
_DETECTION_ONLY = {"objectives.clm.weight": 0.0, "objectives.scl.weight": 0.0}


def _row(name: str, base: str = "") -> Arm:
  return Arm(f"configs/ablations/coco_lm.py:{name}:tiny", _VOCAB, base)


_MLM = Arm("configs/roberta_tiny.py", _VOCAB)
_EIGHTHS = (0.125, 0.25, 0.5, 1.0)
_AMOS = "configs/amos_tiny.py"
# On a CPU core, chunks of 320 positions take a tenth less time than all 960 of three heads at once.
_AMOS_FIELDS = _VOCAB | {"model.vocab_chunk_rows": 320}


# With the recipe's weight of 50 the heads stayed alike (E3).
_APART = {"objectives.rtd.weight": 0.02, "model.vocab_chunk_rows": 320}


def _adversary(fields: Mapping[str, Any], share: float) -> dict[str, Arm]:
  """Returns an arm without the reversed gradient, and three that go on from it for `share` of the budget."""

  def arm(multiplier: float, **others) -> Arm:
    return Arm(_AMOS, {**fields, "generator.reversal_multiplier": multiplier}, **others)

  later = {"after": {"train.init_from": "before"}, "share": share}
  return {
    "before": arm(0.0),
    "flat": arm(0.0, **later),
    "reversed": arm(-1.0, base="flat", against=("along",), **later),
    "along": arm(1.0, base="flat", **later),
  }


STUDIES = {
  "e1": Study(
    "E1: pretraining beats random values, longer beats shorter",
    {"mlm": _MLM},
    budget=8_000,
    seeds=5,
    points=_EIGHTHS,
    has_start=True,
    fine_tunings=tuple(TAGGING),
    primary=(_AMBIGUOUS, _DEPENDENCY),
  ),
  "e2": Study(
    "E2: contrast makes the space uniform and aligned",
    {
      "rtd_only": _row("rtd_only"),
      "coco_lm": Arm("configs/coco_lm_tiny.py", _VOCAB, "rtd_only"),
      "scl_rtd": _row("scl_rtd", "rtd_only"),
      "clm_only": _row("clm_only", "rtd_only"),
    },
    budget=6_000,
    seeds=4,
    analyses=("cosines",),
    primary=(_CLS, "cosines: similar, area", "cosines: random, uniformity"),
  ),
  "e3": Study(
    "E3: the adversary makes replaced tokens harder and moves weight to depth",
    _adversary(_AMOS_FIELDS, share=1 / 3),
    budget=6_000,
    seeds=4,
    analyses=("detection", "mixture", "generator"),
    primary=("detection: all tokens, loss at replaced", "mixture: layer 3, end"),
  ),
  "e4": Study(
    "E4: does TACO learn earlier than masked LM?",
    {
      "mlm": _MLM,
      "taco": Arm("configs/roberta_tiny.py", _VOCAB | {"objectives.taco.weight": 1.0}, "mlm"),
    },
    budget=8_000,
    seeds=5,
    points=_EIGHTHS,
    primary=(_AMBIGUOUS,),
  ),
  "e5": Study(
    "E5: the copy mechanism and the stop-gradient",
    {
      "clm_only": _row("clm_only"),
      "clm_no_stopgrad": _row("clm_no_stopgrad", "clm_only"),
      "all_token_lm": _row("all_token_lm", "clm_only"),
    },
    budget=4_000,
    analyses=("correction",),
    primary=("correction: replaced, copy", "correction: original, copy", "correction: original, lm"),
  ),
  "e6": Study(
    "E6: does detection beat masked LM at equal nominal FLOPs?",
    {
      "mlm": Arm("configs/roberta_small.py", _SMALL),
      "electra": Arm("configs/electra_small.py", _SMALL, "mlm", share=0.973),  # as many FLOPs as masked LM
      "rtd_only": Arm("configs/coco_lm_small.py", _SMALL | _DETECTION_ONLY, "mlm", share=0.814),
    },
    budget=17_000,
    seeds=2,
    primary=(_AMBIGUOUS, _DEPENDENCY),
  ),
  "e7": Study(
    "E7: which pretraining makes the best start of an embedding stage?",
    {
      "rtd_only": Arm("configs/ablations/coco_lm.py:rtd_only:tiny"),
      "coco_lm": Arm("configs/coco_lm_tiny.py", base="rtd_only"),
      "electra": Arm("configs/electra_tiny.py", base="rtd_only"),
      "mlm": Arm("configs/roberta_tiny.py", base="rtd_only"),
      "amos": Arm("configs/amos_tiny.py", base="rtd_only"),
      "taco": Arm("configs/taco_tiny.py", base="rtd_only"),
    },
    budget=4_000,
    fine_tunings=("names",),
    has_start=True,
    primary=("names, nDCG@10",),
  ),
  "e8_rates": Study(
    "The learning rates of E8, at half of its budget, on development sentences",
    backbones.sweep(),
    budget=2_000,
    seeds=1,
    primary=(_AMBIGUOUS,),
  ),
  "e8": Study(
    "E8: old and new backbone, masked LM and detection, at equal nominal FLOPs",
    backbones.arms(),
    budget=4_000,
    seeds=3,
    fine_tunings=("entities_200", "sts"),
    primary=(_AMBIGUOUS,),
    contrasts=backbones.contrasts(),
  ),
  "e9": Study(
    "E9: E3 again, with heads that differ",
    _adversary(_APART, share=1 / 5),
    budget=10_000,
    seeds=4,
    analyses=("detection", "mixture", "generator"),
    primary=("detection: all tokens, loss at replaced", "mixture: best head, end"),
  ),
}
