"""`kind='docs'`: which library is a paragraph from? A checkpoint, its encoder from scratch, naive Bayes.

All get the same paragraphs; both encoders the same batches, steps and learning rates to choose from. The
development set chooses the evaluation a run counts with and the learning rate; the test set chooses nothing.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB

from data import library_paragraphs
from data.errors import ConfigError
from data.library_paragraphs import LibraryParagraphs
from data.tables import Report
from finetune.docs import report as docs_report
from finetune.docs.report import Score
from finetune.papers import glue_metrics, spaces
from finetune.search import best_model, summary, texts
from finetune.search.classification import exported_task, make_problem
from finetune.search.examples import Examples
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from finetune.search.texts import Encoding

TRAIN_ROWS = 2_000
DEV_PART, TEST_PART = 4, 2  # a fourth and a half of the training rows
METRIC, TEST_METRIC = "accuracy", "test_accuracy"
STATISTIC = "mean"  # over seeds, by which a learning rate is chosen, whatever the protocol says
CHECKPOINT, SCRATCH = "checkpoint", "scratch"  # folders of the two searches
NAMES = {CHECKPOINT: "the checkpoint, fine-tuned", SCRATCH: "its encoder from scratch"}


class Encoded:
  """The paragraphs as an encoder reads them: training examples in buckets, and `sets` 'dev' and 'test'."""

  def __init__(self, task: LibraryParagraphs, session: Session) -> None:
    fields, words = session.config.data, session.start.vocabulary
    self.task, self.max_length = task, session.max_length(spaces.SMALL_TASK)
    encoding = Encoding(words, self.max_length, fields.buckets, fields.bucket_multiple)
    self.train, cut = encoding.examples(task.splits["train"], is_regression=False)
    self.buckets = encoding.buckets(self.train)
    self.sets = {name: encoding.evaluated(task.splits[name], is_regression=False) for name in ("dev", "test")}
    self.lines = [
      f"{cut:,} of {len(self.train.ids):,} training paragraphs are cut to the {self.max_length} tokens the "
      f"encoder reads; {self.buckets.describe(self.train.sizes)}"
    ]

  @property
  def examples(self) -> dict[str, Examples]:
    """The examples of every split by its name."""
    return {"train": self.train, **{name: given.examples for name, given in self.sets.items()}}

  @property
  def words(self) -> dict[str, list[str]]:
    """The tokens of every text as words, cut where the encoder's text is."""
    return {
      name: [" ".join(map(str, ids.tolist())) for ids in examples.ids]
      for name, examples in self.examples.items()
    }

  @property
  def digest(self) -> str:
    """sha256 over ids and labels."""
    digest = hashlib.sha256()
    for name, examples in self.examples.items():
      labels = examples.fields["labels"].tolist()
      digest.update(json.dumps([name, labels, [ids.tolist() for ids in examples.ids]]).encode())
    return digest.hexdigest()

  def evaluate(self, outputs_of, num_runs: int, *, batch_size: int, pad_id: int) -> list[dict[str, float]]:
    """Accuracy of every run on the development and the test set; what is not finite is a wrong answer."""
    runs: list[dict[str, float]] = [{} for _ in range(num_runs)]
    for metric, evaluated in ((METRIC, self.sets["dev"]), (TEST_METRIC, self.sets["test"])):
      logits = texts.outputs(evaluated, outputs_of, num_runs=num_runs, batch_size=batch_size, pad_id=pad_id)
      for scores, of_run in zip(runs, logits):
        answers = np.where(np.isfinite(of_run).all(axis=1), np.argmax(of_run, axis=1), -1)
        scores[metric] = glue_metrics.accuracy(np.asarray(evaluated.split.labels), answers)
    return runs


def naive_bayes(name: str, texts: Mapping[str, Sequence[str]], task: LibraryParagraphs) -> Score:
  """Multinomial naive Bayes on counts of words, with scikit-learn's defaults.

  `texts` are those of 'train', 'dev' and 'test', in the order of the task's splits, which have the labels.
  """
  # Single characters are words too: some ids have one digit.
  counts = CountVectorizer(token_pattern=r"(?u)\b\w+\b")
  labels = {split: np.asarray(given.labels) for split, given in task.splits.items()}
  model = MultinomialNB().fit(counts.fit_transform(texts["train"]), labels["train"])
  accuracies = {
    split: glue_metrics.accuracy(labels[split], model.predict(counts.transform(texts[split])))
    for split in ("dev", "test")
  }
  return Score(name, {0: accuracies["test"]}, accuracies["dev"])


