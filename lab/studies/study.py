"""Defines a study: its arms, whose runs differ only in their seeds, their evaluation and fine-tuning.

A study is a paper's table of ablations (`of_paper`), or a file of JSON lines (`read`) whose first line is
`{"study": {...}}` with the fields of `Study`. `docs/lab/cells/` has this project's;
docs/results/protocols.md has their hypotheses, targets and results.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from configs.ablations.row import Row
from configs.ablations.table import FAMILIES
from data import annotated
from data.errors import ConfigError, DataError, named_reason, unknown
from data.glue import tsv
from data.glue.tasks import known_task

_UPOS = "ADJ,ADP,ADV,AUX,CCONJ,DET,INTJ,NOUN,NUM,PART,PRON,PROPN,PUNCT,SCONJ,SYM,VERB,X"
_SPLITS = ("train", "dev", "test")  # of the treebank


@dataclasses.dataclass(frozen=True)
class FineTuning:
  """Settings for fine-tuning a cell's last checkpoint with a search of `finetune.main`.

  In values, a name in braces is replaced by a path, see `files_of`.
  """

  config: str  # value of `finetune.main --config`
  fields: Mapping[str, Any]  # changed fields, by dotted name
  # Data for `finetune.evaluate --data` with the best model; '': use the search's own scores.
  scored_on: str = ""


def _tagging(
  sentences: int, files: Mapping[str, str], label: str, labels: str, rates: tuple[float, ...], scored_on: str
) -> FineTuning:
  """Returns fine-tuning on the tags in column `label` of `sentences` sentences, in batches of 16."""
  fields = {"own.task": "tagging", **files, "data.text": "2", "data.label": label, "data.labels": labels}
  fields |= {"data.train_rows": sentences, "search.batch_sizes": (16,), "search.learning_rates": rates}
  return FineTuning("configs/finetune_own.py", fields | {"search.evaluations_per_epoch": 1}, scored_on)


def _embedding(train: str, scored_on: str) -> FineTuning:
  """Returns one embedding stage for every encoder, with nothing to choose."""
  fields = {"data.train_file": train, "search.learning_rates": (1e-3,), "search.evaluations_per_epoch": 1}
  return FineTuning("configs/finetune_embedding.py", fields, scored_on)


def _glue(task: str) -> FineTuning:
  """Returns fine-tuning on a GLUE task: one learning rate, batch size and run, scored on its dev set."""
  fields = {"tasks": task, "data.directory": f"{{{task}}}", "search.cells": "one", "search.num_seeds": 1}
  return FineTuning("configs/finetune_glue.py", fields)


# Part of speech, tuned on the development set, with all labels: 50 sentences lack some.
_TREEBANK = {"data.train_file": "{train}", "data.dev_file": "{dev}"}
_RATES = (3e-4, 1e-3, 3e-3)
TAGGING = {
  f"tagging_{number}": _tagging(number, _TREEBANK, "4", _UPOS, _RATES, "{test}")
  for number in (50, 200, 1_000)
}
# Entities, with nothing to choose; UNER's training file is not published.
_UNER = {"data.train_file": "{entities_dev}"}
_ENTITIES = _tagging(200, _UNER, "3", "B-LOC,B-ORG,B-PER,I-LOC,I-ORG,I-PER,O", (1e-3,), "{entities_test}")
_GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "rte", "mrpc", "stsb")
FINE_TUNINGS = {
  **TAGGING,
  "entities_200": _ENTITIES,
  "names": _embedding("{pairs}", "{beir}"),
  "sts": _embedding("{stsb_train}", "{stsb_dev}"),
  **{task: _glue(task) for task in _GLUE},
}


def files_of(name: str, data: pathlib.Path) -> tuple[dict[str, pathlib.Path | None], str]:
  """Finds a fine-tuning's data: {placeholder: path, None if missing}, and text that names the files."""
  match FINE_TUNINGS[name].scored_on:
    case "{beir}":  # docs/tutorials/embeddings.py writes both
      paths = {"pairs": data / "names" / "pairs.jsonl", "beir": data / "names" / "beir"}
      needs = "names/ with pairs.jsonl and beir/, which docs/tutorials/embeddings.py writes"
      return {place: path if path.exists() else None for place, path in paths.items()}, needs
    case "{test}":
      needs = f"UD_English-EWT/ with {', '.join(f'*-ud-{split}*.conllu' for split in _SPLITS)}"
      return {split: annotated.treebank(data, split) for split in _SPLITS}, needs
    case "{entities_test}":
      needs = "UNER_English-EWT/ with *-ud-dev*.iob2 and *-ud-test*.iob2"
      return {f"entities_{split}": annotated.entities(data, split) for split in ("dev", "test")}, needs
    case "{stsb_dev}":
      task, splits = known_task("stsb"), ("train", "dev")
      folder = annotated.glue_folder(data, "stsb", splits)
      paths = {f"stsb_{split}": tsv.find(folder, task, split) if folder else None for split in splits}
      return paths, "glue/STS-B/ with train.tsv and dev.tsv"
    case _:
      splits = [split for split in known_task(name).sizes if split in ("train", "dev", "dev_matched")]
      needs = f"glue/{known_task(name).folders[0]}/ with {', '.join(f'{split}.tsv' for split in splits)}"
      return {name: annotated.glue_folder(data, name, splits)}, needs


