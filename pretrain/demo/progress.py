"""What the demo reports while it works: this machine, compilation, memory."""

import os
import sys
import textwrap
import threading
from collections.abc import Callable

import jax
import psutil
from tqdm import tqdm

WIDTH = 98  # columns of everything the demo prints
MEMORY_INTERVAL = 0.2  # seconds between two looks at the processes
LEAST_COMPILATION = 1.0  # seconds; shorter ones are not worth a line
FUNCTIONS = {"_initial": "the first parameters", "<lambda>": "the evaluation", "train_step": "the step"}


def say(line: str) -> None:
  """Prints a line at once, broken at `WIDTH` columns."""
  # Paths stay whole, so that they can be copied.
  wrapper = textwrap.TextWrapper(
    WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
  )
  tqdm.write(wrapper.fill(line))  # above a progress bar, if there is one
  sys.stdout.flush()


class PeakMemory:
  """Within `with`: the most memory this process and all its children held at one moment."""

  def __init__(self) -> None:
    self.peak = 0  # bytes; the resident sets added up, so that pages which processes share count in each
    self._end = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> "PeakMemory":
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._end.set()
    self._thread.join()

  def look(self) -> None:
    """Measures now."""
    here = psutil.Process()
    self.peak = max(self.peak, sum(_resident(each) for each in [here, *here.children(recursive=True)]))

  def _watch(self) -> None:
    self.look()
    while not self._end.wait(MEMORY_INTERVAL):
      self.look()


def _resident(process: psutil.Process) -> int:
  try:
    return process.memory_info().rss
  except psutil.NoSuchProcess:  # it ended since the list was made
    return 0


class Compilation:
  """Within `with`: how many seconds XLA compiles in all; a line for each compilation one would notice."""

  def __init__(self, report: Callable[[str], None] = say) -> None:
    self.seconds = 0.0
    self._report = report

  def __enter__(self) -> "Compilation":
    jax.monitoring.register_event_duration_secs_listener(self._note)
    return self

  def __exit__(self, *_) -> None:
    jax.monitoring.unregister_event_duration_listener(self._note)

  def _note(self, event: str, duration_secs: float, **details: str | int) -> None:
    if event != "/jax/core/compile/backend_compile_duration":
      return
    self.seconds += duration_secs
    if duration_secs >= LEAST_COMPILATION:
      name = str(details.get("fun_name", "a function")).removeprefix("jit(").removesuffix(")")
      self._report(f"JAX compiled {FUNCTIONS.get(name, name)} in {duration_secs:.1f} s")


def setup_hints(*, least_memory: int) -> list[str]:
  """What about this machine will make a demo that needs `least_memory` bytes slow or different.

  They are sentences without a full stop; [] where nothing does.
  """
  hints = []
  cores = len(os.sched_getaffinity(0))
  if cores < 2:
    hints.append("there is one CPU core, the times given are for two")
  busy = os.getloadavg()[0]
  if busy > cores / 2:
    hints.append(
      f"other programs are at work (load {busy:.1f} on {cores} cores), so it takes longer than estimated"
    )
  free = psutil.virtual_memory().available
  if free < least_memory:
    hints.append(
      f"{free / 1e9:.1f} GB of memory are free, {least_memory / 1e9:.0f} GB are needed at the peak"
    )
  if jax.default_backend() != "cpu":
    kind = jax.devices()[0].device_kind
    hints.append(f"JAX uses {kind}, which so small a model leaves idle (JAX_PLATFORMS=cpu: without it)")
  return hints
