"""Where SQuAD's files are found, and what is refused."""

import gzip
import json

import pytest

from data.errors import DataError
from finetune.squad import files as squad_files
from tests.finetune.squad.squad_case import contexts, write


def test_files_are_found_in_the_folder_before_a_path_and_zipped(tmp_path, monkeypatch):
  train = write(tmp_path / "data" / "train-v2.0.json", contexts(3))
  zipped = tmp_path / "data" / "dev-v2.0.json.gz"
  zipped.write_bytes(gzip.compress(write(tmp_path / "dev-v2.0.json", contexts(2)).read_bytes()))
  monkeypatch.chdir(tmp_path)
  found = squad_files.read("train-v2.0.json", "dev-v2.0.json", "data")
  assert [len(file.questions) for file in found] == [9, 6]
  assert [file.source for file in found] == ["data/train-v2.0.json", "data/dev-v2.0.json.gz"]
  assert squad_files.read(str(train), "dev-v2.0.json", "")[1].source == "dev-v2.0.json"


def test_what_is_missing_or_mixed_is_told(tmp_path):
  write(tmp_path / "train.json", contexts(2))
  write(tmp_path / "old.json", contexts(2), version="1.1")
  (tmp_path / "none.json").write_text(json.dumps({"data": []}))
  failures = []
  for train, dev, group, told in (
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
      squad_files.read(train, dev, str(tmp_path), group=group)
    failures += [f"{train} {dev}: {caught.value}" for part in told if part not in str(caught.value)]
  assert not failures, "\n".join(failures)
