"""K examples of each class: LM-BFF's files and the same draws made here."""

import dataclasses

import numpy as np
import pytest

from data import glue
from data.errors import DataError
from data.glue import kshot
from tests.data.conftest import SHARED, refused

SEEDS = (13, 21, 42, 87, 100)  # of the five published draws

DRAWS = SHARED / "datasets" / "kshot_lmbff"
OFFICIAL = SHARED / "datasets" / "glue"
needs_shared = pytest.mark.skipif(
  not (DRAWS.is_dir() and OFFICIAL.is_dir()), reason="needs ../shared/datasets/{kshot_lmbff,glue}"
)


def whole(labels):
  texts = [str(row) for row in range(len(labels))]
  return glue.Split(texts, None, labels, texts, 0, "numbers", is_official=True)


def test_a_draw_has_k_rows_of_each_class_in_both_sets_and_none_twice():
  split = whole(np.arange(60, dtype=np.int32) % 3)
  train, dev = kshot.sample(split, 4, seed=13)
  assert np.bincount(train.labels).tolist() == np.bincount(dev.labels).tolist() == [4, 4, 4]
  assert not set(train.ids) & set(dev.ids)
  assert not train.is_official
  assert train.ids == kshot.sample(split, 4, seed=13)[0].ids
  assert set(train.ids) != set(kshot.sample(split, 4, seed=21)[0].ids)


def test_scores_are_drawn_below_and_from_the_middle():
  split = whole(np.array([0.0, 2.4, 2.5, 5.0] * 3, np.float32))
  train, dev = kshot.sample(split, 3, seed=1)
  assert sum(train.labels >= 2.5) == sum(dev.labels >= 2.5) == 3


def test_too_few_rows_or_no_labels_are_refused():
  few = whole(np.array([0, 0, 0, 1, 1, 1, 1], np.int32))
  zeros = whole(np.zeros(9, np.int32))
  for split, k, code, words in (
    (few, 2, 3, "3 rows of class 0, expected at least 4 for k=2; use:\n  --config.prompt.shots=1"),
    (dataclasses.replace(zeros, labels=None), 2, 3, "no labels"),
    (zeros, 0, 2, "k=0"),
  ):
    found, message = refused(lambda split=split, k=k: kshot.sample(split, k, seed=0))
    assert found == code and words in message


def write_draw(directory, name, labels):
  directory.mkdir(parents=True, exist_ok=True)
  lines = ["sentence\tlabel", *(f"text {row}\t{label}" for row, label in enumerate(labels))]
  (directory / name).write_text("\n".join(lines) + "\n")


def test_a_folder_of_draws_is_read_and_its_numbers_checked(tmp_path):
  write_draw(tmp_path / "SST-2" / "2-13", "train.tsv", [1, 1, 0, 0])
  write_draw(tmp_path / "SST-2" / "2-13", "dev.tsv", [0, 0, 1, 1])
  train, dev = kshot.read(tmp_path, "sst2", k=2, seed=13)
  assert train.labels.tolist() == [1, 1, 0, 0]
  assert dev.labels.tolist() == [0, 0, 1, 1]
  _, line = refused(lambda: kshot.read(tmp_path, "sst2", k=2, seed=21))
  assert "SST-2/2-21/train.tsv" in line and "the draws (k-seed) 2-13;" in line
  assert line.endswith("\n  --config.prompt.directory=")
  write_draw(tmp_path / "SST-2" / "2-13", "dev.tsv", [0, 0, 0, 1])
  with pytest.raises(DataError, match=r"dev\.tsv: 3, 1 rows of the classes, expected 2 of each"):
    kshot.read(tmp_path, "sst2", k=2, seed=13)


@needs_shared
def test_the_published_draws_come_out_of_the_official_files():
  for task, seeds in (("rte", SEEDS), ("mrpc", SEEDS), ("stsb", SEEDS), ("cola", (100,))):
    split = glue.read(str(OFFICIAL), task, "train")
    for seed in seeds:
      for ours, theirs in zip(kshot.sample(split, 16, seed), kshot.read(DRAWS, task, seed=seed)):
        assert (ours.first, ours.second) == (theirs.first, theirs.second), (task, seed)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
