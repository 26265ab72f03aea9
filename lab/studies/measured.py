"""Reads the results of a cell from the reports of its commands."""

import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data.errors import DataError, named_reason
from lab.studies.cells import DONE

Values = dict[tuple[int, str], float]  # by step and measure
_NO_MEASURE = ("count", "points", "step")
_STEP = re.compile(r" step (\d+)$")


def read(
  cell: pathlib.Path, *, analyses: Sequence[str], fine_tunings: Mapping[str, int], last: int
) -> Values:
  """Reads all reports of a cell as {(step, measure): value}; `fine_tunings` are {path of scores: step}.

  Values of an analysis without a step are assigned to step `last`. DataError: a report is missing or damaged.
  """
  values = dict(_probes(_rows(cell, "probe/probe.json")))
  for name in analyses:
    values |= dict(_analysis(name, _rows(cell, f"analysis/{name}.json"), last))
  for place, step in fine_tunings.items():
    name = place.partition("/")[0].replace("_", " ")
    scores = _rows(cell, f"{place}/results.json")
    if "metric" in scores[0]:
      values |= {(step, f"{name}, {row['metric']}"): row["value"] for row in scores}
    else:  # of retrieval: the model's row has all its figures
      figures = {key: value for key, value in scores[0].items() if isinstance(value, float)}
      values |= {(step, f"{name}, {key}"): value for key, value in figures.items()}
  return values


def _rows(cell: pathlib.Path, name: str) -> list[dict[str, Any]]:
  path = cell / name
  try:
    return json.loads(path.read_bytes())["rows"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise DataError(
      f"{path}: no report of this program ({named_reason(error)}); make the reports of the run again:\n"
      f"  rm {cell / DONE}  # then the same command"
    ) from error


def _probes(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[int, str], float]]:
  for row in rows:
    measure = ", ".join(row[part] for part in ("probe", "cases", "read"))
    for name, value in row.items():
      step = _STEP.search(name)
      if step or name == "untrained":
        yield (int(step[1]) if step else 0, measure), value


def _analysis(
  name: str, rows: Sequence[Mapping[str, Any]], last: int
) -> Iterator[tuple[tuple[int, str], float]]:
  for row in rows:
    if "token" in row:  # an example, which differs between runs
      continue
    kind = ", ".join(text for key, text in row.items() if isinstance(text, str) and key != "checkpoint")
    for key, value in row.items():
      if isinstance(value, int | float) and key not in _NO_MEASURE:
        yield (row.get("step", last), f"{name}: {kind}, {key}" if kind else f"{name}: {key}"), float(value)
