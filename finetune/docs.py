"""`kind='docs'`: which library is a paragraph from? A checkpoint, its encoder from scratch, naive Bayes.

All three get the same paragraphs. Runs of both encoders have the same batches, steps and learning rates to
choose from; the development set chooses the evaluation a run counts with and the learning rate, the test set
is only reported.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
from ml_collections import ConfigDict
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB

from data import library_paragraphs
from data.errors import ConfigError
from data.glue_tasks import Split
from data.library_paragraphs import LibraryParagraphs
from finetune import glue, metrics, summary, tables
from finetune.classification import make_problem
from finetune.examples import Examples
from finetune.session import Plan, Session, compiled
from finetune.summary import Record
from pretrain.stop import StopRequest

TRAIN_ROWS = 2_000
DEV_PART, TEST_PART = 4, 2  # of the training rows: a fourth and a half
SPACE_OF = "cola"  # whose search space a protocol uses where the config does not say: a small task's
METRIC, TEST_METRIC = "accuracy", "test_accuracy"
CHECKPOINT, SCRATCH = "checkpoint", "scratch"
STEM = "docs"
NAMES = {CHECKPOINT: "the checkpoint, fine-tuned", SCRATCH: "its encoder from scratch"}


@dataclasses.dataclass(frozen=True)
class Score:
  """One line of the comparison; accuracies are fractions.

  Attributes:
    name: who classifies.
    seeds: {seed: test accuracy}; naive Bayes has seed 0 alone.
    dev: mean accuracy on the development set.
    learning_rate: the chosen one; None: there is none.
  """

  name: str
  seeds: Mapping[int, float]
  dev: float
  learning_rate: float | None = None

  @property
  def mean(self) -> float:
    """Test accuracy."""
    return float(np.mean(list(self.seeds.values())))


def run(config: ConfigDict, workdir: str, *, stop: StopRequest, say: Callable[[str], None] = print) -> int:
  """Compares the three and prints and writes the table; returns the exit code.

  Args:
    config: validated, of kind 'docs'. `data.directory` is a folder of installed packages ('': those of this
      program), `data.train_rows` the wanted training paragraphs (0: `TRAIN_ROWS`).
    workdir: finished runs, docs.md, docs.csv and docs.json go there.
    stop: asked after every step.
    say: takes lines for the user.

  Raises:
    loop.Stopped: as asked; finished runs are stored, unfinished ones saved.
    UserError: see data/errors.py.
  """
  if config.from_scratch:
    raise ConfigError(
      "from_scratch=True: kind='docs' trains from scratch beside the checkpoint; leave it out"
    )
  sessions = {}
  for name in (CHECKPOINT, SCRATCH):
    changed = config.copy_and_resolve_references()
    changed.from_scratch = name == SCRATCH
    watched = sys.stderr.isatty()
    sessions[name] = Session(changed, workdir, stop=stop, say=say, show_progress=watched)
  task = _paragraphs(config)
  for line in task.lines:
    say(line)
  encoded = Encoded(task, sessions[CHECKPOINT])
  say(encoded.line)
  scores = [
    bayes("naive Bayes, whole paragraphs", {name: split.first for name, split in task.splits.items()}, task),
    bayes("naive Bayes, the encoder's tokens", encoded.words, task),
  ]
  for name in (SCRATCH, CHECKPOINT):
    scores.append(_fine_tuned(name, sessions[name], encoded))
  page = make_page(scores, task, sessions[CHECKPOINT])
  tables.print_page(rich.console.Console(file=sys.stdout, highlight=False), page)
  rows = [
    {"name": score.name, "seed": seed, "test_accuracy": value, "learning_rate": score.learning_rate}
    for score in scores
    for seed, value in score.seeds.items()
  ]
  content = {"libraries": task.libraries, "scores": [dataclasses.asdict(score) for score in scores]}
  for path in tables.write(workdir, STEM, page, rows, content):
    say(f"wrote {path}")
  return 0


def _paragraphs(config: ConfigDict) -> LibraryParagraphs:
  rows = config.data.train_rows or TRAIN_ROWS
  return library_paragraphs.load(
    train_rows=rows,
    dev_rows=rows // DEV_PART,
    test_rows=rows // TEST_PART,
    seed=config.seed,
    root=config.data.directory,
  )


class Encoded:
  """The paragraphs as the encoder reads them."""

  def __init__(self, task: LibraryParagraphs, session: Session) -> None:
    fields, words = session.config.data, session.start.vocabulary
    self.max_length = session.max_length(SPACE_OF)
    encoding = glue.Encoding(words, self.max_length, fields.buckets, fields.bucket_multiple)
    self.num_classes = len(task.libraries)
    self.train, self._cut = encoding.examples(task.splits["train"], is_regression=False)
    self.buckets = encoding.buckets(self.train)
    self.sets = {name: encoding.evaluated(task.splits[name], is_regression=False) for name in ("dev", "test")}

  @property
  def examples(self) -> dict[str, Examples]:
    """Of every split."""
    return {"train": self.train, **{name: given.examples for name, given in self.sets.items()}}

  @property
  def words(self) -> dict[str, list[str]]:
    """The tokens of every text as words, cut where the encoder's text is cut."""
    return {
      name: [" ".join(map(str, ids.tolist())) for ids in examples.ids]
      for name, examples in self.examples.items()
    }

  @property
  def line(self) -> str:
    """How long they are."""
    return (
      f"the encoder reads at most {self.max_length} tokens: {self._cut:,} of {len(self.train.ids):,} "
      f"training paragraphs are cut; padded to {', '.join(map(str, self.buckets.lengths))} tokens"
    )

  @property
  def digest(self) -> str:
    """sha256 over ids and labels."""
    found = hashlib.sha256()
    for name, examples in self.examples.items():
      labels = examples.fields["labels"].tolist()
      found.update(json.dumps([name, labels, [ids.tolist() for ids in examples.ids]]).encode())
    return found.hexdigest()


