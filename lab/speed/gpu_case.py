"""The cases of `benchmarks.gpu_day`; `python -m benchmarks.gpu_case NAME [--rehearse]` runs one.

A case prepares, prints {"ready": true}, waits for a line on stdin, measures, and prints its results as lines
of JSON.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SHAPES = {"taco_base": "64x256"}  # rows x tokens for the speed of a recipe; others: USUAL
USUAL = "32x512"
LARGE = {"taco_base": "256x256", "coco_lm_base": "96x512", "amos_base": "96x512"}
USUAL_LARGE = "128x512"
RECIPES = ("roberta_base", "coco_lm_base", "amos_base", "electra_base", "taco_base")
WHOLE = ("train.microbatches=1",)  # those of a recipe would not divide the rows of a case
REPEATS = 20


@dataclasses.dataclass(frozen=True)
class Case:
  """A measurement or check in a process of its own: the name of its function, and the arguments."""

  name: str
  kind: str
  recipe: str = ""
  shape: str = USUAL
  changes: tuple[str, ...] = ()  # 'field=value'
  peer: str = ""  # a kind of `benchmarks.peers.server`
  is_check: bool = False  # the exit code depends on its 'ok'
  has_profile: bool = False
  platforms: str = "cuda,cpu"  # JAX_PLATFORMS: an error without a GPU
  is_tiny: bool = False  # a rehearsal
  goldens: str = ""  # folder of golden files


def table() -> list[Case]:
  """Returns all measurements and checks, the most important first."""
  kernels = [Case(name, name, is_check=True) for name in ("attention_kernels", "kernels", "goldens")]
  return [Case("ceilings", "ceilings"), *kernels, *_checks(), *_speeds()]


def _checks() -> Iterator[Case]:
  options = {"shape": "32x64", "is_check": True}
  recipes = ("roberta_tiny", "coco_lm_tiny", "amos_tiny", "taco_tiny", "electra_tiny")
  for recipe in (*recipes, "modernbert_tiny", "electra_gdes_tiny"):
    yield Case(f"twenty_steps_{recipe}", "twenty_steps", recipe, changes=WHOLE, **options)
  changes = ("model.dropout=0.1", "model.attention_dropout=0.1")
  yield Case("resume", "resume", "roberta_tiny", changes=changes, **options)


def _speeds() -> Iterator[Case]:
  """Yields cases that time our and the peers' steps, at the usual shape and then at larger ones."""
  shapes = {recipe: SHAPES.get(recipe, USUAL) for recipe in RECIPES}
  for recipe, shape in shapes.items():
    yield Case(recipe, "step", recipe, shape, has_profile=True)
  for shape in ("32x512", "16x1024", "2x8192"):  # as many tokens each
    yield Case(f"modernbert_base_{shape}", "step", "modernbert_base", shape, WHOLE, has_profile=True)
    peer = f"peer_modern_bert_{shape}"
    yield Case(peer, "peer", "modernbert_base", shape, WHOLE, peer="modern_bert_compiled")
  for times in (1, 4, 2):
    for recipe, shape in shapes.items():
      rows, _, length = shape.partition("x")
      name = f"peer_{recipe}" + (f"_x{times}" if times > 1 else "")
      yield Case(name, "peer", recipe, f"{times * int(rows)}x{length}", peer="torch_compiled")
    if times == 1:
      yield Case("peer_hugging_face", "peer", "roberta_base", peer="hugging_face_compiled")
      for recipe in RECIPES:
        yield Case(f"{recipe}_large", "step", recipe, LARGE.get(recipe, USUAL_LARGE))


def rehearsed(case: Case) -> Case:
  """Returns a case reduced to a size that two CPU cores finish in seconds."""
  recipe, tiny = case.recipe.replace("_base", "_tiny"), ("model.num_layers=2", "model.vocab_size=512")
  changes = (*case.changes, *tiny) if case.kind in ("step", "peer") else case.changes
  shape = f"{int(case.shape.split('x')[0]) // 16}x32"
  return dataclasses.replace(case, recipe=recipe, shape=shape, changes=changes, platforms="cpu", is_tiny=True)


def say(**line: Any) -> None:
  """Prints a result as one line of JSON."""
  from lab.speed import cases  # here: it imports JAX, which the scheduler does not need

  print(json.dumps(cases.rounded(line)), flush=True)


def wait_for_turn() -> None:
  """Prints that the case is ready, and waits for its turn; exits if the scheduler has ended."""
  print(json.dumps({"ready": True}), flush=True)
  if not sys.stdin.readline():
    sys.exit("error: the program that gives turns has ended")


def timed(dispatch: Callable[[], Any], wait: Callable[[], Any], *, warmup: int = 3) -> dict[str, float]:
  """Returns milliseconds per call: the median of awaited calls, and the mean of many dispatched together."""
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


def ceilings(case: Case) -> None:
  """Measures a large matrix product and a copy on this card, the reference for shares of peak."""
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


def step(case: Case) -> None:
  """Measures this project's training step and profiles its kernels."""
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


def peer(case: Case) -> None:
  """Measures the step of a PyTorch peer, whose masks are precomputed."""
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
    torch.cuda.empty_cache()  # other cases compile meanwhile
  wait_for_turn()
  taken = timed(take, torch.cuda.synchronize if on_gpu else lambda: None)
  if on_gpu:
    facts["gb_peak"] = torch.cuda.max_memory_allocated() / 1e9
  rate = 1e3 * batch * length / taken["ms"]
  say(
    recipe=case.recipe, peer=case.peer, shape=case.shape, **taken, tokens_per_second=rate, **facts, loss=loss
  )


def main(kinds: Mapping[str, Callable[[Case], None]]) -> None:
  """Runs the case that the command line names, with the function of its kind."""
  parser = argparse.ArgumentParser()
  parser.add_argument("name")
  parser.add_argument("--goldens", default="")
  parser.add_argument("--rehearse", action="store_true")
  asked = parser.parse_args()
  case = next(case for case in table() if case.name == asked.name)
  case = dataclasses.replace(rehearsed(case) if asked.rehearse else case, goldens=asked.goldens)
  kinds[case.kind](case)
  print(json.dumps({"done": True}), flush=True)
  sys.stderr.flush()
  os._exit(0)  # threads of compilers and profilers end slowly, and all output is flushed


if __name__ == "__main__":
  main({"ceilings": ceilings, "step": step, "peer": peer})
