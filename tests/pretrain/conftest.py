"""A few hundred lines of text, and its records, made once by the command that users run."""

import os
import pathlib
import random
import subprocess
import sys
from unittest import mock

import pytest

from data.prepare import __main__ as prepare
from tests.pretrain import small_run

SECRET = "nobody-must-read-this"  # in the environment of the run of `finished`
ROOT = pathlib.Path(__file__).resolve().parents[2]

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def _lines(number: int) -> list[str]:
  rng = random.Random(0)
  syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
  words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(300)]
  # A few words are frequent, most are rare, as in English.
  weights = [1 / (rank + 1) for rank in range(len(words))]
  return [
    " ".join(rng.choices(words, weights, k=rng.randint(4, 14))).capitalize() + "." for _ in range(number)
  ]


def sample_text() -> str:
  """600 sentences in documents of six."""
  lines = _lines(600)
  documents = [lines[start : start + 6] for start in range(0, len(lines), 6)]
  return "\n\n".join("\n".join(document) for document in documents) + "\n"


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> pathlib.Path:
  """`sample_text` in a file."""
  path = tmp_path_factory.mktemp("text") / "text.txt"
  path.write_text(sample_text(), encoding="utf-8")
  return path


@pytest.fixture(scope="session")
def small_records(tmp_path_factory, text_file) -> pathlib.Path:
  """Prepared records of `text_file`, 20 % of the documents held out."""
  directory = tmp_path_factory.mktemp("records") / "small"
  command = [sys.executable, "-m", "data.prepare", f"--source={text_file}", f"--output={directory}"]
  command += [f"--length={small_run.LENGTH}", f"--train_vocabulary_size={small_run.VOCAB_SIZE}"]
  command += ["--heldout_fraction=0.2", "--workers=1"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  return directory


@pytest.fixture(scope="session")
def segment_records(tmp_path_factory, text_file, small_records) -> pathlib.Path:
  """Rows of several sentences of `text_file`, each a document; by the vocabulary of `small_records`."""
  folder = tmp_path_factory.mktemp("segments")
  (folder / "text.txt").write_text(text_file.read_text().replace("\n", "\n\n"))
  flags = [f"--source={folder / 'text.txt'}", f"--output={folder / 'rows'}", "--packing=segments"]
  flags += [f"--length={small_run.LENGTH}", f"--vocabulary={small_records / 'vocabulary'}"]
  assert prepare.main([*flags, "--heldout_fraction=0.2", "--workers=1"]) == 0
  return folder / "rows"


@pytest.fixture(scope="session")
def more_records(tmp_path_factory, small_records) -> pathlib.Path:
  """Prepared records of 60 other sentences, by the vocabulary of `small_records`."""
  folder = tmp_path_factory.mktemp("more")
  text = folder / "more.txt"
  text.write_text("\n\n".join("\n".join(_lines(660)[at : at + 6]) for at in range(600, 660, 6)) + "\n")
  command = [sys.executable, "-m", "data.prepare", f"--source={text}", f"--output={folder / 'more'}"]
  command += [f"--length={small_run.LENGTH}", f"--vocabulary={small_records / 'vocabulary'}"]
  command += ["--heldout_fraction=0.3", "--workers=1"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  return folder / "more"


@pytest.fixture(scope="session")
def finished(tmp_path_factory, small_records) -> pathlib.Path:
  """The workdir of a finished masked-LM run of six steps; tests that change it take a copy."""
  workdir = tmp_path_factory.mktemp("finished") / "mlm"
  config = small_run.small_config("mlm", small_records, {"train.checkpoint_steps": (1,)})
  with mock.patch.dict(os.environ, {"TOKEN_OF_MINE": SECRET}):
    assert small_run.run_training(config, workdir) == 0
  return workdir


@pytest.fixture(scope="session")
def stages(small_records, more_records):
  """Two stages of both directories, as `data.stages`: the second has other rates."""
  return f"0: {small_records}:7,{more_records}:3; 4: {small_records}:1,{more_records}:3"
