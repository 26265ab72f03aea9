"""A real run of `pretrain.main` on prepared records, and the same run resumed from a checkpoint."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np

from lab.speed import cases
from lab.speed.gpu_cases import Case
from lab.speed.gpu_turns import say, wait_for_turn
from pretrain.checkpoints import checkpoint
from pretrain.logs import metrics
from pretrain.mesh import trees

STEPS, EVERY, RESUMED_AT = 60, 20, 40


def real_run(case: Case, asked) -> None:
  """Trains; resumes from a checkpoint in between and compares bits; trains again alone for its speed."""
  folder = pathlib.Path(os.environ["GPU_DAY_FOLDER"])
  folder.mkdir(parents=True, exist_ok=True)
  records = asked.records or (_records(folder) if case.is_tiny else "")
  if not records:
    say(skipped="--records is not given")
    return
  command = _command(case, records)
  whole, resumed, alone = (folder / name for name in ("whole", "resumed", "alone"))
  _run(command, whole, folder)
  shutil.copytree(whole, resumed)
  for path in (resumed / checkpoint.DIRECTORY).iterdir():
    if path.name.isdecimal() and int(path.name) > RESUMED_AT:
      shutil.rmtree(path)
  log = resumed / metrics.FILE_NAME
  before = [line for line in log.read_text().splitlines(keepends=True) if f'"step": {STEPS}' not in line]
  log.write_text("".join(before))
  _run(command, resumed, folder)
  arrays = [_parameters(workdir) for workdir in (whole, resumed)]
  differ = sum(not np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
  last = [_training(metrics.read(workdir)[-1]) for workdir in (whole, resumed)]
  ok = differ == 0 and last[0] == last[1] and arrays[0].keys() == arrays[1].keys()
  losses = [line["train/loss"] for line in last]
  facts = {
    "differing_arrays": differ,
    "arrays": len(arrays[0]),
    "losses": losses,
    "same_log": last[0] == last[1],
  }
  say(check=f"real run, resumed at {RESUMED_AT}", error=differ, tolerance=0, ok=ok, **facts)
  for workdir in (whole, resumed):
    shutil.rmtree(workdir)  # gigabytes of checkpoints
  wait_for_turn()
  _run([*command, f"--config.train.checkpoint_every={STEPS}"], alone, folder)
  speeds = [line.get("perf/tokens_per_second") for line in metrics.read(alone)]
  speeds = [speed for speed in speeds if speed]
  say(shape=case.shape, tokens_per_second=speeds[-1], intervals=speeds)


def _training(line: dict) -> dict:
  """The part of a log line that does not depend on the clock."""
  return {name: value for name, value in line.items() if name == "step" or name.startswith("train/")}


def _command(case: Case, records: str) -> list[str]:
  batch, length = cases.shape(case.shape)
  changes = {
    "data.directory": records,
    "data.length": length,
    "train.batch_size": batch,
    "train.total_steps": STEPS,
    "train.log_every": EVERY,
    "train.checkpoint_every": EVERY,
    "train.checkpoints_to_keep": 3,
    "train.eval_batches": 0,
    "optimizer.warmup_steps": STEPS // 6,
  }
  options = [f"--config.{name}={value}" for name, value in changes.items()]
  return [sys.executable, "-m", "pretrain.main", f"--config=configs/{case.recipe}.py", *options]


def _run(command: list[str], workdir: pathlib.Path, folder: pathlib.Path) -> None:
  """Trains in a process; the second one finds its programs compiled."""
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
  done = subprocess.run(
    [*command, f"--workdir={workdir}"], env=environment, stdout=sys.stderr, stderr=sys.stderr
  )
  if done.returncode:
    sys.exit(f"error: {' '.join(command[1:4])} --workdir={workdir} ended with exit code {done.returncode}")


def _records(folder: pathlib.Path) -> str:
  """Prepared records of this project's documentation, for a rehearsal; '' where they cannot be prepared."""
  output, source = folder / "records", folder / "docs.txt"
  source.write_text("\n".join(path.read_text(encoding="utf-8") for path in cases.ROOT.glob("docs/*.md")))
  options = [f"--source={source}", f"--output={output}", "--length=32", "--train_vocabulary_size=512"]
  done = subprocess.run(
    [sys.executable, "-m", "data.prepare", *options, "--workers=1"], stdout=sys.stderr, stderr=sys.stderr
  )
  return "" if done.returncode else str(output)


def _parameters(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """{path: array} of the parameters of the last step."""
  return trees.by_path(checkpoint.load_params(workdir, STEPS)[0])
