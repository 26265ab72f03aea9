"""`kind='prompt'`: few-shot tasks; the checkpoint's language-modelling head predicts a word at [MASK].

Source: Gao et al. 2021 (LM-BFF) sections 5-6, src/models.py; COCO-LM section 5 and table 4.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs import finetune_base
from data import errors, tables
from data.errors import ConfigError
from data.glue.tasks import TASKS
from finetune import validate
from finetune.papers import glue_metrics
from finetune.papers.protocols import LARGEST_RATE, Cell
from finetune.prompt import data as prompt_data
from finetune.prompt.data import MAX_SCORE, Lengths, PromptData
from finetune.prompt.templates import TEMPLATES, PromptWriter, choose_words
from finetune.search import results as summary
from finetune.search.examples import Buckets
from finetune.search.problem import Batch, Problem, classification_loss
from finetune.search.results import Record, Results
from finetune.search.search import Search
from finetune.search.session import Plan, Session
from pretrain.models import heads
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.ops.vocab import vocab_logits
from pretrain.settings import fields
from pretrain.step import Metrics

logger = logging.getLogger(__name__)

RECIPES = {  # {head: recipes that train it}; CLM: h E^T + c', no dense layer; MLM: LN(gelu(W h + b)) E^T + c'
  "clm": "coco_lm, all_token, amos_coco_taco, metro_lm",
  "mlm": "bert, roberta, taco, modernbert, demo",
}


def lm_head(params: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
  """Returns the language-modelling head of a checkpoint, 'clm' or 'mlm'; without one, a ConfigError."""
  there = params.get("heads", {})
  if found := next((name for name in RECIPES if name in there), ""):
    return found
  recipe = meta.get("config", {}).get("recipe") or "unknown"
  having = " and ".join(f"{RECIPES[name]} ({name})" for name in RECIPES)
  raise ConfigError(
    f"--config.checkpoint: recipe {recipe!r} has no language-modelling head (its heads: "
    f"{', '.join(sorted(there)) or 'none'}); use one of {having}, or no prompts:\n"
    "  --config.checkpoint=DIR\n  --config=configs/finetune_glue.py"
  )


def make_problem(
  config: EncoderConfig,
  head: Mapping[str, Any],
  word_ids: Sequence[int],
  *,
  name: str,
  pad_id: int,
  max_length: int,
  is_regression: bool = False,
) -> Problem:
  """Returns the training problem of a task, which starts from the checkpoint's head (`name` from `lm_head`).

  Outputs are [batch, words] float32, the label words' logits at batch['mask_position'] [batch] int32; other
  tokens' logits are never computed. A regression has two words, for the lowest and highest score, and
  batch['labels'] [batch] float32 in 0-5.

  Raises:
    ConfigError: `max_length` exceeds the checkpoint's positions.
  """
  if max_length > config.max_length:
    raise ConfigError(
      f"prompts of {max_length} tokens, but the checkpoint has {config.max_length} positions; use shorter "
      f"prompts:\n  --config.prompt.max_length={config.max_length}"
    )
  words = np.asarray(word_ids, np.int32)

  def init_heads(key: jax.Array) -> dict:
    del key  # the head is the checkpoint's, so nothing is random
    return {name: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), dict(head))}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> jax.Array:
    ids, read = batch["ids"], batch["mask_position"][:, None]
    _, hidden = encode(
      params["encoder"], config, ids, ids != pad_id, pad_id=pad_id, row_keys=row_keys, read=read
    )
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    at_mask, table, bias = heads.scored(params["heads"][name], config, hidden.last, table)
    return vocab_logits(at_mask, table[words], bias[words])[:, 0]

  def loss(logits: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    function = polarity_loss if is_regression else classification_loss
    total = function(logits, batch["labels"], batch["weights"])
    return total, {"task_loss": (total, jnp.sum(batch["weights"]))}

  return Problem(init_heads, outputs, loss)


def polarity_loss(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns KL(target || model) over a regression's two words, summed over the batch, [] in nats.

  Logits are [batch, 2] of the low and the high word. A target t in 0-5, [batch], has the probabilities
  (1 - t/5, t/5). Weights [batch] are 0 at padding.

  Source: LM-BFF section 4.2. (Its code applies exp to targets that are not logarithms, unlike the paper.)
  """
  high = jnp.where(weights > 0, targets.astype(jnp.float32) / MAX_SCORE, 0.0)
  logits = jnp.where((weights > 0)[:, None], logits.astype(jnp.float32), 0.0)
  mixture = jnp.stack([1.0 - high, high], axis=-1)
  entropy = -jnp.sum(jax.scipy.special.xlogy(mixture, mixture), axis=-1)
  crossed = -jnp.sum(mixture * jax.nn.log_softmax(logits, axis=-1), axis=-1)
  return jnp.sum((crossed - entropy) * weights)


