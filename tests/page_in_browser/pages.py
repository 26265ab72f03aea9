"""Pages to look at: of a tiny run with everything that a page can show, and of two runs beside each other."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from pretrain.logs import trackers
from tests.pretrain.conftest import ROOT

_VOCABULARY = 1_000
_TRAINING = (
  f"--config.model.vocab_size={_VOCABULARY}",
  "--config.train.total_steps=60",
  "--config.train.eval_every=10",
  "--config.train.checkpoint_every=30",
)
_ANALYSES = "blocks,detection,correction,generator,cases,efficiency"  # those that need no annotated text
_PAIRS = (("The runs are long.", "The runs is long."), ("A page has words.", "A page have words."))


def _command(module: str, *arguments: str) -> None:
  """Runs a command as a user does; its output is shown if it fails."""
  command = [sys.executable, "-m", module, *arguments]
  print("$ python", *command[1:], flush=True)
  environment = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"), **os.environ}
  environment["JAX_PLATFORMS"] = "cpu"
  done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
  if done.returncode:
    sys.stderr.write(done.stdout + done.stderr)
    raise SystemExit(
      f"not checked: `python -m {module}` ended with code {done.returncode}, its output is above"
    )


def make(folder: pathlib.Path) -> Sequence[pathlib.Path]:
  """Trains on this repository's documentation, asks what was learned, and writes both pages."""
  records, pairs = folder / "records", folder / "annotated" / "blimp"
  _command(
    "data.prepare",
    "--source=docs/guides/*.md,*.md",
    f"--output={records}",
    "--length=32",
    f"--train_vocabulary_size={_VOCABULARY}",
    "--heldout_fraction=0.2",
    "--workers=1",
  )
  pairs.mkdir(parents=True)
  lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in _PAIRS * 10]
  (pairs / "agreement.jsonl").write_text("\n".join(lines))
  runs = [folder / name for name in ("coco_lm", "mlm")]
  for run in runs:
    recipe = f"--config=tests/pretrain/small_run.py:{run.name}"
    _command("pretrain.main", recipe, f"--config.data.directory={records}", f"--workdir={run}", *_TRAINING)
    _command("pretrain.probe", f"--checkpoint={run}", f"--data={pairs.parent}", "--only=pairs")
  first = runs[0]
  analyses = ("--rows=32", "--batch_size=16", f"--only={_ANALYSES}")
  _command("pretrain.analysis", f"--checkpoints={first}", f"--output={first / 'analyses'}", *analyses)
  # An address as a tracker gives it; nothing opens it.
  tracker = {"wandb": {"run": "r", "id": "r", "address": "https://wandb.ai/someone/something/runs/r"}}
  (first / trackers.FILE_NAME).write_text(json.dumps(tracker))
  pages = [folder / "run.html", folder / "comparison.html"]
  _command("pretrain.report", str(first), f"--output={pages[0]}")
  _command("pretrain.report", *map(str, runs), f"--output={pages[1]}")
  return pages
