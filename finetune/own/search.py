"""`kind='own'`: a search on a user's own file, with the head and loss of its kind; report, and model."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from data import tables
from data.errors import counted
from data.tables import Report, Table
from finetune.own import answers, spans, target_values
from finetune.own.answers import ERRORS, Outputs, details, measure, names
from finetune.own.load import Part, load
from finetune.own.schema import FILE, TaskSchema
from finetune.papers import protocols
from finetune.papers.protocols import Cell
from finetune.search import examples
from finetune.search import problem as problems
from finetune.search import results as summary
from finetune.search.examples import Examples, add_to_digest, make_buckets
from finetune.search.problem import Batch, HeadSettings, OutputsOf, Problem, exported_task, make_problem
from finetune.search.results import Record
from finetune.search.search import Search
from finetune.search.session import Plan, Session
from pretrain.export.task_fields import FIRST_ROWS
from pretrain.models import heads
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import pool
from pretrain.step import Metrics


def make(
  schema: TaskSchema,
  config: EncoderConfig,
  head: HeadSettings,
  *,
  pad_id: int,
  targets: np.ndarray | Sequence[np.ndarray] = (),
  balanced: bool = False,
  smoothing: float = 0.0,
) -> Problem:
  """Builds the training problem (head, outputs and loss) for a schema's kind of task.

  Args:
    targets: of the training rows, from which the loss takes the frequencies of classes and words.
    balanced: whether classes are weighted by their inverse frequency.
    smoothing: share of the target that is spread over all classes.
  """
  options = {"class_weights": _class_weights(schema, targets) if balanced else (), "smoothing": smoothing}
  if schema.kind == "tagging":
    return _tagging(schema, config, head, pad_id=pad_id, targets=targets, **options)
  make = functools.partial(make_problem, config, head, num_outputs=schema.num_outputs, pad_id=pad_id)
  if schema.kind == "span_pairs":  # the head reads the means over two spans, concatenated
    return make(
      loss=functools.partial(problems.classification_loss, **options),
      name="span_pairs",
      pooling=vectors_of_spans,
      num_vectors=2,
    )
  loss = {
    "classification": functools.partial(problems.classification_loss, **options),
    "multilabel": functools.partial(problems.multilabel_loss, **options),
    "regression": problems.regression_loss,
  }[schema.kind]
  return make(loss=loss, pooling=schema.pooling)


def _tagging(
  schema: TaskSchema,
  config: EncoderConfig,
  head: HeadSettings,
  *,
  pad_id: int,
  targets: np.ndarray | Sequence[np.ndarray],
  class_weights: Sequence[float],
  smoothing: float,
) -> Problem:
  """Builds the training problem of tagging words; its outputs are [batch, length, labels].

  A sentence's loss is the sum over its words, divided by the mean number of words of the training set. So the
  loss of a batch is about the mean over words, and a sentence's part does not depend on the others.
  """

  def init_heads(key: jax.Array) -> dict:
    return {"tagging": heads.init_tagging_head(key, config, num_outputs=len(schema.labels))}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> jax.Array:
    ids = batch["ids"]
    _, hidden = encode(params["encoder"], config, ids, ids != pad_id, pad_id=pad_id, row_keys=row_keys)
    own = params["heads"]["tagging"]
    return heads.apply_tagging_head(own, hidden.last, dropout=head.dropout, row_keys=row_keys, config=config)

  def loss(logits: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    weights = batch["weights"][:, None] * (batch[target_values.WORD] > 0)
    total = problems.classification_loss(
      logits.reshape(-1, logits.shape[-1]),
      batch["labels"].reshape(-1),
      weights.reshape(-1),
      class_weights=class_weights,
      smoothing=smoothing,
    )
    mean_words = float(np.mean([len(of_row) for of_row in targets]))
    return total / mean_words, {"task_loss": (total, jnp.sum(weights))}

  return Problem(init_heads, outputs, loss)


def vectors_of_spans(hidden: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns the means of [batch, length, embed] over the tokens of both spans: [batch, 2 * embed] float32.

  `batch` has the token field `spans.SPAN`, [batch, length] int; a span without a token gives 0.
  """
  return jnp.concatenate(
    [pool(hidden, (batch[spans.SPAN] & of) > 0, "mean") for of in (spans.FIRST, spans.SECOND)], axis=-1
  )


def _class_weights(schema: TaskSchema, targets: np.ndarray | Sequence[np.ndarray]) -> tuple[float, ...]:
  """Returns the weight of each class in the loss, inverse to its frequency."""
  wanted = np.concatenate(targets) if isinstance(targets, list) else np.asarray(targets)
  if wanted.ndim == 1:  # the mean weight over the training rows is 1
    counts = np.bincount(wanted, minlength=len(schema.labels))
    return tuple(float(len(wanted) / (np.count_nonzero(counts) * max(count, 1))) for count in counts)
  there = wanted.sum(axis=0)  # rows with a label weigh as much as the rows without it
  return tuple(float((len(wanted) - count) / max(count, 1)) or 1.0 for count in there)


