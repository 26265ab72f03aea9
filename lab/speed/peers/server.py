"""A child process that runs training steps on request and answers with their seconds.

  python -m benchmarks.peers.server KIND RECIPE ROWSxTOKENS [THREADS] [FIELD=VALUE ...]

The kinds are 'ours' and those of `PEERS`.
Each line on stdin is a number of steps; each answer is a line of JSON with median 'seconds' and 'cpu_seconds'
per step. The first answer is sent when the program is compiled and warm. A step includes corruption,
gradient, clipping and Adam. Our step also draws masks; the peers get precomputed masks, which favours them.
On CPU our program keeps freed memory for the next step, as `pretrain.main` does. The peers follow the C
library's settings; with MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 they keep it too.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable


def ours(config) -> Callable[[], float]:
  """Returns a function that takes a step of this project and returns its loss."""
  from lab.speed import cases

  step = cases.Step(config)

  def take() -> float:
    step()
    return float(step.metrics["loss"][0])

  return take


PEERS = {
  "torch": "methods",
  "torch_compiled": "methods",
  "hugging_face": "hugging_face",
  "hugging_face_compiled": "hugging_face",
  "modern_bert_compiled": "modern_bert",
}  # kind -> its module in this folder


def torch_step(config, kind: str, threads: int) -> Callable:
  """Returns a function that takes a step of a PyTorch peer, with the same Adam.

  Kinds that end in '_compiled' use `torch.compile`. The function returns the loss, a tensor, without waiting
  for the GPU.
  """
  import importlib

  import torch

  if threads:
    torch.set_num_threads(threads)
  torch.manual_seed(0)
  device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
  build = importlib.import_module(f"benchmarks.peers.{PEERS[kind]}").build
  model = build(config).to(device).train()
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
  )
  batches = [{name: leaf.to(device) for name, leaf in make_batch(config, seed).items()} for seed in range(2)]
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
  import numpy as np
  import torch

  from lab.speed import cases
  from lab.speed.peers.methods import sizes_of

  sizes, random = sizes_of(config), np.random.default_rng(seed)
  ids = torch.from_numpy(cases.random_ids(config, seed=seed)[0].astype(np.int64))
  rows, length = ids.shape
  places = np.stack([np.sort(1 + random.permutation(length - 2)[: sizes.masked]) for _ in range(rows)])
  places = torch.from_numpy(places)
  labels = ids.gather(1, places)
  batch = {
    "ids": ids,
    "places": places,
    "labels": labels,
    "masked": ids.scatter(1, places, cases.SPECIAL["mask"]),
    "sparse_labels": torch.full_like(ids, -100).scatter(1, places, labels),
  }
  if sizes.crop:
    starts = torch.from_numpy(random.integers(0, length - sizes.crop + 1, (rows, 1)))
    batch["crop"] = ids.gather(1, starts + torch.arange(sizes.crop))
    batch["crop"][:, 0] = cases.SPECIAL["cls"]
  if sizes.negatives:
    every, distance = np.arange(rows * length), random.integers(1, 6, rows * length)
    batch["near"] = torch.from_numpy(
      np.where(every % length < length - 6, every + distance, every - distance)
    )
    batch["others"] = torch.from_numpy(random.integers(0, every.size, (every.size, sizes.negatives)))
  return batch


def main() -> None:
  """For each number N on stdin, runs N training steps and prints their median time as JSON."""
  kind, recipe, shape, threads, *changes = sys.argv[1:]
  from lab.speed import cases
  from pretrain.command import kept_memory

  if kind == "ours":
    kept_memory.keep_temporaries()
  batch, length = cases.shape(shape)
  config = cases.make_config(recipe, batch=batch, length=length, changes=changes)
  step = ours(config) if kind == "ours" else torch_step(config, kind, int(threads))
  loss = [float(step()), float(step())][-1]
  print(json.dumps({"ready": kind, "loss": loss}), flush=True)
  for line in sys.stdin:
    walls, processes = [], []
    for _ in range(int(line)):
      wall, process = time.perf_counter(), time.process_time()
      loss = float(step())
      walls.append(time.perf_counter() - wall)
      processes.append(time.process_time() - process)
    answer = {"seconds": statistics.median(walls), "cpu_seconds": statistics.median(processes), "loss": loss}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
  main()
