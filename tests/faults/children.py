"""The command of pretraining in forked children, which start in a second instead of ten.

A child is forked after the imports and before JAX has any device, so it inherits no thread and no lock. By
then it is the real command, with two liberties: its programs were traced and exported by an earlier child
(`export_programs`), since tracing is most of a start, and LLVM does not optimise them.
"""

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import scipy.linalg
from jax import export

from pretrain import main, train
from pretrain.run import Run

_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
PROGRAMS = ("train", "eval")
# What a start imports once it runs: before the fork it costs nothing.
IMPORTED = (main, train, scipy.linalg)


class Child(NamedTuple):
  """A forked child at work."""

  pid: int
  log: Path  # what it has printed

  def poll(self) -> int | None:
    """Its exit code, negative for a signal; None while it works. Once it has ended, ask no more."""
    pid, status = os.waitpid(self.pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None

  def wait(self) -> int:
    """Its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork(action: Callable[[], int], log: Path, *, cache: Path) -> Child:
  """Forks a child that ends with what `action` returns; what it prints goes to `log`.

  `cache` is where its compiled programs are kept.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  gc.freeze()  # what is there stays where it is, in pages that parent and child share
  pid = os.fork()
  if pid:
    return Child(pid, log)
  code = 1
  try:
    _settle(log, cache)
    code = action()
  except BaseException:  # the child must not return into the code of its parent
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _settle(log: Path, cache: Path) -> None:
  output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  os.dup2(output, 1)
  os.dup2(output, 2)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  gc.disable()  # a collection would copy every page that is shared with the parent
  os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=1"
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_compilation_cache_dir", str(cache))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def command(arguments: Sequence[str], programs: Path) -> int:
  """`python -m pretrain.main ARGUMENTS`, with programs of `export_programs`; its exit code."""
  for name in PROGRAMS:
    setattr(Run, f"compile_{name}_step", _loaded(name, programs))
  sys.argv = ["pretrain.main", *arguments]
  return main.main()  # as the last of its process


def export_programs(arguments: Sequence[str], folder: Path) -> int:
  """Runs the command once and writes its two programs into `folder`, by leaves, which need no classes."""
  folder.mkdir()

  def exporting(name: str, compile_step: Callable) -> Callable:
    def compiled(run: Run) -> Callable:
      step = compile_step(run)

      def called(*arguments):
        if not (folder / name).exists():
          leaves, tree = jax.tree.flatten(arguments)
          flat = jax.jit(lambda *leaves: jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves))))
          (folder / name).write_bytes(export.export(flat)(*leaves).serialize())
          metrics = jax.eval_shape(step, *arguments)
          metrics = metrics[1] if name == "train" else metrics
          (folder / f"{name}.json").write_text(json.dumps(sorted(metrics)))
        return step(*arguments)

      return called

    return compiled

  for name in PROGRAMS:
    setattr(Run, f"compile_{name}_step", exporting(name, getattr(Run, f"compile_{name}_step")))
  return main.main([*arguments])


def _loaded(name: str, folder: Path) -> Callable[[Run], Callable]:
  program = export.deserialize(bytearray((folder / name).read_bytes()))
  names = json.loads((folder / f"{name}.json").read_text())

  def compile_step(run: Run) -> Callable:
    state_tree = jax.tree.structure(run.abstract_state)

    def called(*arguments):
      leaves = program.call(*jax.tree.leaves(arguments))
      pairs = leaves[-2 * len(names) :]
      metrics = {one: (pairs[2 * at], pairs[2 * at + 1]) for at, one in enumerate(names)}
      if name == "eval":
        return metrics
      return jax.tree.unflatten(state_tree, leaves[: -len(pairs)]), metrics

    return jax.jit(called, donate_argnums=(0,) if name == "train" else ())

  return compile_step
