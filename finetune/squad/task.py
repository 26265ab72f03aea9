"""SQuAD as a task: from files to windows, and from the logits of all windows to the papers' figures."""

import dataclasses
import hashlib
import itertools
import json

import numpy as np

from data.errors import ConfigError, DataError, DivergedError
from data.squad import SquadFile
from data.vocabulary import Vocabulary
from finetune.search import texts
from finetune.search.examples import Buckets, add_to_digest, make_buckets
from finetune.search.program import OutputsOf
from finetune.squad import answers as squad_answers
from finetune.squad import windows
from finetune.squad.answers import OFFICIAL_QUESTIONS, Predictions
from finetune.squad.windows import Features, Settings

Logits = tuple[list[np.ndarray], list[np.ndarray]]  # start and end, [length or more] float32 for each window

# By version what a record holds, as fractions; runs are judged by the first.
METRICS = {
  "2.0": ("best_f1", "best_exact", "f1_threshold_0", "exact_threshold_0"),
  "1.1": ("f1", "exact"),
}


@dataclasses.dataclass(frozen=True)
class Part:
  """Training or development questions with their windows."""

  file: SquadFile
  features: Features
  buckets: Buckets


@dataclasses.dataclass(frozen=True)
class SquadData:
  """Both sets."""

  train: Part  # without the questions whose answer cannot be located
  dev: Part  # all questions
  settings: Settings
  vocabulary: Vocabulary
  digest: str  # sha256 over everything that scores depend on besides the model
  lines: list[str]  # what a user should know: sizes, dropped questions, sources

  @property
  def version(self) -> str:
    """'2.0' or '1.1'."""
    return self.dev.file.version

  @property
  def is_official(self) -> bool:
    """Whether the development set has as many questions as the official one."""
    return len(self.dev.file.questions) == OFFICIAL_QUESTIONS[self.version]

  @property
  def unanswerable(self) -> float:
    """Part of the development questions without an answer: what "no answer" to everything scores."""
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
  """Splits SQuAD's two sets into windows of tokens; draws `train_rows` training questions, 0 for all.

  Raises:
    ConfigError: no room for a document in a window, or more training questions than there are.
    DataError: no window is left.
  """
  train_part = _part(_draw(train, train_rows, seed), vocabulary, settings, training=True)
  dev_part = _part(dev, vocabulary, settings, training=False)
  digest, lines = _digest(train_part, dev_part, settings), _lines(train_part, dev_part, settings)
  return SquadData(train_part, dev_part, settings, vocabulary, digest, lines)


def _draw(file: SquadFile, count: int, seed: int) -> SquadFile:
  """Draws `count` questions, or all for 0; small draws are subsets of larger ones, as in `data.glue`."""
  total = len(file.questions)
  if count > total:
    raise ConfigError(
      f"data.train_rows={count}: {file.source} has {total:,} questions; use at most as many, or 0 for all"
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
      f"{file.source}: no window is left of {len(file.questions):,} questions, such as {name!r}: {reason}; "
      "give the official file"
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
    f"squad train: {len(train.file.questions):,} questions: {len(train.features.windows):,} windows, "
    f"{np.count_nonzero(train.features.examples.fields['start']):,} with an answer",
    f"squad train: {train.buckets.describe(train.features.examples.sizes)}",
    f"squad dev: {dev.file.source}: {len(questions):,} questions, "
    f"{sum(question.is_impossible for question in questions):,} without an answer, "
    f"{len(dev.features.windows):,} windows",
  ]
  if dropped := train.features.dropped:
    name, reason = next(iter(dropped.items()))
    lines.append(
      f"squad train: {len(dropped):,} questions are left out, because their answer cannot be located, such "
      f"as {name!r}: {reason}"
    )
  if dev.features.empty:
    lines.append(f'squad dev: {len(dev.features.empty):,} questions without a token are answered with ""')
  if len(questions) != OFFICIAL_QUESTIONS[version]:
    lines.append(
      f"squad dev: not the official development set ({OFFICIAL_QUESTIONS[version]:,} questions): its figures "
      "are not the papers'"
    )
  pairs = [pair for part in (train, dev) for pair in itertools.pairwise(part.features.windows)]
  pairs = [(window, after) for window, after in pairs if window.question == after.question]
  apart = sum(window.first + window.count <= after.first for window, after in pairs)
  if apart:
    lines.append(
      f"squad: {apart:,} of {len(pairs):,} neighbouring windows do not overlap: {settings.max_length} tokens "
      f"leave no more room than the stride of {settings.stride}; an answer across the cut is lost: lower "
      "squad.stride, or raise data.max_length"
    )
  return lines


def logits(part: Part, outputs_of: OutputsOf, **sizes: int) -> list[Logits]:
  """The logits of every run for every window, in the order of the windows; `sizes` as of `texts.outputs`."""
  by_run = texts.outputs(part.features.examples, part.buckets, outputs_of, **sizes)
  return [([starts for starts, _ in of_run], [ends for _, ends in of_run]) for of_run in by_run]


def decode(data: SquadData, logits: Logits, *, best_only: bool = False) -> Predictions:
  """Answers to the development questions; see `answers.decode`."""
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
  """The metrics of every run on the development set, fractions; a run without finite logits scores 0."""
  by_run = logits(data.dev, outputs_of, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id)
  return [_scores(data, run_logits) for run_logits in by_run]


def _scores(data: SquadData, run_logits: Logits) -> dict[str, float]:
  try:
    predictions = decode(data, run_logits, best_only=True)
  except DivergedError:
    return dict.fromkeys(METRICS[data.version], 0.0)
  scores = squad_answers.evaluate(data.dev.file.questions, predictions)
  return {name: scores[name] / 100 for name in METRICS[data.version]}
