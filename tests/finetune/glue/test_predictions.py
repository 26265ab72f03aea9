"""Predictions of GLUE's test sets: read, told, kept, handed in. Nothing is trained or compiled here."""

import dataclasses
import types
import zipfile

import numpy as np
import pytest

from data import glue as glue_data
from data import vocabulary
from data.errors import DataError, StorageError
from data.glue.tasks import Split
from finetune.glue import predictions as glue_predictions
from finetune.glue import task as glue
from finetune.papers.spaces import Cell
from finetune.search.best_model import Chosen
from finetune.search.texts import Encoding
from tests.finetune.glue import small_glue

CHOSEN = Chosen(Cell(8, 1e-2, 2, 0.1), 1, "accuracy", 0.5, {"numbers": 1})


@pytest.fixture(scope="module")
def encoding(small_encoder_run):
  words = vocabulary.load(small_encoder_run / "vocabulary")
  return lambda task: Encoding(words, 8, 2, 4)


def _nli(path, count, first="good"):
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = "".join(f"{row}\t{first} film\tbad film\n" for row in range(count))
  path.write_text("index\tsentence1\tsentence2\n" + rows, encoding="utf-8")


def test_what_is_there_is_told_and_what_is_cut_or_missing(tmp_path, encoding):
  _nli(tmp_path / "MNLI" / "test_matched.tsv", 3, "good " * 9)
  found = glue_predictions.load("mnli", str(tmp_path), encoding)
  assert list(found.sets) == list(found.digests) == ["mnli"]
  assert found.lines[0].startswith("mnli: predicts 3 rows of test_matched (")
  assert found.lines[1:] == [
    "mnli: texts truncated to 8 tokens: 3 of test_matched",
    f"mnli: no test_mismatched split in {tmp_path}; glue.zip gets placeholders for it",
    f"ax: no test split in {tmp_path}; glue.zip gets placeholders for it",
  ]


def test_an_index_that_is_there_twice_is_told_before_any_training(tmp_path, encoding):
  _nli(tmp_path / "RTE" / "test.tsv", 3)
  path = tmp_path / "RTE" / "test.tsv"
  path.write_text(path.read_text().replace("\n2\t", "\n1\t"))
  with pytest.raises(DataError, match=r"RTE.tsv: index '1' occurs twice"):
    glue_predictions.load("rte", str(tmp_path), encoding)


def test_the_digest_of_a_test_set_is_of_both_sentences_and_of_their_numbers():
  split = Split(["a", "b"], ["c", "d"], None, ["0", "1"], 0, "made", is_official=True)
  changes = ({}, {"first": ["a", "x"]}, {"second": ["c", "x"]}, {"ids": ["0", "2"]}, {"second": None})
  digests = [glue_predictions._digest(dataclasses.replace(split, **change)) for change in changes]
  assert len(set(digests)) == len(changes)


