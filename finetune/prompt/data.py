"""The few-shot splits and the test sets of a task, as prompts, and the metrics of predictions for them."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from data import glue
from data.errors import DataError, counted
from data.glue import kshot
from data.glue.tasks import Split
from finetune.papers import glue_metrics
from finetune.papers.glue_metrics import DEV_SPLITS
from finetune.prompt.templates import (
  EvaluationSet,
  Pool,
  PromptWriter,
  TrainingFeed,
  make_evaluation_set,
  make_pool,
)
from finetune.search.examples import Buckets, add_to_digest, outputs
from finetune.search.problem import OutputsOf

# Metrics that choose a run's best evaluation and the best cell, as in LM-BFF src/trainer.py; else accuracy.
_MAIN = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}

MAX_SCORE = 5.0  # scores of STS-B are from 0 to 5


@dataclasses.dataclass(frozen=True)
class Lengths:
  """The sizes of a task's prompts and evaluation batches, and the number of demonstration sets."""

  max_length: int  # tokens of a prompt with its demonstrations
  num_samples: int  # sets of demonstrations in evaluation, whose predictions are averaged
  batch_size: int  # sequences of an evaluation batch
  pad_id: int


@dataclasses.dataclass(frozen=True)
class PromptData:
  """A task's few-shot training and development sets, by the seed that drew them, and its test sets."""

  task: str
  writer: PromptWriter
  lengths: Lengths
  pools: Mapping[int, Pool]  # {split: training set}
  dev: Mapping[int, EvaluationSet]  # {split: development set with the split's demonstrations}
  tests: Mapping[str, Split]  # {suffix of metric names: test set}, the task's own first; may be empty
  digests: Mapping[int, str]  # {split: sha256 over ids and labels of its training and development set}
  test_digest: str  # sha256 over texts and labels of the test sets
  lines: Sequence[str]  # for the log: sizes, sources, missing test sets

  @property
  def metric(self) -> str:
    """The name of the metric that chooses a run's best evaluation and the best cell."""
    return _MAIN.get(self.task, "accuracy")

  @property
  def is_official(self) -> bool:
    """Whether the test sets are GLUE's complete development sets."""
    return bool(self.tests) and all(split.is_official for split in self.tests.values())

  def feed(self, split: int, batch_size: int) -> TrainingFeed:
    """Returns the training batches of a run on a split."""
    sizes = {"batch_size": batch_size, "max_length": self.lengths.max_length, "pad_id": self.lengths.pad_id}
    return TrainingFeed(self.pools[split], split, **sizes)

  def test(self, outputs_of: OutputsOf, split: int) -> dict[str, float]:
    """Returns a run's metrics on all test sets, with demonstrations from `split`'s training set."""
    sizes = {"num_samples": self.lengths.num_samples, "max_length": self.lengths.max_length}
    metrics: dict[str, float] = {}
    for suffix, test_set in self.tests.items():
      examples = make_evaluation_set(self.writer, test_set, self.pools[split], seed=split, **sizes)
      scores = self.evaluate(outputs_of, examples)
      metrics |= {f"{name}{suffix}": value for name, value in scores.items()}
    return metrics

  def evaluate(self, outputs_of: OutputsOf, of: EvaluationSet) -> dict[str, float]:
    """Returns {metric: value} of a model on a set; NaN or infinite outputs score 0."""
    finish = scores_of if self.writer.template.is_regression else np.asarray
    predictions = predict(outputs_of, of, finish, self.lengths)
    task = "mnli" if self.task == "snli" else self.task  # the same classes and metric
    labels = of.examples.fields["labels"][: len(predictions)]
    return glue_metrics.score_of_run(task, predictions, labels)


def predict(
  outputs_of: OutputsOf, of: EvaluationSet, finish: Callable[[np.ndarray], np.ndarray], lengths: Lengths
) -> np.ndarray:
  """Returns a model's predictions for a set, [n, ...] float64, averaged over sets of demonstrations.

  `finish` turns outputs [rows, classes] into the values that are averaged, [rows, ...].
  """
  rows = np.arange(len(of.examples.ids))
  sizes = {"batch_size": lengths.batch_size, "pad_id": lengths.pad_id}
  found = outputs(of.examples, Buckets((lengths.max_length,), (rows,)), outputs_of, **sizes)
  finished = np.asarray(finish(np.stack(found)), np.float64)
  return finished.reshape(of.num_samples, -1, *finished.shape[1:]).sum(axis=0) / of.num_samples


