"""Every library that writes files for us, on a disk that is full: exit code 5 and a line with the path."""

import contextlib
import pathlib
import resource

import numpy as np
import pytest

from data import command, errors, files
from pretrain.export import weight_files

LIMIT = 4_000  # bytes of a file: a full disk for whatever writes more


@contextlib.contextmanager
def full_disk():
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_safetensors(path: pathlib.Path) -> None:
  weight_files.save_tensors(path, {"a": np.zeros(9_000, np.float32)})


def write_torch(path: pathlib.Path) -> None:
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  torch.save({"a": torch.zeros(9_000)}, path)


def write_array(path: pathlib.Path) -> None:
  with open(path, "wb") as file:  # np.save adds .npy to a path
    np.save(file, np.zeros(9_000))


def write_records(path: pathlib.Path) -> None:
  from array_record.python import array_record_module

  writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
  for number in range(9):
    writer.write(np.random.default_rng(number).bytes(900))
  writer.close()


# Each library has words of its own for a full disk.
WRITERS = [write_safetensors, write_torch, write_array, write_records]


def test_a_full_disk_is_one_line_with_the_path_and_leaves_nothing(tmp_path, capsys):
  (tmp_path / "old").write_text("kept")
  made = tmp_path / "made"

  def one_file(write) -> None:
    with files.whole_file(made) as aside:
      write(aside)

  def in_an_export(write) -> None:
    with errors.writing(f"--output={made}"), files.whole_directory(made) as aside:
      write(aside / "file")

  def by_itself(write) -> None:
    with errors.writing(made):
      write(made)

  for write in WRITERS:
    for work in (one_file, in_an_export, by_itself):
      with full_disk():
        code = command.run(lambda write=write, work=work: work(write))
      err = capsys.readouterr().err
      assert (code, err.count("\n"), str(made) in err) == (5, 1, True), (write, work, err)
      made.unlink(missing_ok=True)
      assert [path.name for path in tmp_path.iterdir()] == ["old"], (write, work)
