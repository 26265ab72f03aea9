"""Paths that processes in other directories would not find, before any work."""

import pytest

from data import errors
from data.prepare import command

RANKS = ["--engine=ranks", "--", "--rank=1", "--ranks=2"]


def refused(capsys, *flags):
  assert command.main(["--output=records", *flags, *RANKS]) == errors.ConfigError.exit_code
  return capsys.readouterr().err.rstrip()


def test_each_relative_part_of_a_source_is_refused_and_made_absolute(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  said = f"workers may run in other directories:\n  --source=/shared/a.txt,{tmp_path}/b/*.txt,~/c.txt"
  assert refused(capsys, "--source=/shared/a.txt,b/*.txt,~/c.txt").endswith(said)
  (tmp_path / "tasks.py").write_text("")
  line = refused(capsys, "--source=seqio:mine", "--module=tasks.py")
  assert line.endswith(f":\n  --module={tmp_path}/tasks.py")


def test_ranks_need_a_folder_of_copies_that_all_of_them_see(tmp_path, monkeypatch, capsys):
  monkeypatch.delenv("TEXT_ENCODER_CACHE", raising=False)
  line = refused(capsys, "--source=s3://bucket/*.txt")
  assert line.endswith("disk that all of them mount:\n  export TEXT_ENCODER_CACHE=/shared/cache")


@pytest.mark.parametrize("source", ["seqio:mine", "~/b/*.txt,/shared/a.txt", "s3://bucket/*.txt,/shared/b"])
def test_what_every_process_finds_is_taken(source, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TEXT_ENCODER_CACHE", str(tmp_path))
  args = command.parse([f"--source={source}", "--module=a.b", f"--output={tmp_path}/records", *RANKS])
  assert args.source == source


def test_an_absolute_name_with_a_comma_is_taken(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a,b.txt").write_text("text")
  assert command.parse([f"--source={tmp_path}/a,b.txt", f"--output={tmp_path}/records", *RANKS])
