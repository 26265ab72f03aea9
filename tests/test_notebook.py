"""The notebook and the page about Python run as they are, the notebook with fewer steps.

Both train in a process of their own, because they configure logging.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOK, PAGE = ROOT / "docs" / "tutorials" / "adapt.ipynb", ROOT / "docs" / "guides" / "python.md"
CHECKS = """
assert code == 0 and after < before, (code, before, after)
assert type(model) is type(given), type(model)
"""


def _run(program: str, folder: pathlib.Path) -> str:
  """Runs a program in a folder, on the CPU and without network; returns what it printed."""
  more = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
  command = [sys.executable, "-c", program]
  done = subprocess.run(
    command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=600
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.mark.nightly
def test_the_notebook_lowers_the_loss_and_gives_the_class_back(tmp_path, monkeypatch):
  pytest.importorskip("torch", reason="needs requirements-export.txt")
  cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
  assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
  program = "\n".join("".join(cell["source"]) for cell in cells)
  assert program.count("STEPS = 200\n") == 1
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  _run(program.replace("STEPS = 200\n", "STEPS = 20\n") + CHECKS, NOTEBOOK.parent)


@pytest.mark.nightly
def test_the_blocks_of_the_page_run(tmp_path):
  (tmp_path / "docs").symlink_to(ROOT / "docs")
  blocks = re.findall(r"^```python\n(?!# )(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
  printed = _run("\n".join(blocks), tmp_path)
  assert "(16, 2048) float32" in printed and (tmp_path / "loss.png").is_file()
