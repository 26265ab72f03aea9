"""`kind='squad'`: a search on SQuAD's windows, its table, and the best run's answers and model."""

import collections
import dataclasses
import hashlib
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from data import errors, files, tables
from data.errors import ConfigError, DataError, DivergedError, counted
from data.squad import SquadFile, read_pair
from data.tables import Report
from data.vocabulary import Vocabulary
from finetune.papers import glue_metrics
from finetune.papers.glue_metrics import Reference
from finetune.papers.protocols import Cell, Protocol
from finetune.search import examples
from finetune.search import results as summary
from finetune.search.examples import Buckets, add_to_digest, make_buckets
from finetune.search.problem import Batch, OutputsOf, Problem, answer_span_loss
from finetune.search.results import Record
from finetune.search.search import Chosen, Search
from finetune.search.session import Plan, Session
from finetune.squad import answers as squad_answers
from finetune.squad import windows
from finetune.squad.answers import OFFICIAL_QUESTIONS, Predictions
from finetune.squad.windows import Features, Settings
from pretrain.export.task_fields import CHECKED_ROWS, FIRST_ROWS
from pretrain.models import heads
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.step import Metrics

logger = logging.getLogger(__name__)


def make_problem(config: EncoderConfig, *, pad_id: int, use_mask: bool = True) -> Problem:
  """Returns the training problem of question answering, for batches of windows from `windows.build`.

  Outputs are (start, end) logits [batch, length] float32, -inf where no answer is allowed. With `use_mask`,
  as in the official fairseq code, these are the question, separators and padding. Without it, as in the
  official Hugging Face code, only padding, so a window's loss does not depend on its padded length. Metrics:
  task_loss, and exact_spans, the fraction of windows whose start and end both have the highest logit.
  """

  def init_heads(key: jax.Array) -> dict:
    return {"question_answering": heads.init_question_answering_head(key, config)}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    ids = batch["ids"]
    is_token = ids != pad_id
    _, hidden = encode(params["encoder"], config, ids, is_token, pad_id=pad_id, row_keys=row_keys)
    allowed = batch["allowed"] if use_mask else is_token
    own = params["heads"]["question_answering"]
    return heads.apply_question_answering_head(own, hidden.last, allowed, config)

  def loss(logits: tuple[jax.Array, jax.Array], batch: Batch) -> tuple[jax.Array, Metrics]:
    targets, weights = (batch["start"], batch["end"]), batch["weights"]
    total = answer_span_loss(*logits, *targets, weights)
    is_hit = [jnp.argmax(each, axis=-1) == target for each, target in zip(logits, targets)]
    weight = jnp.sum(weights)
    hits = jnp.sum(jnp.where(is_hit[0] & is_hit[1], weights, 0.0))
    return total, {"task_loss": (total, weight), "exact_spans": (hits, weight)}

  return Problem(init_heads, outputs, loss)


Logits = tuple[list[np.ndarray], list[np.ndarray]]  # start and end: for each window, [length or more] float32

# Metrics in a run's record, as fractions, by version. The first one ranks runs and cells.
METRICS = {
  "2.0": ("best_f1", "best_exact", "f1_threshold_0", "exact_threshold_0"),
  "1.1": ("f1", "exact"),
}


@dataclasses.dataclass(frozen=True)
class Part:
  """The training or the development questions, with their windows of tokens and targets."""

  file: SquadFile
  features: Features
  buckets: Buckets


@dataclasses.dataclass(frozen=True)
class SquadData:
  """The training and development questions of SQuAD, as windows of tokens."""

  train: Part  # has no windows of questions whose answer cannot be located
  dev: Part  # all questions
  settings: Settings
  vocabulary: Vocabulary
  digest: str  # sha256 over data and settings on which scores depend
  lines: list[str]  # for the log: sizes, dropped questions, sources

  @property
  def version(self) -> str:
    """The version of SQuAD: '2.0' or '1.1'."""
    return self.dev.file.version

  @property
  def is_official(self) -> bool:
    """Whether the development set has as many questions as the official one."""
    return len(self.dev.file.questions) == OFFICIAL_QUESTIONS[self.version]

  @property
  def unanswerable(self) -> float:
    """The fraction of unanswerable development questions, which is the score of always giving "no answer"."""
    return float(np.mean([question.is_impossible for question in self.dev.file.questions]))


