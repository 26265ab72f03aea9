"""What the demo tells while it works: the stages of the preparation, compilation, memory."""

import os
import pathlib
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import jax
import psutil
import rich.console
import rich.status
from tqdm import tqdm

WIDTH = 98  # columns of everything the demo prints
MEMORY_INTERVAL = 0.2  # seconds between two looks at the processes
PREPARATION_INTERVAL = 0.5
SECONDS_BETWEEN_LINES = 20.0  # where nobody watches
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
  """Within `with`: the most memory this process and all its children held at one moment.

  Attributes:
    peak: bytes; the resident sets added up, so that pages which processes share count in each.
  """

  def __init__(self) -> None:
    self.peak = 0
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
  """Within `with`: how long XLA compiles; a line for each compilation one would notice.

  Attributes:
    seconds: in all.
  """

  def __init__(self, tell: Callable[[str], None] = say) -> None:
    self.seconds = 0.0
    self._tell = tell

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
      self._tell(f"JAX compiled {FUNCTIONS.get(name, name)} in {duration_secs:.1f} s")


class Preparation:
  """Within `with`: tells which product of `data.prepare` is being made, and how long each took.

  The child process writes its products one after another, each under its final name only when it is whole.

  Attributes:
    seconds: {stage: seconds} of the stages that were seen to end.
  """

  def __init__(self, directory: str | os.PathLike, *, source: str) -> None:
    """Nothing starts before `with`.

    Args:
      directory: of the records.
      source: `data.source`; `installed_docs` has to be gathered first.
    """
    place = pathlib.Path(directory)
    self._products = [
      ("train a vocabulary", place / "vocabulary" / "vocabulary.json"),
      ("tokenise, pack and shuffle", place / "manifest.json"),
    ]
    if source == "installed_docs":
      self._products.insert(0, ("gather documentation", place / "source" / "installed_docs.txt"))
    self.seconds: dict[str, float] = {}
    self._end = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> "Preparation":
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._end.set()
    self._thread.join()

  def _watch(self) -> None:
    console = rich.console.Console(stderr=True, highlight=False)
    # Where nobody watches this prints nothing.
    with console.status("") as status:
      for stage, product in self._products:
        self._watch_stage(stage, product, status)
        if stage not in self.seconds:
          return

  def _watch_stage(self, stage: str, product: pathlib.Path, status: rich.status.Status) -> None:
    started = told = time.monotonic()
    while not product.exists():
      if self._end.wait(PREPARATION_INTERVAL) and not product.exists():
        return
      now = time.monotonic()
      status.update(f"{stage}: {now - started:.0f} s")
      if not sys.stderr.isatty() and now - told > SECONDS_BETWEEN_LINES:
        say(f"{stage}: {now - started:.0f} s so far")
        told = now
    self.seconds[stage] = time.monotonic() - started
    say(f"{stage}: {self.seconds[stage]:.1f} s")


def setup_hints(*, least_memory: int) -> list[str]:
  """What about this machine will make the demo slow or different; empty where nothing does.

  Args:
    least_memory: bytes the demo needs.

  Returns:
    Sentences without a full stop.
  """
  hints = []
  cores = len(os.sched_getaffinity(0))
  if cores < 2:
    hints.append("there is one CPU core, the times given are for two")
  busy = os.getloadavg()[0]
  if busy > cores / 2:
    hints.append(
      f"other programs are at work (load {busy:.1f} on {cores} cores), so it takes longer than said"
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