SOURCE = "COCO-LM table 4"
# {model: {metric of mnli: (mean, standard deviation)}} in percent, over LM-BFF's five splits.
REFERENCES: dict[str, dict[str, tuple[float, float]]] = {
  "RoBERTa base++": {"accuracy": (60.1, 1.5), "accuracy_mm": (61.8, 1.2)},
  "COCO-LM base++": {"accuracy": (66.5, 2.1), "accuracy_mm": (68.0, 2.3)},
  "RoBERTa large++": {"accuracy": (70.7, 1.3), "accuracy_mm": (72.0, 1.2)},
  "COCO-LM large++": {"accuracy": (72.0, 1.5), "accuracy_mm": (73.3, 1.1)},
}
_DEV = "k-shot dev"  # the set of a row without a test set
_PART = "* The test set is not GLUE's complete development set, so it is not the papers' test set."
_NO_TEST = (
  "** No test set. The scores are on the k-shot development sets that chose the runs: they are too high."
)


class TaskScores(NamedTuple):
  """The chosen runs of a task, one for each split, with their development and test scores."""

  chosen: Sequence[Record]  # each of one run, the best on the development set of its split
  tested: Sequence[Record]  # the same runs with test metrics; empty without a test set
  is_official: bool  # whether the test set is GLUE's complete development set


def make_report(title: str, scores: Sequence[TaskScores]) -> tables.Report:
  """Returns the report `prompt` (.md, .csv, .json) of the chosen runs of each task."""
  rows = [row for task in scores for row in _task_rows(task)]
  references = REFERENCES if any(row["task"] == "mnli" for row in rows) else {}
  columns = [
    tables.Column("task", _shown_task, "left"),
    tables.Column("metric", lambda row: glue_metrics.shown_metric(row["metric"]), "left"),
    tables.Column("mean (std)", lambda row: f"{tables.percent(row['mean'])} ({tables.percent(row['std'])})"),
    *(_reference_column(model) for model in references),
  ]
  judged = [row for row in rows if row["is_main"]]
  runs = [{**row, "split": split} for row in judged for split in row["cells"]]
  notes = [
    f"Mean and standard deviation in percent over {errors.counted(len(scores[0].chosen), 'split')} (of the "
    "population, as in LM-BFF). For each split, its development set chooses the cell and the evaluation."
  ]
  marks = {_mark(row) for row in rows}
  notes += [note for mark, note in (("*", _PART), ("**", _NO_TEST)) if mark in marks]
  if references:
    notes.append(f"RoBERTa and COCO-LM: {SOURCE}, over five splits, on GLUE's development sets.")
  details = [tables.Table(_RUN_COLUMNS, runs)]
  return tables.Report("prompt", f"Prompts with demonstrations, {title}", columns, rows, notes, details)


def _task_rows(scores: TaskScores) -> list[dict[str, Any]]:
  main, task, scored = scores.chosen[0].metric, scores.chosen[0].task, scores.tested or scores.chosen
  rows = []
  for metric in summary.metrics(scored[0]):
    over_splits = summary.pool(scored, metric, ddof=0)
    row = {
      "task": task,
      "metric": metric,
      "is_main": metric == main,
      "set": "test" if scores.tested else _DEV,
      "is_official": scores.is_official,
      "mean": over_splits.mean,
      "std": over_splits.std,
      "splits": len(scored),
      "per_split": _by_split(scored, metric),
      "cells": {split: record.cell.name for record in scored for split in record.seeds},
      "dev": _by_split(scores.chosen, main),
    }
    rows.append(row)
  return rows


def _by_split(records: Sequence[Record], metric: str) -> dict[int | str, float]:
  return {
    split: value for record in records for split, value in summary.summarise(record, metric).per_seed.items()
  }


def _mark(row: tables.Row) -> str:
  """Returns the mark after the task's name that refers to a note: '', '*' or '**'."""
  return "" if row["is_official"] else "**" if row["set"] == _DEV else "*"


def _shown_task(row: tables.Row) -> str:
  return glue_metrics.shown_task(row["task"], row["metric"]) + _mark(row)


def _reference_column(model: str) -> tables.Column:
  def show(row: tables.Row) -> str:
    if row["task"] != "mnli":
      return ""
    mean, std = REFERENCES[model][row["metric"]]
    return f"{mean:.1f} ({std:.1f})"

  return tables.Column(model, show)


