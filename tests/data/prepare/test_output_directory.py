"""The directory of a preparation beside workers of an earlier start, which still write there."""

import errno
import os
import pathlib

import pytest

from data import errors, manifest
from data.prepare import command, output_directory
from tests.data.conftest import arguments
from tests.data.prepare.test_prepare import digests


def not_empty(path, **_):
  raise OSError(errno.ENOTEMPTY, "Directory not empty", path)


def test_what_live_workers_write_does_not_stop_a_start(tmp_path, monkeypatch):
  work = tmp_path / "work"
  for path in (work / "unit-0.ab.part", tmp_path / ".vocabulary.ab"):
    path.mkdir(parents=True)
  real = pathlib.Path.glob
  renamed = work / "unit-1.cd.part"
  monkeypatch.setattr(pathlib.Path, "glob", lambda self, name: [*real(self, name), renamed])
  monkeypatch.setattr(os, "rmdir", not_empty)
  try:
    output_directory.start_or_continue(tmp_path, {"seed": 1})
  except OSError as error:
    pytest.fail(f"a live worker ended a new start: {error}")
  assert (work / "settings.json").is_file()


@pytest.mark.parametrize("error", [errors.ResumableError, errors.StorageError, errors.DataError])
def test_what_was_made_stays_where_the_same_command_goes_on(error, tmp_path):
  (tmp_path / "work").mkdir()
  with pytest.raises(error), output_directory.removed_on_failure(tmp_path, []):
    (tmp_path / "vocabulary").mkdir()  # after hours
    raise error("a worker process died")
  assert (tmp_path / "vocabulary").is_dir() == (error is not errors.DataError)


def test_what_live_workers_write_is_no_error_of_a_finished_preparation(
  prepared, corpus, vocabulary_directory, tmp_path, monkeypatch
):
  real = manifest.write

  def write(*arguments):
    real(*arguments)
    monkeypatch.setattr(os, "rmdir", not_empty)

  monkeypatch.setattr(manifest, "write", write)
  assert command.main(arguments(corpus, vocabulary_directory, tmp_path / "records")) == 0
  monkeypatch.undo()
  assert digests(tmp_path / "records") == digests(prepared)
