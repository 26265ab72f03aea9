"""The actions of `python -m pretrain.checkpoints`: lists, verifies, averages and removes steps."""

import contextlib
import hashlib
import json
import logging
import pathlib
import re
import shutil
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from data import errors, files, vocabulary
from data.command import names
from data.errors import ConfigError, DataError, changes
from pretrain.checkpoints import checkpoint, resume, saved_model
from pretrain.checkpoints import workdir as workdir_files
from pretrain.mesh import trees
from pretrain.reading import batches as skipping
from pretrain.reading import prepared
from pretrain.settings import mixture
from pretrain.settings.run import reading_settings

logger = logging.getLogger(__name__)

Path = pathlib.Path


class Entry(NamedTuple):
  """One checkpoint directory of a run: its path, step, size and time of saving."""

  path: Path
  step: int | None  # None: renamed as damaged, or incomplete
  size: int  # bytes
  saved: float  # seconds since 1970


def entries(directory: Path) -> list[Entry]:
  """Returns the complete checkpoints in `directory` by step, then renamed and incomplete ones.

  DataError: `directory` has no checkpoint.
  """
  folder = directory / checkpoint.DIRECTORY
  folder = folder if folder.is_dir() else directory
  whole = set(checkpoint.saved_steps(folder))
  listed = []
  for path in sorted(folder.iterdir()) if folder.is_dir() else []:
    if path.is_dir() and checkpoint.is_step_name(path.name.partition(".")[0]):
      step = int(path.name) if checkpoint.is_step_name(path.name) and int(path.name) in whole else None
      with contextlib.suppress(FileNotFoundError):  # the run removes or renames it meanwhile
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        listed.append(Entry(path, step, size, path.stat().st_mtime))
  if not listed:
    checkpoint.step_path(directory)  # raises unless `directory` itself is a step
    path = directory.absolute()
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return [Entry(path, int(path.name), size, path.stat().st_mtime)]
  return sorted(listed, key=lambda entry: (entry.step is None, entry.step or 0, entry.path.name))


def show_list(directory: Path) -> None:
  """Prints one line per checkpoint: directory name, size, time of saving, and run id or problem."""
  for entry in entries(directory):
    saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.saved))
    state = "renamed as damaged, or incomplete"
    if entry.step is not None:
      known = (entry.path / checkpoint.DIGESTS).is_file()
      state = f"run {checkpoint.run_id(entry.path) or 'unknown'}" if known else "no digests"
    print(f"{entry.path.name:>20}  {entry.size / 1e6:>12,.1f} MB  {saved}  {state}")


def show(directory: Path) -> None:
  """Prints a checkpoint's path, parameter counts per part, and stored metadata, as JSON."""
  path = checkpoint.step_path(directory)
  params, meta = checkpoint.load_params(path)
  leaves = trees.by_path(params)
  parts = sorted({name.partition("/")[0] for name in leaves})
  counts = {
    part: sum(leaf.size for name, leaf in leaves.items() if name.startswith(f"{part}/")) for part in parts
  }
  print(json.dumps({"path": str(path), "parameters": counts, **meta}, indent=2, sort_keys=True))


def verify(directory: Path) -> None:
  """Prints whether each checkpoint is sound; DataError: some are damaged, of several runs, or missing."""
  damaged, steps = [], [entry for entry in entries(directory) if entry.step is not None]
  for entry in steps:
    problem = checkpoint.problem(entry.path)
    if not entry.path.is_dir():
      problem = "removed meanwhile"  # by the run, which still trains
    elif problem:
      damaged.append(entry.path.name)
    print(f"step {entry.path.name}: {problem or 'sound'}")
  runs = {checkpoint.run_id(entry.path) for entry in steps if entry.path.is_dir()} - {""}
  if damaged or len(runs) > 1 or not steps:
    what = f"step {', '.join(damaged)} damaged" if damaged else f"steps of {len(runs)} runs"
    what = what if steps else "no complete step"
    raise DataError(f"{directory}: {what}; restore them from a copy, or resume the run, which renames them")


