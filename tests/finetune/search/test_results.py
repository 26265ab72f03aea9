"""Files of a search. Run: python -m pytest tests/finetune/search/test_results.py"""

import json
import pathlib

import numpy as np
import pytest

from data import files
from data.errors import ConfigError, DataError, StorageError
from finetune.papers.spaces import Cell
from finetune.search.results import Results
from finetune.search.summary import Evaluation, Record

CELL = Cell(32, 2e-5, 3, 0.0625)
FINGERPRINT = {"checkpoint": "a" * 64, "settings": {"length": 128, "rates": (0.1, 0.2)}}


def record(seeds=(0, 1), *, value=0.5, seconds=2.0, device="cpu", cell: Cell = CELL, metric="accuracy"):
  runs = {
    seed: [Evaluation(5, 0.5, {"accuracy": value}), Evaluation(10, 1.0, {"accuracy": 0.25})] for seed in seeds
  }
  return Record("rte", cell, metric, runs, (device,), seconds)


@pytest.fixture
def results(tmp_path):
  return Results(tmp_path, FINGERPRINT)


def test_what_was_saved_is_finished(results, tmp_path):
  assert results.finished("rte", CELL, [0, 1]) is None
  results.save("rte", CELL, record())
  again = Results(tmp_path, json.loads(json.dumps(FINGERPRINT)))
  assert again.finished("rte", CELL, [0, 1]) == record()
  assert again.finished("rte", CELL, [1]) == record(seeds=[1])
  assert again.finished("rte", CELL._replace(epochs=2), [0]) is None
  assert again.finished("mnli", CELL, [0]) is None


def test_a_cell_of_steps_comes_back_as_one(results):
  cell = Cell(2, 3e-6, num_steps=1000)
  results.save("rte", cell, record(cell=cell))
  found = results.finished("rte", cell, [0, 1])
  assert found == record(cell=cell)
  saved = json.loads(results.path("rte", cell).read_text())["cell"]
  assert saved == {"batch_size": 2, "learning_rate": 3e-6, "num_steps": 1000}
  assert results.path("rte", cell).name == "bs2_lr3e-06_st1000.json"


def test_the_file_says_what_was_chosen(results):
  results.save("rte", CELL, record(seeds=[7]))
  value = json.loads((results._workdir / "rte" / "bs32_lr2e-05_ep3_wu0.0625.json").read_text())
  assert value["seeds"]["7"]["best"] == {"step": 5, "metrics": {"accuracy": 0.5}}
  assert value["cell"]["learning_rate"] == 2e-5 and value["devices"] == ["cpu"]


def test_updates_left_out_are_saved_and_a_file_without_them_has_none(results):
  runs = {0: [Evaluation(5, 0.5, {"accuracy": 0.5}, 3)]}
  results.save("rte", CELL, record()._replace(seeds=runs))
  path = results.path("rte", CELL)
  assert results.finished("rte", CELL, [0]).seeds == runs
  value = json.loads(path.read_text())
  del (
    value["seeds"]["0"]["evaluations"][0]["skipped_updates"],
    value["digest"],
  )  # as earlier programs wrote it
  path.write_text(json.dumps(value | {"digest": files.digest_json(value)}))
  assert results.finished("rte", CELL, [0]).seeds == {0: [Evaluation(5, 0.5, {"accuracy": 0.5}, 0)]}


def test_later_seeds_join_the_earlier_ones(results):
  results.save("rte", CELL, record(seeds=[3, 1]))
  assert results.missing("rte", CELL, [1, 2, 3]) == [2]
  assert results.finished("rte", CELL, [1, 2, 3]) is None
  saved = results.save("rte", CELL, record(seeds=[2], value=0.75, device="H100", seconds=1.0))
  assert list(saved.seeds) == [1, 2, 3] and saved.devices == ("cpu", "H100") and saved.seconds == 3.0
  found = results.finished("rte", CELL, [2, 3])
  assert found is not None
  assert {seed: run[0].metrics["accuracy"] for seed, run in found.seeds.items()} == {2: 0.75, 3: 0.5}


