"""Pretraining: corruption, objectives, model, step and loop. Never imports TensorFlow."""

import importlib.util
import pathlib
import sys


def _refuse_other_data() -> None:
  """Ends `python -m` with one line in a folder that has a package `data` of its own."""
  found = importlib.util.find_spec("data")
  theirs = pathlib.Path(found.origin or "") if found else None
  if theirs and sys.argv[:1] == ["-m"] and theirs.parent.parent != pathlib.Path(__file__).parent.parent:
    print(
      f"error: {theirs.parent} hides the package `data` of this project, because `python -m` searches the "
      f"current folder first; use the installed command text-encoder-..., or another folder",
      file=sys.stderr,
    )
    raise SystemExit(2)


_refuse_other_data()