def choose(name: str, records: Sequence[Record]) -> Score:
  """The line of an encoder: test accuracies of the learning rate with the best mean development accuracy."""
  chosen = summary.choose(records, METRIC, STATISTIC)
  test = summary.summarise(chosen, TEST_METRIC).per_seed
  seeds = {int(seed): value for seed, value in test.items()}
  return Score(name, seeds, summary.summarise(chosen).mean, chosen.cell.learning_rate)


class Docs:
  """Two searches, from the checkpoint and from scratch, and naive Bayes; a `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Gathers the paragraphs; nothing is compiled, and there is nothing to download.

    Of the config, `data.directory` is a folder of installed packages ('': those of this program),
    `data.train_rows` the wanted training paragraphs (0: `TRAIN_ROWS`).

    Raises:
      ConfigError: a field that this kind has no use for.
      DataError: too little documentation.
    """
    del download
    self.session, config = session, session.config
    for field, value in (("from_scratch", config.from_scratch), ("output.predict", config.output.predict)):
      if value:
        raise ConfigError(
          f"{field}=True: kind='docs' trains from scratch beside the checkpoint anyway, and there is no test "
          "set to hand in; leave it out"
        )
    changed = ConfigDict(config)  # a copy that is not frozen
    changed.from_scratch = True
    scratch = Session(
      changed, str(session.workdir), stop=session.stop, say=session.say, show_progress=session.show_progress
    )
    rows = config.data.train_rows or TRAIN_ROWS
    self.task = library_paragraphs.load(
      train_rows=rows,
      dev_rows=rows // DEV_PART,
      test_rows=rows // TEST_PART,
      seed=config.seed,
      root=config.data.directory,
    )
    self.encoded = Encoded(self.task, session)
    self.plans = [self._plan(SCRATCH, scratch), self._plan(CHECKPOINT, session)]

  def _plan(self, name: str, session: Session) -> Plan:
    encoded, size = self.encoded, session.config.data.eval_batch_size
    count = len(self.task.libraries)

    def evaluate(outputs_of: OutputsOf, seeds: Sequence[int]) -> list[dict[str, float]]:
      return encoded.evaluate(outputs_of, len(seeds), batch_size=size, pad_id=session.pad_id)

    plan = session.plan(
      name,
      make_problem(session.encoder, session.head, num_outputs=count, pad_id=session.pad_id),
      METRIC,
      session.cells(spaces.SMALL_TASK),
      encoded.train,
      encoded.buckets,
      evaluate,
      eval_lengths=[length for given in encoded.sets.values() for length in given.buckets.lengths],
      digest=encoded.digest,
      max_length=encoded.max_length,
      keeps_weights=name == CHECKPOINT and session.config.output.save_model,
    )
    return dataclasses.replace(plan, summary=STATISTIC)

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    lines = [self.session.describe(fresh_head="classification"), *self.task.lines, *self.encoded.lines]
    return lines + [plan.describe() for plan in self.plans]

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the model of the checkpoint's best run, unless it is there."""
    if search.plan.keeps_weights:
      task = exported_task("library", self.task.libraries, self.session.head)
      best_model.save(search, best_model.choose(search, records), task)

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """The comparison with naive Bayes, which takes a second."""
    texts = {name: split.first for name, split in self.task.splits.items()}
    bayes = (
      naive_bayes("naive Bayes, whole paragraphs", texts, self.task),
      naive_bayes("naive Bayes, the encoder's tokens", self.encoded.words, self.task),
    )
    meta = self.session.start.meta
    return docs_report.make_report(
      f"{self.session.title}, step {meta.get('step', 0):,}",
      self.task.libraries,
      bayes,
      choose(NAMES[SCRATCH], records[SCRATCH]),
      choose(NAMES[CHECKPOINT], records[CHECKPOINT]),
      num_test=len(self.task.splits["test"]),
      saw_paragraphs=meta["config"].get("data", {}).get("source") == "installed_docs",
    )
