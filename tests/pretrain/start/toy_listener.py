"""A toy listener, which notes every moment. As a program: the real command with the toy added to its table.

The program appends the moments of process I to I.jsonl in the directory TOY_MOMENTS.
"""

import json
import os
import pathlib
import runpy
import signal
from collections.abc import Callable

import jax
import numpy as np

from pretrain.listener import Listener
from pretrain.start import listeners

ASKED_AT = 3  # the program asks process 1 to stop when it has seen this step


class Toy(Listener):
  """Passes [moment, step] to `note`."""

  every = 2

  def __init__(self, note: Callable[[list], object]):
    self._note = note

  def after(self, step, state):
    assert int(state.step) == step
    self._note(["after", step])

  def seen(self, step, figures, state):
    assert np.isfinite(figures["loss"][0])
    self._note(["seen", step])

  def saving(self, step):
    self._note(["saving", step])
    return {"toy": step}

  def end(self):
    self._note(["end", 0])


def _written(_) -> Toy:
  index = jax.process_index()
  path = pathlib.Path(os.environ["TOY_MOMENTS"]) / f"{index}.jsonl"

  def note(moment: list) -> None:
    with path.open("a", encoding="utf-8") as lines:
      print(json.dumps(moment), file=lines)
    if index == 1 and moment == ["seen", ASKED_AT]:
      os.kill(os.getpid(), signal.SIGTERM)

  return Toy(note)


if __name__ == "__main__":
  listeners.LISTENERS = (*listeners.LISTENERS, _written)
  runpy.run_module("pretrain.main", run_name="__main__")
