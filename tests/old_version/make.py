"""Makes `fixture.tar.xz`: a run, a search and an export of commit d0d56b3, to be continued and loaded.

It runs with the code of that commit, not with today's; modules that it imports may have other names now:

  git worktree add /tmp/old d0d56b3 && cd /tmp/old
  PYTHONPATH=. python /path/to/tests/old_version/make.py /path/to/tests/old_version/fixture.tar.xz

What is in the archive:
  records/     prepared records of 600 made-up sentences, vocabulary of 300 pieces
  run/         a union recipe (generator, adversarial mixture, RTD, CLM, SCL, TACO) cut after step 4 of 6
  run.npz      its parameters after step 6, as the old version went on
  metrics.jsonl   what it logged on the way
  encoder/     a checkpoint of a tiny encoder; glue/: a few rows of SST-2 and STS-B in the official layout
  search/      a GLUE search over four cells, killed in the middle of the second
  searched.json   {"task/cell.json": stored seeds} of the same search, undisturbed; results.csv
  plain/       a checkpoint of a tiny encoder without relative positions
  export/      what `pretrain.export --checkpoint=plain` wrote, in the layout of a stock BERT
"""

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from unittest import mock

import tests.conftest  # noqa: F401  sets the tests' flags of the compiler, before JAX is imported

# isort: split
import numpy as np

from configs import base
from finetune import main
from finetune.search import loop
from pretrain.export import __main__ as export
from tests.finetune import test_main
from tests.finetune.glue import small_glue
from tests.pretrain import conftest, small_run

SEARCH = (
  *test_main.FAST,
  *test_main.SEARCH,
  test_main.SAVES,
  "--config.search.evaluations_per_epoch=2",
  "--config.output.predict",
  "--config.model.dropout=0.0",
)


def _prepare(place: pathlib.Path) -> None:
  text = place / "text.txt"
  text.write_text(conftest.sample_text(), encoding="utf-8")
  command = [sys.executable, "-m", "data.prepare", f"--source={text}", f"--output={place / 'records'}"]
  command += [f"--length={small_run.LENGTH}", f"--train_vocabulary_size={small_run.VOCAB_SIZE}"]
  command += ["--train_vocabulary_kind=wordpiece"]  # the smaller of the two kinds by a quarter of a megabyte
  subprocess.run([*command, "--heldout_fraction=0.2", "--workers=1"], check=True)
  text.unlink()


def _pretrain(place: pathlib.Path) -> None:
  config = small_run.small_config("union", place / "records")
  assert small_run.run_training(config, place / "run") == 0
  np.savez_compressed(place / "run.npz", **small_run.saved_params(place / "run", 6))
  shutil.rmtree(place / "run" / "checkpoints" / "6")
  log = place / "run" / "metrics.jsonl"
  shutil.copy(log, place / "metrics.jsonl")
  lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= 4]
  log.write_text("\n".join(lines) + "\n")
  shutil.rmtree(place / "run" / "tensorboard")


def _search(place: pathlib.Path) -> None:
  small_glue.checkpoint(place / "encoder", with_clm_head=True)
  small_glue.glue(place / "glue")
  arguments = [
    *SEARCH,
    f"--config.checkpoint={place / 'encoder'}",
    f"--config.data.directory={place / 'glue'}",
  ]
  assert main.main([*arguments, f"--workdir={place / 'whole'}"]) == 0
  cells = sorted((place / "whole").glob("*/bs*.json"))
  stored = {f"{path.parent.name}/{path.name}": json.loads(path.read_text())["seeds"] for path in cells}
  (place / "searched.json").write_text(json.dumps(stored))
  shutil.copy(place / "whole" / "results.csv", place / "results.csv")
  shutil.rmtree(place / "whole")
  note, done = loop._Loop.note_evaluation, []

  def dying(self) -> None:
    if len(done) == 6:
      raise KeyboardInterrupt
    note(self)
    done.append(self.done)

  loop._Loop.note_evaluation = dying
  assert main.main([*arguments, f"--workdir={place / 'search'}"]) == 130
  loop._Loop.note_evaluation = note


def _export(place: pathlib.Path) -> None:
  config = base.get_config()
  config.model.relative_position = "none"  # a stock BERT, which can be imported again
  with mock.patch.object(base, "get_config", lambda: copy.deepcopy(config)):
    small_glue.checkpoint(place / "plain")
  assert export.main([f"--checkpoint={place / 'plain'}", f"--output={place / 'export'}"]) == 0


def make(archive: str) -> None:
  """Writes the archive."""
  with tempfile.TemporaryDirectory() as temporary:
    place = pathlib.Path(temporary)
    _prepare(place)
    _pretrain(place)
    _search(place)
    _export(place)
    with tarfile.open(archive, "w:xz") as tar:
      for path in sorted(place.iterdir()):
        tar.add(path, arcname=path.name)
  print(f"{archive}: {os.path.getsize(archive):,} bytes")


if __name__ == "__main__":
  make(sys.argv[1])
