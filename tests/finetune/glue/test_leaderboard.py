"""GLUE submissions."""

import collections
import csv
import gzip
import pathlib
import zipfile

import numpy as np
import pytest

from data.errors import DataError
from finetune.glue import leaderboard
from finetune.glue.leaderboard import Predictions

GLUE = pathlib.Path(__file__).resolve().parents[4] / "shared" / "datasets" / "glue"
ROWS = (1063, 1821, 1725, 1379, 9796, 9847, 5463, 390965, 3000, 146, 1104)
NAMES = ("CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI", "AX")


def whole(key, value):
  rows = leaderboard.official_rows(key)
  return Predictions([str(row) for row in range(rows)], [value] * rows)


def members(path):
  with zipfile.ZipFile(path) as archive:
    return {name: archive.read(name).decode().splitlines() for name in archive.namelist()}


def test_a_submission_has_all_eleven_files_with_a_row_per_official_row(tmp_path):
  path, lines = leaderboard.write_submission(
    tmp_path / "out" / "s.zip", {"rte": whole("rte", "not_entailment")}
  )
  found = members(path)
  assert {name: len(rows) - 1 for name, rows in found.items()} == {
    f"{name}.tsv": rows for name, rows in zip(NAMES, ROWS)
  }
  assert {rows[0] for rows in found.values()} == {"index\tprediction"}
  assert found["RTE.tsv"][1] == "0\tnot_entailment" and found["RTE.tsv"][-1] == "2999\tnot_entailment"
  # What was not predicted is said, and holds the majority class.
  assert lines[1].endswith(
    "CoLA.tsv (1), SST-2.tsv (1), MRPC.tsv (1), STS-B.tsv (2.701), MNLI-m.tsv (contradiction), MNLI-mm.tsv "
    "(contradiction), QNLI.tsv (not_entailment), QQP.tsv (0), WNLI.tsv (0), AX.tsv (contradiction)"
  )
  assert found["WNLI.tsv"][1:3] == ["0\t0", "1\t0"]


def test_scores_have_three_decimals_and_an_index_is_that_of_the_test_file(tmp_path):
  given, reversed_rows = whole("stsb", 1.23456), whole("wnli", "1")
  given.values[:4] = [-0.1, -0.0001, 5.2, 4.9996]  # pyright: ignore
  reversed_rows = reversed_rows._replace(ids=reversed_rows.ids[::-1])
  path, lines = leaderboard.write_submission(tmp_path / "s.zip", {"stsb": given, "wnli": reversed_rows})
  assert members(path)["STS-B.tsv"][1:6] == ["0\t0.000", "1\t0.000", "2\t5.000", "3\t5.000", "4\t1.235"]
  assert lines[-1].startswith("changed 3 scores") and members(path)["WNLI.tsv"][1] == "145\t1"


def test_a_submission_with_subsets_says_so_in_its_name(tmp_path):
  given = {"qqp": Predictions(["0", "1"], ["0", "1"])}
  path, lines = leaderboard.write_submission(tmp_path / "s.zip", given)
  assert path == tmp_path / "s.subset-not-for-submission.zip" and list(tmp_path.iterdir()) == [path]
  assert "QQP.tsv 2 of 390965 rows" in lines[2]
  assert members(path)["QQP.tsv"] == ["index\tprediction", "0\t0", "1\t1"]


def test_outputs_become_official_labels_and_scores():
  logits = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
  assert leaderboard.predictions("ax", ["0", "1"], logits).values == ["entailment", "contradiction"]
  assert leaderboard.predictions("cola", ["0"], np.array([[0.0, 1.0]])).values == ["1"]
  assert leaderboard.predictions("stsb", ["7"], np.array([[0.5]]), scale=5.0) == Predictions(["7"], [2.5])
  with pytest.raises(DataError, match=r"CoLA\.tsv"):
    leaderboard.predictions("cola", ["0"], np.full((1, 2), np.nan))
  with pytest.raises(DataError, match="'0'"):
    leaderboard.refuse_repeated("wnli", ["0"] * 146)


@pytest.mark.skipif(not GLUE.is_dir(), reason="../shared/datasets, the official GLUE files, is not here")
def test_placeholders_are_the_majority_of_the_training_set():
  for key, column, header in (
    ("cola", 1, 0), ("sst2", 1, 1), ("mrpc", 0, 1), ("rte", 3, 1), ("wnli", 3, 1), ("stsb", 9, 1)
  ):  # fmt: skip
    folder = leaderboard.FILES[key].name.removesuffix(".tsv")
    with gzip.open(GLUE / folder / "train.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
      rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
    ((most, _),) = collections.Counter(row[column] for row in rows).most_common(1)
    mean = f"{np.mean([float(row[column]) for row in rows]):.3f}" if key == "stsb" else ""
    assert leaderboard.FILES[key].placeholder == (mean or most), key