def _tested(row: tables.Row) -> str:
  return "-" if row["set"] == _DEV else tables.percent(row["per_split"][row["split"]])


_RUN_COLUMNS = (
  tables.text_column("task", "task"),
  tables.Column("split", lambda row: str(row["split"])),
  tables.Column("chosen cell", lambda row: row["cells"][row["split"]], "left"),
  tables.Column("dev", lambda row: tables.percent(row["dev"][row["split"]])),
  tables.Column("test", _tested),
)


# LM-BFF uses the defaults of transformers 3.4: AdamW, with eps added after the square root.
OPTIMIZER = {
  "schedule": "linear",
  "adam_b1": 0.9,
  "adam_b2": 0.999,
  "adam_eps": 1e-8,
  "weight_decay": 0.0,
  "clip_norm": 1.0,
}
# The default grid, unless `search` sets these dimensions.
BATCH_SIZES = (2, 4, 8)  # LM-BFF
LEARNING_RATES = (3e-6, 4e-6, 5e-6)  # COCO-LM appendix
TEST = "test"  # folder of the test set's results
# Fields that this kind does not read -> the end of the error message.
_ELSEWHERE = {
  "from_scratch": "a prompt needs a trained head; remove the flag",
  "search.": "set\n  --config.search.batch_sizes=2,4,8\n  --config.search.learning_rates=3e-6,5e-6\n"
  "  --config.prompt.num_steps=1000\n  --config.prompt.splits=13,21,42",
  "data.train_rows": "set the examples per class:\n  --config.prompt.shots=16",
  "data.max_length": "use\n  --config.prompt.max_length=128",
  "seed": "a split's number is its seed; set\n  --config.prompt.splits=13,21,42",
  "output.predict": "GLUE's test sets are predicted with\n  --config=configs/finetune_glue.py",
}
_GRID = ("search.batch_sizes", "search.learning_rates")  # the only fields of `search` that this kind reads


