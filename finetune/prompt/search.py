"""`kind='prompt'`: few-shot tasks, predicted by the checkpoint's language-modelling head, and their table."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs import finetune_base
from data import tables
from data.errors import ConfigError
from data.glue.tasks import TASKS
from finetune import validate
from finetune.papers.spaces import LARGEST_RATE, Cell
from finetune.prompt import data as prompt_data
from finetune.prompt import report as prompt_report
from finetune.prompt import task as prompt
from finetune.prompt.data import Lengths, PromptData
from finetune.prompt.report import TaskScores
from finetune.prompt.templates import TEMPLATES, PromptWriter, choose_words
from finetune.search import best_model, summary
from finetune.search.examples import Buckets
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf, Problem
from finetune.search.results import Results
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from pretrain.command import fields

logger = logging.getLogger(__name__)

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
  """Few-shot fine-tuning with prompts; each drawn split chooses its own cell. Implements `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Checks the head, words and lengths and reads all data; raises a UserError before anything compiles."""
    self.session = session
    self.config: Any = session.config
    values = fields.flatten(session.config)
    _check_fields(values)
    cells = _cells(session.config)
    self.head = prompt.lm_head({"heads": session.start.heads}, session.start.meta)
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
    return prompt.make_problem(
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

    def evaluate(outputs_of: OutputsOf, splits: Sequence[int]) -> list[dict[str, float]]:
      return data.evaluate(outputs_of, [data.dev[split] for split in splits])

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
      evaluate,
      evaluation_steps,
      self._fingerprint(data),
      seed_field="data",  # splits can be added to a grid: each has its own digest
      by_seed=True,
    )

  def _fingerprint(self, data: PromptData) -> dict[str, Any]:
    return self.session.identity | {
      "data": {str(split): digest for split, digest in data.digests.items()},
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
      chosen = [best_model.run_of(search, record, *record.seeds) for record in of_splits]
      best_model.save(search, max(chosen, key=lambda run: run.value), task, recipe=f"{data.task}-prompt")

  def _test(self, search: Search, data: PromptData, record: Record) -> None:
    """Saves the test scores of the only run in `record`, unless they are already saved."""
    tested, (split,) = self._tested(data), record.seeds
    if not tested.missing(record.cell, [split]):
      return
    metrics = data.test(search.trained(record.cell, split).outputs_of, split)
    evaluation = summary.best(record.seeds[split], data.metric)._replace(metrics=metrics)
    tested.save(record._replace(seeds={split: [evaluation]}))
    score = tables.percent(metrics[data.metric])
    logger.info(f"{data.task}: split {split}, test {data.metric} {score}")

  def _tested(self, data: PromptData) -> Results:
    """Opens the stored test scores of a task for this checkpoint, data and settings."""
    fingerprint = self._fingerprint(data) | {"test": data.test_digest}
    return Results(self.session.workdir / TEST, data.task, fingerprint, seed_field="data")

  def report(self, records: Mapping[str, Sequence[Record]]) -> tables.Report:
    """Returns the table of means and standard deviations over the splits."""
    return prompt_report.make_report(
      self.session.title, [self._scores(self.data[name], of_task) for name, of_task in records.items()]
    )

  def _scores(self, data: PromptData, records: Sequence[Record]) -> TaskScores:
    chosen, tested = summary.choose_by_seed(records), []
    for record in chosen if data.tests else ():
      of_test = self._tested(data).finished(record.cell, list(record.seeds))
      assert of_test is not None  # `finish` has stored it
      tested.append(of_test)
    return TaskScores(chosen, tested, data.is_official)


def _check_fields(values) -> None:
  default = fields.flatten(finetune_base.get_config())
  for start, instead in _ELSEWHERE.items():
    for name, value in values.items():
      is_of = name.startswith(start) if start.endswith(".") else name == start
      if is_of and name not in _GRID and value != default[name]:
        raise ConfigError(f"{name}={value!r}: kind='prompt' does not use this field; {instead}")


def _cells(config: Any) -> list[Cell]:
  """Returns the grid's hyperparameter cells by batch size, so that neighbours can share a program."""
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
