"""What commit d0d56b3 wrote goes on under today's code: a run, a search and an export (see `make.py`)."""

import csv
import json
import pathlib
import shutil
import tarfile

import numpy as np
import pytest

from finetune import main
from pretrain.checkpoints.checkpoint import load_params
from pretrain.export import __main__ as export
from tests.finetune import stored as runs_of
from tests.finetune import test_main
from tests.pretrain import small_run

ARCHIVE = pathlib.Path(__file__).with_name("fixture.tar.xz")
CELLS = 4  # of two tasks; half of them have no stored result


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> pathlib.Path:
  """The archive, unpacked."""
  place = tmp_path_factory.mktemp("old")
  with tarfile.open(ARCHIVE) as tar:
    tar.extractall(place, filter="data")
  return place


def test_a_run_goes_on_to_the_same_parameters_and_metrics(old):
  lines = []
  config = small_run.small_config("union", old / "records")
  assert small_run.run_training(config, old / "run", say=lines.append) == 0
  assert any("Continuing at step 4" in line for line in lines), lines
  params, expected = small_run.saved_params(old / "run", 6), np.load(old / "run.npz")
  assert params.keys() == set(expected)
  for name, value in params.items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
  logged = small_run.metric_lines(old / "run")
  before = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
  assert len(logged) == len(before)
  for now, then in zip(logged, before):
    then = {name: value for name, value in then.items() if not name.startswith("perf/")}
    assert now == pytest.approx(then, rel=1e-4, abs=1e-5)


def test_a_killed_search_goes_on_to_the_same_table(old):
  finished = {path.name for path in (old / "search").glob("*/bs*.json")}
  assert 0 < len(finished) < CELLS
  places = (f"--config.checkpoint={old / 'encoder'}", f"--config.data.directory={old / 'glue'}")
  arguments = [*test_main.FAST, *test_main.SEARCH, "--config.output.predict", *places]
  arguments += [test_main.SAVES, "--config.search.evaluations_per_epoch=2"]  # as it began
  arguments.append("--config.model.dropout=0.0")  # so did this, see `make.py`
  assert main.main([*arguments, f"--workdir={old / 'search'}"]) == 0
  expected = json.loads((old / "searched.json").read_text())
  found = {task: runs_of.runs(old / "search" / task) for task in ("sst2", "stsb")}
  stored = {f"{task}/{cell}.json": runs for task, cells in found.items() for cell, runs in cells.items()}
  assert stored.keys() == expected.keys() and len(stored) == CELLS
  for name, seeds in expected.items():
    assert seeds.keys() == stored[name].keys()
    for seed, run in seeds.items():
      for now, then in zip(stored[name][seed], run["evaluations"], strict=True):
        now, then = dict(now["metrics"]), dict(then["metrics"])
        # The correlation of ten nearly equal answers magnifies rounding; all else counts or ranks.
        assert now.pop("pearson", 0.0) == pytest.approx(then.pop("pearson", 0.0), abs=4e-5), (name, seed)
        assert now == pytest.approx(then, abs=1e-6), (name, seed)
  with (old / "search" / "results.csv").open() as now, (old / "results.csv").open() as then:
    ours, theirs = list(csv.DictReader(now)), list(csv.DictReader(then))
  assert [row["task"] for row in ours] == [row["task"] for row in theirs]


def test_an_export_is_made_again_bit_for_bit_and_imported(old, tmp_path):
  pytest.importorskip("torch", reason="needs requirements-export.txt")
  assert export.main([f"--checkpoint={old / 'plain'}", f"--output={tmp_path / 'again'}"]) == 0
  for path in (old / "export").iterdir():
    if path.suffix in (".safetensors", ".json"):
      assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
  flags = ["import", f"--from={old / 'export'}", f"--output={tmp_path / 'imported'}"]
  assert export.main(flags) == 0
  ours, theirs = (small_run.saved_params(workdir) for workdir in (tmp_path / "imported", old / "plain"))
  small_run.assert_same_params(ours, theirs)
  assert load_params(tmp_path / "imported")[1]["config"]["model"]["hidden_size"] == 16


@pytest.mark.nightly  # that the run is restored and that exports are as they were is tested above
def test_a_run_of_the_old_version_exports(old, tmp_path):
  pytest.importorskip("torch", reason="needs requirements-export.txt")
  workdir = tmp_path / "run"
  shutil.copytree(old / "run", workdir)
  assert export.main([f"--checkpoint={workdir}", f"--output={tmp_path / 'export'}"]) == 0
