"""Compares the speed with PyTorch at the same work: two processes take turns on the same cores.

  python -m benchmarks.compare --recipes roberta_base taco_base --shapes 4x128 1x512 --rounds 5
  python -m benchmarks.compare --recipes roberta_base electra_base --peer hugging_face
  python -m benchmarks.compare --recipes coco_lm_base --threads 1 --cores 0
  python -m benchmarks.compare --recipes roberta_base --shapes 32x512 --peer torch_compiled  # on a GPU

The peers are the programs of `lab/speed/peers/`: the same method and sizes in plain PyTorch with fused
attention and Adam (`--peer=torch`), the same with `torch.compile` (`torch_compiled`), or Hugging Face's
classes. One JSON line for each case: tokens per second of both, medians over the rounds, and the median of
the rounds' ratios (above 1: ours is faster), by wall-clock and by CPU time. Wall-clock ratios are valid only
on an idle machine, because on a busy one threads wait for each other. Needs `requirements-export.txt` (torch,
transformers).
"""

import json
import os
import statistics
import subprocess
import sys

from data import command
from data.errors import UserError
from lab.speed import cases
from lab.speed.peers.server import PEERS


class Server:
  """A child process that takes training steps on request."""

  def __init__(self, kind: str, recipe: str, shape: str, asked) -> None:
    """Starts the process and waits until it is compiled and warm."""
    threads = asked.threads or len(asked.cores)
    self._name = f"benchmarks.peers.server {kind} {recipe}"
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    self._process = subprocess.Popen(
      [sys.executable, "-m", "benchmarks.peers.server", kind, recipe, shape, str(threads), *asked.set],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
      preexec_fn=lambda: os.sched_setaffinity(0, asked.cores),  # both sides run on the same cores
    )
    self.loss = self._answer()["loss"]

  def steps(self, number: int) -> dict[str, float]:
    """Returns the median seconds of `number` steps."""
    assert self._process.stdin is not None
    self._process.stdin.write(f"{number}\n")
    self._process.stdin.flush()
    return self._answer()

  def _answer(self) -> dict[str, float]:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      if line.startswith("{"):
        return json.loads(line)
    raise UserError(f"{self._name} ended with exit code {self._process.wait()}")

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait()


def compare(recipe: str, batch: int, length: int, asked) -> dict:
  """Times our training step and the peer's in alternation; returns speeds and ratios of one shape."""
  shape = f"{batch}x{length}"
  servers = {kind: Server(kind, recipe, shape, asked) for kind in ("ours", asked.peer)}
  rounds = [
    {kind: server.steps(asked.steps) for kind, server in servers.items()} for _ in range(asked.rounds)
  ]
  for server in servers.values():
    server.close()
  ratios = {
    key: [turn[asked.peer][key] / turn["ours"][key] for turn in rounds] for key in ("seconds", "cpu_seconds")
  }
  speeds = {
    kind: batch * length / statistics.median(turn[kind]["seconds"] for turn in rounds) for kind in servers
  }
  return {
    "recipe": recipe,
    "shape": shape,
    "peer": asked.peer,
    "tokens_per_second": speeds["ours"],
    "tokens_per_second_of_peer": speeds[asked.peer],
    "ratio": statistics.median(ratios["seconds"]),
    "ratio_of_cpu_time": statistics.median(ratios["cpu_seconds"]),
    "ratios": ratios["seconds"],
    "losses": {kind: server.loss for kind, server in servers.items()},
    "cores": len(asked.cores),
    "threads": asked.threads or len(asked.cores),
  }


def main() -> None:
  """Prints the speed ratio to the PyTorch peer for each recipe and shape, as JSON lines."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipes", nargs="+", default=cases.BASE_RECIPES, help="names in configs/, or files")
  parser.add_argument(
    "--shapes", nargs="+", type=cases.shape, default=[(4, 128), (1, 512)], help="of batches"
  )
  parser.add_argument("--peer", choices=tuple(PEERS), default="torch", help="program to compare with")
  parser.add_argument("--rounds", type=int, default=5, help="turns that the two take")
  parser.add_argument("--steps", type=int, default=3, help="steps per round")
  parser.add_argument(
    "--cores",
    nargs="+",
    type=int,
    default=sorted(os.sched_getaffinity(0)),
    help="CPU cores to use (default: all)",
  )
  parser.add_argument("--threads", type=int, default=0, help="threads of the peer; 0: one per core")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  for recipe in asked.recipes:
    for batch, length in asked.shapes:
      cases.report({"benchmark": "compare", "changes": asked.set, **compare(recipe, batch, length, asked)})


if __name__ == "__main__":
  sys.exit(command.run(main))
