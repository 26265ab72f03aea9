"""Files of a search. Run: python -m pytest tests/finetune/search/test_results.py"""

import json

import numpy as np
import pytest

from data import files
from data.errors import ConfigError, DataError, StorageError
from finetune.papers.spaces import Cell
from finetune.search.results import Results
from finetune.search.summary import Evaluation, Record

CELL = Cell(32, 2e-5, 3, 0.0625)
FINGERPRINT = {"checkpoint": "a" * 64, "settings": {"length": 128, "rates": (0.1, 0.2)}}


def record(seeds=(0, 1), *, value=0.5, cell: Cell = CELL):
  runs = {
    seed: [Evaluation(5, 0.5, {"accuracy": value}, 3), Evaluation(10, 1.0, {"accuracy": 0.25})]
    for seed in seeds
  }
  return Record("rte", cell, "accuracy", runs)


@pytest.fixture
def results(tmp_path):
  return Results(tmp_path, "rte", FINGERPRINT)


@pytest.mark.parametrize("cell", [CELL, Cell(2, 3e-6, num_steps=1000)], ids=["epochs", "steps"])
def test_what_was_saved_is_finished_and_seeds_can_join(results, tmp_path, cell):
  assert results.finished(cell, [0, 1]) is None
  results.save(record(seeds=[3, 1], cell=cell))
  assert results.missing(cell, [1, 2, 3]) == [2]
  results.save(record(seeds=[2], cell=cell))
  again = Results(tmp_path, "rte", json.loads(json.dumps(FINGERPRINT)))
  assert again.finished(cell, [1, 2, 3]) == record(seeds=[1, 2, 3], cell=cell)
  assert again.finished(cell, [1]) == record(seeds=[1], cell=cell)
  assert again.finished(CELL._replace(epochs=2), [1]) is None
  again.forget(cell, 2)
  assert results.missing(cell, [1, 2, 3]) == [2]


def test_a_file_names_its_run_and_the_best_evaluation(results, tmp_path):
  run = [Evaluation(np.int64(5), np.float32(0.5), {"accuracy": np.float32(0.25)})]  # pyright: ignore
  results.save(record()._replace(seeds={np.int64(7): run}))  # pyright: ignore
  value = json.loads((tmp_path / "rte" / "bs32_lr2e-05_ep3_wu0.0625_seed7.json").read_text())
  assert value["best"] == {"step": 5, "metrics": {"accuracy": 0.25}}
  assert value["cell"]["learning_rate"] == 2e-5 and value["seed"] == 7


def test_the_files_of_an_older_format_are_split(tmp_path):
  """A file had all seeds of a cell; a search of prompts had a digest of the data of each split."""
  evaluation = {"step": 5, "epoch": 0.5, "metrics": {"accuracy": 0.5}}
  value = {
    "format": 1,
    "task": "rte",
    "cell": CELL.as_json(),
    "metric": "accuracy",
    "seeds": {str(seed): {"evaluations": [evaluation], "best": {}} for seed in (13, 21)},
    "devices": ["cpu"],
    "seconds": 2.0,
    "fingerprint": {"checkpoint": "a", "data": {"13": "x", "21": "y"}},
  }
  old = tmp_path / "rte" / f"{CELL.name}.json"
  old.parent.mkdir()
  old.write_text(json.dumps(value | {"digest": files.digest_json(value)}))
  now = Results(
    tmp_path, "rte", {"checkpoint": "a", "data": {"13": "x", "21": "z", "42": ""}}, seed_field="data"
  )
  assert not old.exists()
  with pytest.raises(DataError, match=r"seed21.*other settings \(data\.21: y -> z\)"):
    now.missing(CELL, [13])
  now.fingerprint["data"]["21"] = "y"
  assert now.finished(CELL, [13]).seeds == {13: [Evaluation(5, 0.5, {"accuracy": 0.5})]}
  assert now.missing(CELL, [13, 21, 42]) == [42]


def test_other_settings_are_refused_by_name(results, tmp_path):
  results.save(record())
  other = {"checkpoint": "b" * 64, "settings": {"length": 64, "rates": [0.1, 0.2]}, "data": "x"}
  with pytest.raises(DataError) as error:
    Results(tmp_path, "rte", other).finished(CELL, [0])
  line = str(error.value)
  assert "_seed" in line and line.endswith("\n  --workdir=NEW")
  assert f"checkpoint: {'a' * 12}... -> {'b' * 12}..." in line
  assert "settings.length: 128 -> 64" in line and "data: absent -> x" in line and "rates" not in line


@pytest.mark.parametrize(
  "damage",
  [
    lambda content: content[: len(content) // 2],
    lambda content: content.replace(b'"accuracy": 0.5', b'"accuracy": 0.9'),
    lambda content: b"[]",
    lambda content: b"\xff" + content,
  ],
)
def test_damaged_files_are_refused(results, damage):
  results.save(record())
  path = results.path(CELL, 0)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(DataError, match=r"rte/bs32.*damaged result.*train its runs again"):
    results.finished(CELL, [0])


def test_a_later_format_is_refused(results):
  results.save(record())
  path = results.path(CELL, 0)
  path.write_bytes(path.read_bytes().replace(b'"format": 2', b'"format": 3'))
  with pytest.raises(DataError, match=r"format 3, expected format 2"):
    results.finished(CELL, [0])


def test_a_task_that_is_no_file_name_and_a_folder_that_cannot_be_made_are_refused(results, tmp_path):
  with pytest.raises(ConfigError, match="cannot name a folder"):
    Results(tmp_path, "../rte", FINGERPRINT)
  (tmp_path / "rte").write_text("a file")
  with pytest.raises(StorageError, match="cannot be written"):
    results.save(record())
