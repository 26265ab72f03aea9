"""One case of `benchmarks.gpu_day`: `python -m benchmarks.gpu_case NAME [--rehearse]`.

Prepares, prints {"ready": true}, waits for a line on stdin, measures, and prints its results as JSON lines.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from lab.speed import gpu_cases
from lab.speed.gpu_cases import Case
from lab.speed.gpu_turns import say, wait_for_turn

REPEATS = 20


def timed(dispatch: Callable[[], Any], wait: Callable[[], Any], *, warmup: int = 3) -> dict[str, float]:
  """Milliseconds of a call: the median where each is waited for, and of many dispatched together."""
  from lab.speed import cases

  def waiting() -> None:
    dispatch()
    wait()

  alone = cases.timed(waiting, repeats=REPEATS, warmup=warmup)
  started = time.perf_counter()
  for _ in range(REPEATS):
    dispatch()
  wait()
  return {
    "ms_waiting": 1e3 * alone["seconds"],
    "ms": 1e3 * (time.perf_counter() - started) / REPEATS,
  }


def ceilings(case: Case, _) -> None:
  """The rates of a large product and of a copy on this card: what shares of the peak are taken of."""
  import jax
  import jax.numpy as jnp

  size, count = (512, 1 << 20) if case.is_tiny else (8_192, 1 << 29)
  left, right = (jax.random.normal(jax.random.key(n), (size, size), jnp.bfloat16) for n in (0, 1))
  long = jnp.ones(count, jnp.bfloat16)
  product = jax.jit(lambda x, y: x @ y).lower(left, right).compile()
  copy = jax.jit(lambda x: x + 1).lower(long).compile()
  wait_for_turn()
  results = [product(left, right)]
  taken = timed(lambda: results.__setitem__(0, product(left, right)), lambda: jax.block_until_ready(results))
  say(what="product", size=size, **taken, tflops=2 * size**3 / taken["ms"] / 1e9)
  taken = timed(lambda: results.__setitem__(0, copy(long)), lambda: jax.block_until_ready(results))
  say(what="copy", gigabytes=long.nbytes / 1e9, **taken, gb_per_second=2 * long.nbytes / taken["ms"] / 1e6)


def step(case: Case, _) -> None:
  """Our training step, and where its time goes."""
  import jax

  from lab.speed import cases, profile_table
  from pretrain.plan import flops

  dtype = () if case.is_tiny else ("model.dtype=bfloat16",)
  batch, length = cases.shape(case.shape)
  config = cases.make_config(case.recipe, batch=batch, length=length, changes=(*dtype, *case.changes))
  made = cases.Step(config)
  wait_for_turn()
  taken = timed(made.dispatch, lambda: jax.block_until_ready(made.metrics))
  rate = flops.training_flops_per_token(config.to_dict()) * made.tokens / taken["ms"] * 1e3
  say(
    recipe=case.recipe,
    shape=case.shape,
    flags=case.flags,
    changes=case.changes,
    **taken,
    tokens_per_second=1e3 * made.tokens / taken["ms"],
    tflops=rate / 1e12,
    gb_temporaries=made.compiled.memory_analysis().temp_size_in_bytes / 1e9,
    gb_peak=(jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9,
    seconds_to_compile=made.seconds_to_compile,
    loss=float(made.metrics["loss"][0]),
  )
  if case.has_profile:

    def three() -> None:
      for _ in range(3):
        made.dispatch()
      jax.block_until_ready(made.metrics)

    say(**profile_table.profiled(three, times=3))


def peer(case: Case, _) -> None:
  """The step of a PyTorch peer; its masks are ready-made."""
  import torch

  from lab.speed import cases
  from lab.speed.peers.server import torch_step

  batch, length = cases.shape(case.shape)
  config = cases.make_config(case.recipe, batch=batch, length=length, changes=case.changes)
  on_gpu = torch.cuda.is_available()
  if not on_gpu and not case.is_tiny:
    raise RuntimeError("PyTorch finds no GPU")
  started = time.perf_counter()
  take = torch_step(config, case.peer, 0)
  loss = [float(take()) for _ in range(2)][-1]
  facts: dict[str, Any] = {"seconds_to_compile": time.perf_counter() - started}
  if on_gpu:
    torch.cuda.empty_cache()  # others compile meanwhile
  wait_for_turn()
  taken = timed(take, torch.cuda.synchronize if on_gpu else lambda: None)
  if on_gpu:
    facts["gb_peak"] = torch.cuda.max_memory_allocated() / 1e9
  rate = 1e3 * batch * length / taken["ms"]
  say(
    recipe=case.recipe, peer=case.peer, shape=case.shape, **taken, tokens_per_second=rate, **facts, loss=loss
  )


def finetune(case: Case, _) -> None:
  """Rows per second of fine-tuning: one run, and five seeds in one program."""
  import numpy as np

  from lab.speed import cases
  from lab.speed import finetune as runs

  size = "tiny" if case.is_tiny else "base"
  asked = argparse.Namespace(runs=5, size=size, shape=cases.shape(case.shape), remat="cheap", scan_unroll=1)
  made = runs.make_case(asked, dtype="auto")
  rates = np.full(asked.runs, 1e-4, np.float32)
  names = ("one at a time", "vectorized")
  ways = {name: runs.Way(name, made.problem, made.init, rates) for name in names}
  compiling = {name: way.step(made.batch) for name, way in ways.items()}
  wait_for_turn()
  taken = cases.alternated(
    {name: lambda way=way: way.step(made.batch) for name, way in ways.items()}, repeats=7
  )
  for name in names:
    seconds = taken[name]["seconds"]
    rows = asked.runs * asked.shape[0] / seconds
    say(
      way=name, shape=case.shape, ms=1e3 * seconds, rows_per_second=rows, first_step_seconds=compiling[name]
    )


def embed(case: Case, _) -> None:
  """Rows per second of vectors of texts: random tokens through the inference code, mean pooling."""
  import jax

  from lab.speed import cases
  from pretrain.build import encoder_config
  from pretrain.embed.vectors import pooled
  from pretrain.inference.compiled import Compiled
  from pretrain.models.encoder import init_encoder

  batch, length = cases.shape(case.shape)
  changes = () if case.is_tiny else ("model.dtype=bfloat16",)
  config = cases.make_config(case.recipe, batch=batch, length=length, changes=changes)
  encoder, pad = encoder_config(config), cases.SPECIAL["pad"]
  params = jax.device_get(jax.jit(lambda key: init_encoder(key, encoder, pad_id=pad))(jax.random.key(0)))
  compiled = Compiled(
    lambda params, batch: pooled(params, encoder, batch, pad_id=pad, pooling="mean"),
    params,
    batch_size=batch,
    longest=length,
    pad_id=pad,
  )
  inputs = [{"ids": row} for ids in cases.random_ids(config, 2 if case.is_tiny else 16) for row in ids]
  compiled(inputs[:batch])
  wait_for_turn()
  taken = cases.timed(lambda: compiled(inputs), repeats=7)
  say(shape=case.shape, ms=1e3 * taken["seconds"], rows_per_second=len(inputs) / taken["seconds"])


def kinds() -> dict[str, Callable[[Case, argparse.Namespace], None]]:
  """{kind of a case: what it does}."""
  from lab.speed import gpu_checks, gpu_run

  names = ("attention_kernels", "kernels", "goldens", "resume")
  checks = {name: getattr(gpu_checks, name) for name in names}
  own = {"twenty_steps": gpu_checks.twenty_steps, "real_run": gpu_run.real_run}
  return checks | own | {kind.__name__: kind for kind in (ceilings, step, peer, finetune, embed)}


def main() -> None:
  """Runs a case."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("name")
  parser.add_argument("--goldens", default="")
  parser.add_argument("--records", default="")
  parser.add_argument("--rehearse", action="store_true")
  asked = parser.parse_args()
  case = next(case for case in gpu_cases.table() if case.name == asked.name)
  case = gpu_cases.rehearsed(case) if asked.rehearse else case
  kinds()[case.kind](case, asked)
  print(json.dumps({"done": True}), flush=True)
  sys.stderr.flush()
  os._exit(0)  # the threads of compilers and profilers end slowly, and nothing is left to write


if __name__ == "__main__":
  main()
