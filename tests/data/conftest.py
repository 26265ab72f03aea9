"""A small corpus, a small vocabulary and a small preparation, made once."""

import pathlib
import random

import pytest

from data import errors
from data.prepare import __main__ as prepare
from data.vocabulary import train as vocabulary_train

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"

_TEXT = """
the of and to in a is that it was for on are with as his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out them
then she many some so these would other into has more her two like him see time could no make than
first been its who now people
"""
_WORDS = _TEXT.split()


def _sentence(rng: random.Random) -> str:
  return " ".join(rng.choices(_WORDS, k=rng.randint(3, 12))).capitalize() + "."


def make_documents(number: int, seed: int) -> list[list[str]]:
  """Returns documents, each a list of paragraphs, as a function of the seed."""
  rng = random.Random(seed)
  return [
    [" ".join(_sentence(rng) for _ in range(rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
    for _ in range(number)
  ]


def refused(function) -> list:
  """Returns [exit code, message] of the error that a call raises; [0, ''] if it raises none."""
  try:
    function()
  except errors.UserError as error:
    return [error.exit_code, str(error)]
  return [0, ""]


def write_text(path: pathlib.Path, documents: list[list[str]]) -> pathlib.Path:
  """Writes documents as text: a line is a paragraph, a blank line ends a document."""
  path.write_text("".join("\n".join(document) + "\n\n" for document in documents), encoding="utf-8")
  return path


def arguments(corpus, vocabulary_directory, output, *more):
  """Returns the flags that made the `prepared` fixture, for another output."""
  flags = [f"--source={corpus}/*.txt", f"--vocabulary={vocabulary_directory}", f"--output={output}"]
  return [*flags, "--length=32", "--heldout_fraction=0.1", "--workers=1", *more]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> pathlib.Path:
  """A directory with three text files."""
  directory = tmp_path_factory.mktemp("corpus")
  for number in range(3):
    path = write_text(directory / f"part{number}.txt", make_documents(60, seed=number))
    path.write_text(path.read_text() + " " * 600_000)  # so that each is a unit of its own
  return directory


@pytest.fixture(scope="session")
def vocabulary_directory(tmp_path_factory) -> pathlib.Path:
  """A trained sentencepiece vocabulary of 150 pieces."""
  directory = tmp_path_factory.mktemp("vocabulary") / "small"
  sentences = [paragraph for document in make_documents(100, seed=9) for paragraph in document]
  vocabulary_train.train(sentences, directory, kind="sentencepiece", cased=False, size=150)
  return directory


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, corpus, vocabulary_directory) -> pathlib.Path:
  """The corpus, packed to 32 tokens. Tests copy it before they damage it."""
  output = tmp_path_factory.mktemp("prepared") / "records"
  assert prepare.main(arguments(corpus, vocabulary_directory, output)) == 0
  return output
