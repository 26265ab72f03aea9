"""The programs in docs/ run as they are."""

import pathlib
import re
import subprocess
import sys

import pytest

from tests.pretrain.conftest import small_records, text_file  # noqa: F401 (fixtures)
from tests.pretrain.small_run import LENGTH, VOCAB_SIZE

ROOT = pathlib.Path(__file__).resolve().parents[1]
_SMALL = {
  "model.vocab_size": VOCAB_SIZE,
  "model.max_length": LENGTH,
  "data.length": LENGTH,
  "model.hidden_size": 16,
  "model.num_layers": 1,
  "model.mlp_size": 32,
  "train.batch_size": 8,
  "train.eval_batches": 1,
  "objectives.scl.group_size": 8,
}


def test_pretraining_exporting_and_comparing_sentences(tmp_path, small_records):  # noqa: F811
  pytest.importorskip("torch", reason="needs requirements-export.txt")
  flags = [f"--config.{name}={value}" for name, value in _SMALL.items()]
  command = [sys.executable, "docs/similarity.py", "--steps=3", f"--workdir={tmp_path / 'run'}"]
  command += [f"--output={tmp_path / 'exported'}", f"--config.data.directory={small_records}"]
  done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3_000:]
  rows = re.findall(r"^((?: *-?[01]\.\d{3}){5})  ", done.stdout, re.MULTILINE)
  cosines = [[float(value) for value in row.split()] for row in rows]
  assert len(cosines) == 5
  assert all(cosines[i][i] == 1.0 and cosines[i][j] == cosines[j][i] for i in range(5) for j in range(5))
  assert (tmp_path / "exported" / "README.md").is_file()
