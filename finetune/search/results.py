"""Stores the finished runs of a search, one file each: `<workdir>/<task>/<cell name>_seed<N>.json`.

Files are written atomically, so a search that was killed continues with the runs that have no file.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from data import errors, files
from data.errors import ConfigError, DataError, changes
from finetune.papers.protocols import Cell
from finetune.search.summary import Evaluation, Record, best
from pretrain.settings import fields

FORMAT = 2


@dataclasses.dataclass(frozen=True)
class _Run:
  """The content of a results file: a run's cell, seed, evaluations and fingerprint."""

  cell: Cell
  seed: int
  metric: str
  evaluations: list[Evaluation]
  fingerprint: dict[str, Any]


class Results:
  """The stored results of a task's finished runs, one file per cell and seed in a workdir."""

  def __init__(
    self, workdir: str | os.PathLike, task: str, fingerprint: Mapping[str, Any], *, seed_field: str = ""
  ) -> None:
    """Opens the results of a search; files of format 1, with all seeds of a cell, are split.

    Args:
      task: the name of the folder in the workdir.
      fingerprint: JSON-able, {field: value} of everything besides cell and seed that decides the numbers:
        digests of checkpoint, vocabulary and data, settings. A file with another fingerprint is an error.
      seed_field: name of a field of the fingerprint that holds {seed as text: value}, each of which decides
        the numbers of one seed. A file holds the value of its seed, so that seeds can be added later.

    Raises:
      ConfigError: the task's name cannot be the name of a folder.
      DataError: a file of the older format is damaged.
    """
    if not re.fullmatch(r"\w[\w.+-]*", task):
      raise ConfigError(f"task {task!r} cannot name a folder; use letters, digits, '_', '.', '+' and '-'")
    self.folder, self.task, self._seed_field = pathlib.Path(workdir) / task, task, seed_field
    self.fingerprint = json.loads(json.dumps(fingerprint))  # tuples are lists in a file
    for path in sorted(self.folder.glob("bs*.json")):
      if "_seed" not in path.stem:
        self._split(path)

  def fingerprint_of(self, seed: int) -> dict[str, Any]:
    """Returns the JSON values that identify runs with this seed, without those of other seeds."""
    return _of_seed(self.fingerprint, self._seed_field, seed)

  def path(self, cell: Cell, seed: int) -> pathlib.Path:
    """Returns the path of the results file of a run, which is a cell with a seed."""
    return self.folder / f"{cell.name}_seed{seed}.json"

  def read(self, cell: Cell) -> Record | None:
    """Returns all stored runs of a cell, by seed; None if there are none.

    Raises:
      DataError: a file is damaged, has another format, or was made with another fingerprint.
    """
    by_seed = {}
    for path in self.folder.glob(f"{cell.name}_seed*.json"):
      run = _run(path, _read(path, FORMAT))
      # A seed that the search no longer has cannot be compared.
      is_known = not self._seed_field or str(run.seed) in self.fingerprint[self._seed_field]
      ours = fields.flatten(self.fingerprint_of(run.seed) if is_known else run.fingerprint)
      differing = changes(fields.flatten(run.fingerprint), ours, show=_short)
      if differing:
        raise DataError(
          f"{path} was made with other settings ({', '.join(differing.values())}); go back to those, or use\n"
          "  --workdir=NEW"
        )
      by_seed[run.seed] = run
    if not by_seed:
      return None
    seeds = {seed: by_seed[seed].evaluations for seed in sorted(by_seed)}
    return Record(self.task, cell, next(iter(by_seed.values())).metric, seeds)

  def missing(self, cell: Cell, seeds: Sequence[int]) -> list[int]:
    """Returns the seeds for which no run of the cell is stored, in their order; errors as in `read`."""
    record = self.read(cell)
    return [seed for seed in seeds if record is None or seed not in record.seeds]

  def finished(self, cell: Cell, seeds: Sequence[int]) -> Record | None:
    """Returns the record of a cell with exactly these seeds; None if one is missing; errors as in `read`."""
    record = self.read(cell)
    if record is None or any(seed not in record.seeds for seed in seeds):
      return None
    return record._replace(seeds={seed: record.seeds[seed] for seed in seeds})

  def save(self, record: Record) -> None:
    """Writes a results file for each run of a record; StorageError if one cannot be written."""
    for seed, evaluations in record.seeds.items():
      # Plain Python numbers: JSON cannot write those of numpy.
      plain = [
        Evaluation(int(step), float(epoch), {name: float(x) for name, x in metrics.items()}, int(skipped))
        for step, epoch, metrics, skipped in evaluations
      ]
      self._write(_Run(record.cell, int(seed), record.metric, plain, self.fingerprint_of(seed)))

  def forget(self, cell: Cell, seed: int) -> None:
    """Removes the results file of a run, which is a cell with a seed."""
    self.path(cell, seed).unlink(missing_ok=True)

  def _write(self, run: _Run) -> None:
    path, chosen = self.path(run.cell, run.seed), best(run.evaluations, run.metric)
    value = {
      "format": FORMAT,
      "task": self.task,
      "cell": run.cell.as_json(),
      "seed": run.seed,
      "metric": run.metric,
      "evaluations": [evaluation._asdict() for evaluation in run.evaluations],
      "best": {"step": chosen.step, "metrics": chosen.metrics},
      "fingerprint": run.fingerprint,
    }
    with errors.writing(path):
      self.folder.mkdir(parents=True, exist_ok=True)
      files.write_json(path, value | {"digest": files.digest_json(value)})

  def _split(self, path: pathlib.Path) -> None:
    """Splits a file of format 1, which has all seeds of a cell, into one file for each run."""
    value = _read(path, 1)
    for seed, run in value["seeds"].items():
      fingerprint = _of_seed(value["fingerprint"], self._seed_field, seed)
      self._write(_run(path, value | {"seed": int(seed), **run, "fingerprint": fingerprint}))
    path.unlink()


def _of_seed(fingerprint: Mapping[str, Any], field: str, seed: int | str) -> dict[str, Any]:
  if not field:
    return dict(fingerprint)
  return {**fingerprint, field: {k: v for k, v in fingerprint[field].items() if k == str(seed)}}


def _read(path: pathlib.Path, version: int) -> dict[str, Any]:
  """Returns the content of a results file; DataError if its digest or format is wrong."""
  try:
    value = json.loads(path.read_bytes())
    written, digest = value["format"], value.pop("digest")
    if written == version and files.digest_json(value) != digest:
      raise ValueError("the content does not match its digest")
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise _damaged(path, error) from error
  if written != version:
    raise DataError(
      f"{path}: format {written!r}, expected format {version}; to train its runs again:\n  rm {path}"
    )
  return value


def _run(path: pathlib.Path, value: Mapping[str, Any]) -> _Run:
  try:
    evaluations = [Evaluation(**evaluation) for evaluation in value["evaluations"]]
    return _Run(Cell(**value["cell"]), value["seed"], value["metric"], evaluations, value["fingerprint"])
  except (KeyError, TypeError) as error:
    raise _damaged(path, error) from error


def _damaged(path: pathlib.Path, error: Exception) -> DataError:
  return DataError(
    f"{path}: damaged result ({errors.named_reason(error)}); to train its runs again:\n  rm {path}"
  )


def _short(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= 24 else f"{text[:12]}..."