def load(
  train: SquadFile,
  dev: SquadFile,
  vocabulary: Vocabulary,
  settings: Settings,
  *,
  train_rows: int = 0,
  seed: int = 0,
) -> SquadData:
  """Returns both files as windows; `train_rows` training questions are drawn at random by `seed`, 0: all.

  Raises:
    ConfigError: a window has no room for a context, or `train_rows` exceeds the questions of the file.
    DataError: a file has no question that can be used.
  """
  train_part = _part(_draw(train, train_rows, seed), vocabulary, settings, training=True)
  dev_part = _part(dev, vocabulary, settings, training=False)
  digest, lines = _digest(train_part, dev_part, settings), _lines(train_part, dev_part, settings)
  return SquadData(train_part, dev_part, settings, vocabulary, digest, lines)


def _draw(file: SquadFile, count: int, seed: int) -> SquadFile:
  """Returns the file with `count` random questions, 0: all; a smaller draw is a subset of a larger one."""
  total = len(file.questions)
  if count > total:
    raise ConfigError(
      f"data.train_rows={count}: {file.source} has {total:,} questions; to use all:\n"
      "  --config.data.train_rows=0"
    )
  if not count:
    return file
  rows = np.sort(np.random.default_rng(seed).permutation(total)[:count])
  return dataclasses.replace(file, questions=[file.questions[row] for row in rows])


def _part(file: SquadFile, vocabulary: Vocabulary, settings: Settings, *, training: bool) -> Part:
  features = windows.build(file.questions, vocabulary, settings, training=training)
  if not features.windows:
    name, reason = next(iter({**features.dropped, **features.empty}.items()))
    raise DataError(
      f"{file.source}: none of {counted(len(file.questions), 'question')} can be used, such as {name!r}: "
      f"{reason}; correct the file, or use the official one"
    )
  sizes = {"most": settings.num_buckets, "multiple": settings.multiple, "max_length": settings.max_length}
  return Part(file, features, make_buckets(features.examples, **sizes))


def _digest(train: Part, dev: Part, settings: Settings) -> str:
  decoding = [dev.file.version, settings.n_best, settings.max_answer_length]
  digest = hashlib.sha256(json.dumps(decoding).encode())
  for part in (train, dev):
    examples = part.features.examples
    add_to_digest(digest, examples.ids, examples.fields["start"], examples.fields["end"])
  for question in dev.file.questions:  # contexts and gold answers
    digest.update(json.dumps(dataclasses.astuple(question)).encode())
  return digest.hexdigest()


def _lines(train: Part, dev: Part, settings: Settings) -> list[str]:
  version, questions = dev.file.version, dev.file.questions
  lines = [
    f"squad: SQuAD {version}, training on {train.file.source}",
    f"squad train: {counted(len(train.file.questions), 'question')} in "
    f"{counted(len(train.features.windows), 'window')}, "
    f"{np.count_nonzero(train.features.examples.fields['start']):,} of them with an answer",
    f"squad train: {train.buckets.describe(train.features.examples.sizes)}",
    f"squad dev: {dev.file.source}: {counted(len(questions), 'question')}, "
    f"{sum(question.is_impossible for question in questions):,} without an answer, "
    f"{counted(len(dev.features.windows), 'window')}",
  ]
  if dropped := train.features.dropped:
    name, reason = next(iter(dropped.items()))
    lines.append(
      f"squad train: skipped {counted(len(dropped), 'question')} whose answer was not found in the context, "
      f"such as {name!r}: {reason}"
    )
  if dev.features.empty:
    lines.append(f'squad dev: answer "" for {counted(len(dev.features.empty), "question")} without a token')
  if len(questions) != OFFICIAL_QUESTIONS[version]:
    lines.append(
      f"squad dev: not the official development set ({OFFICIAL_QUESTIONS[version]:,} questions): do not "
      "compare its scores with the papers'"
    )
  pairs = [pair for part in (train, dev) for pair in itertools.pairwise(part.features.windows)]
  pairs = [(window, after) for window, after in pairs if window.question == after.question]
  if apart := sum(window.first + window.count <= after.first for window, after in pairs):
    lines.append(
      f"squad: neighbouring windows do not overlap in {apart:,} of {counted(len(pairs), 'pair')}, so an "
      f"answer across their border cannot be found; lower --config.squad.stride={settings.stride} or raise "
      f"--config.data.max_length={settings.max_length}"
    )
  return lines