def make_report(
  title: str,
  schema: TaskSchema,
  records: Sequence[Record],
  of_best: Sequence[tables.Table],
  *,
  statistic: str,
  rows: int,
) -> tables.Report:
  """Makes the report (`results.md`, `.csv`, `.json`) of finished cells, evaluated on `rows` rows.

  `of_best` are tables of the best run's answers; `statistic` is 'median' or 'mean', as in the search.
  """
  metric = records[0].metric
  chosen = summary.choose(records, metric, statistic)
  scores = [
    {
      "metric": name,
      "is_main": name == metric,
      "cell": chosen.cell.name,
      "value": summary.score(summary.summarise(chosen, name), statistic),
      **summary.summarise(chosen, name).values(),
    }
    for name in summary.metrics(chosen)
  ]
  columns = [
    tables.text_column("metric", "metric"),
    *(_number_column(name, key) for name, key in (("score", "value"), ("std", "std"), ("min", "minimum"))),
    _number_column("max", "maximum"),
    tables.Column("all seeds", _seeds, "left"),
  ]
  others = [
    {"cell": record.cell.name, "value": summary.score(summary.summarise(record), statistic)}
    for record in records
  ]
  cells = tables.Table((tables.text_column("cell", "cell"), tables.percent_column(metric, "value")), others)
  notes = [
    f"Cell {chosen.cell.name}; {statistic} over {counted(len(chosen.seeds), 'seed')}, {_unit(schema)}. A "
    f"run's score is its best evaluation on {counted(rows, 'development row')}; the tables show the best "
    "run. It was chosen on these rows, so its scores on new rows may be slightly lower.",
    *summary.skipped_notes({"own": summary.summarise(chosen).skipped_updates}),
  ]
  shown = [*of_best, *([cells] if len(records) > 1 else [])]
  return tables.Report("results", f"{_title(schema)}, {title}", columns, scores, notes, shown)


def of_one(
  title: str, schema: TaskSchema, scores: dict[str, float], of_answers: Sequence[tables.Table], *, rows: int
) -> tables.Report:
  """Returns the report of one model's `scores` on `rows` rows; `of_answers` are tables of its answers."""
  found = [{"metric": name, "value": value, "rows": rows} for name, value in scores.items()]
  columns = [tables.text_column("metric", "metric"), _number_column("score", "value")]
  notes = [f"{counted(rows, 'row')}; {_unit(schema)}."]
  return tables.Report("results", f"{_title(schema)}, {title}", columns, found, notes, of_answers)


def _title(schema: TaskSchema) -> str:
  return schema.kind.capitalize().replace("_", " ")


def _unit(schema: TaskSchema) -> str:
  return f"in percent but for {', '.join(ERRORS)}" if schema.kind == "regression" else "in percent"


def _number(row: tables.Row, value: float) -> str:
  return f"{value:.4g}" if row["metric"] in ERRORS else tables.percent(value)


def _number_column(header: str, key: str) -> tables.Column:
  return tables.Column(header, lambda row: _number(row, row[key]))


def _seeds(row: tables.Row) -> str:
  return "  ".join(_number(row, value) for value in row["per_seed"].values())


NAME = "own"
LEAST_STEPS, MOST_EPOCHS = 300, 30  # of the one run on a small file, unless search.epochs is set


class Own:
  """Fine-tuning on a user's own file: its search and report. Implements `search.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads and tokenises the files; nothing is compiled. `download`: whether TFDS may download.

    Raises:
      UserError: see data/errors.py.
    """
    self.session, config = session, session.config
    longest = session.max_length(protocols.SMALL_TASK)
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
    cells, search = self.session.cells(protocols.SMALL_TASK), self.session.config.search
    if search.cells != "one" or search.epochs:
      return cells
    return [read_often(cell, sum(self.buckets.num_batches(cell.batch_size))) for cell in cells]

  def _plan(self) -> Plan:
    own = self.session.config.own

    of_labels: dict[str, object] = {
      "class_weights": own.class_weights,
      "label_smoothing": own.label_smoothing,
    }
    labels = self.schema.labels
    if labels and not self.task.train.counts(len(labels)).all():  # files and targets do not tell how many
      of_labels["labels"] = list(labels)
    return self.session.plan(
      NAME,
      make(
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
      lambda outputs_of, seed: measure(self.schema, self.task.dev.targets, self.dev_outputs(outputs_of)),
      digest=_digest(self.train, self.task.dev),
      max_length=self.schema.max_length,
      also={"files": self.task.digests, "pooling": self.schema.pooling, **of_labels},
    )

  def dev_outputs(self, outputs_of: OutputsOf) -> Outputs:
    """Returns a model's outputs on the development rows; those of a regression in the file's scale."""
    made, size = self.task.dev.inputs, self.session.config.data.eval_batch_size
    sizes = {"batch_size": size, "pad_id": self.session.pad_id}
    joined = answers.join(
      made, examples.outputs(made.examples, self.dev_buckets, outputs_of, **sizes), self.schema
    )
    if self.schema.kind != "regression":
      return joined
    return np.asarray(joined, np.float64) * self.task.scale + self.task.shift

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
    chosen = search.choose(records)
    if self.session.config.output.save_model:
      problem, pooling = self.schema.problem_type or None, self.schema.pooling
      task = exported_task(NAME, self.schema.labels, self.session.head)
      task |= {"problem_type": problem, "pooling": pooling}
      search.save_model(
        chosen,
        task,
        output_scale=self.task.scale,
        output_shift=self.task.shift,
        folder="",
        texts={FILE: self.schema.as_json(), FIRST_ROWS: json.dumps(self.task.first)},
      )
    outputs = self.dev_outputs(search.trained(chosen.cell, chosen.seed).outputs_of)
    self.details = details(self.schema, self.task.dev.targets, outputs)

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the scores of the best cell, with tables of its best run's answers."""
    title = f"{self.session.config.data.train_file}, {self.session.title}"
    (plan,), rows = self.plans, len(self.task.dev.targets)
    return make_report(title, self.schema, records[NAME], self.details, statistic=plan.summary, rows=rows)


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
