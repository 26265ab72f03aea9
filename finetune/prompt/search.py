"""`kind='prompt'`: few-shot tasks answered by the checkpoint's language-modelling head, and their table."""

import itertools
import math
from typing import Any

import jax

from configs import finetune_base
from data.errors import ConfigError
from data.glue.tasks import TASKS
from finetune import validate
from finetune.papers.spaces import StepCell
from finetune.prompt import data as prompt_data
from finetune.prompt import report as prompt_report
from finetune.prompt import task as prompt
from finetune.prompt.data import Lengths, PromptData
from finetune.prompt.report import TaskScores
from finetune.prompt.runs import PromptRuns
from finetune.prompt.task import Trial
from finetune.prompt.templates import TEMPLATES, PromptWriter, choose_words
from finetune.search import save_model, warm_start
from finetune.search.session import Session, compiled
from pretrain.command import fields

# Fields that other kinds read and this one does not -> what to do instead.
_ELSEWHERE = {
  "from_scratch": "a prompt is answered by what the checkpoint has learned",
  "search.": "set prompt.batch_sizes, prompt.learning_rates, prompt.num_steps and prompt.splits",
  "data.train_rows": "set prompt.shots",
  "data.max_length": "set prompt.max_length",
  "output.predict": "GLUE's test sets are for configs/finetune_glue.py",
}


class PromptSearch:
  """All tasks of a config."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Checks head, words and lengths and reads all data, before anything compiles.

    Args:
      session: of this start.
      download: whether TFDS may download what is missing.

    Raises:
      UserError: see data/errors.py.
    """
    self.session = session
    self.config: Any = session.config
    given = fields.flatten(session.config)
    _check_fields(given)
    self.cells = _cells(session.config)
    self.head = prompt.lm_head({"heads": session.start.heads}, session.start.meta)
    names = validate.task_names(given)
    writers = {name: self._writer(name) for name in names}
    lengths = {name: self._lengths(writers[name]) for name in names}
    # What can be said of the checkpoint is said before any data is read.
    self._problems = {name: self._problem(writers[name], lengths[name]) for name in names}
    self.data = {
      name: prompt_data.load(name, writers[name], session.config, lengths[name], download=download)
      for name in names
    }

  def _writer(self, task: str) -> PromptWriter:
    template = TEMPLATES[task]
    words = choose_words(template, self.config.prompt.words)
    return PromptWriter(template, self.session.start.vocabulary, words)

  def _lengths(self, writer: PromptWriter) -> Lengths:
    given = self.config.prompt
    return Lengths(
      given.max_length or writer.template.max_length,
      given.num_samples or writer.template.num_samples,
      self.config.data.eval_batch_size,
      self.session.pad_id,
    )

  def _problem(self, writer: PromptWriter, lengths: Lengths):
    return prompt.make_problem(
      self.session.encoder,
      self.session.start.heads[self.head],
      writer.word_ids,
      name=self.head,
      pad_id=lengths.pad_id,
      max_length=lengths.max_length,
      is_regression=writer.template.is_regression,
    )

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    start = warm_start.describe(self.session.start, used_heads={self.head: None}, fresh_heads={})
    lines = [f"{self.session.title}: {start}"]
    splits, steps = len(self.config.prompt.splits), sum(cell.num_steps for cell in self.cells)
    shapes = len({cell.batch_size for cell in self.cells}) + 1
    for name, data in self.data.items():
      lines += [
        *data.lines,
        f"{name}: cells x splits: {len(self.cells)} x {splits}, {steps * splits:,} steps of single runs; at "
        f"most {shapes} shapes are compiled for each number of runs in a program",
      ]
    return lines

  def run(self) -> int:
    """Trains, chooses, tests, saves, reports; returns the exit code."""
    scores = []
    for data in self.data.values():
      runs = PromptRuns(self.session, data, self._problems[data.task], self.cells, head=self.head)
      scores.append(self._run(data, runs))
      if runs.program.shapes:
        self.session.say(f"{data.task}: {compiled(sorted(runs.program.shapes))}")
      jax.clear_caches()  # the next task's programs are others
    made = prompt_report.make_report(self.session.title, scores)
    made.publish(self.session.workdir, self.session.say)
    return 0

  def _run(self, data: PromptData, runs: PromptRuns) -> TaskScores:
    chosen = list(prompt.summarise(runs.train(), data.metric).chosen.values())
    # First the test: if weights have to be trained again, that of all chosen runs is one program.
    trials = runs.test(chosen) if data.tests else chosen
    if self.config.output.save_model:
      self._save(data, runs, max(chosen, key=lambda trial: trial.dev))
    return TaskScores(data.task, data.metric, trials, bool(data.tests), data.is_official)

  def _save(self, data: PromptData, runs: PromptRuns, trial: Trial) -> None:
    """Saves the run that is the best on its development set, unless it is there."""
    row, vocabulary = TASKS[data.task], data.writer.vocabulary
    meta = {
      "name": row.name,
      "labels": list(row.labels) or None,
      "words": [vocabulary.piece(word) for word in data.writer.word_ids],
      "cell": trial.cell,
      "seed": trial.seed,
      "metric": data.metric,
      "value": trial.dev,
      "fingerprint": runs.results.fingerprint_of([trial.seed]),
    }
    place = self.session.workdir / data.task / "model"
    if save_model.saved_task(place) == meta:
      return
    best = runs.best([trial])[trial.seed]
    recipe = f"{self.session.start.meta['config'].get('recipe', 'encoder')}-{data.task}-prompt"
    save_model.save(
      place, best.params, self.session.start, task=meta, step=best.evaluation.step, recipe=recipe
    )
    self.session.say(f"{data.task}: model of {trial.cell}, split {trial.seed}, is in {place}")


def _check_fields(given) -> None:
  default = fields.flatten(finetune_base.get_config())
  for prefix, instead in _ELSEWHERE.items():
    for name, value in given.items():
      if name.startswith(prefix) and value != default[name]:
        raise ConfigError(f"{name}={value!r}: kind='prompt' does not read it; {instead}")


def _cells(config: Any) -> list[StepCell]:
  """Batch sizes outermost: cells of one can share a program."""
  given = config.prompt
  rules = {
    "splits": (lambda value: 0 <= value < 2**31, "seeds from 0"),
    "batch_sizes": (
      lambda value: value >= 1 and value % config.train.microbatches == 0,
      "multiples of train.microbatches",
    ),
    "learning_rates": (lambda value: 0 < value < math.inf, "numbers above 0"),
  }
  for name, (is_fine, expected) in rules.items():
    values = given[name]
    wrong = [value for place, value in enumerate(values) if not is_fine(value) or value in values[:place]]
    if wrong:
      raise ConfigError(f"prompt.{name}={tuple(values)}: {wrong[0]}; expected {expected}, each once")
  return [
    StepCell(batch, rate, given.num_steps)
    for batch, rate in itertools.product(given.batch_sizes, given.learning_rates)
  ]
