"""The benchmark of cleaning on a small corpus."""

import json

import pytest

from lab.speed import cleaning
from tests.data.conftest import make_documents, write_text

pytest.importorskip("rensa", reason="needs requirements-clean.txt")
pytest.importorskip("pycld2", reason="needs requirements-clean.txt")


def test_similarity_is_that_of_runs_of_five_words():
  one = ["a b c d e f g"]  # three runs
  assert cleaning.similarity(one, ["A b c d e f x"]) == 2 / 4
  assert cleaning.similarity(one, one) == 1


def test_a_line_for_each_step_and_threshold(tmp_path, monkeypatch, capsys):
  """Documents of the same words in other orders are no duplicates of each other."""
  documents = [[" ".join(line for part in make_documents(8, seed) for line in part)] for seed in range(20)]
  write_text(tmp_path / "text.txt", documents)
  monkeypatch.setattr("sys.argv", ["cleaning", f"--source={tmp_path}/text.txt"])
  cleaning.main()
  lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [line["step"] for line in lines[:8]] == list(cleaning.STEPS)
  assert all(line["megabytes_per_cpu_second"] > 0 and line["documents"] == 20 for line in lines[:8])
  assert [line["threshold"] for line in lines[8:]] == [0.5, 0.7, 0.8, 0.9]
  assert lines[8]["clearly_above"] > 10
  for line in lines[8:]:
    assert line["planted"] == line["above"] + line["below"] == 20
    assert line["found_clearly_above"] == line["clearly_above"]
    assert line["originals_dropped"] == 0
