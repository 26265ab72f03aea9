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
  with pytest.raises(DataError, match=r"RTE.tsv: index '1'"):
    glue_predictions.load("rte", str(tmp_path), encoding)


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
  _predict(session, "mnli", glue_predictions.load("mnli", str(data), encoding))

  def is_there(chosen=CHOSEN):
    now = glue_predictions.load("mnli", str(data), encoding)
    return glue_predictions.is_there(session, "mnli", chosen, now)

  assert is_there() and not is_there(dataclasses.replace(CHOSEN, seed=2))
  for changed in (
    ("good film", "bad cat"),
    ("\tbad film", "\tbad cat"),
    ("\n2\t", "\n5\t"),
  ):  # texts and numbers
    path = data / "MNLI" / "test_matched.tsv"
    content = path.read_text()
    path.write_text(content.replace(*changed))
    assert not is_there(), changed
    path.write_text(content)
  assert is_there()
  stored = glue_predictions.path(session, "mnli")
  whole = stored.read_bytes()
  for content in (b"", b"nothing", b"PK\x03\x04"):
    stored.write_bytes(content)
    assert not is_there()
  stored.write_bytes(whole)
  _nli(data / "diagnostic" / "diagnostic.tsv", 2)
  assert not is_there()
  (tmp_path / "file").write_text("")
  with pytest.raises(StorageError, match=r"test_outputs\.npz"):
    _predict(_session(tmp_path / "file"), "rte", glue_predictions.Tests({}, {}, []))


def _submitted(workdir, name) -> list[str]:
  (path,) = workdir.glob("*.zip")
  with zipfile.ZipFile(path) as archive:
    rows = archive.read(name).decode().splitlines()[1:]
  path.unlink()
  return [row.split("\t")[1] for row in rows]


def test_wnli_is_handed_in_only_if_it_is_above_the_majority(tmp_path, encoding):
  _nli(tmp_path / "WNLI" / "test.tsv", 4)
  tests, session = glue_predictions.load("wnli", str(tmp_path), encoding), _session(tmp_path)
  texts, labels = ["good"] * 5, np.asarray([0, 1, 0, 1, 0], np.int32)
  dev = Split(texts, texts, labels, [*"01234"], 0, "made", is_official=False)
  data = {"wnli": glue.from_splits("wnli", dev, {"dev": dev}, encoding("wnli"))}
  for value, label, is_told in ((0.6, "0", True), (0.61, "1", False)):
    _predict(session, "wnli", tests, dataclasses.replace(CHOSEN, value=value), row=(0.0, 1.0))
    lines = glue_predictions.submit(session, {"wnli": tests}, data)
    assert any("wnli: " in line and "0.6000" in line for line in lines) == is_told
    assert set(_submitted(tmp_path, "WNLI.tsv")) == {label}


def test_scores_of_stsb_are_handed_in_on_the_scale_that_they_were_divided_from(tmp_path, encoding):
  tests = glue_predictions.load("stsb", str(small_glue.glue(tmp_path / "glue")), encoding)
  _predict(_session(tmp_path), "stsb", tests, row=(0.5,))
  glue_predictions.submit(_session(tmp_path), {"stsb": tests}, {})
  assert _submitted(tmp_path, "STS-B.tsv") == ["2.500"] * 6
