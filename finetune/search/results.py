"""Finished runs, one file each (`<workdir>/<task>/<cell name>_seed<N>.json`), and summaries over their seeds.

A run's scores are those of its best evaluation; a cell has mean, median and spread over its seeds. Files are
written atomically, so a search that was killed continues with the runs that have no file.
"""

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data import errors, files, tables
from data.errors import ConfigError, DataError, changes
from finetune.papers.protocols import Cell
from pretrain.settings import fields

FORMAT = 3  # of a file; raise it, too, when a change alters the numbers of runs


class Evaluation(NamedTuple):
  """One evaluation of the dev set during a run."""

  step: int
  epoch: float
  metrics: dict[str, float]  # fractions
  skipped_updates: int = 0  # so far: updates that were not applied, because a value was not finite


class Record(NamedTuple):
  """The finished runs of a cell (a set of hyperparameters), as evaluations by seed."""

  task: str  # as the caller names it, a file name
  cell: Cell
  metric: str  # by which a run's best evaluation is chosen
  seeds: dict[int, list[Evaluation]]  # the evaluations of each seed's run

  def value(self, seed: int, metric: str | None = None) -> float:
    """Returns a metric (None: the record's) of a run, at the evaluation that the record's metric chose."""
    return best(self.seeds[seed], self.metric).metrics[metric or self.metric]


class Summary(NamedTuple):
  """Median, mean, spread and range of a metric over runs, each run's value, and its skipped updates."""

  median: float  # of an even number of runs the mean of the middle two
  mean: float
  std: float  # of the sample (n - 1) unless asked otherwise; 0 for one run
  minimum: float
  maximum: float
  per_seed: dict[int | str, float]  # {seed: value}; where cells were pooled {'seed cell name': value}
  skipped_updates: dict[int | str, int]  # {key of per_seed: skipped updates}, of runs that skipped any

  def values(self) -> dict[str, Any]:
    """Returns the statistics by name, and the number of `seeds`, as a row of a report."""
    return {**self._asdict(), "seeds": len(self.per_seed)}


def seeds_column(header: str) -> tables.Column:
  """Returns a report's column that lists the score of each seed, for rows made by `Summary.values`."""
  return tables.Column(
    header, lambda row: "  ".join(tables.percent(value) for value in row["per_seed"].values()), "left"
  )


def score_columns(statistic: str, models: Sequence[str]) -> list[tables.Column]:
  """Returns the columns of a report: a metric's `statistic`, its spread, and the papers' models."""
  keys = {statistic: "value", "std": "std", "min": "minimum", "max": "maximum"}
  return [tables.percent_column(*column) for column in (keys | {model: model for model in models}).items()]


def metrics(record: Record) -> list[str]:
  """Returns the names of all metrics of a cell's runs, the metric by which it is chosen first."""
  measured = best(next(iter(record.seeds.values())), record.metric).metrics
  return [record.metric, *(name for name in measured if name != record.metric)]


def best(evaluations: Sequence[Evaluation], metric: str) -> Evaluation:
  """Returns the first evaluation with the highest metric, whose scores are those of the run."""
  return max(evaluations, key=lambda evaluation: evaluation.metrics[metric])


def summarise(record: Record, metric: str | None = None, *, ddof: int = 1) -> Summary:
  """Summarises a metric over the seeds of a cell.

  Args:
    metric: None: the record's metric. Any other is read at the evaluation that the record's metric chose,
      because only that checkpoint is kept.
    ddof: 1: the standard deviation of a sample; 0: of a population.
  """
  return _summary({seed: (record, seed) for seed in record.seeds}, metric, ddof)


def pool(records: Sequence[Record], metric: str | None = None, *, ddof: int = 1) -> Summary:
  """Summarises a metric over all runs of several cells (TACO's base models, splits of prompts)."""
  return _summary(
    {f"{seed} {record.cell.name}": (record, seed) for record in records for seed in record.seeds},
    metric,
    ddof,
  )


