"""Phases of a run: other text, longer sequences, another schedule. The weights go on, all else begins again.

`--new_phase` moves what the run has saved and logged so far into `<workdir>/phase_1` (then `phase_2`, ...),
and starts at step 0 with those weights: fresh optimizer, fresh position in the data. Nothing is removed, and
the same command continues the new phase once it has saved.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from data import errors
from data.errors import ConfigError, DataError
from pretrain.checkpoints import checkpoint, resume, warm_start
from pretrain.checkpoints import workdir as workdir_files
from pretrain.logs import metrics, trackers
from pretrain.reading import ledger
from pretrain.run import Run

FLAG = "--new_phase"  # also the name of what the phase started from, in its checkpoints
_MOVED = (
  *(checkpoint.DIRECTORY, metrics.FILE_NAME, ledger.FILE_NAME, trackers.FILE_NAME),
  *("tensorboard", workdir_files.CONFIG, workdir_files.HAS_SAVED),
)


def end_moves(workdir: str | os.PathLike) -> None:
  """Ends a move that a kill has cut short; call it before anything is looked for in the workdir."""
  if jax.process_index() == 0:
    for aside in Path(workdir).glob(".phase_*.part"):
      _end_move(Path(workdir), aside)


def _last(workdir: Path) -> int:
  """The number of the last phase that is over; 0: none is."""
  numbers = [workdir_files.PHASE.fullmatch(path.name) for path in workdir.glob("phase_*")]
  return max((int(found[1]) for found in numbers if found), default=0)


def weights(
  run: Run, digests: dict[str, str], workdir: str, newest: int | None, log: Callable[[str], None]
) -> tuple[dict, dict[str, Any]] | None:
  """What a new phase starts with: parameters as `warm_start.load_into` gives them, and where they are from.

  None: the checkpoint of step `newest` is of the phase that was asked for, which goes on. What was saved and
  logged before is moved away, once all that is needed has been read. ConfigError: there is no run to go on
  from, or several processes; DataError: its weights do not fit.
  """
  before = _last(Path(workdir))
  if newest is not None:
    with contextlib.suppress(ConfigError, DataError):
      resume.check_same_run(run.config, digests, checkpoint.read_meta(checkpoint.step_path(workdir, newest)))
      return None
  source = Path(workdir) if newest is not None else Path(workdir) / f"phase_{before}"
  if newest is None and not before:
    raise ConfigError(f"{FLAG}: {workdir} holds no run; leave it out, or name the workdir of one")
  if jax.process_count() > 1:
    raise ConfigError(
      f"{FLAG}: not with several processes; give a new --workdir and --config.train.init_from={workdir}"
    )
  config = ConfigDict(run.config.to_dict())
  config.train.init_from = str(source)
  loaded = warm_start.load_into(
    run.abstract_state.params, config, vocabulary_digest=digests["vocabulary_digest"], log=log
  )
  started_from = warm_start.started_from(config)
  started_from[FLAG] = started_from.pop("train.init_from")
  if newest is not None:
    aside = Path(workdir) / f".phase_{before + 1}.part"
    with errors.writing(aside):
      aside.mkdir()
    _end_move(Path(workdir), aside)
    log(f"A new phase begins with the weights of step {newest:,}; what was before is in phase_{before + 1}")
  return loaded, started_from


def refuse_without_flag(workdir: str) -> None:
  """Raises DataError where phases are over and the next one was not asked for, or has not saved yet."""
  if before := _last(Path(workdir)):
    raise DataError(
      f"{workdir}: phase_{before} is over and no later one has saved; give {FLAG} to begin one with its "
      f"weights, or move what is in phase_{before} back to continue it"
    )


def _end_move(workdir: Path, aside: Path) -> None:
  """Moves what is not moved yet; the new phase writes nothing before all is."""
  with errors.writing(aside):
    for name in _MOVED:
      if (workdir / name).exists():
        (workdir / name).rename(aside / name)
    aside.rename(workdir / aside.name.removeprefix(".").removesuffix(".part"))
