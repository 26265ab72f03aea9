"""`kind='own'`: a search on a user's own file, its report, and the model with `task.json`."""

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from data.tables import Report, Table
from finetune.own import answers, problems, report
from finetune.own.load import Part, load
from finetune.own.metrics import Outputs, details, measure, names
from finetune.own.schema import FILE
from finetune.papers import spaces
from finetune.papers.spaces import Cell
from finetune.search import best_model, texts
from finetune.search.classification import exported_task
from finetune.search.examples import Examples, add_to_digest, make_buckets
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from pretrain.export.task_fields import FIRST_ROWS

NAME = "own"
LEAST_STEPS, MOST_EPOCHS = 300, 30  # of the one run on a small file, unless search.epochs is set


class Own:
  """Fine-tuning on a user's own file: its search and report. Implements `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads and tokenises the files; nothing is compiled. `download`: whether TFDS may download.

    Raises:
      UserError: see data/errors.py.
    """
    self.session, config = session, session.config
    longest = session.max_length(spaces.SMALL_TASK)
    self.task = load(config, session.start.encoder.vocabulary, max_length=longest, download=download)
    self.schema = self.task.schema
    self.train = self.task.train.examples(scale=self.task.scale, shift=self.task.shift)
    self.buckets, self.dev_buckets = (
      make_buckets(
        part.inputs.examples,
        most=config.data.buckets,
        multiple=config.data.bucket_multiple,
        max_length=self.schema.max_length,
      )
      for part in (self.task.train, self.task.dev)
    )
    self.plans = [self._plan()]
    self.details: list[Table] = []  # of the best run, made by `finish`

  def _cells(self) -> list[Cell]:
    """Returns the hyperparameter cells to train; a single run on a small file gets more epochs."""
    cells, search = self.session.cells(spaces.SMALL_TASK), self.session.config.search
    if search.cells != "one" or search.epochs:
      return cells
    return [read_often(cell, sum(self.buckets.num_batches(cell.batch_size))) for cell in cells]

  def _plan(self) -> Plan:
    own = self.session.config.own

    def evaluate(outputs_of: OutputsOf, seeds: Sequence[int]) -> list[dict[str, float]]:
      outputs = self.dev_outputs(outputs_of, len(seeds))
      return [measure(self.schema, self.task.dev.targets, of_run) for of_run in outputs]

    of_labels: dict[str, object] = {
      "class_weights": own.class_weights,
      "label_smoothing": own.label_smoothing,
    }
    labels = self.schema.labels
    if labels and not self.task.train.counts(len(labels)).all():  # files and targets do not tell how many
      of_labels["labels"] = list(labels)
    return self.session.plan(
      NAME,
      problems.problem(
        self.schema,
        self.session.encoder,
        self.session.head,
        pad_id=self.session.pad_id,
        targets=self.task.train.targets,
        balanced=own.class_weights == "balanced",
        smoothing=own.label_smoothing,
      ),
      names(self.schema)[0],
      self._cells(),
      self.train,
      self.buckets,
      evaluate,
      digest=_digest(self.train, self.task.dev),
      max_length=self.schema.max_length,
      also={"files": self.task.digests, "pooling": self.schema.pooling, **of_labels},
    )

  def dev_outputs(self, outputs_of: OutputsOf, num_runs: int) -> Sequence[Outputs]:
    """Returns every run's outputs on the development rows; those of a regression in the file's scale."""
    made = self.task.dev.inputs
    by_run = texts.outputs(
      made.examples,
      self.dev_buckets,
      outputs_of,
      num_runs=num_runs,
      batch_size=self.session.config.data.eval_batch_size,
      pad_id=self.session.pad_id,
    )
    joined = [answers.join(made, of_run, self.schema) for of_run in by_run]
    if self.schema.kind != "regression":
      return joined
    return [np.asarray(of_run, np.float64) * self.task.scale + self.task.shift for of_run in joined]

  def describe(self) -> list[str]:
    """Returns lines that describe checkpoint, data and search."""
    return [
      self.session.describe(fresh_head=self.schema.head),
      *self.task.lines,
      f"own: {self.buckets.describe(self.train.sizes)}",
      *(plan.describe() for plan in self.plans),
    ]

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model, unless it is saved already, and makes the tables of its answers."""
    chosen = best_model.choose(search, records)
    if self.session.config.output.save_model:
      problem, pooling = self.schema.problem_type or None, self.schema.pooling
      task = exported_task(NAME, self.schema.labels, self.session.head)
      task |= {"problem_type": problem, "pooling": pooling}
      best_model.save(
        search,
        chosen,
        task,
        output_scale=self.task.scale,
        output_shift=self.task.shift,
        folder="",
        texts={FILE: self.schema.as_json(), FIRST_ROWS: json.dumps(self.task.first)},
      )
    (outputs,) = self.dev_outputs(search.trained(chosen.cell, chosen.seed).outputs_of, 1)
    self.details = details(self.schema, self.task.dev.targets, outputs)

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the scores of the best cell, with tables of its best run's answers."""
    title = f"{self.session.config.data.train_file}, {self.session.title}"
    (plan,), rows = self.plans, len(self.task.dev.targets)
    return report.make_report(
      title, self.schema, records[NAME], self.details, statistic=plan.summary, rows=rows
    )


def read_often(cell: Cell, steps_per_epoch: int) -> Cell:
  """Returns `cell` with its epochs raised until a run has `LEAST_STEPS` steps, at most to `MOST_EPOCHS`."""
  enough = min(-(-LEAST_STEPS // steps_per_epoch), MOST_EPOCHS)
  return cell._replace(epochs=max(cell.epochs or 1, enough))


def _digest(train: Examples, dev: Part) -> str:
  digest = hashlib.sha256()
  labels = train.fields.get("labels")
  labels = np.concatenate(train.token_fields["labels"]) if labels is None else labels
  add_to_digest(digest, train.ids, labels)
  add_to_digest(digest, dev.inputs.examples.ids, dev.classes)
  return digest.hexdigest()
