"""Runs the cells of a table (an arm with a seed), and tracks which commands are finished.

A cell is a folder with an ordinary workdir of `pretrain.main` and the reports of later commands. `done.json`
lists the finished commands, so a stopped cell resumes with the next one, and a cell with additional commands
runs only those. Fine-tuning is another program: this module uses only its flags and its report. `collect`
writes the study and all that its finished cells found to one file, `study.jsonl`, which `--study` reads.
"""

import contextlib
import dataclasses
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from data import errors, files
from data.command import STOPPED, commit, run_child
from data.errors import ConfigError, DataError, DivergedError
from lab.studies.study import FINE_TUNINGS, Arm, Cell, Study, as_line, files_of
from pretrain import command as pretraining

logger = logging.getLogger(__name__)

DONE, COLLECTED = "done.json", "study.jsonl"
Rows = list[dict[str, Any]]  # of a report
# {side: fields of fine-tuning}; the untrained encoder has the checkpoint's shape and vocabulary.
SIDES = {"pretrained": {}, "untrained": {"from_scratch": True}}
_SCORES = "_scores"  # suffix of a side's folder of scores


class Stopped(Exception):
  """Raised when a run stopped on request, with everything saved."""


class Asked(NamedTuple):
  """The requested table: its study, seeds, budget and folders."""

  study: Study
  seeds: Sequence[int]
  budget: int  # steps
  output: pathlib.Path
  data: str  # folder of annotated data
  only: str  # probes, separated by commas; '': all
  changes: Sequence[str]  # --config.FIELD=VALUE for every run
  stored: Mapping[Cell, Mapping[str, Any]] = {}  # of the study's file, whatever the flags they were made with

  @property
  def cells(self) -> list[Cell]:
    """All cells, seed by seed, so that all rows of a seed can be compared early."""
    return [Cell(arm, seed) for seed in self.seeds for arm in self.study.arms]

  def folder(self, cell: Cell) -> pathlib.Path:
    """Returns the directory of a cell's workdir and reports."""
    return self.output / cell.arm / f"seed_{cell.seed}"

  def steps(self, arm: Arm) -> list[int]:
    """Returns the steps at which an arm is evaluated, ascending; the last one ends its runs."""
    total = max(round(self.budget * arm.share), 1)
    return sorted({max(round(total * point), 1) for point in self.study.points})

  def commands(self, cell: Cell) -> list[list[str]]:
    """Returns a cell's programs with their flags; {cell}, {data}, {output} are placeholders of paths."""
    arm = self.study.arms[cell.arm]
    steps = self.steps(arm)
    fields = dict(arm.fields)
    fields |= {field: f"{{output}}/{name}/seed_{cell.seed}/run" for field, name in arm.after.items()}
    fields |= {field: f"{{weights of {name}}}" for field, name in arm.learned.items()}
    fields |= {"train.total_steps": steps[-1], "train.checkpoint_steps": tuple(steps)}
    saved = ",".join(f"{{cell}}/run/checkpoints/{step}" for step in steps)
    probes = [f"--checkpoint={saved}", "--data={data}", "--output={cell}/probe"]
    made = [
      ["pretrain.main", f"--config={arm.config}", "--workdir={cell}/run", *_flags(fields), *self.changes]
      + [f"--config.seed={cell.seed}"],
      ["pretrain.probe", *probes, *([f"--only={self.only}"] if self.only else [])],
    ]
    if self.study.analyses:
      names = f"--only={','.join(self.study.analyses)}"
      made.append(
        ["pretrain.analysis", "--checkpoints={cell}/run", "--data={data}", "--output={cell}/analysis", names]
      )
    for name in self.study.fine_tunings:
      for side in self._sides:
        made += _fine_tuning(name, side, seed=cell.seed, step=steps[-1])
    return made

  @property
  def _sides(self) -> Sequence[str]:
    return list(SIDES) if self.study.has_start else ["pretrained"]

  def fine_tunings(self, last: int) -> dict[str, int]:
    """Returns {folder of fine-tuning scores: pretraining steps of its encoder}; untrained is step 0."""
    steps = {"pretrained": last, "untrained": 0}
    names = self.study.fine_tunings
    return {_scores(name, side): steps[side] for name in names for side in self._sides}

  def filled(self, command: Sequence[str], cell: Cell) -> list[str]:
    """Replaces {cell}, {data} and the other placeholders in a command by paths and values."""
    places = {"{cell}": str(self.folder(cell)), "{data}": self.data, "{output}": str(self.output)}
    for tuning in self.study.fine_tunings:
      files_there, _ = files_of(tuning, pathlib.Path(self.data))
      places |= {f"{{{name}}}": str(path) for name, path in files_there.items() if path}
    arm = self.study.arms[cell.arm]
    places |= {f"{{weights of {name}}}": _weights(self, name, cell.seed) for name in arm.learned.values()}
    words = list(command)
    for name, place in places.items():
      words = [word.replace(name, place) for word in words]
    return words


