"""Finds the records and the initial state of a run, the same on all processes."""

import contextlib
import functools
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from data import command
from data.errors import DataError
from data.feed.client import FedRecords
from pretrain.checkpoints import checkpoint, resume, warm_start
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.warm_start import Origins
from pretrain.export.tokenizer import convert
from pretrain.pod.peers import COMPARING, LOOKING, PREPARING, here
from pretrain.reading import feed, prepared
from pretrain.reading.opened import Prepared
from pretrain.reading.skips import Skip
from pretrain.run import Run
from pretrain.settings import mixture
from pretrain.settings.run import TrainFields, reading_settings
from pretrain.start import preflight
from pretrain.step import TrainState

logger = logging.getLogger(__name__)


class Start(NamedTuple):
  """The initial state of a run, known before anything is compiled or written."""

  step: int  # updates done; 0: a new run
  loaded: dict | None  # parameters of a new run, arrays of other checkpoints among shapes; None: it continues
  facts: dict[str, Any]  # what its checkpoints say of it besides the config, as JSON values
  skips: tuple[Skip, ...] = ()  # batches to leave out that the checkpoint does not know of

  def state(self, run: Run, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """The state to train on, and what the checkpoint says that it is from; {}: a new run.

    A new run has a fresh state, but for the arrays that were loaded.
    """
    if self.loaded is None:
      restored, saved = checkpoints.restore(run.abstract_state._asdict(), self.step)
      logger.info(f"Continuing at step {self.step:,} from {checkpoints.directory}")
      return TrainState(**restored), saved
    state = run.init_state()
    pick = lambda fresh, loaded: loaded if isinstance(loaded, jax.Array) else fresh  # noqa: E731
    return state._replace(params=jax.tree.map(pick, state.params, self.loaded)), {}

  def rolled_back(self, skip: Skip) -> "Start":
    """The start from the checkpoint before a spike."""
    known = tuple(known for known in self.skips if known.at == skip.at)  # a later checkpoint knows the others
    return self._replace(step=skip.at, loaded=None, skips=(*known, skip))


def open_records(
  config: ConfigDict, origins: Origins, workdir: str, download: bool
) -> tuple[ConfigDict, Prepared]:
  """Checks that the run can start, and opens its records, which process 0 prepares if they are missing.

  The config that is returned with them has the directories and rates of a seqio Mixture in place of its name.
  """
  peers = here()

  def look() -> None:
    is_new = checkpoint.newest_step(workdir) is None
    preflight.check(origins, TrainFields(**config.train), workdir, is_new=is_new)

  peers.together("paths", look, seconds=LOOKING)
  if mixture.seqio_name(config.data):
    prepare = functools.partial(prepared.ensure_tasks, reading_settings(config), download=download)
    config = ConfigDict(config.to_dict())
    config.data.mixture = peers.first("the mixture's Tasks", prepare, seconds=PREPARING)
  settings = reading_settings(config)
  prepare = functools.partial(prepared.ensure_records, settings, download=download)
  peers.first("prepared text", prepare, seconds=PREPARING)
  fetched = ("directory", "mixture", "stages")
  is_far = any("://" in config.data[name] for name in fetched)
  late = PREPARING if is_far else LOOKING  # every host may fetch them
  records = peers.together("records", functools.partial(prepared.open, settings), seconds=late)
  with contextlib.ExitStack() as opened:
    opened.callback(records.close)
    where = records.directory or config.data.source
    advice = f"prepare {where} once, and copy it to every host or put it on a file system that all share"
    peers.compare("the prepared records", records.digests, advice, seconds=COMPARING, kind=DataError)
    opened.pop_all()
  return config, records


@contextlib.contextmanager
def checkpoints(run: Run, workdir: str, records: Prepared) -> Iterator[Checkpoints]:
  """Writes the files that a workdir begins with, then opens its checkpoints, and closes them at the end."""
  config, described = run.config, records.train.vocabulary
  begin = functools.partial(workdir_files.begin, workdir, config.to_dict(), records.vocabulary, described)
  here().first("the workdir's files", begin, seconds=LOOKING)
  opened = Checkpoints(
    workdir,
    every=config.train.checkpoint_every,
    keep=config.train.checkpoints_to_keep,
    keep_steps=config.train.checkpoint_steps,
  )
  with contextlib.closing(opened):
    yield opened


def start(run: Run, records: Prepared, origins: Origins, workdir: str) -> Start:
  """Finds what the run in a workdir, which this run owns, begins with: the same on all processes."""
  peers = here()
  peers.gather("the workdir", None, seconds=LOOKING)  # process 0 has made it
  shared = functools.partial(workdir_files.refuse_unshared, workdir)
  peers.together("one workdir", shared, seconds=LOOKING)

  find = functools.partial(resume.newest_good_step, workdir)
  newest = peers.first("the newest checkpoint", find, seconds=LOOKING)

  def begin() -> Start:
    begun = _start_at(newest, run, records, origins, workdir)
    if isinstance(records.train, FedRecords) and begun.step < run.config.train.total_steps:
      saved = checkpoint.read_meta(checkpoint.step_path(workdir, begun.step)) if begun.step else {}
      feed.begin(reading_settings(run.config), records.train, saved)
    return begun

  return peers.together("the beginning", begin, seconds=LOOKING)


def _start_at(newest: int | None, run: Run, records: Prepared, origins: Origins, workdir: str) -> Start:
  """Holds the newest good checkpoint against this run or, for a new run, loads what it takes from others."""
  facts = records.digests | {"records": records.description, "commit": command.commit()}
  if newest is None:
    workdir_files.refuse_lost_checkpoints(workdir)
    digest = records.digests["vocabulary_digest"]
    if jax.process_index() == 0 and (line := convert.warning(Path(records.vocabulary))):
      logger.warning(line)
    params = run.abstract_state.params
    loaded = warm_start.load_into(
      params, origins, vocabulary_digest=digest, vocabulary_directory=records.vocabulary
    )
    facts |= {"started_from": origins.facts(), "run_id": secrets.token_hex(8)}
    return Start(0, loaded, facts)
  saved = checkpoint.read_meta(checkpoint.step_path(workdir, newest))
  for line in resume.check_same_run(run.config.to_dict(), records.digests, saved):
    logger.warning(f"Config changed since step {newest:,}: {line}")
  for line in resume.changed_packages(saved):
    logger.warning(f"Packages changed since step {newest:,}: {line}; numbers may differ in their last bits")
  # The checkpoints that the config names may be gone by now.
  kept = {name: saved[name] for name in ("started_from", "run_id") if name in saved}
  return Start(newest, None, facts | kept)
