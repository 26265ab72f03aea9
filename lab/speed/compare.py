"""Compares the speed with PyTorch at the same work: two processes take turns on the same cores.

  python -m benchmarks.compare --recipes roberta_base taco_base --shapes 4x128 1x512 --rounds 5
  python -m benchmarks.compare --recipes roberta_base electra_base --peer hugging_face
  python -m benchmarks.compare --recipes roberta_base:modern --peer hugging_face_compiled
  python -m benchmarks.compare --recipes coco_lm_base --threads 1 --cores 0
  python -m benchmarks.compare --recipes roberta_base --shapes 32x512 --peer torch_compiled  # on a GPU

The peers are the programs of `lab/speed/peers.py`: the same method and sizes in plain PyTorch with fused
attention and Adam (`--peer=torch`), the same with `torch.compile` (`torch_compiled`), or BERT, ELECTRA,
ModernBERT or DeBERTa of Hugging Face (`hugging_face_flash_compiled`: ModernBERT with FlashAttention 2,
package `flash-attn`). With `--fill=padded` a row is a text of unequal length. With `--fill=packed` our rows
are full of such texts; the peer gets the same texts, each in a padded row, or without padding where it has
FlashAttention 2. Padding is not counted. One JSON line for each case: tokens per second of both, medians over
the rounds, and the median of the rounds' ratios (above 1: ours is faster), by wall-clock and by CPU time.
Wall-clock ratios are valid only on an idle machine, because on a busy one threads wait for each other. Needs
`requirements-export.txt` (torch, transformers).
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from data import command
from data.errors import UserError
from lab.speed import cases
from pretrain.command import keep_temporaries

PEERS = ("torch", "torch_compiled", "hugging_face", "hugging_face_compiled", "hugging_face_flash_compiled")


def our_step(config, fill: str) -> Callable:
  """Returns a function that takes a step of this project and returns its loss, an array, without waiting."""
  step = cases.Step(config, fill=fill)

  def take():
    step.dispatch()
    return step.metrics["loss"][0]

  return take


def torch_step(config, kind: str, threads: int, fill: str) -> Callable:
  """Returns a function that takes a step of a PyTorch peer, with the same Adam.

  Kinds that end in '_compiled' use `torch.compile`. The function returns the loss, a tensor, without waiting
  for the GPU.
  """
  import torch

  from lab.speed import peers

  if threads:
    torch.set_num_threads(threads)
  torch.manual_seed(0)
  device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
  has_flash = "flash" in kind
  model = peers.build(config) if kind.startswith("torch") else peers.build_stock(config, has_flash=has_flash)
  model = model.to(device).train()
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
  )
  made = [
    make_batch(config, seed) if fill == "full" else make_unequal(config, seed, fill=fill, is_flat=has_flash)
    for seed in range(2)
  ]
  batches = [jax.tree.map(lambda leaf: leaf.to(device) if torch.is_tensor(leaf) else leaf, x) for x in made]
  if kind.endswith("_compiled"):
    model = torch.compile(model)
  count = [0]
  clip = config.optimizer.clip_norm
  dtype = torch.bfloat16 if config.model.dtype == "bfloat16" or device.type == "cuda" else torch.float32

  def take():
    count[0] += 1
    with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
      loss = model(batches[count[0] % 2])
    loss.backward()
    if clip:
      torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()

  return take


def make_batch(config, seed: int) -> dict:
  """Returns a batch of random tokens with masks, crop and, for TACO, pairs of positions, as torch tensors."""
  import torch

  random, objectives = np.random.default_rng(seed), config.objectives
  ids = torch.from_numpy(cases.random_ids(config, seed=seed)[0].astype(np.int64))
  rows, length = ids.shape
  masked = math.ceil(config.corruption.mask_rate * length)
  places = np.stack([np.sort(1 + random.permutation(length - 2)[:masked]) for _ in range(rows)])
  places = torch.from_numpy(places)
  labels = ids.gather(1, places)
  batch = {
    "ids": ids,
    "places": places,
    "labels": labels,
    "masked": ids.scatter(1, places, cases.SPECIAL["mask"]),
    "sparse_labels": torch.full_like(ids, -100).scatter(1, places, labels),
  }
  if objectives.scl.weight:
    crop = int(0.9 * length)
    starts = torch.from_numpy(random.integers(0, length - crop + 1, (rows, 1)))
    batch["crop"] = ids.gather(1, starts + torch.arange(crop))
    batch["crop"][:, 0] = cases.SPECIAL["cls"]
  if objectives.taco.weight:
    every, distance = np.arange(rows * length), random.integers(1, 6, rows * length)
    batch["near"] = torch.from_numpy(
      np.where(every % length < length - 6, every + distance, every - distance)
    )
    others = random.integers(0, every.size, (every.size, objectives.taco.num_negatives))
    batch["others"] = torch.from_numpy(others)
  return batch


def make_unequal(config, seed: int, *, fill: str, is_flat: bool) -> dict:
  """Returns the texts of a 'padded' or 'packed' batch for a stock model, as torch tensors.

  A row is a text, padded. If the batch is packed, `is_flat` makes one row of all texts, with the arguments
  by which transformers' FlashAttention 2 keeps them apart.
  """
  import torch

  random = np.random.default_rng(seed)
  texts = [text for row in cases.random_texts(config, fill=fill, seed=seed) for text in row]
  sizes = np.array([len(text) for text in texts])
  places = np.arange(config.data.length)
  is_text = places < sizes[:, None]
  ids = np.full(is_text.shape, cases.SPECIAL["pad"])
  ids[is_text] = np.concatenate(texts)
  is_chosen = (
    (random.random(ids.shape) < config.corruption.mask_rate) & (places > 0) & (places < sizes[:, None] - 1)
  )
  arrays = {
    "masked": np.where(is_chosen, cases.SPECIAL["mask"], ids),
    "sparse_labels": np.where(is_chosen, ids, -100),
  }
  if not (is_flat and fill == "packed"):
    made = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return made | {"arguments": {"attention_mask": torch.from_numpy(is_text.astype(np.int64))}}
  made = {name: torch.from_numpy(array[is_text][None]) for name, array in arrays.items()}
  borders = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
  arguments: dict[str, Any] = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
  arguments |= dict.fromkeys(("max_length_q", "max_length_k"), int(sizes.max()))
  positions = torch.from_numpy(np.broadcast_to(places, is_text.shape)[is_text][None])
  return made | {"arguments": arguments | {"position_ids": positions}}


def peak_bytes(kind: str) -> int | None:
  """Returns the most memory of an accelerator that this process has used so far; None on a CPU."""
  if kind == "ours":
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
  import torch

  return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def serve(words: Sequence[str]) -> None:
  """Answers each number N on stdin with the mean time of N training steps, as a line of JSON.

  They are dispatched together, as a trainer does. The first answer is sent when the program is compiled and
  warm. A step includes corruption, gradient, clipping and Adam. Ours also draws masks; the peers get
  precomputed ones, which favours them. On CPU ours keeps freed memory for the next step, as `pretrain.main`
  does; the peers do so too with MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1.
  """
  kind, recipe, shape, threads, fill, *changes = words
  if kind == "ours":
    keep_temporaries()
  batch, length = cases.shape(shape)
  config = cases.make_config(recipe, batch=batch, length=length, changes=changes)
  started = time.perf_counter()
  step = our_step(config, fill) if kind == "ours" else torch_step(config, kind, int(threads), fill)
  facts: dict[str, Any] = {"loss": [float(step()), float(step())][-1]}
  print(json.dumps(facts | {"seconds_to_compile": time.perf_counter() - started}), flush=True)
  for line in sys.stdin:
    wall, process = time.perf_counter(), time.process_time()
    losses = [step() for _ in range(int(line))]
    facts["loss"] = float(losses[-1])  # waits for all of them
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - process}
    spent = {name: seconds / len(losses) for name, seconds in spent.items()}
    print(json.dumps(facts | spent | {"bytes_peak": peak_bytes(kind)}), flush=True)


class Server:
  """A child process that takes training steps on request."""

  def __init__(self, kind: str, recipe: str, shape: str, asked) -> None:
    """Starts the process and waits until it is compiled and warm."""
    threads = asked.threads or len(asked.cores)
    self._name = f"{kind} {recipe}"
    # Both may be on one accelerator: neither takes all of its memory, and a peer's JAX makes its config only.
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment |= {} if kind == "ours" else {"JAX_PLATFORMS": "cpu"}
    words = [asked.fill, *asked.set, *["data.packing=segments"] * (asked.fill == "packed")]
    self._process = subprocess.Popen(
      [sys.executable, "-m", "benchmarks.compare", "serve", kind, recipe, shape, str(threads), *words],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
      preexec_fn=lambda: os.sched_setaffinity(0, asked.cores),  # both sides run on the same cores
    )
    self.ready = self._answer()

  def steps(self, number: int) -> dict[str, float]:
    """Returns the mean seconds of `number` steps, their last loss and the most memory so far."""
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
  """Times our training step and the peer's in alternation; returns speeds and ratios of one shape.

  Raises:
    UserError: the peer has another backbone than the recipe, so that a ratio would mean nothing.
  """
  shape = f"{batch}x{length}"
  config = cases.make_config(recipe, batch=batch, length=length, changes=asked.set)
  is_stock_masked_lm = asked.peer.startswith("hugging_face") and config.corruption.kind != "generator"
  if config.model.position == "rope" and not is_stock_masked_lm:
    raise UserError(f"{recipe}: no --peer={asked.peer} has this backbone; masked LM has --peer=hugging_face")
  is_modern = is_stock_masked_lm and config.model.position == "rope"
  if not is_modern and ("flash" in asked.peer or asked.fill != "full"):
    raise UserError(f"{recipe}: FlashAttention 2 and --fill are for masked LM on ModernBERT's backbone")
  servers = {kind: Server(kind, recipe, shape, asked) for kind in ("ours", asked.peer)}
  rounds = [
    {kind: server.steps(asked.steps) for kind, server in servers.items()} for _ in range(asked.rounds)
  ]
  for server in servers.values():
    server.close()
  ratios = {
    key: [turn[asked.peer][key] / turn["ours"][key] for turn in rounds] for key in ("seconds", "cpu_seconds")
  }
  tokens = np.mean([np.sum(x != cases.SPECIAL["pad"]) for x in cases.random_ids(config, 2, fill=asked.fill)])
  speeds = {kind: tokens / statistics.median(turn[kind]["seconds"] for turn in rounds) for kind in servers}
  return {
    "recipe": recipe,
    "shape": shape,
    "peer": asked.peer,
    "fill": asked.fill,
    "tokens_per_second": speeds["ours"],
    "tokens_per_second_of_peer": speeds[asked.peer],
    "ratio": statistics.median(ratios["seconds"]),
    "ratio_of_cpu_time": statistics.median(ratios["cpu_seconds"]),
    "ratios": ratios["seconds"],
    "losses": {kind: server.ready["loss"] for kind, server in servers.items()},
    "seconds": {kind: statistics.median(turn[kind]["seconds"] for turn in rounds) for kind in servers},
    "seconds_to_compile": {kind: server.ready["seconds_to_compile"] for kind, server in servers.items()},
    "bytes_peak": {kind: rounds[-1][kind]["bytes_peak"] for kind in servers},
    "cores": len(asked.cores),
    "threads": asked.threads or len(asked.cores),
  }


def main() -> None:
  """Prints the speed ratio to the PyTorch peer for each recipe and shape, as JSON lines."""
  parser = command.Parser(description=__doc__)
  parser.add_argument(
    "--recipes", nargs="+", default=cases.BASE_RECIPES, help="as roberta_base:modern, or files"
  )
  parser.add_argument(
    "--shapes", nargs="+", type=cases.shape, default=[(4, 128), (1, 512)], help="of batches"
  )
  parser.add_argument("--peer", choices=PEERS, default="torch", help="program to compare with")
  parser.add_argument("--fill", choices=cases.FILLS, default="full", help="texts in the rows")
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
  sys.exit(serve(sys.argv[2:]) if sys.argv[1:2] == ["serve"] else command.run(main))
