"""Files that several tests start from; each is made once, and a test that changes one takes a copy."""

import pathlib

import pytest

from tests.finetune.glue import small_glue
from tests.finetune.prompt.prompt_files import make_place


@pytest.fixture(scope="session")
def small_encoder_run(tmp_path_factory) -> pathlib.Path:
  """The workdir of `small_glue.checkpoint`."""
  return small_glue.checkpoint(tmp_path_factory.mktemp("encoder") / "run")


@pytest.fixture(scope="session")
def small_glue_folder(tmp_path_factory) -> pathlib.Path:
  """The folder of `small_glue.glue`."""
  return small_glue.glue(tmp_path_factory.mktemp("glue") / "glue")


@pytest.fixture(scope="session")
def prompt_place(tmp_path_factory) -> pathlib.Path:
  """The folder of `make_place`: a checkpoint, two draws of SST-2 and its development set."""
  return make_place(tmp_path_factory.mktemp("prompts"))
