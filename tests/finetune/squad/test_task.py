"""SQuAD's files, and their windows through any model, all counted."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from data import squad as squad_data
from data.errors import ConfigError, DataError
from data.squad import Answer
from finetune import needed_files as squad_files
from finetune.squad import search as squad
from tests.finetune.squad import squad_case
from tests.finetune.squad.squad_case import contexts, make_vocabulary, write

SETTINGS = squad_case.settings(max_length=16, stride=6, max_query_length=2, num_buckets=2, multiple=4)
PAD = 0


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """{version: file}; the later contexts need two windows."""
  folder = tmp_path_factory.mktemp("files")
  return {
    version: squad_data.read(write(folder / version, contexts(12), version=version))
    for version in ("2.0", "1.1")
  }


@pytest.fixture(scope="module")
def data(files, words):
  return squad.load(files["2.0"], files["2.0"], words, SETTINGS)


def oracle(windows, *, says=None):
  """A model that points at the targets of the window with the same ids, or at `says` in every window."""
  examples = windows.features.examples
  targets = {
    ids.tobytes(): (start, end)
    for ids, start, end in zip(examples.ids, examples.fields["start"], examples.fields["end"])
  }
  seen = []

  def outputs(batch):
    found = np.zeros((2, *batch["ids"].shape), np.float32)
    for row, ids in enumerate(batch["ids"]):
      if not batch["weights"][row]:
        found[:, row] = np.nan  # nobody may read it
        continue
      seen.append(ids[ids != PAD].tobytes())
      for side, target in enumerate(says or targets[seen[-1]]):
        found[side, row, target] = 9.0
    return found[0], found[1]

  return outputs, seen


def test_every_window_counts_once(data, files, words):
  assert len(data.dev.features.windows) > 36 and len(data.dev.buckets.lengths) == 2
  ids = [ids.tobytes() for ids in data.dev.features.examples.ids]
  for batch_size, says, expected in ((1, None, 1.0), (5, None, 1.0), (64, None, 1.0), (8, (0, 0), 1 / 3)):
    outputs, seen = oracle(data.dev, says=says)
    found = squad.evaluate(data, outputs, batch_size=batch_size, pad_id=PAD)
    assert sorted(seen) == sorted(ids)
    assert found == pytest.approx(dict.fromkeys(squad.METRICS["2.0"], expected))
  assert data.unanswerable == pytest.approx(1 / 3)

  def broken(batch):
    start, end = outputs(batch)
    return start, end * np.nan

  assert squad.evaluate(data, broken, batch_size=8, pad_id=PAD) == dict.fromkeys(squad.METRICS["2.0"], 0.0)
  version_1 = squad.load(files["1.1"], files["1.1"], words, SETTINGS)
  for says, is_right in ((None, True), ((0, 0), False)):
    found = squad.evaluate(version_1, oracle(version_1.dev, says=says)[0], batch_size=8, pad_id=PAD)
    assert (found == {"f1": 1.0, "exact": 1.0}) == is_right


def test_scores_of_best_texts_are_those_of_whole_lists(data):
  random = np.random.default_rng(0)
  for n_best in (1, 2, 20):
    changed = dataclasses.replace(data, settings=dataclasses.replace(SETTINGS, n_best=n_best))
    sizes = data.dev.features.examples.sizes
    logits = tuple([random.normal(size=size).astype(np.float32) for size in sizes] for _ in range(2))
    whole, best = (squad.decode(changed, logits, best_only=best_only) for best_only in (False, True))
    assert all(best[name][:2] == whole[name][:2] for name in whole)
    if n_best == 20:
      assert any(best[name].n_best != whole[name].n_best for name in whole)


def test_training_drops_and_counts_answers_that_are_not_there(files, words):
  questions = list(files["2.0"].questions)
  questions[0] = dataclasses.replace(questions[0], answers=(Answer("Zoe", 0, False),))
  lost = dataclasses.replace(files["2.0"], questions=questions)
  found = squad.load(lost, lost, words, SETTINGS)
  assert list(found.train.features.dropped) == [questions[0].id]
  assert {window.question for window in found.train.features.windows} == set(range(1, 36))
  assert {window.question for window in found.dev.features.windows} == set(range(36))
  assert any("skipped 1 question whose answer" in line for line in found.lines)


def test_training_rows_are_drawn_and_smaller_draws_are_parts_of_larger(files, words):
  def names(rows, seed=0):
    made = squad.load(files["2.0"], files["2.0"], words, SETTINGS, train_rows=rows, seed=seed)
    assert len(made.dev.file.questions) == 36
    return [question.id for question in made.train.file.questions]

  assert len(names(10)) == 10 and set(names(5)) < set(names(10)) and names(5) != names(5, seed=1)
  assert names(0) == names(36) == [question.id for question in files["2.0"].questions]
  with pytest.raises(ConfigError, match=r"--config.data.train_rows=0"):
    names(37)


def test_the_digest_is_of_everything_that_scores_depend_on(files, words, data):
  file, questions = files["2.0"], list(files["2.0"].questions)
  questions[1] = dataclasses.replace(questions[1], answers=(*questions[1].answers, Answer("in", 12, True)))
  gold = dataclasses.replace(file, questions=questions)
  given = [(file, SETTINGS, 0), (gold, SETTINGS, 0), (file, SETTINGS, 35)]
  for changed in ({"n_best": 19}, {"max_answer_length": 29}, {"stride": 5}, {"max_length": 15}):
    given.append((file, dataclasses.replace(SETTINGS, **changed), 0))
  digests = [squad.load(file, dev, words, of, train_rows=rows).digest for dev, of, rows in given]
  assert len(set(digests)) == 7 and digests[0] == data.digest


def test_files_are_found_in_the_folder_before_a_path_and_zipped(tmp_path, monkeypatch):
  train = write(tmp_path / "data" / "train-v2.0.json", contexts(3))
  zipped = tmp_path / "data" / "dev-v2.0.json.gz"
  zipped.write_bytes(gzip.compress(write(tmp_path / "dev-v2.0.json", contexts(2)).read_bytes()))
  monkeypatch.chdir(tmp_path)
  found = squad_files.read_squad("train-v2.0.json", "dev-v2.0.json", "data")
  assert [len(file.questions) for file in found] == [9, 6]
  assert [file.source for file in found] == ["data/train-v2.0.json", "data/dev-v2.0.json.gz"]
  assert squad_files.read_squad(str(train), "dev-v2.0.json", "")[1].source == "dev-v2.0.json"


def test_what_is_missing_or_mixed_is_told(tmp_path):
  write(tmp_path / "train.json", contexts(2))
  write(tmp_path / "old.json", contexts(2), version="1.1")
  (tmp_path / "none.json").write_text(json.dumps({"data": []}))
  failures = []
  for train, dev, group, phrase in (
    (
      "train.json",
      "dev-v2.0.json",
      "squad",
      ["squad.dev_file", f"{tmp_path}/dev-v2.0.json", "\n  --download"],
    ),
    ("mine.json", "dev-v2.0.json", "squad", ["squad.train_file='mine.json'"]),
    ("train.json", "b.json", "data", ["\n  --config.data.dev_file=FILE"]),
    ("train.json", "old.json", "squad", ["train.json is SQuAD 2.0", "old.json is SQuAD 1.1"]),
    ("train.json", "none.json", "squad", ["none.json: no questions"]),
  ):
    with pytest.raises(DataError) as caught:
      squad_files.read_squad(train, dev, str(tmp_path), group=group)
    failures += [f"{train} {dev}: {caught.value}" for part in phrase if part not in str(caught.value)]
  assert not failures, "\n".join(failures)