def choose(records: Sequence[Record], metric: str, summary: str) -> Record:
  """Returns the best of the cells with the most seeds: one lucky run must not beat a cell with several.

  Cells are compared by the 'median' or 'mean' of a metric over their seeds; of equal ones the first counts.
  """
  most = max(len(record.seeds) for record in records)
  candidates = [record for record in records if len(record.seeds) == most]
  return max(candidates, key=lambda record: score(summarise(record, metric), summary))


def choose_by_seed(records: Sequence[Record]) -> list[Record]:
  """Returns, for each seed, the cell with its best run (the first of equal ones) as a record of one run."""
  chosen: dict[int, Record] = {}
  for record in records:
    for seed, run in record.seeds.items():
      if seed not in chosen or record.value(seed) > chosen[seed].value(seed):
        chosen[seed] = record._replace(seeds={seed: run})
  return list(chosen.values())


def best_seed(record: Record) -> int:
  """Returns the seed of a cell's best run, the first of equal ones."""
  return max(record.seeds, key=record.value)


def may_be_chosen(
  records: Sequence[Record], seeds: Sequence[int], summary: str, *, by_seed: bool
) -> set[tuple[Cell, int]]:
  """Returns the runs that may still be chosen, and whose weights are kept; all others are beaten already.

  The best run so far is only replaced by a better one. So a run that is left out here cannot be chosen when
  the search is finished. Few runs are kept: the best runs of the leading cell and of each cell that lacks
  seeds, or the best run of each seed.

  Args:
    records: finished runs of the cells of the search, in its order.
    seeds: of the search; the best of a cell's runs with other seeds is kept too.
    by_seed: whether a cell is chosen for each seed separately.
  """
  if by_seed:
    return {(record.cell, best_seed(record)) for record in choose_by_seed(records)}
  asked = [_of_seeds(record, seeds) for record in records]
  whole = [record for record in asked if len(record.seeds) == len(seeds)]
  leader = choose(whole, whole[0].metric, summary).cell if whole else None
  kept = set()
  for record, ours in zip(records, asked):
    if len(ours.seeds) < len(seeds) or record.cell == leader:
      kept |= {(one.cell, best_seed(one)) for one in (record, ours) if one.seeds}
  return kept


def _of_seeds(record: Record, seeds: Sequence[int]) -> Record:
  return record._replace(seeds={seed: record.seeds[seed] for seed in seeds if seed in record.seeds})


def score(over_runs: Summary, summary: str) -> float:
  """Returns the statistic that a protocol reports: the 'median' or the 'mean' over runs."""
  return over_runs.median if summary == "median" else over_runs.mean


def skipped_notes(skipped: Mapping[str, Mapping[int | str, int]]) -> list[str]:
  """Returns a sentence about runs with skipped updates, if any, from {task: `Summary.skipped_updates`}."""
  runs = [
    f"{task} seed {seed} {count:,}" for task, by_seed in skipped.items() for seed, count in by_seed.items()
  ]
  if not runs:
    return []
  return [
    f"Updates skipped because they were not finite: {', '.join(runs)}. Such a run is near divergence; its "
    "score may be that of an untrained model."
  ]


def _summary(runs: Mapping[int | str, tuple[Record, int]], metric: str | None, ddof: int) -> Summary:
  per_seed = {name: record.value(seed, metric) for name, (record, seed) in runs.items()}
  skipped = {name: record.seeds[seed][-1].skipped_updates for name, (record, seed) in runs.items()}
  values = np.asarray(list(per_seed.values()), np.float64)
  std = float(np.std(values, ddof=ddof)) if len(values) > 1 else 0.0
  return Summary(
    float(np.median(values)),
    float(np.mean(values)),
    std,
    float(values.min()),
    float(values.max()),
    per_seed,
    {name: count for name, count in skipped.items() if count},
  )


