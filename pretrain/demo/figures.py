"""The numbers and examples of the demo's summary, from a checkpoint and the run's metrics file."""

import math
import os
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from data import vocabulary
from data.errors import DataError
from pretrain import metrics, prepared
from pretrain.analysis.heldout import (
  Arrays,
  FrequencyAnswers,
  collect,
  commonest_share,
  describe_replaced,
  entropy,
  frequency_answers,
  ranking_area,
)
from pretrain.checkpoint import load_params
from pretrain.demo.examples import Example, find_examples
from pretrain.run import Run, make_run
from pretrain.settings.objectives.objective import Contrast

Answer = tuple[str, float, str]  # label of the metric, value of its trivial answer, which answer that is


class Row(NamedTuple):
  """One line of the summary; the trivial answer needs no training on this text but counting."""

  name: str
  first: float | None  # before training; None: not measured then
  last: float
  trivial: float
  answer: str  # what the trivial answer is
  is_loss: bool  # in nats, the lower the better; else a fraction, the higher the better


class Summary(NamedTuple):
  """What the demo reports of a finished run."""

  step: int
  checkpoint: str
  rows: list[Row]
  mixture: dict[str, tuple[float, float]]  # {head: mean weight at the start, at the end}
  examples: list[Example]
  blocks: int  # held-out rows all figures are over
  masked: int  # masked tokens in them
  cls_gain: float  # nats of the unigram answer that knowing the place of [CLS] is worth
  probabilities: tuple[float, float]  # mean probability the encoder gives replaced and original tokens
  replace_rate: float


def summarise(config: ConfigDict, workdir: str) -> Summary:
  """Reads the newest checkpoint, metrics and records of a finished run; DataError where one is not there."""
  params, meta = load_params(workdir)
  first, last = heldout_metrics(workdir, last_step=meta["step"])
  records = prepared.open(config)
  run = make_run(config, records.tokens)
  rows = min(len(records.heldout), config.train.batch_size * config.train.eval_batches)
  arrays = collect(run, params, records.heldout, describe_replaced, rows=rows)
  words = vocabulary.load(os.path.join(records.directory, "vocabulary"))
  unigram = prepared.unigram(records.directory)
  tokens = run.recipe.tokens
  is_token = arrays["ids"] != tokens.pad
  is_replaced = arrays["ids"] != arrays["input_ids"]
  probability = arrays["probability_replaced"]
  frequencies = frequency_answers(arrays, unigram, pad_id=tokens.pad, cls_id=tokens.cls)
  return Summary(
    step=meta["step"],
    checkpoint=os.path.join(workdir, "checkpoints", str(meta["step"])),
    rows=make_rows(first, last, arrays, frequencies, run),
    mixture={
      name.removeprefix("mixture_weight_").replace("_", " "): (first[name], last[name])
      for name in last
      if name.startswith("mixture_weight_")
    },
    examples=find_examples(arrays, words, tokens),
    blocks=int(is_token.any(axis=-1).sum()),
    masked=int(arrays["selected"].sum()),
    cls_gain=frequencies.cls_gain,
    probabilities=(
      float(probability[is_replaced].mean()),
      float(probability[is_token & ~is_replaced].mean()),
    ),
    replace_rate=last["replace_rate"],
  )


def heldout_metrics(workdir: str, *, last_step: int) -> tuple[dict[str, float], dict[str, float]]:
  """The held-out metrics of step 0 and of the last step, without 'eval/'; DataError where one is missing."""
  means_at = [(line["step"], metrics.heldout_means(line)) for line in metrics.read(workdir)]
  means_of = {step: means for step, means in means_at if means}
  missing = [step for step in (0, last_step) if step not in means_of]
  if missing:
    raise DataError(
      f"{os.path.join(workdir, metrics.FILE_NAME)} has no held-out metrics of step {missing[0]}, with which "
      f"the summary compares; remove {workdir} and start the demo again"
    )
  return means_of[0], means_of[last_step]


def make_rows(
  first: dict[str, float], last: dict[str, float], arrays: Arrays, frequencies: FrequencyAnswers, run: Run
) -> list[Row]:
  """The lines of both tables, losses first: each metric that was measured, beside its trivial answer.

  `first` and `last` are held-out metrics before and after training; the arrays are of `describe_replaced`.
  """
  is_word = ~np.isin(arrays["ids"], run.recipe.tokens.special)
  is_replaced = (arrays["ids"] != arrays["input_ids"])[is_word]
  area = ranking_area(is_replaced, arrays["probability_replaced"][is_word])
  measured = last if math.isnan(area) else last | {"ranking_area": area}
  losses, hits = _trivial_losses(last, frequencies, run), _trivial_hits(first, arrays, run)
  return [
    Row(label, first.get(metric), measured[metric], trivial, answer, is_loss)
    for answers, is_loss in ((losses, True), (hits, False))
    for metric, (label, trivial, answer) in answers.items()
    if metric in measured
  ]


def _trivial_losses(last: dict[str, float], frequencies: FrequencyAnswers, run: Run) -> dict[str, Answer]:
  """{metric: its trivial answer}, in the order of the table."""
  counting, rate = "token frequencies", last["replace_rate"]
  heads = [name for name in last if name.startswith(("generator_loss_layer_", "generator_loss_generator_"))]
  answers: dict[str, Answer] = {}
  for name in heads or ["generator_loss"]:
    head = name.removeprefix("generator_loss").removeprefix("_").replace("_", " ")
    answers[name] = (f"generator, {head}" if head else "generator", frequencies.masked, counting)
  answers |= {
    "rtd_loss": ("replaced token detection", entropy(rate), f"always {rate:.1%}"),
    "clm_cross_entropy_replaced": ("corrective LM, replaced tokens", frequencies.replaced, counting),
  }
  clm = run.recipe.objectives.get("clm")
  if clm is not None and clm.copy and clm.form == "mixture":  # else its loss is another
    answers["clm_loss"] = ("corrective LM, with copying", frequencies.corrected, "the two above")
  for contrast, number in _contrasts(run):
    label = f"{contrast.label}, 1 of {number}"
    answers[f"{contrast.name}_loss"] = (label, float(np.log(number)), "guessing")
  return answers


def _trivial_hits(first: dict[str, float], arrays: Arrays, run: Run) -> dict[str, Answer]:
  """{metric: its trivial answer}, in the order of the table."""
  always = "always 'original'"
  replaced = arrays["ids"][arrays["ids"] != arrays["input_ids"]]
  answers: dict[str, Answer] = {
    "rtd_accuracy_replaced": ("replaced tokens recognised", 0.0, always),
    "rtd_accuracy_original": ("original tokens recognised", 1.0, always),
    "ranking_area": ("replaced ranked above original", 0.5, "guessing"),
    "clm_lm_accuracy_replaced": ("replaced tokens restored", commonest_share(replaced), "commonest token"),
  }
  for contrast, number in _contrasts(run):
    # An untrained network tells most blocks apart: chance would be too low a bar.
    metric = f"{contrast.name}_accuracy"
    answers[metric] = (f"crop found, 1 of {number}", first.get(metric, 0.0), "untrained net")
  return answers


def _contrasts(run: Run) -> list[tuple[Contrast, int]]:
  """Contrastive objectives, and among how many vectors each finds a partner."""
  objectives = [each for each in run.recipe.objectives.values() if isinstance(each, Contrast)]
  return [(each, each.candidates(run.config.train.batch_size)) for each in objectives]
