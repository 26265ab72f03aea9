"""Addresses of buckets where paths are meant: one line, and no local folder called 's3:'."""

import pytest

from data import files
from data.errors import ConfigError
from data.glue import command as glue
from data.prepare import command as prepare
from data.prepare.command import parse
from finetune import main as finetune
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.command import flags

CONFIG = "--config=configs/bert_tiny.py"


@pytest.mark.parametrize(
  "value", ["gs://bucket/run", "s3://bucket/*.txt", "memory://x", "text/*.gz,s3://b/x"]
)
def test_an_address_is_refused_with_what_to_do(value):
  problem = files.address_problem("--output", value)
  assert problem is not None and problem.startswith(f"--output={value}: expected a path, found an address")


@pytest.mark.parametrize("value", ["runs/x", "tfds:wiki40b/en", "seqio:web", "/a:b/c", "", 3, None, ("a",)])
def test_paths_and_names_of_sources_are_none(value):
  assert files.address_problem("data.source", value) is None


def test_tfds_opens_its_own_buckets():
  arguments = ["--source=tfds:x", "--output=out", "--tfds_directory=gs://tfds-data/datasets"]
  assert parse(arguments).tfds_directory == "gs://tfds-data/datasets"
  fields = "--config.data.tfds_directory=gs://tfds-data/datasets"
  assert flags.read_arguments([CONFIG, fields]).config.data.tfds_directory == "gs://tfds-data/datasets"


@pytest.mark.parametrize(
  "flag",
  [
    "--config.data.module=s3://bucket/tasks.py",
    "--config=gs://bucket/recipe.py",
  ],
)
def test_pretraining_refuses_it_before_anything_is_made(flag, tmp_path, monkeypatch):
  name = flag.partition("=")[0].removeprefix("--config.")
  with pytest.raises(ConfigError, match=rf"{name}=\S+: expected a path, found an address; mount"):
    flags.read_arguments([CONFIG, flag, "--dry_run"])


def test_fine_tuning_refuses_it(capsys):
  with pytest.raises(SystemExit) as exit_:
    finetune.main(["--config=s3://b/finetune_glue.py", "--config.checkpoint=runs/x"])
  assert exit_.value.code == 2
  assert "--config=s3://b/finetune_glue.py: expected a path, found an address" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("command", "arguments"),
  [
    (prepare.main, ["--source=text.txt", "--module=gs://bucket/tasks.py", "--output=out"]),
    (checkpoints.main, ["prune", "s3://bucket/run", "--keep=1"]),
    (glue.main, ["import", "folder", "--output=s3://bucket/out"]),
  ],
)
def test_other_commands_refuse_it_in_a_line(command, arguments, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert command(arguments) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: --") and "expected a path, found an address" in line
  assert not list(tmp_path.iterdir())
