"""Formats the demo's console lines, and measures compilation time."""

import logging

import jax
import rich.console

logger = logging.getLogger(__name__)

WIDTH = 98  # columns of the tables
LEAST_COMPILATION = 1.0  # seconds; shorter ones are not worth a line
FUNCTIONS = {"_initial": "the first parameters", "<lambda>": "the evaluation", "train_step": "the step"}

# Without markup, because text of the corpus may look like it.
console = rich.console.Console(width=WIDTH, highlight=False, markup=False, emoji=False)


class Compilation:
  """Within `with`, measures the seconds of all compilations, and reports each long one in a line."""

  seconds = 0.0

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
      logger.info(f"JAX compiled {FUNCTIONS.get(name, name)} in {duration_secs:.1f} s")