def window_logits(part: Part, outputs_of: OutputsOf, **sizes: int) -> Logits:
  """Returns the logits of all windows, in their order; `sizes` are those of `examples.outputs`."""
  pairs = examples.outputs(part.features.examples, part.buckets, outputs_of, **sizes)
  return [starts for starts, _ in pairs], [ends for _, ends in pairs]


def decode(data: SquadData, logits: Logits, *, best_only: bool = False) -> Predictions:
  """Returns the answers to the development questions; see `answers.decode`."""
  return squad_answers.decode(
    data.dev.file.questions,
    data.dev.features,
    *logits,
    data.vocabulary,
    data.settings,
    can_be_null=data.version == "2.0",
    best_only=best_only,
  )


def evaluate(data: SquadData, outputs_of: OutputsOf, **sizes: int) -> dict[str, float]:
  """Returns a run's development metrics, as fractions; with NaN or infinite logits all are 0."""
  logits = window_logits(data.dev, outputs_of, **sizes)
  try:
    predictions = decode(data, logits, best_only=True)
  except DivergedError:
    return dict.fromkeys(METRICS[data.version], 0.0)
  scores = squad_answers.evaluate(data.dev.file.questions, predictions)
  return {name: scores[name] / 100 for name in METRICS[data.version]}


LABELS = {
  "best_f1": "F1, best threshold",
  "best_exact": "EM, best threshold",
  "f1_threshold_0": "F1, threshold 0",
  "exact_threshold_0": "EM, threshold 0",
  "f1": "F1",
  "exact": "EM",
}
_PAPERS_COLUMNS = {"best_f1": "squad_f1", "best_exact": "squad_em"}


def make_report(
  title: str,
  protocol: Protocol,
  data: SquadData,
  records: Sequence[Record],
  *,
  references: Sequence[Reference] = (),
) -> tables.Report:
  """Returns the report `results` (.md, .csv, .json) of the best cell; the metric that chose it is first.

  `records` are in the order of the search; a DataError if there is none.
  """
  is_2 = data.version == "2.0"  # the papers' scores are for 2.0
  references = [reference for reference in references if is_2 and "squad_f1" in reference.scores]
  names = METRICS[data.version]
  chosen = summary.choose(records, names[0], protocol.summary)
  rows = []
  for name in names:
    over_seeds = summary.summarise(chosen, name)
    row = {
      "task": "squad",
      "metric": name,
      "is_official": data.is_official,
      "cell": chosen.cell.name,
      "value": summary.score(over_seeds, protocol.summary),
      **over_seeds.values(),
      **glue_metrics.scores_beside(references, _PAPERS_COLUMNS.get(name, "")),
    }
    rows.append(row)
  scores = summary.score_columns(protocol.summary, [reference.model for reference in references])
  columns = [tables.Column("metric", _label, "left"), *scores]
  seeds = [tables.Column(chosen.cell.name, _label, "left"), *map(_seed_column, chosen.seeds)]
  star = "" if data.is_official else "*"
  title = f"SQuAD {data.version} dev{star}, {title}, protocol {protocol.name}"
  notes = _notes(protocol, data, rows[0], len(records)) + glue_metrics.source_notes(references)
  return tables.Report("results", title, columns, rows, notes, [tables.Table(seeds, rows)])


def _label(row: tables.Row) -> str:
  return LABELS[row["metric"]]


def _seed_column(seed: int) -> tables.Column:
  return tables.Column(f"seed {seed}", lambda row: tables.percent(row["per_seed"][seed]))


def _notes(protocol: Protocol, data: SquadData, judged: tables.Row, num_cells: int) -> list[str]:
  how = protocol.summary
  notes = [
    f"{how.capitalize()} over the seeds of one cell, in percent: the cell with the best {how} of "
    f"{_label(judged)!r} of {num_cells:,}. All metrics of a run are from its best evaluation."
  ]
  if data.version == "2.0":
    notes.append(
      "Best threshold: the threshold of the no-answer score is chosen on the scored questions, as in the "
      f'papers. Threshold 0 is chosen without them. "No answer" to every question scores '
      f"{tables.percent(data.unanswerable)}."
    )
  if not data.is_official:
    notes.append(
      f"* {errors.counted(len(data.dev.file.questions), 'question')} of {data.dev.file.source}, not the "
      "official development set: do not compare these scores with the papers'."
    )
  if len(data.train.file.questions) != (official := squad_answers.OFFICIAL_TRAINING[data.version]):
    notes.append(
      f"Trained on {errors.counted(len(data.train.file.questions), 'question')} of {data.train.file.source}; "
      f"the official training set has {official:,}."
    )
  return notes + summary.skipped_notes({"SQuAD": judged["skipped_updates"]})


