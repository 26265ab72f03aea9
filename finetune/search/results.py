"""The directory of a search: one finished cell per file, `<workdir>/<task>/<cell name>.json`.

A file is written whole or not at all, so a search that was killed goes on with the cells that are not there.
"""

import json
import math
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from data import errors, files
from data.errors import ConfigError, DataError
from finetune.papers.spaces import Cell
from finetune.search.summary import Evaluation, Record, best

FORMAT = 1


class Results:
  """The finished cells under a workdir."""

  def __init__(
    self, workdir: str | os.PathLike, fingerprint: Mapping[str, Any], *, seed_field: str = ""
  ) -> None:
    """Opens a search; nothing is read or written yet.

    Args:
      fingerprint: JSON-able, {field: value} of everything besides cell and seed that decides the numbers:
        digests of checkpoint, vocabulary and data, settings. A file with another fingerprint is refused.
      seed_field: name of a field of the fingerprint that holds {seed as text: value}, what decides the
        numbers of that seed alone. A file holds the values of its seeds, so that seeds can be added later.
    """
    self._workdir, self._seed_field = pathlib.Path(workdir), seed_field
    self.fingerprint = json.loads(json.dumps(fingerprint))  # tuples are lists in a file

  def fingerprint_of(self, seeds: Collection[int]) -> dict[str, Any]:
    """The fingerprint of runs with these seeds, without the values of other seeds."""
    name = self._seed_field
    if not name:
      return self.fingerprint
    wanted = {str(seed) for seed in seeds}
    return self.fingerprint | {name: {k: v for k, v in self.fingerprint[name].items() if k in wanted}}

  def path(self, task: str, cell: Cell) -> pathlib.Path:
    """The file of a cell, in the folder of its task."""
    return self.folder(task) / f"{cell.name}.json"

  def folder(self, task: str) -> pathlib.Path:
    """The folder of a task's files.

    Raises:
      ConfigError: the task's name cannot be that of a folder.
    """
    if not re.fullmatch(r"\w[\w.+-]*", task):
      raise ConfigError(f"task {task!r} cannot name a folder; use letters, digits, '_', '.', '+' and '-'")
    return self._workdir / task

  def read(self, task: str, cell: Cell) -> Record | None:
    """The stored record of a cell with all seeds that are finished; None without any.

    Raises:
      DataError: the file is damaged, of another format or task, or was made with another fingerprint.
    """
    path = self.path(task, cell)
    if not path.is_file():
      return None
    record, saved = _read(path)
    differing = _differing(*self._comparable(saved))
    if differing:
      raise DataError(
        f"{path} was made with other settings ({', '.join(differing)}: saved -> given); use another "
        "--workdir, or go back to the saved settings"
      )
    if (record.task, record.cell) != (task, cell):
      raise DataError(
        f"{path} holds task {record.task!r}, cell {record.cell.name}, expected {task!r}, {cell.name}; it was "
        "renamed or copied: remove it"
      )
    return record

  def _comparable(self, saved: Any) -> tuple[Any, Any]:
    """A file's fingerprint and ours, with the seeds that are in both."""
    name, ours = self._seed_field, self.fingerprint
    if not name or not isinstance(saved, dict) or not isinstance(saved.get(name), dict):
      return saved, ours
    both = saved[name].keys() & ours[name].keys()
    saved, ours = (values | {name: {seed: values[name][seed] for seed in both}} for values in (saved, ours))
    return saved, ours

  def missing(self, task: str, cell: Cell, seeds: Sequence[int]) -> list[int]:
    """Those of the seeds whose runs of a cell are not stored yet, in their order; errors as of `read`."""
    record = self.read(task, cell)
    return [seed for seed in seeds if record is None or seed not in record.seeds]

  def finished(self, task: str, cell: Cell, seeds: Sequence[int]) -> Record | None:
    """The record of a cell with exactly these seeds; None unless all are finished; errors as of `read`."""
    record = self.read(task, cell)
    if record is None or any(seed not in record.seeds for seed in seeds):
      return None
    return record._replace(seeds={seed: record.seeds[seed] for seed in seeds})

  def save(self, task: str, cell: Cell, record: Record) -> Record:
    """Writes a cell, keeps the seeds that only its file has, and returns what is in the file now.

    Raises:
      DataError: the record is of another task or cell, or has no seeds, a run without evaluations, an
        evaluation without the metric, or a number that is not finite; or the file that is there cannot be
        added to, as in `read`.
      StorageError: the file cannot be written.
    """
    path = self.path(task, cell)
    if (record.task, record.cell) != (task, cell):
      raise DataError(f"{path}: the record is of task {record.task!r}, cell {record.cell.name}")
    _check(path, record)
    before = self.read(task, cell)
    fingerprint = self.fingerprint_of(record.seeds)
    if before is not None:
      if before.metric != record.metric:
        raise DataError(
          f"{path} is judged by {before.metric!r}, the new seeds by {record.metric!r}; use another --workdir"
        )
      record = record._replace(
        seeds=before.seeds | record.seeds,
        devices=tuple(dict.fromkeys((*before.devices, *record.devices))),
        seconds=before.seconds + record.seconds,
      )
      if self._seed_field:
        _, saved = _read(path)
        kept = {str(seed): saved[self._seed_field].get(str(seed)) for seed in before.seeds}
        fingerprint[self._seed_field] = kept | fingerprint[self._seed_field]
    record = record._replace(seeds=dict(sorted(record.seeds.items())))
    value = _as_json(record, fingerprint)
    content = value | {"digest": files.digest_json(value)}
    try:
      with errors.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, content)
    finally:
      for leftover in path.parent.glob(f"{path.name}.*.part"):  # of a process that was killed, or of this one
        leftover.unlink(missing_ok=True)
    return record


