"""Lines that the demo prints, and the time that compilation takes."""

import sys
import textwrap
from collections.abc import Callable

import jax
import rich.console
from tqdm import tqdm

WIDTH = 98  # columns of everything the demo prints
LEAST_COMPILATION = 1.0  # seconds; shorter ones are not worth a line
FUNCTIONS = {"_initial": "the first parameters", "<lambda>": "the evaluation", "train_step": "the step"}

# Standard output. Text of the corpus is never taken for markup.
console = rich.console.Console(width=WIDTH, highlight=False, markup=False, emoji=False)


def say(line: str) -> None:
  """Prints a line at once, broken at `WIDTH` columns."""
  # Paths stay whole, so that they can be copied.
  wrapper = textwrap.TextWrapper(
    WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
  )
  tqdm.write(wrapper.fill(line))  # above a progress bar, if there is one
  sys.stdout.flush()


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
