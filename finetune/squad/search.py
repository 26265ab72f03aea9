"""`kind='squad'`: a hyperparameter search on SQuAD, its table, and the best run's answers and model."""

import collections
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from data import files
from data.tables import Report
from finetune.papers.spaces import Cell
from finetune.search import best_model
from finetune.search.best_model import Chosen
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from finetune.squad import answers as squad_answers
from finetune.squad import files as squad_files
from finetune.squad import report as squad_report
from finetune.squad import task as squad
from finetune.squad import windows
from finetune.squad.problem import make_problem
from pretrain.export.task_fields import CHECKED_ROWS, FIRST_ROWS

logger = logging.getLogger(__name__)

NAME = "squad"


class Squad:
  """Fine-tuning on SQuAD: a hyperparameter search. Implements `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads both files, so that an error in them (a UserError) is raised before anything compiles."""
    self.session, self.config = session, session.config
    cells = session.cells(NAME)
    data, asked = self.config.data, self.config.squad
    settings = windows.settings_of(self.config, session.max_length(NAME))
    group = "data" if data.train_file else "squad"
    train, dev = squad_files.read(
      asked.train_file, asked.dev_file, data.directory, group=group, download=download
    )
    rows, seed = data.train_rows, self.config.seed
    self.data = squad.load(train, dev, session.start.encoder.vocabulary, settings, train_rows=rows, seed=seed)
    self.plans = [self._plan(cells)]

  def _plan(self, cells: list[Cell]) -> Plan:
    session, data, use_mask = self.session, self.data, self.config.squad.mask_query
    size = self.config.data.eval_batch_size

    def evaluate(outputs_of: OutputsOf, seeds: Sequence[int]) -> list[dict[str, float]]:
      return squad.evaluate(data, outputs_of, num_runs=len(seeds), batch_size=size, pad_id=session.pad_id)

    return session.plan(
      NAME,
      make_problem(session.encoder, pad_id=session.pad_id, use_mask=use_mask),
      squad.METRICS[data.version][0],
      cells,
      data.train.features.examples,
      data.train.buckets,
      evaluate,
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
    chosen = best_model.choose(search, records)
    if self.config.output.save_model:
      task = {"name": NAME, "labels": None, "problem_type": None}
      read = {"windows": self.data.settings.stored(), "mask_query": self.config.squad.mask_query}
      best_model.save(search, chosen, {**task, **read}, texts={FIRST_ROWS: json.dumps(self._first_rows())})
    saved = files.read_json(self.directory / squad_answers.SCORES).get("run")
    if self.config.output.predict and saved != chosen.identity:
      self._predict(search.trained(chosen.cell, chosen.seed).outputs_of, chosen)

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the table of scores, next to the papers' scores."""
    session = self.session
    return squad_report.make_report(
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
    (logits,) = squad.logits(self.data.dev, outputs_of, num_runs=1, batch_size=size, pad_id=pad_id)
    predictions = squad.decode(self.data, logits)
    questions = self.data.dev.file.questions
    scores = squad_answers.evaluate(questions, predictions)
    for line in squad_answers.report_lines(scores, questions, predictions, name=self.data.dev.file.source):
      logger.info(f"{chosen.cell.name}, seed {chosen.seed}, {line}")
    squad_answers.write_scored(self.directory, questions, predictions, scores, run=chosen.identity)
    logger.info(f"wrote the answers of this run to {self.directory}, such as predictions.json")