STORED = pathlib.Path(__file__).parents[2] / "docs" / "lab" / "cells"
# Fields whose value is the workdir of another row's run, and that row; '': the recipe's own run.
_GIVEN_BY = {"generator.init_from": "", "model.freeze_embeddings_from": "mlm_small"}
_LEARNED = ("generator.mixture_weights",)  # fields whose value is a result of the recipe's own run
_NUMBER = re.compile(r"\d+\.\d")


class Cell(NamedTuple):
  """An arm of a study, run with one seed."""

  arm: str
  seed: int


@dataclasses.dataclass(frozen=True)
class Arm:
  """A row of a table: runs that differ only in their seeds."""

  config: str  # value of `pretrain.main --config`
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # changed fields, by dotted name
  base: str = ""  # arm with which it is compared
  paper: str = ""  # the paper's result
  paper_base: str = ""  # the paper's result of the base
  after: Mapping[str, str] = dataclasses.field(default_factory=dict)  # field -> arm whose workdir it names
  # field -> arm whose final mean mixture weights, of the same seed, are its value
  learned: Mapping[str, str] = dataclasses.field(default_factory=dict)
  share: float = 1.0  # of the budget
  against: Sequence[str] = ()  # further arms with which it is compared

  @property
  def earlier(self) -> tuple[str, ...]:
    """The arms whose runs must be finished before this arm's run starts."""
    return (*self.after.values(), *self.learned.values())

  @property
  def needed(self) -> set[str]:
    """The arms that its runs start from or that it is compared with."""
    return {name for name in (self.base, *self.against, *self.earlier) if name}


@dataclasses.dataclass(frozen=True)
class Study:
  """A table: its arms, in order of their dependencies, and how each is evaluated."""

  title: str
  arms: Mapping[str, Arm]
  budget: int = 0  # steps per run; 0: the user must set it
  seeds: int = 3
  points: Sequence[float] = (1.0,)  # fractions of an arm's steps at which it is evaluated
  has_start: bool = False  # also evaluate it before the first step
  analyses: Sequence[str] = ()  # of `python -m pretrain.analysis`
  # Names in `FINE_TUNINGS`; with `has_start` also applied to the untrained encoder.
  fine_tunings: Sequence[str] = ()
  primary: Sequence[str] = ()  # measures that were chosen before the runs
  # {name: {arm: weight}}: weighted sums of arms, seed by seed, such as the mean of several differences
  contrasts: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

  def reduced(self, names: Sequence[str], fine_tunings: Sequence[str]) -> "Study":
    """Returns the study with the named arms, and those they need, and the named fine-tunings.

    Without names all arms, or the study's own fine-tunings, stay. ConfigError: a name is unknown.
    """
    for what, known, given in (
      ("row", self.arms, names),
      ("fine-tuning", FINE_TUNINGS, [*fine_tunings, *self.fine_tunings]),
    ):
      if strange := [name for name in given if name not in known]:
        raise ConfigError(unknown(what, strange[0], known))
    wanted = set(names or self.arms)
    while further := {needed for name in wanted for needed in self.arms[name].needed} - wanted:
      wanted |= further
    arms = {name: arm for name, arm in self.arms.items() if name in wanted}
    contrasts = {name: weights for name, weights in self.contrasts.items() if weights.keys() <= wanted}
    chosen = tuple(fine_tunings) or self.fine_tunings
    return dataclasses.replace(self, arms=arms, contrasts=contrasts, fine_tunings=chosen)