def run_config(asked: Asked, arm: str) -> ConfigDict:
  """Returns the config of an arm's run with seed 0; ConfigError if it is invalid for pretraining."""
  cell = Cell(arm, 0)
  return pretraining.read_arguments(asked.filled(asked.commands(cell)[0], cell)[1:]).config


def _weights(asked: Asked, arm: str, seed: int) -> str:
  """Returns the final mixture weights of an arm's generator heads, '0.2,0.8'; equal ones before its run."""
  from lab.analysis import logs  # these two import JAX, which flags and refusals do not need
  from pretrain.logs import metrics

  run = asked.folder(Cell(arm, seed)) / "run"
  curves = logs.series(
    metrics.read(run) if run.is_dir() else [], r"train/mixture_weight_(?:layer|generator)_(\d+)"
  )
  ends = [logs.smoothed(curves[layer][1])[-1] for layer in sorted(curves, key=int)]
  if not ends and finished(asked, Cell(arm, seed)) is not None:
    raise DataError(f"{run}: no weights of a mixture in its metrics; another row needs them")
  weights = np.asarray(ends or [1.0] * len(run_config(asked, arm).generator.mlm_layers))
  return ",".join(map(repr, (weights / weights.sum()).tolist()))


def _scores(tuning: str, side: str) -> str:
  return f"{tuning}/{side}{_SCORES if FINE_TUNINGS[tuning].scored_on else ''}"


def _fine_tuning(name: str, side: str, *, seed: int, step: int) -> list[list[str]]:
  """Returns the commands that fine-tune the pretrained or untrained encoder and score its best model."""
  what, folder = FINE_TUNINGS[name], f"{{cell}}/{name}/{side}"
  fields = {"checkpoint": "{cell}/run", "checkpoint_step": step, **what.fields, **SIDES[side], "seed": seed}
  made = [["finetune.main", f"--config={what.config}", f"--workdir={folder}", *_flags(fields)]]
  if what.scored_on:
    scored = [f"--data={what.scored_on}", f"--output={{cell}}/{_scores(name, side)}"]
    made.append(["finetune.evaluate", f"--model={folder}/model", *scored])
  return made


def _flags(fields: Mapping[str, Any]) -> list[str]:
  values = {k: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in fields.items()}
  return [f"--config.{name}={value}" for name, value in values.items()]


def finished(asked: Asked, cell: Cell) -> Mapping[str, Any] | None:
  """Returns the content of a finished cell's `done.json`, else None; ConfigError if the flags differ."""
  found = _ended(asked, cell)
  if "diverged" in found or all(one in found["commands"] for one in asked.commands(cell)):
    return found
  return asked.stored[cell]["done"] if cell in asked.stored else None


def reports(asked: Asked, cell: Cell) -> dict[str, Rows]:
  """Returns the rows of each report of a finished cell, {path in its folder: rows}.

  DataError: a report is missing or damaged.
  """
  last, folder = asked.steps(asked.study.arms[cell.arm])[-1], asked.folder(cell)
  if cell in asked.stored and not (folder / DONE).is_file():
    return dict(asked.stored[cell]["reports"])
  names = ["probe/probe.json", *(f"analysis/{name}.json" for name in asked.study.analyses)]
  found = {}
  for name in (*names, *(f"{place}/results.json" for place in asked.fine_tunings(last))):
    try:
      found[name] = json.loads((folder / name).read_bytes())["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise DataError(
        f"{folder / name}: no report of this program ({errors.named_reason(error)}); make the reports of the "
        f"run again:\n  rm {folder / DONE}  # then the same command"
      ) from error
  return found