class Results:
  """The stored results of a task's finished runs, one file per cell and seed in a workdir."""

  def __init__(
    self,
    workdir: str | os.PathLike,
    task: str,
    fingerprint: Mapping[str, Any],
    of_seeds: Mapping[int, Mapping[str, Any]] | None = None,
  ) -> None:
    """Opens the results of a search.

    Args:
      task: the name of the folder in the workdir.
      fingerprint: JSON-able, {field: value} of everything besides cell and seed that decides the numbers:
        digests of checkpoint, vocabulary and data, settings. A file with another fingerprint is an error.
      of_seeds: {seed: further fields} of a search whose seeds have their own data; files of seeds that it
        lacks are not read.

    Raises:
      ConfigError: the task's name cannot be the name of a folder.
    """
    if not re.fullmatch(r"\w[\w.+-]*", task):
      raise ConfigError(f"task {task!r} cannot name a folder; use letters, digits, '_', '.', '+' and '-'")
    self.folder, self.task = pathlib.Path(workdir) / task, task
    self._fingerprint, self._of_seeds = dict(fingerprint), of_seeds

  def fingerprint(self, seed: int) -> dict[str, Any]:
    """Returns the JSON values that decide the numbers of runs with this seed."""
    of_seed = self._of_seeds[seed] if self._of_seeds else {}
    return json.loads(json.dumps(self._fingerprint | dict(of_seed)))  # tuples are lists in a file

  def path(self, cell: Cell, seed: int) -> pathlib.Path:
    """Returns the path of the results file of a run, which is a cell with a seed."""
    return self.folder / f"{run_name(cell, seed)}.json"

  def read(self, cell: Cell) -> dict[int, list[Evaluation]]:
    """Returns {seed: evaluations} of all stored runs of a cell.

    Raises:
      DataError: a file is damaged, has another format, or was made with another fingerprint.
    """
    found = {}
    for path in self.folder.glob(f"{cell.name}_seed*.json"):
      seed = int(path.stem.rpartition("_seed")[2])
      if self._of_seeds and seed not in self._of_seeds:
        continue
      again = f"to train its run again:\n  rm {path}"
      try:
        value = json.loads(path.read_bytes())
        made, digest = value["format"], value.pop("digest")
        if made == FORMAT and files.digest_json(value) != digest:
          raise ValueError("the content does not match its digest")
        evaluations, stored = [Evaluation(**one) for one in value["evaluations"]], value["fingerprint"]
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged result ({errors.named_reason(error)}); {again}") from error
      if made != FORMAT:
        raise DataError(f"{path}: format {made!r}, expected format {FORMAT}; {again}")
      differing = changes(fields.flatten(stored), fields.flatten(self.fingerprint(seed)), show=_short)
      if differing:
        raise DataError(
          f"{path} was made with other settings ({', '.join(differing.values())}); go back to those, or use\n"
          "  --workdir=NEW"
        )
      found[seed] = evaluations
    return {seed: found[seed] for seed in sorted(found)}

  def save(self, cell: Cell, seed: int, metric: str, evaluations: Sequence[Evaluation]) -> None:
    """Writes the results file of a run; StorageError if it cannot be written."""
    path, chosen = self.path(cell, seed), best(evaluations, metric)
    value = {
      "format": FORMAT,
      "task": self.task,
      "cell": cell.as_json(),
      "seed": seed,
      "metric": metric,
      "evaluations": [evaluation._asdict() for evaluation in evaluations],
      "best": {"step": chosen.step, "metrics": chosen.metrics},
      "fingerprint": self.fingerprint(seed),
    }
    with errors.writing(path):
      self.folder.mkdir(parents=True, exist_ok=True)
      files.write_json(path, value | {"digest": files.digest_json(value)})


def run_name(cell: Cell, seed: int) -> str:
  """Returns the name of a run's files: 'bs32_lr2e-05_ep3_wu0.1_seed0'."""
  return f"{cell.name}_seed{seed}"


def _short(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= 24 else f"{text[:12]}..."