def place(name: str) -> pathlib.Path:
  """Returns the file of a study: `name` itself, or the stored study of this name; ConfigError without one."""
  stored = {path.stem: path for path in sorted(STORED.glob("*.jsonl"))}
  if name not in stored and not pathlib.Path(name).is_file():
    raise ConfigError(f"{unknown('study', name, stored)}; or name a file of JSON lines")
  return stored.get(name) or pathlib.Path(name)


def read(path: pathlib.Path) -> tuple[Study, dict[Cell, dict[str, Any]]]:
  """Returns the study of a file, and its finished cells: 'done' of `done.json`, and 'reports' by their paths.

  DataError: the file is damaged, a field is unknown, or an arm needs one that is not before it.
  """
  try:
    first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    arms = {name: Arm(**fields) for name, fields in first["study"]["arms"].items()}
    study = Study(**first["study"] | {"arms": arms})
    cells = {
      Cell(line["arm"], line["seed"]): {key: line[key] for key in ("done", "reports")} for line in lines
    }
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise DataError(
      f"{path}: expected JSON lines, the first one the fields of a study, as in {STORED / 'e1.jsonl'} "
      f"({named_reason(error)})"
    ) from error
  names = list(arms)
  for at, (name, arm) in enumerate(arms.items()):
    if strange := sorted((arm.needed - arms.keys()) | ({*arm.earlier} - {*names[:at]})):
      raise DataError(f"{path}: row {name!r} needs {strange[0]!r}, which is no row before it")
  return study, cells


def as_line(study: Study) -> str:
  """Returns the first line of a study's file: the fields that differ from their defaults."""

  def changed(value: Study | Arm, plain: Study | Arm) -> dict[str, Any]:
    return {name: own for name, own in vars(value).items() if own != getattr(plain, name)}

  arms = {name: changed(arm, Arm("")) for name, arm in study.arms.items()}
  return json.dumps({"study": changed(study, Study("", {})) | {"arms": arms}}, ensure_ascii=False)


def of_paper(family: str, *, is_tiny: bool) -> Study:
  """Returns the study with the rows of a paper; ConfigError if the paper is unknown."""
  if family not in FAMILIES:
    raise ConfigError(unknown("paper", family, FAMILIES))
  module, arms = FAMILIES[family], dict[str, Arm]()
  for name, row in module.ROWS.items():
    stem, separator, size = (row.tiny_recipe if is_tiny else row.recipe).partition(":")
    recipe = stem.replace("_base", f"_{size}") if size else stem  # a folder has this name
    whole, config = module.WHOLE.get(row.recipe, ""), f"configs/{stem}.py{separator}{size}"
    arms.setdefault(recipe, Arm(config, paper=whole))
    if row.changes and not (is_tiny and _is_there(module.ROWS, name)):
      learned = {field: recipe for field in row.required if field in _LEARNED}
      after = {field: _GIVEN_BY[field] or recipe for field in row.required if field not in learned}
      config = f"configs/ablations/{family}.py:{name}{':tiny' * is_tiny}"
      arms[name] = Arm(config, base=recipe, paper=row.paper, paper_base=whole, after=after, learned=learned)
  return Study(f"Ablations of {family}", arms)


def _is_there(rows: Mapping[str, Row], name: str) -> bool:
  """Returns whether the row `name` equals an earlier row once both are reduced to tiny size."""
  tiny = {other: (row.tiny_recipe, row.tiny_changes or row.changes) for other, row in rows.items()}
  names = list(rows)
  return any(tiny[before] == tiny[name] for before in names[: names.index(name)])


def papers_difference(row: str, base: str) -> str:
  """Subtracts a paper's results of `base` from those of `row`: 'MNLI -0.1/-0.1'; '' if metrics differ."""
  if not _NUMBER.search(row) or _NUMBER.sub("", row) != _NUMBER.sub("", base):
    return ""
  others = iter(_NUMBER.findall(base))
  return _NUMBER.sub(lambda found: f"{float(found[0]) - float(next(others)):+.1f}", row)