def test_a_download_takes_test_sets_too_and_the_default_place_is_named(tmp_path, encoding, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  assert f"no test split in {tmp_path / 'tfds'};" in glue_predictions.load("rte", "", encoding).lines[0]
  asked = []

  def read_all(directory, wanted, *, download):
    asked.extend((pair, download) for pair in wanted)
    return [Split(["good"], ["bad"], None, ["0"], 0, "made", is_official=False) for _ in wanted]

  monkeypatch.setattr(glue_data, "read_all", read_all)
  glue_predictions.load("mnli", "", encoding, download=True)
  expected = [("mnli", "test_matched"), ("mnli", "test_mismatched"), ("ax", "test")]
  assert asked == [(pair, True) for pair in expected]


def _session(workdir):
  config = types.SimpleNamespace(data=types.SimpleNamespace(eval_batch_size=4))
  return types.SimpleNamespace(
    workdir=workdir, config=config, pad_id=0, protocol=types.SimpleNamespace(stsb_divisor=5.0)
  )


def _predict(session, name, tests, chosen=CHOSEN, row=(0.0, 1.0, 0.0)):
  def outputs_of(batch):
    return np.broadcast_to(np.asarray(row, np.float32), (1, batch["ids"].shape[1], len(row)))

  glue_predictions.predict(session, name, chosen, outputs_of, tests)


def test_outputs_are_of_one_run_and_the_texts_that_are_there_now(tmp_path, encoding):
  data, session = tmp_path / "data", _session(tmp_path / "work")
  _nli(data / "MNLI" / "test_matched.tsv", 3)
  tests = glue_predictions.load("mnli", str(data), encoding)
  _predict(session, "mnli", tests)

  def is_there(chosen=CHOSEN):
    now = glue_predictions.load("mnli", str(data), encoding)
    return glue_predictions.is_there(session, "mnli", chosen, now)

  assert is_there()
  assert not is_there(dataclasses.replace(CHOSEN, seed=2))
  _nli(data / "MNLI" / "test_matched.tsv", 3, "bad")
  assert not is_there()
  _nli(data / "MNLI" / "test_matched.tsv", 3)
  assert is_there()
  _nli(data / "diagnostic" / "diagnostic.tsv", 2)
  assert not is_there()


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04"])
def test_damaged_outputs_are_not_there(tmp_path, encoding, content):
  _nli(tmp_path / "RTE" / "test.tsv", 3)
  tests, session = glue_predictions.load("rte", str(tmp_path), encoding), _session(tmp_path)
  _predict(session, "rte", tests, row=(0.0, 1.0))
  assert glue_predictions.is_there(session, "rte", CHOSEN, tests)
  glue_predictions.path(session, "rte").write_bytes(content)
  assert not glue_predictions.is_there(session, "rte", CHOSEN, tests)


def test_outputs_that_cannot_be_written_are_a_storage_error(tmp_path, encoding):
  (tmp_path / "work").write_text("")
  with pytest.raises(StorageError, match=r"test_outputs\.npz"):
    _predict(_session(tmp_path / "work"), "rte", glue_predictions.Tests({}, {}, []))


@pytest.mark.parametrize(("value", "label", "is_told"), [(0.6, "0", True), (0.61, "1", False)])
def test_wnli_is_handed_in_only_if_it_is_above_the_majority(tmp_path, encoding, value, label, is_told):
  _nli(tmp_path / "WNLI" / "test.tsv", 4)
  tests, session = glue_predictions.load("wnli", str(tmp_path), encoding), _session(tmp_path)
  chosen = dataclasses.replace(CHOSEN, value=value)
  _predict(session, "wnli", tests, chosen, row=(0.0, 1.0))
  texts, labels = ["good"] * 5, np.asarray([0, 1, 0, 1, 0], np.int32)
  dev = Split(texts, texts, labels, [*"01234"], 0, "made", is_official=False)
  data = {"wnli": glue.from_splits("wnli", dev, {"dev": dev}, encoding("wnli"))}
  lines = glue_predictions.submit(session, {"wnli": tests}, data)
  assert any("wnli: on the development set" in line and "0.6000" in line for line in lines) == is_told
  (path,) = tmp_path.glob("*.zip")
  with zipfile.ZipFile(path) as archive:
    found = archive.read("WNLI.tsv").decode().splitlines()[1:]
  assert {line.split("\t")[1] for line in found} == {label}


def test_scores_of_stsb_are_handed_in_on_the_scale_that_they_were_divided_from(tmp_path, encoding):
  data = small_glue.glue(tmp_path / "glue")
  tests, session = glue_predictions.load("stsb", str(data), encoding), _session(tmp_path)
  _predict(session, "stsb", tests, row=(0.5,))
  glue_predictions.submit(session, {"stsb": tests}, {})
  (path,) = tmp_path.glob("*.zip")
  with zipfile.ZipFile(path) as archive:
    found = archive.read("STS-B.tsv").decode().splitlines()[1:]
  assert [line.split("\t")[1] for line in found] == ["2.500"] * 6