def test_numbers_of_numpy_are_saved_as_numbers(results):
  run = [Evaluation(np.int64(5), np.float32(0.5), {"accuracy": np.float32(0.25)})]  # pyright: ignore
  results.save("rte", CELL, record()._replace(seeds={np.int64(0): run}))  # pyright: ignore
  assert results.read("rte", CELL).seeds == {0: [Evaluation(5, 0.5, {"accuracy": 0.25})]}


def test_other_settings_are_refused_by_name(results, tmp_path):
  results.save("rte", CELL, record())
  path = results.path("rte", CELL)
  before = path.read_bytes()
  other = {"checkpoint": "b" * 64, "settings": {"length": 64, "rates": [0.1, 0.2]}, "data": "x"}
  for call in (
    lambda: Results(tmp_path, other).finished("rte", CELL, [0]),
    lambda: Results(tmp_path, other).save("rte", CELL, record()),
  ):
    with pytest.raises(DataError) as error:
      call()
    line = str(error.value)
    assert str(path) in line and "\n" not in line
    assert f"checkpoint {'a' * 12}... -> {'b' * 12}..." in line
    assert "settings.length 128 -> 64" in line and "data (absent) -> x" in line and "rates" not in line
  assert path.read_bytes() == before


@pytest.mark.parametrize(
  "damage",
  [
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: content.replace(b'"accuracy": 0.5', b'"accuracy": 0.9'),
    lambda content: b"[]",
    lambda content: b"\xff" + content,
  ],
)
def test_damaged_files_are_refused(results, damage):
  results.save("rte", CELL, record())
  path = results.path("rte", CELL)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(DataError, match=r"rte/bs32.*damaged result.*remove it"):
    results.finished("rte", CELL, [0])


def test_a_later_format_is_refused(results):
  results.save("rte", CELL, record())
  path = results.path("rte", CELL)
  path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
  with pytest.raises(DataError, match=r"format 2, this program reads format 1"):
    results.finished("rte", CELL, [0])


def test_a_renamed_file_is_refused(results):
  results.save("rte", CELL, record())
  other = CELL._replace(epochs=5)
  results.path("rte", CELL).rename(results.path("rte", other))
  with pytest.raises(DataError, match=r"ep5.*holds task 'rte', cell bs32_lr2e-05_ep3"):
    results.finished("rte", other, [0])


def test_half_written_files_are_not_results_and_go_with_the_next_save(results):
  part = pathlib.Path(f"{results.path('rte', CELL)}.123.part")
  part.parent.mkdir()
  part.write_bytes(b"{")
  assert results.finished("rte", CELL, [0]) is None
  results.save("rte", CELL, record())
  assert [path.name for path in part.parent.iterdir()] == [results.path("rte", CELL).name]


@pytest.mark.parametrize(
  "bad, words",
  [
    (record(value=float("nan")), "seed 0, step 5: accuracy is nan"),
    (record(seeds=()), "no seeds"),
    (record()._replace(seeds={0: []}), "never evaluated"),
    (record(metric="f1"), "'f1' was not measured"),
    (record(cell=CELL._replace(epochs=9)), "the record is of task 'rte', cell bs32_lr2e-05_ep9"),
  ],
)
def test_records_that_say_nothing_are_not_saved(results, bad, words):
  with pytest.raises(DataError, match=words):
    results.save("rte", CELL, bad)
  assert results.read("rte", CELL) is None


def test_seeds_judged_by_another_metric_do_not_join(results):
  results.save("rte", CELL, record())
  run = [Evaluation(1, 1.0, {"f1": 0.5})]
  with pytest.raises(DataError, match="judged by 'accuracy', the new seeds by 'f1'"):
    results.save("rte", CELL, record(metric="f1")._replace(seeds={5: run}))


def test_a_task_that_is_no_file_name_and_a_folder_that_cannot_be_made_are_refused(results, tmp_path):
  with pytest.raises(ConfigError, match="cannot name a folder"):
    results.read("../rte", CELL)
  (tmp_path / "rte").write_text("a file")
  with pytest.raises(StorageError, match="cannot be written"):
    results.save("rte", CELL, record())
