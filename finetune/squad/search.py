"""`kind='squad'`: a search on SQuAD 2.0 or 1.1, the papers' table, and the best run's answers and model."""

import json
from collections.abc import Sequence

from finetune.search import best_model, warm_start
from finetune.search.best_model import Chosen
from finetune.search.search import Search
from finetune.search.session import Plan, Session, compiled
from finetune.search.summary import Record
from finetune.squad import answers as squad_answers
from finetune.squad import files as squad_files
from finetune.squad import report as squad_report
from finetune.squad import task as squad
from finetune.squad.problem import make_problem

NAME = "squad"


class SquadSearch:
  """The search of a config."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads both files, so that what is wrong with them is told before anything compiles.

    Args:
      session: of this start.
      download: whether TFDS may download what is missing.

    Raises:
      UserError: see data/errors.py.
    """
    self.session, self.config = session, session.config
    cells = session.cells(NAME)
    data, asked = self.config.data, self.config.squad
    settings = squad.Settings(
      max_length=session.max_length(NAME),
      stride=asked.stride,
      max_query_length=asked.max_query_length,
      num_buckets=data.buckets,
      multiple=data.bucket_multiple,
      n_best=asked.n_best,
      max_answer_length=asked.max_answer_length,
    )
    train, dev = squad_files.read(asked.train_file, asked.dev_file, data.directory, download=download)
    self.data = squad.load(
      train,
      dev,
      session.start.vocabulary,
      settings,
      train_rows=data.train_rows,
      seed=self.config.seed,
    )
    self.plan = self._plan(cells)

  def _plan(self, cells: list) -> Plan:
    session, data, use_mask = self.session, self.data, self.config.squad.mask_query
    size = self.config.data.eval_batch_size

    def evaluate(outputs_of, num_runs: int) -> list[dict[str, float]]:
      return squad.evaluate(data, outputs_of, num_runs=num_runs, batch_size=size, pad_id=session.pad_id)

    return Plan(
      NAME,
      make_problem(session.encoder, pad_id=session.pad_id, use_mask=use_mask),
      squad.METRICS[data.version][0],
      cells,
      data.train.features.examples,
      data.train.buckets,
      evaluate,
      data.dev.buckets.lengths,
      f"{data.digest}{'' if use_mask else ' without mask'}",
      data.settings.max_length,
    )

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    start = warm_start.describe(self.session.start, used_heads={}, fresh_heads={"question_answering": None})
    return [f"{self.session.title}: {start}", *self.data.lines, self.session.describe(self.plan)]

  def run(self) -> int:
    """Searches, saves, reports; returns the exit code."""
    session = self.session
    search = session.search(self.plan)
    records = search.run(self.plan.cells, session.seeds)
    self._finish(search, records)
    if search.program.shapes:
      session.say(f"{NAME}: {compiled(sorted(search.program.shapes))}")
    made = squad_report.make_report(
      session.title,
      session.protocol,
      self.data,
      records,
      references=session.references,
    )
    made.publish(session.workdir, session.say)
    return 0

  def _finish(self, search: Search, records: Sequence[Record]) -> None:
    """Model and answers of the chosen cell's best run, unless they are there."""
    output, plan = self.config.output, self.plan
    if not (output.save_model or output.predict):
      return
    chosen = best_model.choose(self.session, plan, search, records, with_test_seeds=False)
    is_needed = output.predict and not self._has_answers(chosen)
    trained = best_model.train(
      self.session,
      plan,
      search,
      chosen,
      task={"name": NAME, "labels": None, "problem_type": None},
      is_needed=is_needed,
    )
    if is_needed and trained is not None:
      self._predict(trained.outputs_of, chosen)

  @property
  def directory(self):
    """Of the answers, beside the finished cells."""
    return self.session.workdir / NAME

  def _has_answers(self, chosen: Chosen) -> bool:
    """Whether the answers that are there are this run's."""
    try:
      found = json.loads((self.directory / squad_answers.SCORES).read_bytes())
    except (OSError, ValueError):
      return False
    return isinstance(found, dict) and found.get("run") == chosen.identity

  def _predict(self, outputs_of: squad.OutputsOf, chosen: Chosen) -> None:
    size = self.config.data.eval_batch_size
    (found,) = squad.logits(
      self.data.dev, outputs_of, num_runs=1, batch_size=size, pad_id=self.session.pad_id
    )
    predictions = squad.decode(self.data, found)
    questions = self.data.dev.file.questions
    scores = squad_answers.evaluate(questions, predictions)
    official = squad_answers.official(questions, predictions)
    squad_answers.write(self.directory, predictions, {**scores, "official": official, "run": chosen.identity})
    for line in squad_answers.report_lines(scores, questions, predictions, name=self.data.dev.file.source):
      self.session.say(f"{chosen.cell.name}, seed {chosen.seed}, {line}")
    self.session.say(f"Its answers are in {self.directory}: predictions.json and others")