def collect(asked: Asked) -> None:
  """Writes the study, and a line with the reports of each finished cell, to `study.jsonl` of the output."""
  lines = [as_line(dataclasses.replace(asked.study, budget=asked.budget, seeds=len(asked.seeds)))]
  for cell in asked.cells:
    if done := finished(asked, cell):
      found = {} if "diverged" in done else reports(asked, cell)
      line = {**cell._asdict(), "done": done, "reports": found}
      lines.append(json.dumps(line, ensure_ascii=False))
  with errors.writing(asked.output):
    asked.output.mkdir(parents=True, exist_ok=True)
    files.write_atomically(asked.output / COLLECTED, "\n".join([*lines, ""]))


def _ended(asked: Asked, cell: Cell) -> dict[str, Any]:
  """Returns the content of a cell's `done.json`, even if commands are missing; errors as for `finished`."""
  path = asked.folder(cell) / DONE
  if not path.is_file():
    return {"commands": []}
  try:
    record = json.loads(path.read_bytes())
    made = record["commands"]
  except (ValueError, KeyError, TypeError) as error:
    raise DataError(
      f"{path} is damaged ({errors.named_reason(error)}); remove it to evaluate the cell again"
    ) from error
  expected = asked.commands(cell)
  if not all(one in made for one in expected) and not all(one in expected for one in made):
    differing = [word for one in expected for word in one if not any(word in old for old in made)]
    raise ConfigError(
      f"{path.parent} was made with other flags than {' '.join(differing) or 'these'}; use another --output, "
      "or the same flags"
    )
  return record


def run(asked: Asked, finish: Callable[[], None]) -> None:
  """Runs unfinished cells, and calls `finish` after each; skips cells that other processes are running.

  Raises:
    Stopped: a run stopped on request; the next call resumes there.
    UserError: a command failed, with its message.
  """
  for cell in asked.cells:
    folder, arm = asked.folder(cell), asked.study.arms[cell.arm]
    if finished(asked, cell) is not None:
      continue
    with errors.writing(folder):
      folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
      try:
        held.enter_context(files.locked(folder / "lock", busy=f"{folder} is in use", advice="wait for it"))
      except DataError as error:
        logger.info(str(error))
        continue
      waits = [name for name in arm.earlier if finished(asked, Cell(name, cell.seed)) is None]
      if waits:
        logger.info(f"{cell.arm}, seed {cell.seed}: waits for {', '.join(waits)}")
        continue
      lost = [name for name in arm.earlier if "diverged" in _ended(asked, Cell(name, cell.seed))]
      if lost:  # a result of this row too
        record = {"commands": [], "diverged": f"begins with {lost[0]}, which diverged"}
        with errors.writing(folder):
          files.write_json(folder / DONE, record)
      if finished(asked, cell) is None:
        _run(asked, cell)
    finish()


def _run(asked: Asked, cell: Cell) -> None:
  folder, record = asked.folder(cell), _ended(asked, cell)
  for command in asked.commands(cell):
    if command in record["commands"]:
      continue
    logger.info(f"{cell.arm}, seed {cell.seed}: {command[0]}, log in {folder / 'log'}")
    with errors.writing(folder / "log"), open(folder / "log", "a", encoding="utf-8") as log:
      code, line = run_child([sys.executable, "-m", *asked.filled(command, cell)], relay=False, log=log)
    if code == STOPPED:
      raise Stopped
    if code == DivergedError.exit_code:  # a result of the row
      record["diverged"] = line
    elif code:
      raise errors.of_code(code, f"{cell.arm}, seed {cell.seed}, {command[0]}: {line}")
    record |= {"commands": [*record["commands"], command], "commit": commit()}
    with errors.writing(folder):
      files.write_json(folder / DONE, record)
    if code:
      return
