"""From sentences to examples and from logits to scores."""

import dataclasses

import numpy as np
import pytest

from configs import finetune_glue
from data import vocabulary
from data.glue.tasks import Split
from finetune import needed_files
from finetune.glue import search as glue
from finetune.glue import task as glue_task
from finetune.search.examples import Encoding
from tests.finetune.glue import small_glue


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


def _split(first, second=None, labels=None, **changes) -> Split:
  labels = None if labels is None else np.asarray(labels)
  ids = [str(row) for row in range(len(first))]
  return Split(
    first, second, labels, ids, **({"dropped": 0, "source": "made", "is_official": False} | changes)
  )


def _encoding(words, **changes) -> Encoding:
  return Encoding(words, **({"max_length": 16, "num_buckets": 2, "multiple": 4} | changes))


def test_pairs_have_the_separators_of_the_vocabulary_and_the_longer_side_is_cut(words):
  split = _split(["good", "a film was very good"], ["bad", "bad"], np.asarray([1, 0], np.int32))
  examples, cut = _encoding(words, max_length=7).examples(split, is_regression=False)
  special = words.special_ids
  good, bad = (words.encode(word)[0] for word in ("good", "bad"))
  np.testing.assert_array_equal(examples.ids[0], [special.cls, good, special.sep, bad, special.sep])
  expected = [special.cls, *words.encode("a film was"), special.sep, bad, special.sep]
  np.testing.assert_array_equal(examples.ids[1], expected)
  assert cut == 1
  assert examples.fields["labels"].dtype == np.int32


def test_scores_of_similarity_become_targets_by_the_divisor(words):
  split = _split(["good"] * 3, ["bad"] * 3, [0.0, 2.5, 5.0])
  examples, _ = _encoding(words, divisor=5.0).examples(split, is_regression=True)
  np.testing.assert_allclose(examples.fields["labels"], [0.0, 0.5, 1.0])
  assert examples.fields["labels"].dtype == np.float32


def _data(words, task="sst2", count=11) -> glue_task.GlueData:
  random = np.random.default_rng(0)
  texts = [" ".join(random.choice(small_glue.WORDS, random.integers(1, 12))) for _ in range(count)]
  labels = np.arange(count) % 2
  dev = _split(texts, labels=labels.astype(np.int32))
  return glue_task.from_splits(
    task, _split(texts, labels=labels.astype(np.int32)), {"dev": dev}, _encoding(words)
  )


def test_every_example_counts_once_at_any_batch_size(words):
  data = _data(words)
  # A model that knows all, one that knows nothing, and one with outputs that are not finite.
  for batch_size, sign, accuracy in ((1, 1.0, 1.0), (4, -1.0, 0.0), (64, 1.0, 1.0), (64, np.nan, 0.0)):
    seen = []

    def outputs_of(batch, seen=seen, sign=sign):
      for ids, weight in zip(batch["ids"], batch["weights"]):
        if weight:
          seen.append(tuple(ids[ids != 0]))
      return sign * np.eye(2, dtype=np.float32)[batch["labels"]]

    assert glue.evaluate(data, outputs_of, batch_size=batch_size, pad_id=0) == {"accuracy": accuracy}
    assert sorted(seen) == sorted(tuple(ids) for ids in data.dev["dev"].examples.ids)


def test_the_digest_knows_texts_and_labels_and_dropped_and_cut_rows_are_told(words):
  same, other = _data(words), _data(words, count=10)
  assert same.digest == _data(words).digest != other.digest
  split = _split(["good", "bad"], labels=np.asarray([0, 1], np.int32))
  flipped = _split(["good", "bad"], labels=np.asarray([1, 1], np.int32))
  digests = {
    glue_task.from_splits("sst2", train, {"dev": dev}, _encoding(words)).digest
    for train, dev in ((split, split), (flipped, split), (split, flipped))
  }
  assert len(digests) == 3
  split = _split(["good " * 30, "bad"], labels=np.asarray([0, 1], np.int32), dropped=3)
  lines = glue_task.from_splits("sst2", split, {"dev": split}, _encoding(words)).lines
  assert any("6 rows dropped" in line for line in lines)
  assert "sst2: texts truncated to 16 tokens: 1 of train, 1 of dev" in lines


def test_mnli_without_its_mismatched_half_is_evaluated_on_the_matched_one(words, tmp_path):
  (tmp_path / "MNLI").mkdir()
  rows = [f"{row}\tgood film\tbad film\t{('neutral', 'entailment')[row % 2]}" for row in range(5)]
  for split in ("train", "dev"):
    text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n"
    (tmp_path / "MNLI" / f"{split}.subset.tsv").write_text(text, encoding="utf-8")
  config = finetune_glue.get_config()
  config.update({"tasks": "mnli", "data": {"directory": str(tmp_path)}})
  needed_files.check(config, download=False)
  data = glue_task.load("mnli", str(tmp_path), _encoding(words))
  assert list(data.dev) == ["dev_matched"]
  assert any("no dev_mismatched split in" in line for line in data.lines)
  zeros = lambda batch: np.zeros((4, 3), np.float32)  # noqa: E731
  assert list(glue.evaluate(data, zeros, batch_size=4, pad_id=0)) == ["accuracy"]
  for asked, used in ((3, 3), (5, 5), (6, 5)):  # more rows than there are: all are used, and a line names it
    data = glue_task.load("mnli", str(tmp_path), _encoding(words), train_rows=asked)
    assert len(data.train.ids) == used
    assert any("data.train_rows=6" in line for line in data.lines) == (asked == 6)


def test_mnli_is_official_and_scored_with_both_halves(words):
  labels = np.asarray([0, 1], np.int32)
  split = _split(["good", "bad"], ["bad", "good"], labels, is_official=True)
  halves = {"dev_matched": split, "dev_mismatched": dataclasses.replace(split, labels=0 * labels)}
  whole = glue_task.from_splits("mnli", split, halves, _encoding(words))
  assert whole.is_official
  assert not glue_task.from_splits("mnli", split, {"dev_matched": split}, _encoding(words)).is_official
  first = lambda batch: np.eye(3, dtype=np.float32)[[0, 0]]  # noqa: E731
  scores = glue.evaluate(whole, first, batch_size=2, pad_id=0)
  assert scores == {"accuracy": 0.5, "accuracy_mm": 1.0}
