"""What a checkpoint says of its text and of the checkpoints it started from."""

import numpy as np
import pytest

from configs import base
from data import manifest
from data.errors import DataError
from pretrain import provenance
from pretrain.checkpoint import Checkpoints

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
SOURCE = {"path": "cocolm-base", "family": "official"}


@pytest.fixture
def records(tmp_path):
  """A directory with the manifest of records of own text, and nothing else."""
  info = manifest.VocabularyInfo("wordpiece", False, 9, "d" * 64, SPECIAL_IDS)
  splits = {"train": manifest.Split(6, 90, ()), "heldout": manifest.Split(1, 12, ())}
  counts = {"documents": 5}
  made = manifest.Manifest({"source": "/a/*.txt"}, "e", info, 16, "none", "uint16", 8, splits, counts, {})
  manifest.write(tmp_path, made)
  return tmp_path


def _config(**fields):
  config = base.get_config()
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
  return config


def test_the_records_are_described_as_they_were_made_and_not_as_the_config_says(records):
  config = _config(data__source="installed_docs", data__packing="complete", data__length=32)
  expected = {
    "source": "/a/*.txt",
    "packing": "none",
    "length": 16,
    "documents": 5,
    "tokens": 90,
    "records": 6,
  }
  assert provenance.describe(config, str(records)) == {"records": expected, "started_from": {}}


def test_a_warm_start_says_who_made_the_checkpoint_and_keeps_it_when_that_is_gone(records, tmp_path):
  checkpoints = Checkpoints(tmp_path / "first", every=1, keep=1)
  meta = {"config": {"recipe": "imported"}, "source": SOURCE}
  checkpoints.save(3, {"params": {"a": np.zeros(1)}, "step": np.int32(3)}, meta)
  checkpoints.close()
  config = _config(train__init_from=str(tmp_path / "first"))
  made = provenance.describe(config, str(records))
  assert made["started_from"] == {"train.init_from": {"recipe": "imported", "step": 3, "source": SOURCE}}
  gone = _config(train__init_from=str(tmp_path / "gone"))
  assert provenance.describe(gone, str(records), made) == made
  saved_before_it_was_said = {"step": 5}
  assert "started_from" not in provenance.describe(gone, str(records), saved_before_it_was_said)
  with pytest.raises(DataError, match=r"no checkpoint in .*gone"):
    provenance.describe(gone, str(records))


def test_a_checkpoint_that_the_method_does_not_use_is_no_start():
  fields = {"generator__init_from": "a", "model__freeze_embeddings_from": "b"}
  assert provenance.starts(_config(**fields)) == {}
  used = fields | {"corruption__kind": "generator", "model__freeze_embeddings": "checkpoint"}
  assert list(provenance.starts(_config(**used)).values()) == ["a", "b"]