def average(
  directory: Path,
  *,
  output: Path,
  last: int | None = None,
  steps: str = "",
  of: Sequence[Path] = (),
  across_runs: bool = False,
  beside: Sequence[str] = (),
) -> None:
  """Writes the mean of the parameters of several steps, computed in float64, as a new checkpoint.

  The steps are the `last` newest ones (None: 5), or `steps`, such as '100,200'. With `across_runs` they are
  those (None: the newest one) of `directory` and of each of `of`; its other facts are those of the last run.
  Files `beside` a checkpoint describe a fine-tuned model; they are copied, and have to be equal.

  Raises:
    ConfigError: fewer than two steps, a step that was not saved, or several runs without `across_runs`.
    DataError: the steps come from several runs; runs differ in other fields than data and seeds.
  """
  files.refuse_others(output)
  if bool(of) != across_runs:
    raise ConfigError("--of, --across_runs: expected both, to average several runs\n  --of=DIR --across_runs")
  chosen = []
  for run_directory in (directory, *of):
    chosen += _chosen(run_directory, last, steps, is_one=not across_runs)
  if len({path.resolve() for path in chosen}) < len(chosen):
    raise ConfigError("--of: a step is named twice; expected different runs or steps")
  runs = len({checkpoint.run_id(path) for path in chosen})
  differing = _differing_fields(chosen) if across_runs else []
  if runs > 1 and not across_runs:
    raise DataError(f"{directory}: the steps come from {runs} runs; expected one")
  sums: dict[str, np.ndarray] = {}
  for path in chosen:
    params, meta = checkpoint.load_params(path)
    for name, leaf in trees.by_path(params).items():
      sums[name] = sums.get(name, np.zeros(leaf.shape)) + leaf
  means = [(sums[name] / len(chosen)).astype(leaf.dtype) for name, leaf in trees.by_path(params).items()]
  mean = jax.tree.unflatten(jax.tree.structure(params), means)
  averaged = [int(path.name) for path in chosen]
  kept = {name: value for name, value in meta.items() if name not in ("run_id", "interval_sums")}
  kept |= {"averaged": averaged}
  if across_runs:
    kept |= {"averaged_runs": runs, "averaged_fields": differing}
  vocabulary = chosen[-1].parent.parent / "vocabulary"
  described = _files_beside(chosen, beside)
  with errors.writing(f"--output={output}"), files.whole_directory(output) as aside:
    if vocabulary.is_dir():
      shutil.copytree(vocabulary, aside / "vocabulary")
    for name, content in described.items():
      (aside / name).write_bytes(content)
    saved_model.save_params(aside, mean, kept, step=averaged[-1])
  of_runs = f" of {runs} runs" if across_runs else ""
  logger.info(f"Wrote {output}: the mean of steps {', '.join(map(str, averaged))}{of_runs}")


def _chosen(directory: Path, last: int | None, steps: str, *, is_one: bool) -> list[Path]:
  """Returns the steps of a run to average, ascending; ConfigError: too few, or one was not saved."""
  saved = {entry.step: entry.path for entry in entries(directory) if entry.step is not None}
  least = 2 if is_one else 1
  if not steps:
    number = last if last is not None else 5 if is_one else 1
    if not least <= number <= len(saved):
      raise ConfigError(
        f"--last={number}: expected {least} to the number of steps in {directory}, {len(saved)}"
      )
    return [*saved.values()][-number:]
  asked = {int(text) if text.isdecimal() else -1 for text in names(steps)}
  if last is not None or len(asked) < least or not asked <= {*saved}:
    way_out = "\n  --steps=" + ",".join(map(str, saved)) if len(saved) >= least else ""
    raise ConfigError(
      f"--steps={steps}: expected at least {least} of the steps in {directory}, without --last{way_out}"
    )
  return [saved[step] for step in sorted(asked)]


def _files_beside(chosen: Sequence[Path], names: Sequence[str]) -> dict[str, bytes]:
  """Returns {name: content} of what describes fine-tuned models; DataError: they differ in it."""
  runs = [*dict.fromkeys(path.parent.parent for path in chosen)]
  names_of = {run: [name for name in names if (run / name).is_file()] for run in runs}
  of_runs = [{name: (run / name).read_bytes() for name in names_of[run]} for run in runs]
  if any(of_run != of_runs[0] for of_run in of_runs):
    raise DataError(
      f"{', '.join(map(str, runs))} differ in {' or '.join(names)}; expected models of one task"
    )
  return of_runs[0]


