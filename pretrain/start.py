"""Starts a run: opens its records, makes or loads its state, and checks that all processes do the same."""

import contextlib
import importlib
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from data import command
from data.errors import ConfigError, DataError
from data.feed import FedRecords
from data.files import make_writable
from data.prepare.output_directory import missing_directories
from pretrain import pod
from pretrain.checkpoints import checkpoint, resume, warm_start
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.warm_start import Origins
from pretrain.checkpoints.workdir import Workdir
from pretrain.logs import trackers
from pretrain.reading import prepare, prepared
from pretrain.reading.batches import Skip
from pretrain.reading.prepared import Prepared
from pretrain.run import Run
from pretrain.settings import mixture
from pretrain.settings.objectives import switched_on
from pretrain.settings.run import reading_settings
from pretrain.step import TrainState

logger = logging.getLogger(__name__)

PROBING = "lab.analysis.probing"  # imported by name: the product must not depend on the lab


class Start(NamedTuple):
  """The start of a run: its step, loaded parameters and facts, known before anything is compiled."""

  step: int  # updates done; 0: a new run
  loaded: dict | None  # parameters of a new run: loaded arrays, and shapes of fresh ones; None: it resumes
  facts: dict[str, Any]  # JSON values that its checkpoints store besides the config
  skips: tuple[Skip, ...] = ()  # batches to skip that the checkpoint does not list

  def state(self, run: Run, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """Returns the state to train on, and the metadata of its checkpoint; {} for a new run.

    The state of a new run is initialised, except for loaded parameters.
    """
    if self.loaded is None:
      restored, saved = checkpoints.restore(run.abstract_state._asdict(), self.step)
      logger.info(f"Continuing at step {self.step:,} from {checkpoints.directory}")
      return TrainState(**restored), saved
    state = run.init_state()
    pick = lambda fresh, loaded: loaded if isinstance(loaded, jax.Array) else fresh  # noqa: E731
    return state._replace(params=jax.tree.map(pick, state.params, self.loaded)), {}

  def rolled_back(self, skip: Skip) -> "Start":
    """Returns the start that resumes at the checkpoint before a loss spike and skips the spike's batches."""
    known = tuple(known for known in self.skips if known.at == skip.at)  # later checkpoints list the others
    return self._replace(step=skip.at, loaded=None, skips=(*known, skip))


def open_records(
  config: ConfigDict, origins: Origins, place: Workdir, download: bool
) -> tuple[ConfigDict, Prepared]:
  """Checks that the run can start, and opens its records; process 0 prepares missing records first.

  In the returned config, directories and rates replace the name of a seqio Mixture.
  """
  with pod.together():
    is_new = checkpoint.newest_step(place.name) is None
    _check(origins, config.train, place.folder, is_new=is_new)
    begins: dict[str, Any] = origins.digests() if is_new else {}
  advice = "use the same files on every host; checkpoints to begin with must be of runs that have ended"
  pod.compare("what the run begins with", {"is new": is_new} | begins, advice, kind=DataError)
  if mixture.seqio_name(config.data):
    config = ConfigDict(config.to_dict())
    settings = reading_settings(config)
    config.data.mixture = pod.first(lambda: prepare.ensure_tasks(settings, download=download))
  settings = reading_settings(config)
  pod.first(lambda: prepared.ensure_records(settings, download=download))
  with contextlib.ExitStack() as opened:
    with pod.together():
      records = prepared.open(settings)
      opened.callback(records.close)
    where = records.directory or config.data.source
    advice = f"prepare {where} once, and copy it to every host or put it on a file system that all share"
    pod.compare("the prepared records", records.digests, advice, kind=DataError)
    if jax.process_index() == 0:
      for objective in switched_on(config.objectives.to_dict()).values():
        for line in objective.remarks(records.description):
          logger.warning(line)
    opened.pop_all()
  return config, records


def _check(origins: Origins, train: ConfigDict, workdir: str, *, is_new: bool) -> None:
  """Checks what needs no text, whose preparation may take hours, and leaves no file in the workdir.

  That is a new run's initial checkpoints, the trackers, the probe data, and that the workdir is writable.
  ConfigError: a tracker is not installed, or several processes would probe. DataError: a checkpoint of a new
  run, or the probe data, is missing. StorageError: the workdir cannot be made or written.
  """
  if is_new:
    _ = origins.paths
  trackers.check(train.trackers)
  if train.probe_every:
    if jax.process_count() > 1:
      raise ConfigError(
        f"train.probe_every={train.probe_every}: only for runs of one process; probe the checkpoints\n"
        "  --config.train.probe_every=0\n  python -m pretrain.probe --checkpoint=WORKDIR --data=FOLDER"
      )
    importlib.import_module(PROBING).during_training(train.probe_data)
  if jax.process_index() == 0:  # one process only: it removes the folders that it made
    missing = missing_directories(Path(workdir).absolute())
    try:
      make_writable(Path(workdir).absolute(), flag="--workdir")
    finally:
      for directory in missing:
        with contextlib.suppress(OSError):
          directory.rmdir()


@contextlib.contextmanager
def checkpoints(run: Run, place: Workdir, records: Prepared) -> Iterator[Checkpoints]:
  """Writes the first files of a workdir and opens its checkpoints, which are closed after the block."""
  config, described = run.config, records.train.vocabulary
  pod.first(lambda: workdir_files.begin(place.folder, config.to_dict(), records.vocabulary, described))
  opened = Checkpoints(
    place.name,
    every=config.train.checkpoint_every,
    keep=config.train.checkpoints_to_keep,
    keep_steps=config.train.checkpoint_steps,
  )
  with contextlib.closing(opened):
    yield opened


def begin(run: Run, records: Prepared, origins: Origins, place: Workdir) -> Start:
  """Returns the start of a run from its workdir, which it must own; the same on all processes."""
  newest = pod.first(lambda: resume.newest_good_step(place.name))  # process 0 has locked its workdir
  advice = "use a directory on a file system that all hosts share"
  if not place.is_far:
    lock = workdir_files.owner(place.folder)
    pod.compare(f"--workdir={place.name}", {"lock": lock}, advice, kind=DataError)
  with pod.together():
    begun = _start_at(newest, run, records, origins, place)
    if isinstance(records.train, FedRecords) and begun.step < run.config.train.total_steps:
      saved = checkpoint.read_meta(checkpoint.step_path(place.name, begun.step)) if begun.step else {}
      prepared.begin_feed(records.train, saved)
  return begun


def _start_at(newest: int | None, run: Run, records: Prepared, origins: Origins, place: Workdir) -> Start:
  """Checks the newest good checkpoint against this run, or loads other checkpoints into a new run."""
  facts = records.digests | {"records": records.description, "commit": command.commit()}
  if newest is None:
    workdir_files.refuse_lost_checkpoints(place.folder)
    digest = records.digests["vocabulary_digest"]
    params = run.abstract_state.params
    loaded = warm_start.load_into(
      params, origins, vocabulary_digest=digest, vocabulary_directory=records.vocabulary
    )
    facts |= {"started_from": origins.facts(), "run_id": secrets.token_hex(8)}
    return Start(0, loaded, facts)
  saved = checkpoint.read_meta(checkpoint.step_path(place.name, newest))
  for line in resume.check_same_run(run.config.to_dict(), records.digests, saved):
    logger.warning(f"Config changed since step {newest:,}: {line}")
  for line in resume.changed_packages(saved):
    logger.warning(f"Packages changed since step {newest:,}: {line}; numbers may differ in their last bits")
  # The checkpoints that the config names may have been removed since.
  kept = {name: saved[name] for name in ("started_from", "run_id") if name in saved}
  return Start(newest, None, facts | kept)
