"""`kind='embedding'`: a search on pairs, scored pairs or texts, its scores, report and model."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import numpy as np

from data import tables
from data.errors import ConfigError, counted
from data.tables import Report
from finetune.embedding import problem
from finetune.embedding.load import TextTable, load
from finetune.embedding.problem import StageObjective, make_problem
from finetune.papers import protocols
from finetune.papers.glue_metrics import pearson, spearman
from finetune.search import examples
from finetune.search import results as summary
from finetune.search.examples import Examples, make_buckets
from finetune.search.problem import OutputsOf
from finetune.search.results import Record
from finetune.search.search import Search
from finetune.search.session import Plan, Session
from pretrain.embed.schema import FILE, SIDES, EmbeddingSchema, unit
from pretrain.export.task_fields import FIRST_ROWS

RANKED = ("mrr_10", "recall_1", "recall_10")
SCORED = ("spearman", "pearson")
_BLOCK = 512  # queries compared with all passages at once


def names(has_scores: bool) -> tuple[str, ...]:
  """Returns the names of the metrics; the first chooses the best evaluation."""
  return SCORED if has_scores else RANKED


def measure(vectors: np.ndarray, texts: TextTable, *, has_scores: bool) -> dict[str, float]:
  """Returns {metric: value} of rows from the vectors [texts, width] float32 of their texts.

  With scores the products of both vectors are correlated with them. Without, each query is compared with the
  different second texts of all rows; a rank counts from the best text that a row gives for the query. Vectors
  that are not finite score 0.
  """
  if not np.isfinite(vectors).all():
    return dict.fromkeys(names(has_scores), 0.0)
  first, second = vectors[texts.texts[:, 0]], vectors[texts.texts[:, 1]]
  if has_scores:
    products = np.einsum("nw,nw->n", first, second, dtype=np.float64)
    return {"spearman": spearman(products, texts.scores), "pearson": pearson(products, texts.scores)}
  ranks = _ranks(first, second, texts.keys)
  recall = {f"recall_{depth}": float(np.mean(ranks <= depth)) for depth in (1, 10)}
  return {"mrr_10": float(np.mean(np.where(ranks <= 10, 1.0 / ranks, 0.0))), **recall}


def _ranks(first: np.ndarray, second: np.ndarray, keys: np.ndarray) -> np.ndarray:
  """Returns the rank from 1 of each different query's best positive among all different passages."""
  queries, at_query, of_query = np.unique(keys[:, 0], return_index=True, return_inverse=True)
  _, at_passage, of_passage = np.unique(keys[:, 1], return_index=True, return_inverse=True)
  positives: list[Sequence[int]] = [[] for _ in queries]
  for query, passage in zip(of_query, of_passage):
    positives[query] = [*positives[query], int(passage)]
  passages, ranks = second[at_passage], np.zeros(len(queries), np.int64)
  for start in range(0, len(queries), _BLOCK):
    products = first[at_query[start : start + _BLOCK]] @ passages.T
    for row, of_row in enumerate(products):
      best = of_row[positives[start + row]].max()
      ranks[start + row] = 1 + np.sum(of_row > best)
  return ranks


def make_report(
  title: str, records: Sequence[Record], before: Mapping[str, float], *, statistic: str, rows: int
) -> tables.Report:
  """Makes the report (`results.md`, `.csv`, `.json`) of finished cells, evaluated on `rows` rows.

  `before` has the encoder's scores before the stage, by metric; {} leaves them out. `statistic` is 'median'
  or 'mean', as in the search.
  """
  metric = records[0].metric
  chosen = summary.choose(records, metric, statistic)
  scores = []
  for name in summary.metrics(chosen):
    of_seeds = summary.summarise(chosen, name)
    known = {"before": before[name]} if name in before else {}
    scores.append({"metric": name, **known, "value": summary.score(of_seeds, statistic), **of_seeds.values()})
  columns = [
    tables.text_column("metric", "metric"),
    *([tables.percent_column("before", "before")] if before else []),
    *(tables.percent_column(*pair) for pair in (("score", "value"), ("std", "std"))),
    *(tables.percent_column(*pair) for pair in (("min", "minimum"), ("max", "maximum"))),
    summary.seeds_column("all seeds"),
  ]
  cells = [
    {"cell": one.cell.name, "value": summary.score(summary.summarise(one), statistic)} for one in records
  ]
  of_cells = tables.Table((tables.text_column("cell", "cell"), tables.percent_column(metric, "value")), cells)
  notes = [
    f"Cell {chosen.cell.name}; {statistic} over {counted(len(chosen.seeds), 'seed')}, in percent. A run's "
    f"score is its best evaluation on {counted(rows, 'development row')}, on which it was chosen.",
    *(["before: the same encoder and pooling without the stage."] if before else []),
    *summary.skipped_notes({"embedding": summary.summarise(chosen).skipped_updates}),
  ]
  return tables.Report(
    "results", f"Embedding, {title}", columns, scores, notes, [of_cells] if len(records) > 1 else []
  )