NAME = "squad"


class Squad:
  """Fine-tuning on SQuAD: a hyperparameter search. Implements `search.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads both files, so that an error in them (a UserError) is raised before anything compiles."""
    self.session, self.config = session, session.config
    cells = session.cells(NAME)
    data, asked = self.config.data, self.config.squad
    settings = windows.settings_of(self.config, session.max_length(NAME))
    group = "data" if data.train_file else "squad"
    named = asked.train_file, asked.dev_file, data.directory
    train, dev = read_pair(*named, group=group, download=download)
    rows, seed = data.train_rows, self.config.seed
    self.data = load(train, dev, session.start.encoder.vocabulary, settings, train_rows=rows, seed=seed)
    self.plans = [self._plan(cells)]

  def _plan(self, cells: list[Cell]) -> Plan:
    session, data, use_mask = self.session, self.data, self.config.squad.mask_query
    size = self.config.data.eval_batch_size
    return session.plan(
      NAME,
      make_problem(session.encoder, pad_id=session.pad_id, use_mask=use_mask),
      METRICS[data.version][0],
      cells,
      data.train.features.examples,
      data.train.buckets,
      lambda outputs_of, seed: evaluate(data, outputs_of, batch_size=size, pad_id=session.pad_id),
      digest=f"{data.digest}{'' if use_mask else ' without mask'}",
      max_length=data.settings.max_length,
    )

  def describe(self) -> list[str]:
    """Returns lines about the checkpoint, the data and the planned runs."""
    start = self.session.describe(fresh_head="question_answering")
    return [start, *self.data.lines, *(plan.describe() for plan in self.plans)]

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the model and the answers of the best run in the best cell, unless they are already saved."""
    if not (self.config.output.save_model or self.config.output.predict):
      return
    chosen = search.choose(records)
    if self.config.output.save_model:
      task = {"name": NAME, "labels": None, "problem_type": None}
      read = {"windows": self.data.settings.stored(), "mask_query": self.config.squad.mask_query}
      search.save_model(chosen, {**task, **read}, texts={FIRST_ROWS: json.dumps(self._first_rows())})
    saved = files.read_json(self.directory / squad_answers.SCORES).get("run")
    if self.config.output.predict and saved != chosen.identity:
      self._predict(search.trained(chosen.cell, chosen.seed).outputs_of, chosen)

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the table of scores, next to the papers' scores."""
    session = self.session
    return make_report(
      session.title, session.protocol, self.data, records[NAME], references=session.references
    )

  def _first_rows(self) -> list[tuple[str, str]]:
    """Returns the first development questions with one window, as (question, context), to check an export."""
    dev = self.data.dev
    windows = collections.Counter(window.question for window in dev.features.windows)
    asked = [question for number, question in enumerate(dev.file.questions) if windows[number] == 1]
    return [(question.question, question.context) for question in asked[:CHECKED_ROWS]]

  @property
  def directory(self) -> Path:
    """The directory of the answers and of the finished cells' results."""
    return self.session.workdir / NAME

  def _predict(self, outputs_of: OutputsOf, chosen: Chosen) -> None:
    size = self.config.data.eval_batch_size
    pad_id = self.session.pad_id
    logits = window_logits(self.data.dev, outputs_of, batch_size=size, pad_id=pad_id)
    predictions = decode(self.data, logits)
    questions = self.data.dev.file.questions
    scores = squad_answers.evaluate(questions, predictions)
    for line in squad_answers.report_lines(scores, questions, predictions, name=self.data.dev.file.source):
      logger.info(f"{chosen.cell.name}, seed {chosen.seed}, {line}")
    squad_answers.write_scored(self.directory, questions, predictions, scores, run=chosen.identity)
    logger.info(f"wrote the answers of this run to {self.directory}, such as predictions.json")
