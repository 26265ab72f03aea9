"""Probes while a run trains: the command's numbers, at the steps asked for, and the run is as without."""

import json
import pathlib
import shutil

import pytest

from data.errors import DataError
from lab.analysis import probe
from lab.analysis.probing import Probing, find
from tests.lab.analysis.test_probe import on_one_device  # noqa: F401 (a fixture)
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  run_training,
  saved_params,
  small_config,
)


def _probe_lines(workdir) -> dict[int, list[dict]]:
  found: dict[int, list[dict]] = {}
  for line in metric_lines(workdir):
    if any(name.startswith("probe/") for name in line):
      found.setdefault(line["step"], []).append(line)
  return found


@pytest.fixture(scope="module")
def annotated(tmp_path_factory) -> pathlib.Path:
  """Relations that follow from the first word; nothing for the other probes."""
  folder = tmp_path_factory.mktemp("annotated")
  (folder / "SemEval2010_task8").mkdir()
  for name in ("TRAIN_FILE", "TEST_FILE_FULL"):
    texts = [f'{n}\t"<e1>{w}</e1> ke <e2>ba</e2>"\n{w}-ba\n\n' for n, w in enumerate(("dogo", "lumi") * 8)]
    (folder / "SemEval2010_task8" / f"{name}.TXT").write_text("".join(texts))
  return folder


@pytest.fixture(scope="module")
def fields(annotated):
  return {"train.checkpoint_steps": (1,), "train.probe_every": 3, "train.probe_data": str(annotated)}


def test_a_probed_run_is_the_run_without_and_has_the_figures_of_the_command(
  finished, small_records, annotated, fields, tmp_path
):
  workdir = tmp_path / "run"
  config = small_config("mlm", small_records, fields)
  assert run_training(config, workdir) == 0
  assert_same_params(saved_params(workdir), saved_params(finished))
  lines = _probe_lines(workdir)
  assert [*lines] == [0, 3, 6]
  others = [
    line for line in metric_lines(workdir) if line not in [one for of in lines.values() for one in of]
  ]
  assert others == metric_lines(finished)
  assert probe.main([f"--checkpoint={workdir}", f"--data={annotated}", f"--output={tmp_path}"]) == 0
  rows = json.loads((tmp_path / "probe.json").read_text())["rows"]
  expected = {
    "/".join(["probe", *(row[key].replace(" ", "_") for key in ("probe", "cases", "read"))]): row[
      f"{workdir} step 6"
    ]
    for row in rows
  }
  assert lines[6] == [{"step": 6} | expected] and len(expected) == 3
  # What an earlier start has written stays and is not measured again.
  shutil.rmtree(workdir / "checkpoints" / "6")
  again = small_config("mlm", small_records, fields | {"train.probe_every": 2})
  assert run_training(again, workdir) == 0
  assert {step: len(found) for step, found in _probe_lines(workdir).items()} == {0: 1, 3: 1, 4: 1, 6: 1}
  assert _probe_lines(workdir)[6] == lines[6]


def test_a_stop_request_is_not_kept_waiting(small_records, fields):
  probing = Probing(small_config("mlm", small_records, fields), str(small_records / "vocabulary"))
  assert probing.measure({"encoder": {}}, is_stopping=lambda: True) is None


def test_a_folder_without_data_is_refused_before_the_run(small_records, fields, tmp_path):
  with pytest.raises(DataError, match=r"train\.probe_data=.*no data for any probe"):
    find(str(tmp_path))
  config = small_config("mlm", small_records, fields | {"train.probe_data": str(tmp_path)})
  with pytest.raises(DataError, match=r"train\.probe_data="):
    run_training(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()
