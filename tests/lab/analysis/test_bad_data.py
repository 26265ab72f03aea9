"""Annotated data that are empty or say too little: one clear line, and never an exception of a library."""

import json
import types
import warnings

import numpy as np
import pytest

from data.errors import DataError
from lab.analysis import __main__ as command
from lab.analysis import edges, linear, plane, probe, probe_sets
from lab.analysis.outcome import Needs

_ROW = json.dumps({"text": "ba ke", "targets": [{"span1": [0, 1], "label": "x"}]})
_NONE = json.dumps({"text": "ba ke", "targets": []})
_WORDS = "1\tba\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tke\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
_ROOT = "1\tke\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
_STSB = "sentence1\tsentence2\tscore\n"
_UD = "UD_English-EWT/x-ud-{}.conllu"


def _folder(tmp_path, pattern: str, parts: dict[str, str]):
  for split, text in parts.items():
    path = tmp_path / pattern.format(split)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path


@pytest.mark.parametrize(
  ("pattern", "train", "test", "line"),
  [
    ("edges/t.{}.jsonl", "", _ROW, r"t\.train\.jsonl: no target of the task 't' in its first 0 sentences"),
    ("edges/t.{}.jsonl", _ROW, "", r"t\.test\.jsonl: no target of the task 't' in its first 0 sentences"),
    ("edges/t.{}.jsonl", f"{_NONE}\n{_ROW}", _ROW, r"t\.train\.jsonl: .* in its first 1 sentences, expected"),
    ("edges/t.{}.jsonl", _ROW, _NONE, r"t\.test\.jsonl: no target"),
    (_UD, "", _WORDS, r"x-ud-train\.conllu: no sentence; expected the 10 columns"),
    (_UD, _WORDS, "# a comment\n", r"x-ud-test\.conllu: no sentence; expected the 10 columns"),
    (_UD, _WORDS, _ROOT, r"x-ud-test\.conllu: no target of the task 'dependency'"),
  ],
)
def test_a_task_of_edge_probing_without_a_target_is_refused(tmp_path, pattern, train, test, line):
  folder = _folder(tmp_path, pattern, {"train": train, "test": test})
  with pytest.raises(DataError, match=line):
    edges.find(folder, 1)


def test_edge_probing_of_an_empty_file_is_skipped_and_an_error_by_name(tmp_path, finished, capsys):
  folder = _folder(tmp_path, "edges/t.{}.jsonl", {"train": "", "test": _ROW})
  asked = types.SimpleNamespace(data=folder, sentences=10)
  row = command._made("edges", edges.measure, asked, tmp_path, is_asked=False)
  assert row["what"].startswith("skipped: ") and "t.train.jsonl: no target" in row["what"]
  flags = [f"--checkpoints={finished}", f"--data={folder}", f"--output={tmp_path / 'out'}", "--only=edges"]
  assert command.main(flags) == 3
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: ") and "t.train.jsonl: no target" in line


@pytest.mark.parametrize(
  ("pattern", "parts", "only", "line"),
  [
    (_UD, {"train": "", "test": _WORDS}, "pos", "x-ud-train.conllu: no sentence"),
    (_UD, {"train": _WORDS, "test": ""}, "pairs", "x-ud-test.conllu: no sentence"),
    (_UD, {"train": _ROOT, "test": _WORDS}, "dependency", "x-ud-train.conllu: no word of its first 1 sent"),
    (
      "glue/STS-B/{}.tsv",
      {"dev": f"{_STSB}\t \t5.0\n \t\t1.0\n"},
      "similarity",
      "dev.tsv: all of its 2 rows",
    ),
    (
      "glue/SST-2/{}.tsv",
      {"train": "sentence\tlabel\n\t0\n\t1\n", "dev": "sentence\tlabel\nba\t1\n"},
      "sentiment",
      "train.tsv: all of its 2 rows have empty texts; copy the file again",
    ),
  ],
)
def test_a_probe_without_words_to_ask_about_is_one_line(
  tmp_path, finished, capsys, pattern, parts, only, line
):
  folder = _folder(tmp_path, pattern, parts)
  flags = [f"--checkpoint={finished}", f"--data={folder}", f"--output={tmp_path / 'out'}", f"--only={only}"]
  assert probe.main(flags) == 3
  (error,) = capsys.readouterr().err.splitlines()
  assert error.startswith("error: ") and line in error


def test_a_treebank_of_roots_has_parts_of_speech_all_the_same(tmp_path):
  folder = _folder(tmp_path, _UD, {"train": _ROOT, "test": _ROOT})
  (found,), _ = probe_sets.find(probe_sets.Folder(folder, 10, 5), ["pos"])
  assert found.without_model()[0].value == 1


@pytest.mark.parametrize(
  ("labels", "expected"),
  [
    ([("x",)] * 4, [("x",)] * 2),
    ([()] * 4, [()] * 2),
    ([("x", "y")] * 4, [("x", "y")] * 2),
    ([("x",), (), ("x",), ()], [("x",), ()]),
    ([("x",), ("y",), ("x",), ("y",)], [("x",), ("y",)]),
  ],
)
def test_targets_of_one_label_or_of_none_are_answered_without_a_warning(labels, expected):
  train = np.asarray([[1.0, 0.0], [0.0, 1.0]] * 2)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert edges.predictions(train, labels, train[:2]) == expected


def test_where_all_labels_are_the_same_a_probe_answers_that_one():
  assert linear.predictions(np.zeros((3, 2)), ["a"] * 3, np.ones((2, 2))).tolist() == ["a", "a"]
  assert linear.bag_predictions([[], ["ba"]], ["b", "b"], [["ba"]]).tolist() == ["b"]
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert np.isnan(linear.rank_correlation(np.arange(3.0), np.ones(3)))


def test_vectors_that_are_all_the_same_have_no_plane():
  with pytest.raises(Needs, match="vectors that are not all the same"):
    plane.planes(np.ones((24, 8)))