def bayes(name: str, texts: Mapping[str, Sequence[str]], task: LibraryParagraphs) -> Score:
  """Multinomial naive Bayes on counts of words, with scikit-learn's defaults.

  Args:
    name: for the table.
    texts: {'train', 'dev', 'test'}: texts in the order of the task's splits.
    task: for the labels.
  """
  # Single characters are words too: token ids below 10 are.
  counts = CountVectorizer(token_pattern=r"(?u)\b\w+\b")
  model = MultinomialNB().fit(counts.fit_transform(texts["train"]), task.splits["train"].labels)

  def accuracy(split: str) -> float:
    return metrics.accuracy(_labels(task.splits[split]), model.predict(counts.transform(texts[split])))

  return Score(name, {0: accuracy("test")}, accuracy("dev"))


def _labels(split: Split) -> np.ndarray:
  return np.asarray(split.labels)


def _fine_tuned(name: str, session: Session, encoded: Encoded) -> Score:
  """Trains every learning rate with every seed, or reads what is finished."""
  size = session.config.data.eval_batch_size
  problem = make_problem(
    session.encoder, session.head, num_outputs=encoded.num_classes, pad_id=session.pad_id
  )

  def evaluate(outputs_of, num_runs: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{} for _ in range(num_runs)]
    for metric, given in ((METRIC, encoded.sets["dev"]), (TEST_METRIC, encoded.sets["test"])):
      logits = glue.outputs(given, outputs_of, num_runs=num_runs, batch_size=size, pad_id=session.pad_id)
      for metrics_of_run, outputs in zip(found, logits):
        metrics_of_run[metric] = metrics.accuracy(_labels(given.split), np.argmax(outputs, axis=1))
    return found

  plan = Plan(
    name,
    problem,
    METRIC,
    session.cells(SPACE_OF),
    encoded.train,
    encoded.buckets,
    evaluate,
    tuple(length for given in encoded.sets.values() for length in given.buckets.lengths),
    encoded.digest,
    encoded.max_length,
  )
  session.say(session.describe(plan))
  search = session.search(plan)
  records = search.run(plan.cells, session.seeds)
  if search.program.shapes:
    session.say(f"{name}: {compiled(sorted(search.program.shapes))}")
  return score(name, records)


def score(name: str, records: Sequence[Record]) -> Score:
  """The line of an encoder: the test accuracies of the cell with the best mean on the development set."""
  chosen = summary.choose(records, METRIC, "mean")
  test = summary.summarise(chosen, TEST_METRIC)
  seeds = {int(seed): value for seed, value in test.per_seed.items()}
  return Score(NAMES[name], seeds, summary.summarise(chosen).mean, chosen.cell.learning_rate)


def make_page(scores: Sequence[Score], task: LibraryParagraphs, session: Session) -> tables.Page:
  """The table and what it means, whichever way it came out.

  Args:
    scores: the last two from scratch and from the checkpoint, of the same seeds.
    task: the paragraphs.
    session: of the checkpoint.
  """
  headers = ("test accuracy, %", "mean", "seeds", "dev", "learning rate")
  rows = []
  for one in scores:
    rate = "-" if one.learning_rate is None else f"{one.learning_rate:g}"
    seeds = " ".join(tables.percent(value) for value in one.seeds.values()) if one.learning_rate else "-"
    rows.append((one.name, tables.percent(one.mean), seeds, tables.percent(one.dev), rate))
  table = tables.Table(headers, ("left", "right", "right", "right", "right"), rows)
  which = f"{session.config.checkpoint}, step {session.start.meta.get('step', 0):,}"
  return tables.Page(
    f"Which of {len(task.libraries)} libraries is a paragraph from? {which}",
    [table],
    _notes(scores, task, session.start.meta),
  )


def _notes(scores: Sequence[Score], task: LibraryParagraphs, meta: Mapping[str, Any]) -> list[str]:
  scratch, checkpoint = scores[-2:]
  best_bayes = max(one.mean for one in scores[:-2])
  gains = [checkpoint.seeds[seed] - scratch.seeds[seed] for seed in scratch.seeds]
  gain, count = checkpoint.mean - scratch.mean, len(task.splits["test"])
  error = 100 * float(np.sqrt(checkpoint.mean * (1 - checkpoint.mean) / count))
  found = [
    f"Pretraining makes {abs(100 * gain):.1f} points {'more' if gain > 0 else 'less'} than none "
    f"(above scratch with {sum(one > 0 for one in gains)} of {len(gains)} seeds). Guessing would give "
    f"{100 / len(task.libraries):.1f} %; {count:,} test paragraphs leave a standard error of {error:.1f} "
    "points.",
    f"The checkpoint is {abs(100 * (checkpoint.mean - best_bayes)):.1f} points "
    f"{'above' if checkpoint.mean > best_bayes else 'below'} naive Bayes, which counts words and trains in a "
    "second.",
  ]
  if meta.get("config", {}).get("data", {}).get("source") == "installed_docs":
    found.append(
      "The checkpoint was pretrained on the documentation the paragraphs are from: it has read the test "
      "paragraphs, names and all, but never which library they belong to."
    )
  return found
