"""The runs that a search has stored, for tests to compare."""

import json
import pathlib


def runs(folder: pathlib.Path) -> dict[str, dict[str, list[dict]]]:
  """{name of a cell: {seed: its evaluations}} of the folder of a task."""
  found: dict[str, dict[str, list[dict]]] = {}
  for path in sorted(folder.glob("bs*.json")):
    value = json.loads(path.read_text())
    found.setdefault(path.stem.rpartition("_seed")[0], {})[str(value["seed"])] = value["evaluations"]
  return found