def _check(path: pathlib.Path, record: Record) -> None:
  if not record.seeds:
    raise DataError(f"{path}: no seeds to save")
  for seed, evaluations in record.seeds.items():
    if not evaluations:
      raise DataError(f"{path}: the run of seed {seed} was never evaluated")
    for evaluation in evaluations:
      if record.metric not in evaluation.metrics:
        raise DataError(f"{path}: seed {seed}, step {evaluation.step}: {record.metric!r} was not measured")
      for name, value in evaluation.metrics.items():
        if not math.isfinite(value):
          raise DataError(
            f"{path}: seed {seed}, step {evaluation.step}: {name} is {value}, expected a finite number; a "
            "run that diverged counts as 0"
          )


def _as_json(record: Record, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
  def run(evaluations: list[Evaluation]) -> dict[str, Any]:
    # What comes from numpy has types that JSON does not know.
    plain = [
      Evaluation(int(step), float(epoch), {name: float(x) for name, x in metrics.items()}, int(skipped))
      for step, epoch, metrics, skipped in evaluations
    ]
    chosen = best(plain, record.metric)
    return {
      "evaluations": [evaluation._asdict() for evaluation in plain],
      "best": {"step": chosen.step, "metrics": chosen.metrics},
    }

  return {
    "format": FORMAT,
    "task": record.task,
    "cell": record.cell.as_json(),
    "metric": record.metric,
    "seeds": {str(seed): run(evaluations) for seed, evaluations in record.seeds.items()},
    "devices": list(record.devices),
    "seconds": record.seconds,
    "fingerprint": fingerprint,
  }


def _read(path: pathlib.Path) -> tuple[Record, dict[str, Any]]:
  """The record of a file and its fingerprint."""
  try:
    value = json.loads(path.read_bytes())
    version = value.get("format")
    if version != FORMAT:
      raise DataError(
        f"{path}: format {version!r}, this program reads format {FORMAT}; remove it to run it again"
      )
    digest = value.pop("digest")
    if files.digest_json(value) != digest:
      raise ValueError("its content does not have the digest that was written with it")
    seeds = {
      int(seed): [Evaluation(**evaluation) for evaluation in run["evaluations"]]
      for seed, run in value["seeds"].items()
    }
    record = Record(
      value["task"], Cell(**value["cell"]), value["metric"], seeds, tuple(value["devices"]), value["seconds"]
    )
    return record, value["fingerprint"]
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise DataError(
      f"{path}: damaged result ({errors.named_reason(error)}); remove it and its cell will be run again"
    ) from error


def _differing(saved: Any, ours: Any, prefix: str = "") -> list[str]:
  """Fields of nested mappings that are not equal, as 'a.b: saved -> given'."""
  if isinstance(saved, dict) and isinstance(ours, dict):
    names = [*saved, *(name for name in ours if name not in saved)]
    absent = "(absent)"
    return [
      line
      for name in names
      for line in _differing(saved.get(name, absent), ours.get(name, absent), f"{prefix}{name}.")
    ]
  return [] if saved == ours else [f"{prefix[:-1]} {_short(saved)} -> {_short(ours)}"]


def _short(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= 24 else f"{text[:12]}..."
