"""Measures the time from the training command to its first step, with an empty and a full compilation cache.

  python -m benchmarks.start --recipe roberta_tiny --shape 32x64
  python -m benchmarks.start --recipe roberta_base --shape 4x128

Starts `python -m pretrain.main` on prepared records, each time in a new workdir, and kills it when it prints
its first step. The time includes imports, reading, tracing, compiling and the step. The first start compiles
into an empty cache, later ones use it. One JSON line. The target for a later start on two idle cores is 6 s
for a tiny recipe and 15 s for a base-size recipe.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from data import command
from data.errors import DataError
from lab.speed import cases
from lab.speed.input import write_records


def seconds_to_first_step(arguments: Sequence[str], *, cache: pathlib.Path) -> float:
  """Returns the seconds from the start of pretraining to its first step; then the command is killed.

  `cache` is the directory of compiled programs. DataError, with the last printed line: it ended earlier.
  """
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
  program, last = [sys.executable, "-m", "pretrain.main", *arguments], "nothing"
  options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
  started = time.perf_counter()
  with subprocess.Popen(program, cwd=cases.ROOT, env=environment, **options) as process:
    assert process.stdout is not None
    for line in process.stdout:
      if line.startswith("step 1/"):
        seconds = time.perf_counter() - started
        process.kill()
        return seconds
      last = line.strip() or last
  raise DataError(
    f"{' '.join(program[1:])} ended with code {process.returncode} before its first step: {last}"
  )


def main() -> None:
  """Times a cold and a warm start up to the first step, and prints one JSON line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipe", default="roberta_tiny", help="name in configs/")
  parser.add_argument("--shape", type=cases.shape, default=(32, 64), help="of a batch")
  parser.add_argument("--starts", type=int, default=3, help="starts after the first, which compiles")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  command.refuse_below_one(asked, "starts")
  batch, length = asked.shape
  sizes = [f"train.batch_size={batch}", f"data.length={length}"]
  fields = [*asked.set, *sizes, "train.log_every=1", "train.eval_batches=0"]
  cases.make_config(asked.recipe, batch=batch, length=length, changes=fields)  # a wrong name ends here
  seconds = []
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    directory = write_records(folder, rows=max(1_000, 4 * batch), length=length)
    flags = [f"--config.{field}" for field in [*fields, f"data.directory={directory}"]]
    for number in range(1 + asked.starts):
      run = [f"--config=configs/{asked.recipe}.py", f"--workdir={folder / f'run{number}'}", *flags]
      seconds.append(seconds_to_first_step(run, cache=folder / "cache"))
  cases.report(
    {
      "benchmark": "start",
      "recipe": asked.recipe,
      "shape": f"{batch}x{length}",
      "set": asked.set,
      "seconds_first_start": seconds[0],
      "seconds_later_starts": seconds[1:],
      "median": statistics.median(seconds[1:]),
    }
  )


if __name__ == "__main__":
  sys.exit(command.run(main))
