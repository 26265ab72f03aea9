"""GLUE submissions. Run: python -m pytest tests/finetune/glue/test_leaderboard.py"""

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
OFFICIAL = {
  "CoLA": 1063,
  "SST-2": 1821,
  "MRPC": 1725,
  "STS-B": 1379,
  "MNLI-m": 9796,
  "MNLI-mm": 9847,
  "QNLI": 5463,
  "QQP": 390965,
  "RTE": 3000,
  "WNLI": 146,
  "AX": 1104,
}


def whole(key, value):
  rows = leaderboard.official_rows(key)
  return Predictions([str(row) for row in range(rows)], [value] * rows)


def members(path):
  with zipfile.ZipFile(path) as archive:
    return {name: archive.read(name).decode().splitlines() for name in archive.namelist()}


def test_a_submission_has_all_eleven_files_with_a_row_per_official_row(tmp_path):
  path, _ = leaderboard.write_submission(tmp_path / "out" / "s.zip", {"rte": whole("rte", "not_entailment")})
  found = members(path)
  assert {name: len(lines) - 1 for name, lines in found.items()} == {
    f"{n}.tsv": rows for n, rows in OFFICIAL.items()
  }
  assert {lines[0] for lines in found.values()} == {"index\tprediction"}
  assert found["RTE.tsv"][1] == "0\tnot_entailment" and found["RTE.tsv"][-1] == "2999\tnot_entailment"


def test_what_was_not_predicted_is_said_and_holds_the_majority_class(tmp_path):
  path, lines = leaderboard.write_submission(
    tmp_path / "s.zip", {key: whole(key, "neutral") for key in ("mnli", "mnli_mm", "ax")}
  )
  assert lines[0] == f"{path}: predictions of mnli, mnli_mm, ax"
  assert lines[1].endswith(
    "in brackets: CoLA.tsv (1), SST-2.tsv (1), MRPC.tsv (1), STS-B.tsv (2.701), QNLI.tsv (not_entailment), "
    "QQP.tsv (0), RTE.tsv (entailment), WNLI.tsv (0)"
  )
  assert members(path)["WNLI.tsv"][1:3] == ["0\t0", "1\t0"]


def test_scores_have_three_decimals_and_stay_between_0_and_5(tmp_path):
  given = whole("stsb", 1.23456)
  given.values[:4] = [-0.1, -0.0001, 5.2, 4.9996]  # pyright: ignore
  path, lines = leaderboard.write_submission(tmp_path / "s.zip", {"stsb": given})
  assert members(path)["STS-B.tsv"][1:6] == ["0\t0.000", "1\t0.000", "2\t5.000", "3\t5.000", "4\t1.235"]
  assert lines[-1].startswith("changed 3 scores")


def test_the_index_is_that_of_the_test_file(tmp_path):
  given = whole("wnli", "1")
  path, _ = leaderboard.write_submission(tmp_path / "s.zip", {"wnli": given._replace(ids=given.ids[::-1])})
  assert members(path)["WNLI.tsv"][1] == "145\t1"


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


def test_outputs_that_are_not_finite_and_an_index_that_is_there_twice_are_refused():
  with pytest.raises(DataError, match=r"CoLA.tsv: a model output is NaN or infinite"):
    leaderboard.predictions("cola", ["0"], np.full((1, 2), np.nan))
  with pytest.raises(DataError, match="index '0' occurs twice, expected once"):
    leaderboard.refuse_repeated("wnli", ["0"] * 146)


@pytest.mark.skipif(not GLUE.is_dir(), reason="../shared/datasets, the official GLUE files, is not here")
@pytest.mark.parametrize(
  "key, column, header",
  [("cola", 1, 0), ("sst2", 1, 1), ("mrpc", 0, 1), ("rte", 3, 1), ("wnli", 3, 1), ("stsb", 9, 1)],
)
def test_placeholders_are_the_majority_of_the_training_set(key, column, header):
  folder = leaderboard.FILES[key].name.removesuffix(".tsv")
  with gzip.open(GLUE / folder / "train.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
    rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
  if key == "stsb":
    assert f"{np.mean([float(row[column]) for row in rows]):.3f}" == leaderboard.FILES[key].placeholder
    return
  counts = collections.Counter(row[column] for row in rows)
  assert counts.most_common(1)[0][0] == leaderboard.FILES[key].placeholder