def load(task: str, writer: PromptWriter, config: Any, lengths: Lengths, *, download: bool) -> PromptData:
  """Reads the splits and test sets of a task in `templates.TEMPLATES` and returns them as prompts.

  Raises:
    DataError: a split is missing or damaged. A missing test set is no error; `lines` reports it.
  """
  drawn = _draws(task, config, download=download)
  most = {"max_length": lengths.max_length}
  sizes = {"num_samples": lengths.num_samples, **most}
  pools = {seed: make_pool(writer, train, **most) for seed, (train, _) in drawn.items()}
  dev = {
    seed: make_evaluation_set(writer, split, pools[seed], seed=seed, **sizes)
    for seed, (_, split) in drawn.items()
  }
  tests, test_lines = _tests(task, config, download=download)
  digests = {seed: _digest(pools[seed], dev[seed]) for seed in pools}
  rows = [[test.first, test.second, np.asarray(test.labels).tolist()] for test in tests.values()]
  test_digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
  data = PromptData(task, writer, lengths, pools, dev, tests, digests, test_digest, [])
  lines = [*_split_lines(data, drawn), *test_lines]
  return dataclasses.replace(data, lines=lines)


def _draws(task: str, config: Any, *, download: bool) -> dict[int, tuple[Split, Split]]:
  """Returns {seed: (training set, development set)}, read from LM-BFF's files or drawn by seed."""
  prompt = config.prompt
  if prompt.directory:
    return {seed: kshot.read(prompt.directory, task, k=prompt.shots, seed=seed) for seed in prompt.splits}
  try:
    train = glue.read(config.data.directory, task, "train", download=download)
  except DataError as error:
    raise DataError(
      f"no folder of LM-BFF's draws (DIR/MNLI/16-13/train.tsv) is set; {error}\n"
      "  --config.prompt.directory=DIR"
    ) from error
  return {seed: kshot.sample(train, prompt.shots, seed) for seed in prompt.splits}


def _tests(task: str, config: Any, *, download: bool) -> tuple[dict[str, Split], list[str]]:
  """Returns GLUE's development sets, which are the test sets of LM-BFF, and a line about each."""
  names = DEV_SPLITS.get(task, {"dev": ""})
  directory = config.data.directory
  readable = list(names) if download else [n for n in names if n in glue.available(directory, task)]
  # The first set gives the task's main score, so without it the others are not reported.
  readable = readable if next(iter(names)) in readable else []
  missing = [name for name in names if name not in readable]
  lines = []
  if missing:
    lines.append(
      f"{task}: no test set {' and '.join(missing)} (GLUE's development set) in "
      f"{directory or 'the default TFDS directory'}; "
      + ("its scores are not reported" if readable else "only k-shot development scores are reported")
      + "; to test, use --config.data.directory=DIR, a folder of GLUE"
    )
  tests = {}
  splits = glue.read_all(directory, [(task, name) for name in readable], download=download)
  for name, split in zip(readable, splits):
    tests[names[name]] = split
    lines.append(f"{task}: test set {name}: {counted(len(split), 'example')}, from {split.source}")
  return tests, lines


def _split_lines(data: PromptData, drawn: Mapping[int, tuple[Split, Split]]) -> list[str]:
  first, first_dev = next(iter(drawn.values()))
  words = "/".join(data.writer.vocabulary.piece(i) for i in data.writer.word_ids)
  num_samples = data.lengths.num_samples
  return [
    f"{data.task}: splits {', '.join(map(str, drawn))}, each of {len(first)} training and {len(first_dev)} "
    f"development examples, the first from {first.source}; words {words}; {num_samples} sets of "
    "demonstrations in evaluation"
  ]


def _digest(pool: Pool, dev: EvaluationSet) -> str:
  digest = hashlib.sha256()
  ids = (*(query.ids for query in pool.queries), *pool.demonstrations, *dev.examples.ids)
  add_to_digest(digest, ids, np.asarray(pool.labels), dev.examples.fields["labels"])
  return digest.hexdigest()


def scores_of(logits: np.ndarray) -> np.ndarray:
  """Returns scores [rows, 1] float64, from logits [rows, 2]: 5 times the high word's probability."""
  low, high = np.asarray(logits, np.float64).T
  return (MAX_SCORE / (1.0 + np.exp(low - high)))[:, None]