NAME = "embedding"
MOST_TOKENS = 512  # of a text, unless the config says otherwise


class Embedding:
  """The embedding stage on a user's file: its search and report. Implements `search.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads and tokenises the files; nothing is compiled. `download`: whether TFDS may download.

    Raises:
      UserError: see data/errors.py.
    """
    self.session, config = session, session.config
    self.schema = self._schema()
    positions = session.start.encoder.config.max_length
    vocabulary = session.start.encoder.vocabulary
    self.task = load(config, vocabulary, self.schema, positions=positions, download=download)
    self._set_dropout()
    dev = self.task.dev
    self._dev = Examples(list(dev.ids), {}, {})
    options = {"most": config.data.buckets, "multiple": config.data.bucket_multiple}
    self._dev_buckets = make_buckets(self._dev, max_length=positions, **options)
    self._cells = session.cells(protocols.SMALL_TASK)
    if len({cell.batch_size for cell in self._cells}) > 1:
      raise ConfigError(
        "search.batch_sizes: the number of negatives is that of the batch, so cells of several batch sizes "
        "train for different things; give one\n  --config.search.batch_sizes=64,"
      )
    self.plans = [self._plan()]
    self._before: dict[str, float] = {}  # scores of the encoder before the stage

  def _set_dropout(self) -> None:
    """Gives SimCSE, whose second view of a text is another dropout, the protocol's rate if there is none."""
    session = self.session
    if self.task.kind != "simcse" or session.encoder.dropout or session.encoder.attention_dropout:
      return
    if session.config.model.dropout == 0:
      raise ConfigError(
        "model.dropout=0: embedding.objective='simcse' compares a text with itself under other dropout; use\n"
        "  --config.model.dropout=0.1"
      )
    rate = session.protocol.dropout
    session.encoder = dataclasses.replace(session.encoder, dropout=rate, attention_dropout=rate)

  def _schema(self) -> EmbeddingSchema:
    """Returns the schema of the model; ConfigError: a length or size does not fit the encoder."""
    own, encoder = self.session.config.embedding, self.session.start.encoder.config
    stored, longest = EmbeddingSchema.read(self.session.start.directory), self.session.config.data.max_length
    asked = {f"embedding.{name}": own[name] for name in ("query_length", "passage_length")}
    for field, length in {**asked, "data.max_length": longest}.items():
      if length > encoder.max_length:
        raise ConfigError(
          f"{field}={length}: the checkpoint has {encoder.max_length} positions; use\n"
          f"  --config.{field}={encoder.max_length}"
        )
    too_large = [size for size in own.sizes if size >= encoder.hidden_size]
    if too_large:
      raise ConfigError(
        f"embedding.sizes={tuple(own.sizes)}: a vector has {encoder.hidden_size} numbers, which are always "
        "trained; expected smaller sizes"
      )
    values = {
      name: own[name] for name in ("pooling", "query_prefix", "passage_prefix") if own[name] != "auto"
    }
    for side in SIDES:
      usual = stored.length(side, min(MOST_TOKENS, encoder.max_length))
      values[f"{side}_length"] = own[f"{side}_length"] or longest or usual
    return dataclasses.replace(stored, unit=own.unit, sizes=tuple(own.sizes), **values)

  def _plan(self) -> Plan:
    config, task, session = self.session.config, self.task, self.session
    size, own = self._cells[0].batch_size, config.embedding
    order = problem.whole_order(len(task.train.texts), size, config.seed)
    microbatches = config.train.microbatches
    shapes = problem.layout(
      task.train,
      order,
      session.seeds,
      epochs=max(cell.epochs or 1 for cell in self._cells),
      most=config.data.buckets,
      multiple=config.data.bucket_multiple,
      divisor=len(session.devices(self._cells)) * microbatches,
    )
    self.shapes = shapes

    def feed(seed: int, batch_size: int) -> problem.TextFeed:
      return problem.TextFeed(task.train, order, shapes, seed, session.pad_id)

    objective = StageObjective(
      "ranking" if task.kind == "simcse" else task.kind, own.temperature, own.both_ways
    )
    plan = session.plan(
      NAME,
      make_problem(
        session.encoder,
        self.schema,
        objective,
        pad_id=session.pad_id,
        groups=len(shapes.counts),
        microbatches=microbatches,
      ),
      names(task.dev_has_scores)[0],
      self._cells,
      Examples([], {}, {}),
      order.buckets,
      lambda outputs_of, seed: self.dev_scores(outputs_of),
      digest=task.digest,
      max_length=max(shapes.lengths),
      also={"files": task.digests, "schema": json.loads(self.schema.as_json()), **vars(objective)},
    )
    return dataclasses.replace(plan, feed=feed)

  def dev_scores(self, outputs_of: OutputsOf) -> dict[str, float]:
    """Returns {metric: value} of a model's vectors on the development rows."""
    sizes = {"batch_size": self.session.config.data.eval_batch_size, "pad_id": self.session.pad_id}
    of_texts = examples.outputs(self._dev, self._dev_buckets, outputs_of, **sizes)
    vectors = np.stack(of_texts).astype(np.float32)
    vectors = unit(vectors) if self.schema.unit else vectors
    return measure(vectors, self.task.dev, has_scores=self.task.dev_has_scores)

  def describe(self) -> list[str]:
    """Returns lines that describe checkpoint, data and search."""
    own, encoder = self.session.config.embedding, self.session.encoder
    how = f"{self.schema.pooling} of the last layer" + (", unit length" if self.schema.unit else "")
    how += "".join(f", {side} prefix {prefix!r}" for side in SIDES if (prefix := self.schema.prefix(side)))
    return [
      self.session.describe(),
      *self.task.lines,
      f"embedding: objective {self.task.kind!r}, temperature {own.temperature:g}, {how}",
      f"embedding: dropout {encoder.dropout:g}, of attention {encoder.attention_dropout:g} "
      "(--config.model.dropout changes both)",
      f"embedding: a batch is {self.shapes.describe()}",
      *self._few_rows(),
      *(plan.describe() for plan in self.plans),
    ]

  def _few_rows(self) -> list[str]:
    """Returns a line if a batch has more places than there are rows."""
    rows, size = len(self.task.train.texts), self._cells[0].batch_size
    if rows >= size:
      return []
    return [
      f"embedding: a batch has places for {size:,} rows, and there are {counted(rows, 'training row')}: an "
      "epoch is one step, and a row has fewer negatives (--config.search.batch_sizes=N,)"
    ]

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model, unless it is saved, and scores the encoder as it was before the stage."""
    chosen = search.choose(records)
    if self.session.config.output.save_model:
      rows = {FILE: self.schema.as_json(), FIRST_ROWS: json.dumps(self.task.first)}
      search.save_model(chosen, {"name": NAME}, folder="", texts=rows)
    if not self.session.config.from_scratch:
      params = {"encoder": self.session.start.encoder.params, "heads": {}}
      self._before = self.dev_scores(search.outputs_of(params, f"{NAME} before the stage"))

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the scores of the best cell beside those of the encoder before the stage."""
    (plan,), own = self.plans, records[NAME]
    title = f"{self.session.config.data.train_file}, {self.session.title}"
    return make_report(title, own, self._before, statistic=plan.summary, rows=len(self.task.dev.texts))
