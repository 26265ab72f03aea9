"""Where SQuAD's files are found. Run: python -m pytest tests/finetune/squad/test_files.py"""

import gzip
import json
import os

import pytest

from data import squad, tfds_reader
from data.errors import DataError
from finetune.squad import files as squad_files
from tests.finetune.squad.squad_case import contexts, write


def test_in_the_folder_at_a_path_and_zipped(tmp_path, monkeypatch):
  train = write(tmp_path / "data" / "train-v2.0.json", contexts(3))
  zipped = tmp_path / "data" / "dev-v2.0.json.gz"
  zipped.write_bytes(gzip.compress(write(tmp_path / "dev.json", contexts(2)).read_bytes()))
  found = squad_files.read("train-v2.0.json", "dev-v2.0.json", str(tmp_path / "data"))
  assert [len(file.questions) for file in found] == [9, 6]
  assert [file.source for file in found] == [str(train), str(zipped)]
  (elsewhere,) = {file.source for file in squad_files.read(str(train), str(train), "/no/such/folder")}
  assert elsewhere == str(train)
  monkeypatch.chdir(tmp_path)
  assert squad_files.read(str(train), "dev.json", "")[1].source == "dev.json"


def test_the_folder_goes_before_the_working_directory(tmp_path, monkeypatch):
  write(tmp_path / "data" / "dev.json", contexts(2))
  write(tmp_path / "dev.json", contexts(3))
  monkeypatch.chdir(tmp_path)
  assert len(squad_files.read("dev.json", "dev.json", "data")[0].questions) == 6


def test_a_missing_file_is_told_with_every_place_before_the_other_is_read(tmp_path, monkeypatch):
  write(tmp_path / "train-v2.0.json", contexts(2))
  monkeypatch.setattr(squad, "read", lambda path: pytest.fail("the other file was read first"))
  with pytest.raises(DataError) as caught:
    squad_files.check("train-v2.0.json", "dev-v2.0.json", str(tmp_path))
  line = str(caught.value)
  with pytest.raises(DataError, match="dev_file"):
    squad_files.read("train-v2.0.json", "dev-v2.0.json", str(tmp_path))
  assert line.startswith("squad.dev_file='dev-v2.0.json': no such file; looked for ")
  for part in (f"{tmp_path}/dev-v2.0.json (or .gz), dev", "TFDS's squad/v2.0 in", "\n  --download"):
    assert part in line


def test_a_name_of_ones_own_is_not_looked_for_in_tfds(tmp_path):
  write(tmp_path / "dev.json", contexts(2))
  with pytest.raises(DataError) as caught:
    squad_files.read("mine.json", "dev-v2.0.json", str(tmp_path), download=True)
  assert "TFDS" not in str(caught.value) and "squad.train_file='mine.json'" in str(caught.value)
  with pytest.raises(DataError, match=r"data.dev_file='b.json': (.|\n)*--config.data.dev_file=FILE"):
    squad_files.read("dev.json", "b.json", str(tmp_path), group="data")


def test_versions_are_not_mixed(tmp_path):
  write(tmp_path / "train.json", contexts(2))
  write(tmp_path / "dev.json", contexts(2), version="1.1")
  with pytest.raises(DataError, match=r"train.json is SQuAD 2.0, but squad.dev_file .*dev.json is SQuAD 1.1"):
    squad_files.read("train.json", "dev.json", str(tmp_path))
  assert squad_files.read("dev.json", "dev.json", str(tmp_path))[0].version == "1.1"


def test_a_development_file_without_questions(tmp_path):
  write(tmp_path / "train.json", contexts(2))
  (tmp_path / "dev.json").write_text(json.dumps({"data": []}))
  with pytest.raises(DataError, match=r"dev.json: no questions"):
    squad_files.read("train.json", "dev.json", str(tmp_path))


@pytest.mark.parametrize("download", [False, True])
def test_official_names_stand_for_tfds(tmp_path, monkeypatch, download):
  asked = []
  made = squad.read(write(tmp_path / "any.json", contexts(1), version="1.1"))

  def read_tfds(directory, version, split, *, download):
    asked.append((directory, version, split, download))
    return made

  monkeypatch.setattr(squad, "read_tfds", read_tfds)
  if not download:
    monkeypatch.setattr(
      tfds_reader, "find", lambda directory, name: tmp_path if name == "squad/v1.1" else None
    )
  directory = os.fspath(tmp_path / "data_dir")
  squad_files.read("train-v1.1.json", "dev-v1.1.json.gz", directory, download=download)
  assert asked == [(directory, "1.1", split, download) for split in ("train", "dev")]
