"""Predictions of GLUE's test sets: read, listed, stored, written for the server. Nothing is trained."""

import collections
import csv
import gzip
import pathlib
import types
import zipfile

import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError, StorageError
from data.glue.tasks import Split
from finetune.glue import predictions
from finetune.glue import predictions as glue_predictions
from finetune.glue import task as glue_task
from finetune.glue.predictions import Predictions
from finetune.papers.protocols import Cell
from finetune.search.examples import Encoding
from finetune.search.search import Chosen
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


def _session(workdir):
  config = types.SimpleNamespace(data=types.SimpleNamespace(eval_batch_size=4))
  return types.SimpleNamespace(
    workdir=workdir, config=config, pad_id=0, protocol=types.SimpleNamespace(stsb_divisor=5.0)
  )


def _predict(session, name, tests, chosen=CHOSEN, row=(0.0, 1.0, 0.0)):
  def outputs_of(batch):
    return np.broadcast_to(np.asarray(row, np.float32), (len(batch["ids"]), len(row)))

  glue_predictions.predict(session, name, chosen, outputs_of, tests)


def test_outputs_are_of_one_run_and_the_texts_that_are_there_now(tmp_path, encoding):
  data, session = tmp_path / "data", _session(tmp_path / "work")
  _nli(data / "MNLI" / "test_matched.tsv", 3)
  _predict(session, "mnli", glue_predictions.load("mnli", str(data), encoding))

  def is_there(chosen=CHOSEN):
    now = glue_predictions.load("mnli", str(data), encoding)
    return glue_predictions.is_there(session, "mnli", chosen, now)

  assert is_there() and not is_there(CHOSEN._replace(seed=2))
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
  data = {"wnli": glue_task.from_splits("wnli", dev, {"dev": dev}, encoding("wnli"))}
  for value, label, is_told in ((0.6, "0", True), (0.61, "1", False)):
    _predict(session, "wnli", tests, CHOSEN._replace(value=value), row=(0.0, 1.0))
    lines = glue_predictions.submit(session, {"wnli": tests}, data)
    assert any("wnli: " in line and "0.6000" in line for line in lines) == is_told
    assert set(_submitted(tmp_path, "WNLI.tsv")) == {label}


def test_scores_of_stsb_are_handed_in_on_the_scale_that_they_were_divided_from(tmp_path, encoding):
  tests = glue_predictions.load("stsb", str(small_glue.glue(tmp_path / "glue")), encoding)
  _predict(_session(tmp_path), "stsb", tests, row=(0.5,))
  glue_predictions.submit(_session(tmp_path), {"stsb": tests}, {})
  assert _submitted(tmp_path, "STS-B.tsv") == ["2.500"] * 6


GLUE = pathlib.Path(__file__).resolve().parents[4] / "shared" / "datasets" / "glue"
ROWS = (1063, 1821, 1725, 1379, 9796, 9847, 5463, 390965, 3000, 146, 1104)
NAMES = ("CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI", "AX")


def whole(key, value):
  rows = predictions.official_rows(key)
  return Predictions([str(row) for row in range(rows)], [value] * rows)


def members(path):
  with zipfile.ZipFile(path) as archive:
    return {name: archive.read(name).decode().splitlines() for name in archive.namelist()}


def test_a_submission_has_all_eleven_files_with_a_row_per_official_row(tmp_path):
  path, lines = predictions.write_submission(
    tmp_path / "out" / "s.zip", {"rte": whole("rte", "not_entailment")}
  )
  found = members(path)
  assert {name: len(rows) - 1 for name, rows in found.items()} == {
    f"{name}.tsv": rows for name, rows in zip(NAMES, ROWS)
  }
  assert {rows[0] for rows in found.values()} == {"index\tprediction"}
  assert found["RTE.tsv"][1] == "0\tnot_entailment" and found["RTE.tsv"][-1] == "2999\tnot_entailment"
  # A line lists the tasks without predictions; their files hold the majority class.
  assert lines[1].endswith(
    "CoLA.tsv (1), SST-2.tsv (1), MRPC.tsv (1), STS-B.tsv (2.701), MNLI-m.tsv (contradiction), MNLI-mm.tsv "
    "(contradiction), QNLI.tsv (not_entailment), QQP.tsv (0), WNLI.tsv (0), AX.tsv (contradiction)"
  )
  assert found["WNLI.tsv"][1:3] == ["0\t0", "1\t0"]


def test_scores_have_three_decimals_and_an_index_is_that_of_the_test_file(tmp_path):
  given, reversed_rows = whole("stsb", 1.23456), whole("wnli", "1")
  given.values[:4] = [-0.1, -0.0001, 5.2, 4.9996]  # pyright: ignore
  reversed_rows = reversed_rows._replace(ids=reversed_rows.ids[::-1])
  path, lines = predictions.write_submission(tmp_path / "s.zip", {"stsb": given, "wnli": reversed_rows})
  assert members(path)["STS-B.tsv"][1:6] == ["0\t0.000", "1\t0.000", "2\t5.000", "3\t5.000", "4\t1.235"]
  assert lines[-1].startswith("changed 3 scores") and members(path)["WNLI.tsv"][1] == "145\t1"


def test_a_submission_with_subsets_says_so_in_its_name(tmp_path):
  given = {"qqp": Predictions(["0", "1"], ["0", "1"])}
  path, lines = predictions.write_submission(tmp_path / "s.zip", given)
  assert path == tmp_path / "s.subset-not-for-submission.zip" and list(tmp_path.iterdir()) == [path]
  assert "QQP.tsv 2 of 390965 rows" in lines[2]
  assert members(path)["QQP.tsv"] == ["index\tprediction", "0\t0", "1\t1"]


def test_outputs_become_official_labels_and_scores():
  logits = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
  assert predictions.predictions("ax", ["0", "1"], logits).values == ["entailment", "contradiction"]
  assert predictions.predictions("cola", ["0"], np.array([[0.0, 1.0]])).values == ["1"]
  assert predictions.predictions("stsb", ["7"], np.array([[0.5]]), scale=5.0) == Predictions(["7"], [2.5])
  with pytest.raises(DataError, match=r"CoLA\.tsv"):
    predictions.predictions("cola", ["0"], np.full((1, 2), np.nan))


@pytest.mark.skipif(not GLUE.is_dir(), reason="../shared/datasets, the official GLUE files, is not here")
def test_placeholders_are_the_majority_of_the_training_set():
  for key, column, header in (
    ("cola", 1, 0), ("sst2", 1, 1), ("mrpc", 0, 1), ("rte", 3, 1), ("wnli", 3, 1), ("stsb", 9, 1)
  ):  # fmt: skip
    folder = predictions.FILES[key].name.removesuffix(".tsv")
    with gzip.open(GLUE / folder / "train.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
      rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
    ((most, _),) = collections.Counter(row[column] for row in rows).most_common(1)
    mean = f"{np.mean([float(row[column]) for row in rows]):.3f}" if key == "stsb" else ""
    assert predictions.FILES[key].placeholder == (mean or most), key
