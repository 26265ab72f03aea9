"""`kind='own'`: a search on a user's own file, its report, and the model with its `task.json`."""

import functools
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from data.tables import Report, Table
from finetune.own import answers, report
from finetune.own.load import Part, load
from finetune.own.metrics import METRICS, details, measure
from finetune.own.schema import FILE
from finetune.papers.spaces import Cell
from finetune.search import best_model, losses, texts, warm_start
from finetune.search.classification import make_problem
from finetune.search.examples import Examples, make_buckets
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf, Problem
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record

NAME = "own"
SPACE_OF = "cola"  # whose search space a protocol uses where the config asks for it: a small task's
LEAST_STEPS, MOST_EPOCHS = 300, 30  # of the one run of a small file, unless search.epochs says it


class Own:
  """A search on a file; a `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads and tokenises the files; nothing is compiled, and there is nothing to download.

    Raises:
      UserError: see data/errors.py.
    """
    del download
    self.session, config = session, session.config
    self.task = load(config, session.start.vocabulary, max_length=session.max_length(SPACE_OF))
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
    """The session's; the one run of a small file reads it more often."""
    cells, search = self.session.cells(SPACE_OF), self.session.config.search
    if search.cells != "one" or search.epochs:
      return cells
    made = []
    for cell in cells:
      steps = sum(self.buckets.num_batches(cell.batch_size))
      epochs = max(cell.epochs or 1, min(-(-LEAST_STEPS // steps), MOST_EPOCHS))
      made.append(cell._replace(epochs=epochs))
    return made

  def _problem(self) -> Problem:
    own, schema = self.session.config.own, self.schema
    options = {
      "class_weights": _class_weights(own.class_weights, self.task.train),
      "smoothing": own.label_smoothing,
    }
    loss = {
      "classification": functools.partial(losses.classification_loss, **options),
      "multilabel": functools.partial(losses.multilabel_loss, **options),
      "regression": losses.regression_loss,
    }[schema.kind]
    return make_problem(
      self.session.encoder,
      self.session.head,
      num_outputs=schema.num_outputs,
      pad_id=self.session.pad_id,
      pooling=schema.pooling,
      loss=loss,
    )

  def _plan(self) -> Plan:
    own = self.session.config.own

    def evaluate(outputs_of: OutputsOf, seeds: Sequence[int]) -> list[dict[str, float]]:
      outputs = self.dev_outputs(outputs_of, len(seeds))
      return [measure(self.schema, self.task.dev.targets, of_run) for of_run in outputs]

    of_labels = {"class_weights": own.class_weights, "label_smoothing": own.label_smoothing}
    return self.session.plan(
      NAME,
      self._problem(),
      METRICS[self.schema.kind][0],
      self._cells(),
      self.train,
      self.buckets,
      evaluate,
      eval_lengths=self.dev_buckets.lengths,
      digest=_digest(self.train, self.task.dev),
      max_length=self.schema.max_length,
      keeps_weights=True,  # the report is about the best run's answers
      also={"files": self.task.digests, "pooling": self.schema.pooling, **of_labels},
    )

  def dev_outputs(self, outputs_of: OutputsOf, num_runs: int) -> list[np.ndarray]:
    """[rows, outputs] float of every run for the development rows, numbers as in the file."""
    made = self.task.dev.inputs
    found = texts.outputs_of_all(
      made.examples,
      self.dev_buckets,
      outputs_of,
      num_runs=num_runs,
      batch_size=self.session.config.data.eval_batch_size,
      pad_id=self.session.pad_id,
    )
    joined = [answers.join(made, of_run) for of_run in found]
    if self.schema.kind != "regression":
      return joined
    return [of_run.astype(np.float64) * self.task.scale + self.task.shift for of_run in joined]

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    start = warm_start.describe(self.session.start, used_heads={}, fresh_heads={"classification": None})
    padded = ", ".join(map(str, self.buckets.lengths))
    waste = self.buckets.waste(self.train.sizes)
    return [
      f"{self.session.title}: {start}",
      *self.task.lines,
      f"own: padded to {padded} tokens ({waste:.0%} padding)",
      *(plan.describe() for plan in self.plans),
    ]

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model, unless it is there, and makes the tables of its answers."""
    chosen = best_model.choose(search, records)
    if self.session.config.output.save_model:
      head = self.session.head
      task = {
        "name": NAME,
        "labels": list(self.schema.labels) or None,
        "problem_type": self.schema.problem_type,
        "activation": head.activation,
        "pooling": self.schema.pooling,
      }
      best_model.save(
        search,
        chosen,
        task,
        output_scale=self.task.scale,
        output_shift=self.task.shift,
        folder="",
        texts={FILE: self.schema.as_json()},
      )
    (outputs,) = self.dev_outputs(search.trained(chosen.cell, chosen.seed).outputs_of, 1)
    self.details = details(self.schema, self.task.dev.targets, outputs)

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """The scores of the best cell and what its best run answered."""
    title = f"{self.session.config.data.train_file}, {self.session.title}"
    return report.make_report(
      title, self.schema, records[NAME], self.details, rows=len(self.task.dev.targets)
    )


def _class_weights(how: str, train: Part) -> tuple[float, ...]:
  """By how much each class counts; () if all count alike."""
  if how == "none":
    return ()
  wanted = train.targets
  if wanted.ndim == 1:  # their mean over the training rows is 1
    counts = np.bincount(wanted)
    return tuple(float(len(wanted) / (np.count_nonzero(counts) * max(count, 1))) for count in counts)
  there = wanted.sum(axis=0)  # as much as the rows without the label
  return tuple(float((len(wanted) - count) / max(count, 1)) or 1.0 for count in there)


def _digest(train: Examples, dev: Part) -> str:
  digest = hashlib.sha256()
  for ids, labels in (
    (train.ids, train.fields["labels"]),
    (dev.inputs.examples.ids, dev.targets),
  ):
    for one in ids:
      digest.update(one.tobytes() + b"|")
    digest.update(labels.tobytes())
  return digest.hexdigest()
