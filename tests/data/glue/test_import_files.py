"""`data.glue import`: a TFDS data_dir out of official files, and reading it back through a child process."""

import json
import shutil

import numpy as np
import pytest

from data import child, glue, squad, tfds_reader
from data.errors import DataError
from data.glue import command as glue_command
from data.glue import import_files

MNLI = "index\tsentence1\tsentence2\tgold_label"


def write(directory, name, *lines):
  path = directory / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def official(tmp_path_factory):
  """A few rows of three tasks in the official layout."""
  directory = tmp_path_factory.mktemp("official")
  labels = ("contradiction", "entailment", "neutral")
  rows = [f'{number}\tfirst {number}\t"sécond {number}\t{labels[number % 3]}' for number in range(7)]
  write(directory, "MNLI/train.tsv", MNLI, *rows)
  write(directory, "MNLI/dev_mismatched.tsv", MNLI, rows[0])
  write(directory, "MNLI/test_matched.tsv", "index\tsentence1\tsentence2", "0\ta\tb")
  write(directory, "STS-B/dev.tsv", "index\tsentence1\tsentence2\tscore", "0\ta\tb\t3.800", "1\tc\td\t0.000")
  write(directory, "CoLA/dev.tsv", "x\t0\t*\tHe eat.", "x\t1\t\tHe eats.")
  return directory


@pytest.fixture(scope="module")
def data_dir(official, tmp_path_factory):
  """What the import makes of it."""
  output = tmp_path_factory.mktemp("tfds") / "data"
  assert glue_command.main(["import", str(official), f"--output={output}", "--allow_differing_sizes"]) == 0
  return output


@pytest.fixture
def here(monkeypatch):
  """Reads TFDS in this process, which has TensorFlow already."""
  monkeypatch.setattr(child, "call", lambda function, *, relay, **given: [*function(**given)])


def refused(capsys, *arguments):
  code = glue_command.main(["import", *map(str, arguments)])
  captured = capsys.readouterr()
  assert captured.err.count("error: ") == 1
  return code, captured.err[captured.err.index("error: ") :], captured.out


def test_an_imported_data_dir_gives_the_rows_and_labels_of_the_files(official, data_dir, here):
  wanted = [("mnli", "train"), ("mnli", "dev_mismatched"), ("mnli", "test_matched")]
  wanted += [("stsb", "dev"), ("cola", "dev")]
  for ours, theirs in zip(glue.read_all(str(official), wanted), glue.read_all(str(data_dir), wanted)):
    assert (ours.first, ours.second, ours.ids) == (theirs.first, theirs.second, theirs.ids)
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    assert (ours.labels is None) or ours.labels.dtype == theirs.labels.dtype
    assert not theirs.is_official
  assert glue.available(str(data_dir), "mnli") == ("train", "dev_mismatched", "test_matched")


def test_an_imported_data_set_is_as_tfds_itself_would_make_it(data_dir):
  import tensorflow_datasets as tfds

  builder = tfds.builder("glue/mnli", data_dir=str(data_dir))
  assert builder.info.features["label"].names == ["entailment", "neutral", "contradiction"]
  assert set(builder.info.splits) == {"train", "validation_mismatched", "test_matched"}
  rows = {int(row["idx"]): row for row in builder.as_dataset(split="train").as_numpy_iterator()}
  assert rows[0]["premise"] == b"first 0"
  assert rows[0]["hypothesis"] == '"sécond 0'.encode()
  assert [int(rows[number]["label"]) for number in range(3)] == [2, 0, 1]
  test = next(iter(builder.as_dataset(split="test_matched").as_numpy_iterator()))
  assert int(test["label"]) == -1


def test_the_report_lists_every_split_and_a_second_import_changes_nothing(official, data_dir, capsys):
  before = sorted(path.stat().st_mtime_ns for path in data_dir.rglob("*"))
  code = glue_command.main(["import", str(official), f"--output={data_dir}", "--allow_differing_sizes"])
  captured = capsys.readouterr()
  assert code == 0
  rows = {tuple(line.split()[:2]): line.split()[2:] for line in captured.out.splitlines()[1:]}
  assert rows["mnli", "train"] == ["7", "392,702", "0", "differs"]
  assert rows["rte", "train"] == ["-", "2,490", "-", "missing"]
  assert "there already" in captured.err
  assert sorted(path.stat().st_mtime_ns for path in data_dir.rglob("*")) == before
  assert [path.name for path in data_dir.parent.iterdir()] == ["data"]  # nothing was left aside


def test_other_rows_than_those_that_are_there_are_refused(official, data_dir, tmp_path, capsys):
  write(tmp_path, "CoLA/dev.tsv", "x\t0\t*\tHe eat.")
  code, line, _ = refused(capsys, tmp_path, f"--output={data_dir}", "--allow_differing_sizes")
  assert code == 3
  assert "is there with other rows ({'validation': 2})" in line


