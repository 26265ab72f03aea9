"""This project's studies: arms that differ in one idea, and metrics that were chosen before the runs.

Command: python -m pretrain.ablations --study=e1 --data=annotated --output=e1
Source: docs/results/proof.md has hypotheses, targets and results; a study here lists its arms.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

_VOCAB = {"model.vocab_size": 8_192}
_AMBIGUOUS = "part of speech, ambiguous, last"
_DEPENDENCY = "dependency, all words, last"
_CLS = "similarity, STS-B dev, cls"
_UPOS = "ADJ,ADP,ADV,AUX,CCONJ,DET,INTJ,NOUN,NUM,PART,PRON,PROPN,PUNCT,SCONJ,SYM,VERB,X"


@dataclasses.dataclass(frozen=True)
class Arm:
  """A row of a table: runs that differ only in their seeds."""

  config: str  # value of `pretrain.main --config`
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # changed fields, by dotted name
  base: str = ""  # arm with which it is compared
  paper: str = ""  # the paper's result
  paper_base: str = ""  # the paper's result of the base
  after: Mapping[str, str] = dataclasses.field(default_factory=dict)  # field -> arm whose workdir it names
  # field -> arm whose final mean mixture weights, of the same seed, are its value
  learned: Mapping[str, str] = dataclasses.field(default_factory=dict)
  share: float = 1.0  # of the budget
  against: tuple[str, ...] = ()  # further arms with which it is compared

  @property
  def earlier(self) -> tuple[str, ...]:
    """The arms whose runs must be finished before this arm's run starts."""
    return (*self.after.values(), *self.learned.values())


@dataclasses.dataclass(frozen=True)
class FineTuning:
  """Settings for fine-tuning a cell's last checkpoint with a search of `finetune.main`.

  In values, {train}, {dev} and {test} are replaced by the files of UD's English EWT in the annotated data,
  and the name of a GLUE task, such as {rte}, by the folder with its files. {pairs} and {beir} are what
  docs/tutorials/embeddings.py writes into the folder `names` of the data.
  """

  config: str  # value of `finetune.main --config`
  fields: Mapping[str, Any]  # changed fields, by dotted name
  # Data for `finetune.evaluate --data` with the best model; '': use the search's own scores.
  scored_on: str = ""


@dataclasses.dataclass(frozen=True)
class Study:
  """A table: its arms, in order of their dependencies, and how each is evaluated."""

  title: str
  arms: Mapping[str, Arm]
  budget: int = 0  # steps per run; 0: the user must set it
  seeds: int = 3
  points: tuple[float, ...] = (1.0,)  # fractions of an arm's steps at which it is evaluated
  has_start: bool = False  # also evaluate it before the first step
  analyses: tuple[str, ...] = ()  # of `python -m pretrain.analysis`
  # Names in `FINE_TUNINGS`; with `has_start` also applied to the untrained encoder.
  fine_tunings: tuple[str, ...] = ()
  primary: tuple[str, ...] = ()  # measures that were chosen before the runs


def _tagging(sentences: int) -> FineTuning:
  """Returns fine-tuning on part-of-speech tags with `sentences` sentences, tuned on the development set."""
  fields = {
    "own.task": "tagging",
    "data.train_file": "{train}",
    "data.dev_file": "{dev}",
    "data.text": "2",
    "data.label": "4",
    "data.labels": _UPOS,  # all of them: 50 sentences lack some
    "data.train_rows": sentences,
    "search.batch_sizes": (16,),
    "search.learning_rates": (3e-4, 1e-3, 3e-3),
    "search.evaluations_per_epoch": 1,
  }
  return FineTuning("configs/finetune_own.py", fields, "{test}")


def _glue(task: str) -> FineTuning:
  """Returns fine-tuning on a GLUE task: one learning rate, batch size and run, scored on its dev set."""
  fields = {"tasks": task, "data.directory": f"{{{task}}}", "search.cells": "one", "search.num_seeds": 1}
  return FineTuning("configs/finetune_glue.py", fields)


# One embedding stage for every encoder, with nothing to choose.
_NAMES = FineTuning(
  "configs/finetune_embedding.py",
  {"data.train_file": "{pairs}", "search.learning_rates": (1e-3,), "search.evaluations_per_epoch": 1},
  "{beir}",
)
_TAGGING = {f"tagging_{sentences}": _tagging(sentences) for sentences in (50, 200, 1_000)}
_GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "rte", "mrpc", "stsb")
FINE_TUNINGS = _TAGGING | {"names": _NAMES} | {task: _glue(task) for task in _GLUE}

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


def _reversed(multiplier: float, base: str = "flat", against: tuple[str, ...] = ()) -> Arm:
  fields = _AMOS_FIELDS | {"generator.reversal_multiplier": multiplier}
  return Arm(_AMOS, fields, base, after={"train.init_from": "before"}, share=1 / 3, against=against)


STUDIES = {
  "e1": Study(
    "E1: pretraining beats random values, longer beats shorter",
    {"mlm": _MLM},
    budget=8_000,
    seeds=5,
    points=_EIGHTHS,
    has_start=True,
    fine_tunings=tuple(_TAGGING),
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
    {
      "before": Arm(_AMOS, _AMOS_FIELDS | {"generator.reversal_multiplier": 0.0}),
      "flat": _reversed(0.0, ""),
      "reversed": _reversed(-1.0, against=("along",)),
      "along": _reversed(1.0),
    },
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
    "E6: does detection beat masked LM at equal FLOPs?",
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
}
