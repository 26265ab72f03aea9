"""SQuAD as a task: makes windows of both files, and scores the logits of all windows as the papers do."""

import dataclasses
import hashlib
import itertools
import json

import numpy as np

from data.errors import ConfigError, DataError, DivergedError, counted
from data.squad import SquadFile
from data.vocabulary import Vocabulary
from finetune.search import texts
from finetune.search.examples import Buckets, add_to_digest, make_buckets
from finetune.search.program import OutputsOf
from finetune.squad import answers as squad_answers
from finetune.squad import windows
from finetune.squad.answers import OFFICIAL_QUESTIONS, Predictions
from finetune.squad.windows import Features, Settings

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


def logits(part: Part, outputs_of: OutputsOf, **sizes: int) -> list[Logits]:
  """Returns each run's logits for all windows, in their order; `sizes` are those of `texts.outputs`."""
  by_run = texts.outputs(part.features.examples, part.buckets, outputs_of, **sizes)
  return [([starts for starts, _ in of_run], [ends for _, ends in of_run]) for of_run in by_run]


def decode(data: SquadData, logits: Logits, *, best_only: bool = False) -> Predictions:
  """Returns one run's answers to the development questions; see `answers.decode`."""
  return squad_answers.decode(
    data.dev.file.questions,
    data.dev.features,
    *logits,
    data.vocabulary,
    data.settings,
    can_be_null=data.version == "2.0",
    best_only=best_only,
  )


def evaluate(
  data: SquadData, outputs_of: OutputsOf, *, num_runs: int, batch_size: int, pad_id: int
) -> list[dict[str, float]]:
  """Returns each run's development metrics, as fractions; a run with NaN or infinite logits scores 0."""
  by_run = logits(data.dev, outputs_of, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id)
  return [_scores(data, run_logits) for run_logits in by_run]


def _scores(data: SquadData, run_logits: Logits) -> dict[str, float]:
  try:
    predictions = decode(data, run_logits, best_only=True)
  except DivergedError:
    return dict.fromkeys(METRICS[data.version], 0.0)
  scores = squad_answers.evaluate(data.dev.file.questions, predictions)
  return {name: scores[name] / 100 for name in METRICS[data.version]}