def _differing_fields(chosen: Sequence[Path]) -> list[str]:
  """Returns the fields of data, seeds and machines in which steps of several runs differ, and logs them.

  DataError: another field, or the vocabulary, differs.
  """
  metas = [checkpoint.read_meta(path) for path in chosen]
  configs = [resume.flatten(saved_model.config_of(meta["config"]).to_dict()) for meta in metas]
  differing: dict[str, str] = {}
  for path, meta, config in zip(chosen, metas, configs, strict=True):
    changed = changes(configs[0], config)
    refused = [
      line
      for name, line in changed.items()
      if name != "seed" and not name.startswith("data.") and name not in resume.SAFE_FIELDS
    ]
    if meta.get("vocabulary_digest") != metas[0].get("vocabulary_digest"):
      refused.append("another vocabulary")
    if refused:
      raise DataError(
        f"{path}: its config differs from that of {chosen[0]} ({trees.first_lines(refused)}); expected "
        "differences in data and seeds only"
      )
    differing |= changed
    for line in changed.values():
      logger.info(f"{path}: {line}")
  return sorted(differing)


def prune(
  directory: Path, *, keep: int, keep_steps: Sequence[int], set_aside: bool, dry_run: bool
) -> list[Path]:
  """Removes all but the newest `keep` checkpoints and those of `keep_steps`; returns the removed paths.

  With `dry_run` nothing is removed. DataError: a run is active there, or the newest undamaged step would go.
  """
  if keep < 1:
    raise ConfigError(f"--keep={keep}: expected at least 1; to remove a run, remove its directory")
  if not (directory / checkpoint.DIRECTORY).is_dir():
    raise ConfigError(f"{directory} has no {checkpoint.DIRECTORY}; expected the workdir of a run")
  with workdir_files.owned(directory):
    listed = entries(directory)
    steps = [entry for entry in listed if entry.step is not None]
    stays = [*steps[-keep:], *(entry for entry in steps[:-keep] if entry.step in keep_steps)]
    sound = next((entry for entry in reversed(steps) if not checkpoint.problem(entry.path)), None)
    if sound not in stays:
      what = f"the newest undamaged step, {sound.step}, would go" if sound else "no step is undamaged"
      raise DataError(f"{directory}: {what}; nothing was removed")
    goes = [entry for entry in steps if entry not in stays]
    goes += [entry for entry in listed if entry.step is None and set_aside]
    for entry in goes:
      print(f"{'would remove' if dry_run else 'removing'} {entry.path} ({entry.size / 1e6:,.1f} MB)")
      if not dry_run:
        with errors.writing(entry.path):
          # Without this mark a step does not count as a checkpoint, even if its removal is killed.
          (entry.path / checkpoint.COMMITTED).unlink(missing_ok=True)
          shutil.rmtree(entry.path)
  return [entry.path for entry in goes]


def show_examples(directory: Path, *, steps: str) -> None:
  """Prints what a run read at steps 'A:B': per step, the batch's record numbers, texts and sha256 of ids.

  A batch is a function of seed and step, so it is read again; batches that the run skipped are left out.
  ConfigError: the run read a feed, which can be read in order only. DataError: the records are not the run's.
  """
  asked = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", steps)
  if not asked or int(asked[1]) > int(asked[2]):
    raise ConfigError(
      f"--steps={steps}: expected A:B, two step numbers from 1 on, such as\n  --steps=100:110"
    )
  meta = checkpoint.read_meta(checkpoint.step_path(directory))
  config = saved_model.config_of(meta["config"])
  if mixture.is_fed(config.data):
    raise ConfigError(
      f"{directory}: trained on {config.data.source}, which can only be read from its beginning; expected a "
      "run on prepared records"
    )
  config.train.eval_batches = 0
  settings, skips = reading_settings(config), skipping.known_skips(meta)
  records, sizes = prepared.open(settings), settings.sizes
  resume.check_records(records.digests, meta)
  words = vocabulary.load(records.vocabulary)
  for step in range(int(asked[1]), int(asked[2]) + 1):
    at = skipping.first_row(step - 1, skips, sizes)
    numbers = records.train.examples(0, 0, rows=range(at, at + sizes.rows(step - 1)))
    ids = records.train.numbered(numbers)
    texts = [words.decode([int(one) for one in row if one != words.special_ids.pad]) for row in ids]
    digest = hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()
    print(
      json.dumps({"step": step, "records": numbers, "sha256": digest, "texts": texts}, ensure_ascii=False)
    )


def act(command: str, directory: Path, **given: Any) -> None:
  """Does what the parsed flags of a command say."""
  if command in ("average", "prune", "examples"):
    {"average": average, "prune": prune, "examples": show_examples}[command](directory, **given)
  else:
    {"list": show_list, "show": show, "verify": verify}[command](directory)
