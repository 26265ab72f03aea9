"""Files of a search: finished runs, other settings, damage, shared programs, the saved model."""

import json

import numpy as np
import pytest

from data.errors import DataError
from finetune.papers.protocols import Cell
from finetune.search import save_model
from finetune.search.results import Results
from finetune.search.summary import Evaluation, Record

CELL = Cell(32, 2e-5, 3, 0.0625)
FINGERPRINT = {"checkpoint": "a" * 64, "settings": {"length": 128, "rates": (0.1, 0.2)}}


def record(seeds=(0, 1), *, cell: Cell = CELL):
  run = [Evaluation(5, 0.5, {"accuracy": 0.5}, 3), Evaluation(10, 1.0, {"accuracy": 0.25})]
  return Record("rte", cell, "accuracy", dict.fromkeys(seeds, run))


def test_what_was_saved_is_finished_and_seeds_can_join(tmp_path):
  for cell in (CELL, Cell(2, 3e-6, num_steps=1000)):
    results = Results(tmp_path, "rte", FINGERPRINT)
    assert results.finished(cell, [0, 1]) is None
    results.save(record(seeds=[3, 1], cell=cell))
    assert results.missing(cell, [1, 2, 3]) == [2]
    results.save(record(seeds=[2], cell=cell))
    again = Results(tmp_path, "rte", json.loads(json.dumps(FINGERPRINT)))
    assert again.finished(cell, [1, 2, 3]) == record(seeds=[1, 2, 3], cell=cell)
    assert again.finished(cell._replace(batch_size=3), [1]) is None
    again.forget(cell, 2)
    assert results.missing(cell, [1, 2, 3]) == [2]
  value = json.loads((tmp_path / "rte" / "bs32_lr2e-05_ep3_wu0.0625_seed3.json").read_text())
  assert value["best"] == {"step": 5, "metrics": {"accuracy": 0.5}} and value["seed"] == 3


def test_other_settings_and_damaged_files_are_refused(tmp_path):
  results = Results(tmp_path, "rte", FINGERPRINT)
  results.save(record())
  other = {"checkpoint": "b" * 64, "settings": {"length": 64, "rates": [0.1, 0.2]}, "data": "x"}
  with pytest.raises(DataError, match=r"\n  --workdir=NEW") as error:
    Results(tmp_path, "rte", other).finished(CELL, [0])
  assert all(name in str(error.value) for name in ("checkpoint", "settings.length: 128 -> 64", "data"))
  assert "rates" not in str(error.value)
  path = results.path(CELL, 0)
  content = path.read_bytes()
  for damaged in (
    content[:99],
    content.replace(b'"accuracy": 0.5', b'"accuracy": 0.9'),
    b"[]",
    b"\xff" + content,
  ):
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="rte/bs32"):
      results.finished(CELL, [0])


def test_a_saved_head_gives_numbers_on_the_scale_of_the_file():
  output = {"kernel": np.asarray([[2.0]], np.float32), "bias": np.asarray([0.5], np.float32)}
  params = {"encoder": {"x": 1}, "heads": {"classification": {"dense": {"y": 2}, "output": output}}}
  assert save_model.scale_outputs(params, 1.0) is params
  made = save_model.scale_outputs(params, 3.0, 7.0)
  head = made["heads"]["classification"]
  assert head["output"] == {"kernel": 2.0 * 3, "bias": 0.5 * 3 + 7} and head["dense"] == {"y": 2}
  assert made["encoder"] == {"x": 1} and {leaf.dtype.name for leaf in head["output"].values()} == {"float32"}
