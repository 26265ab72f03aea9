"""`kind='glue'`: a hyperparameter search for each GLUE task, its table, and the leaderboard's zip."""

import logging
from collections.abc import Mapping, Sequence

from data.glue.tasks import TASKS
from data.tables import Report
from finetune import validate
from finetune.glue import predictions as glue_predictions
from finetune.glue import report
from finetune.glue import task as glue
from finetune.papers import glue_metrics
from finetune.papers.spaces import Cell
from finetune.search import best_model
from finetune.search.classification import exported_task, make_problem
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from finetune.search.texts import Encoding
from pretrain.command import fields

logger = logging.getLogger(__name__)


class Glue:
  """Fine-tuning on GLUE: a hyperparameter search for each task. Implements `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads the data of all tasks, so that errors in it (UserErrors) are raised before anything compiles."""
    self.session, self.config, data = session, session.config, session.config.data
    names = validate.task_names(fields.flatten(session.config))
    cells = {name: session.cells(name) for name in names}
    self.data: dict[str, glue.GlueData] = {}  # by task
    self.tests: dict[str, glue_predictions.Tests] = {}  # by task, with output.predict
    self.plans: list[Plan] = []
    for name in names:
      options = {"train_rows": data.train_rows, "seed": self.config.seed, "download": download}
      self.data[name] = glue.load(name, data.directory, self.encoding(name), **options)
      if session.config.output.predict:
        self.tests[name] = glue_predictions.load(name, data.directory, self.encoding, download=download)
      self.plans.append(self._plan(self.data[name], cells[name]))

  def encoding(self, task: str) -> Encoding:
    """Returns the encoding of a task's texts: vocabulary, lengths and scale of targets."""
    data = self.config.data
    divisor = self.session.protocol.stsb_divisor if TASKS[task].is_regression else 1.0
    longest = self.session.max_length("mnli" if task == "ax" else task)
    vocabulary = self.session.start.encoder.vocabulary
    return Encoding(vocabulary, longest, data.buckets, data.bucket_multiple, divisor)

  def _plan(self, data: glue.GlueData, cells: list[Cell]) -> Plan:
    session, size = self.session, self.config.data.eval_batch_size

    def evaluate(outputs_of: OutputsOf, seeds: Sequence[int]) -> list[dict[str, float]]:
      return glue.evaluate(data, outputs_of, num_runs=len(seeds), batch_size=size, pad_id=session.pad_id)

    return session.plan(
      data.task,
      make_problem(session.encoder, session.head, num_outputs=data.num_outputs, pad_id=session.pad_id),
      glue_metrics.main_metric(data.task, session.protocol.name),
      cells,
      data.train,
      data.buckets,
      evaluate,
      digest=data.digest,
      max_length=session.max_length(data.task),
    )

  def describe(self) -> list[str]:
    """Returns lines about the checkpoint, the data and the planned runs."""
    lines = [self.session.describe(fresh_head="classification")]
    for plan in self.plans:
      tests = self.tests[plan.name].lines if self.tests else []
      lines += [*self.data[plan.name].lines, *tests, plan.describe()]
    return lines

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model and test predictions, unless they are already saved."""
    task, output = search.plan.name, self.config.output
    if not (output.save_model or output.predict):
      return
    is_predicted = output.predict and bool(self.tests[task].sets)
    chosen = best_model.choose(search, records, seeds=self.session.test_seeds if is_predicted else ())
    if output.save_model:
      exported = exported_task(TASKS[task].name, TASKS[task].labels, self.session.head)
      best_model.save(search, chosen, exported, output_scale=self.encoding(task).divisor)
    if is_predicted and not glue_predictions.is_there(self.session, task, chosen, self.tests[task]):
      trained = search.trained(chosen.cell, chosen.seed)
      glue_predictions.predict(self.session, task, chosen, trained.outputs_of, self.tests[task])

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the table of scores, next to the papers'; with output.predict, writes the leaderboard's zip."""
    session = self.session
    if self.config.output.predict:
      for line in glue_predictions.submit(session, self.tests, self.data):
        logger.info(line)
    return report.make_report(
      session.title,
      session.protocol,
      records,
      subsets=[task for task, data in self.data.items() if not data.is_official],
      references=session.references,
    )