class Prompts:
  """Few-shot fine-tuning with prompts; each drawn split chooses its own cell. Implements `search.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Checks the head, words and lengths and reads all data; raises a UserError before anything compiles."""
    self.session = session
    self.config: Any = session.config
    values = fields.flatten(session.config)
    _check_fields(values)
    cells = _cells(session.config)
    self.head = lm_head({"heads": session.start.heads}, session.start.meta)
    names = validate.task_names(values)
    words = {name: choose_words(TEMPLATES[name], self.config.prompt.words) for name in names}
    pieces = session.start.encoder.vocabulary
    writers = {name: PromptWriter(TEMPLATES[name], pieces, words[name]) for name in names}
    lengths = {name: self._lengths(writers[name]) for name in names}
    # Before the data is read, so that an error in the checkpoint is reported at once.
    problems = {name: self._problem(writers[name], lengths[name]) for name in names}
    self.data = {
      name: prompt_data.load(name, writers[name], session.config, lengths[name], download=download)
      for name in names
    }
    self.plans = [self._plan(self.data[name], problems[name], cells) for name in names]

  def _lengths(self, writer: PromptWriter) -> Lengths:
    settings = self.config.prompt
    return Lengths(
      settings.max_length or writer.template.max_length,
      settings.num_samples or writer.template.num_samples,
      self.config.data.eval_batch_size,
      self.session.pad_id,
    )

  def _problem(self, writer: PromptWriter, lengths: Lengths) -> Problem:
    return make_problem(
      self.session.encoder,
      self.session.start.heads[self.head],
      writer.word_ids,
      name=self.head,
      pad_id=lengths.pad_id,
      max_length=lengths.max_length,
      is_regression=writer.template.is_regression,
    )

  def _plan(self, data: PromptData, problem: Problem, cells: list[Cell]) -> Plan:
    every, longest = self.config.prompt.eval_every, data.lengths.max_length
    examples = len(next(iter(data.pools.values())).queries)

    def evaluation_steps(cell: Cell, steps_per_epoch: int) -> list[int]:
      del steps_per_epoch
      last = cell.total_steps(0)
      return sorted({*range(every, last, every), last})

    return Plan(
      data.task,
      problem,
      self.session.start.init_encoder,
      OPTIMIZER,
      data.metric,
      cells,
      list(data.pools),
      Buckets((longest,), (np.arange(examples),)),
      data.feed,
      lambda outputs_of, split: data.evaluate(outputs_of, data.dev[split]),
      evaluation_steps,
      self._fingerprint(data),
      {split: {"data": digest} for split, digest in data.digests.items()},  # splits can be added to a grid
    )

  def _fingerprint(self, data: PromptData) -> dict[str, Any]:
    return self.session.identity | {
      "head": self.head,
      "words": [int(word) for word in data.writer.word_ids],
      "optimizer": OPTIMIZER,
      "max_length": data.lengths.max_length,
      "num_samples": data.lengths.num_samples,
      "eval_every": self.config.prompt.eval_every,
    }

  def describe(self) -> list[str]:
    """Returns lines about the checkpoint, the data and the planned runs."""
    lines = [self.session.describe(used_head=self.head)]
    for plan in self.plans:
      lines += [*self.data[plan.name].lines, plan.describe()]
    return lines

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Tests the chosen run of each split and saves the best one's model, unless both were done before."""
    data = self.data[search.plan.name]
    of_splits = summary.choose_by_seed(records)
    if data.tests:
      for record in of_splits:
        self._test(search, data, record)
    if self.config.output.save_model:
      row = TASKS[data.task]
      words = [data.writer.vocabulary.piece(word) for word in data.writer.word_ids]
      task = {"name": row.name, "labels": list(row.labels) or None, "words": words}
      chosen = [search.run_of(record, *record.seeds) for record in of_splits]
      search.save_model(max(chosen, key=lambda run: run.value), task, recipe=f"{data.task}-prompt")

  def _test(self, search: Search, data: PromptData, record: Record) -> None:
    """Saves the test scores of the only run in `record`, unless they are already saved."""
    tested, (split,) = self._tested(data), record.seeds
    if split in tested.read(record.cell):
      return
    metrics = data.test(search.trained(record.cell, split).outputs_of, split)
    evaluation = summary.best(record.seeds[split], data.metric)._replace(metrics=metrics)
    tested.save(record.cell, split, data.metric, [evaluation])
    score = tables.percent(metrics[data.metric])
    logger.info(f"{data.task}: split {split}, test {data.metric} {score}")

  def _tested(self, data: PromptData) -> Results:
    """Opens the stored test scores of a task for this checkpoint, data and settings."""
    fingerprint = self._fingerprint(data) | {"test": data.test_digest}
    of_splits = {split: {"data": digest} for split, digest in data.digests.items()}
    return Results(self.session.workdir / TEST, data.task, fingerprint, of_splits)

  def report(self, records: Mapping[str, Sequence[Record]]) -> tables.Report:
    """Returns the table of means and standard deviations over the splits."""
    return make_report(
      self.session.title, [self._scores(self.data[name], of_task) for name, of_task in records.items()]
    )

  def _scores(self, data: PromptData, records: Sequence[Record]) -> TaskScores:
    chosen, tested = summary.choose_by_seed(records), []
    for record in chosen if data.tests else ():
      found = self._tested(data).read(record.cell)  # `finish` has stored it
      tested.append(record._replace(seeds={split: found[split] for split in record.seeds}))
    return TaskScores(chosen, tested, data.is_official)


def _check_fields(values) -> None:
  default = fields.flatten(finetune_base.get_config())
  for start, instead in _ELSEWHERE.items():
    for name, value in values.items():
      is_of = name.startswith(start) if start.endswith(".") else name == start
      if is_of and name not in _GRID and value != default[name]:
        raise ConfigError(f"{name}={value!r}: kind='prompt' does not use this field; {instead}")


def _cells(config: Any) -> list[Cell]:
  """Returns the grid's hyperparameter cells."""
  batch_sizes = config.search.batch_sizes or BATCH_SIZES
  learning_rates = config.search.learning_rates or LEARNING_RATES
  rules = {
    "prompt.splits": (config.prompt.splits, lambda value: 0 <= value < 2**31, "seeds from 0"),
    "search.batch_sizes": (
      batch_sizes,
      lambda value: value >= 1 and value % config.train.microbatches == 0,
      "multiples of train.microbatches",
    ),
    "search.learning_rates": (
      learning_rates,
      lambda value: 0 < value <= LARGEST_RATE,
      f"numbers above 0, at most {LARGEST_RATE:g}",
    ),
  }
  for name, (values, is_fine, expected) in rules.items():
    wrong = [value for place, value in enumerate(values) if not is_fine(value) or value in values[:place]]
    if wrong:
      raise ConfigError(f"{name}={tuple(values)}: {wrong[0]} is wrong; expected {expected}, each once")
  return [
    Cell(batch, rate, num_steps=config.prompt.num_steps)
    for batch, rate in itertools.product(batch_sizes, learning_rates)
  ]
