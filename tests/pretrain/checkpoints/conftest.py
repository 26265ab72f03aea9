"""Checkpoints of first states, from which other runs start; tests that change them take a copy."""

import pytest

from tests.pretrain.checkpoints import starts
from tests.pretrain.small_run import small_config


@pytest.fixture(scope="session")
def union(small_records, tmp_path_factory):
  """The workdir of a first state with a generator, a mixture and three heads."""
  workdir = tmp_path_factory.mktemp("union")
  config = small_config("union", small_records, {"objectives.scl.head": "projection"})
  starts.save_start(workdir, config, small_records)
  return workdir


@pytest.fixture(scope="session")
def coco_lm(small_records, tmp_path_factory):
  """The workdir of a first state of the COCO-LM recipe."""
  workdir = tmp_path_factory.mktemp("coco_lm")
  starts.save_start(workdir, small_config("coco_lm", small_records), small_records, seed=1)
  return workdir


@pytest.fixture(scope="session")
def modern(small_records, tmp_path_factory):
  """The workdir of a first state of a pre-norm encoder, whose norms are not 1."""
  workdir = tmp_path_factory.mktemp("modern")
  starts.save_start(workdir, small_config("mlm", small_records, starts.MODERN), small_records, seed=2)
  return workdir