def test_another_size_than_the_official_one_is_refused_unless_allowed(official, tmp_path, capsys):
  code, line, table = refused(capsys, official, f"--output={tmp_path / 'new'}")
  assert code == 3
  assert "mnli train" in line and "cola dev" in line and "--allow_differing_sizes" in line
  assert "392,702" in table
  assert not (tmp_path / "new").exists()


def test_a_bad_file_or_an_empty_folder_leaves_nothing(tmp_path, capsys):
  write(tmp_path / "in", "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel", "0\ta\tb\tyes")
  code, line, _ = refused(capsys, tmp_path / "in", f"--output={tmp_path / 'out'}")
  assert (code, "RTE/dev.tsv:2: label 'yes'" in line) == (3, True)
  code, line, _ = refused(capsys, tmp_path / "in" / "RTE", f"--output={tmp_path / 'out'}")
  assert (code, "no official GLUE file; looked for" in line) == (3, True)
  code, line, _ = refused(capsys, tmp_path / "gone", f"--output={tmp_path / 'out'}")
  assert (code, "no such directory" in line) == (3, True)
  code, line, _ = refused(capsys, tmp_path / "in", f"--output={tmp_path / 'in' / 'RTE' / 'dev.tsv'}")
  assert (code, "is a file" in line) == (2, True)
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_split_that_tfds_has_not_is_told_without_reading(data_dir):
  with pytest.raises(DataError, match=r"has no 'validation_matched' but train, validation_mismatched"):
    glue.read(str(data_dir), "mnli", "dev_matched")


def test_the_reason_of_a_failed_child_process_is_passed_on(data_dir, tmp_path):
  shutil.copytree(data_dir / "glue" / "cola", tmp_path / "glue" / "cola")
  with pytest.raises(DataError, match=r"cola/2\.0\.0 has no split 'test'; its splits are validation$"):
    child.call(
      tfds_reader.examples,
      relay=False,
      directory=str(tmp_path),
      wanted=[("glue/cola", "test")],
      download=False,
    )


def _unreadable(directory) -> str:
  with pytest.raises(DataError) as caught:
    list(tfds_reader.examples(str(directory), [("glue/cola", "validation")], download=False))
  return str(caught.value)


def test_a_damaged_data_set_is_refused(data_dir, tmp_path):
  shutil.copytree(data_dir, tmp_path / "data")
  place = tmp_path / "data" / "glue" / "cola" / "2.0.0"
  info = json.loads((place / "dataset_info.json").read_text())
  info["splits"][0]["shardLengths"] = ["3"]  # as if the file had been cut after two records
  (place / "dataset_info.json").write_text(json.dumps(info))
  assert "expected to contain 3 elements but contained only 2" in _unreadable(tmp_path / "data")
  (records,) = place.glob("*tfrecord*")
  content = bytearray(records.read_bytes())
  content[20] ^= 1
  records.write_bytes(content)
  assert "'validation' cannot be read (DataLossError" in _unreadable(tmp_path / "data")
  (place / "dataset_info.json").write_text("{")
  with pytest.raises(DataError, match=r"dataset_info\.json: damaged"):
    glue.read(str(tmp_path / "data"), "cola", "dev")


def test_squad_of_tfds_has_its_answers(tmp_path, here):
  import tensorflow_datasets as tfds

  sequence = {"text": tfds.features.Text(), "answer_start": np.int32}
  features = {name: tfds.features.Text() for name in ("id", "title", "context", "question")}
  features |= {"is_impossible": np.bool_, "answers": tfds.features.Sequence(sequence)}
  example = {"id": "a", "title": "T", "context": "It is in France.", "question": "Where?"}
  answers = {"text": ["France", "in France"], "answer_start": [9, 6]}
  tfds.dataset_builders.TfDataBuilder(
    name="squad",
    config="v2.0",
    version="3.0.0",
    data_dir=str(tmp_path),
    features=tfds.features.FeaturesDict(features),
    split_datasets={
      "validation": [
        (0, {**example, "is_impossible": False, "answers": answers}),
        (1, {**example, "id": "b", "is_impossible": True, "answers": {"text": [], "answer_start": []}}),
      ]
    },
  ).download_and_prepare()

  file = squad.read_tfds(str(tmp_path), "2.0", "dev")
  questions = {q.id: q for q in file.questions}
  assert questions["a"].answers == (squad.Answer("France", 9, True), squad.Answer("in France", 6, True))
  assert (questions["b"].is_impossible, questions["b"].answers) == (True, ())


def test_without_an_output_it_goes_where_fine_tuning_looks_by_default(tmp_path, monkeypatch):
  made = []
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setattr(import_files, "import_files", lambda directory, output, **_: made.append(output))
  assert glue_command.main(["import", "DIR"]) == 0
  assert made == [str(tmp_path)]
