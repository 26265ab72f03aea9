"""A workdir in a bucket: the run works in a local copy of it, and what it saves goes up behind it.

The bucket is the truth. A start brings down the newest checkpoint whose digests hold, config, vocabulary and
logs, and removes what else is in the copy. Each checkpoint goes up once it is committed: logs first, then its
files, then the marks that make it whole. So whatever is killed, the bucket holds a whole run up to its newest
checkpoint, and what came after is computed again, bit by bit.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

from ml_collections import ConfigDict

from data import files
from data.buckets import owner, uploads
from data.buckets.mirror import CACHE, WORKDIRS, Mirror
from data.buckets.place import Address
from data.errors import ConfigError, UserError
from pretrain.checkpoints import bucket_steps, checkpoint, integrity
from pretrain.checkpoints import workdir as workdir_files
from pretrain.pod.peers import PREPARING, Alone

Log = Callable[[str], None]

_FLAG = "--workdir"
_OF_PHASES = rf"{workdir_files.PHASE.pattern}/{checkpoint.DIRECTORY}/"
_NOT_NEEDED = re.compile(rf"tensorboard/|{_OF_PHASES}|{re.escape(owner.NAME)}$")
NOT_SENT = re.compile(rf"{workdir_files.LOCK}$|{files.UNFINISHED}|.*{checkpoint.TEMPORARY}")


@contextlib.contextmanager
def opened(workdir: str, config: ConfigDict, peers: Alone, log: Log) -> Iterator[tuple[str, Log]]:
  """The directory to work in and a log that names it by its address; for a path that path.

  When the block ends, everything is in the bucket. Where something cannot be sent, the run is asked to stop,
  and the block raises the reason. DataError: another run is at work there. ConfigError: processes that do
  not share one copy.
  """
  if not files.is_address(workdir):
    yield workdir, log
    return
  remote = Address(workdir, flag=_FLAG)
  with contextlib.ExitStack() as stack:
    sending = None

    def begin() -> str:
      nonlocal sending
      mirror = Mirror(remote, WORKDIRS)
      sending = stack.enter_context(uploads.owned(mirror, _Steps(mirror, config, log), log=log))
      bring_down(mirror)
      return mirror.id

    first = peers.first("the workdir's bucket", begin, seconds=PREPARING)
    mirror = Mirror(remote, WORKDIRS)
    if any(peers.gather("one copy", mirror.id != first, seconds=PREPARING)):
      raise ConfigError(
        f"{remote}: the processes keep copies of their own, and only one that all share can be written; set "
        f"{CACHE} to a directory that all hosts see, or mount the bucket"
      )
    with mirror.naming(), sending or contextlib.nullcontext():
      yield str(mirror.directory), lambda line: log(mirror.named(line))
    peers.gather("the last upload", None, seconds=PREPARING)  # of process 0, which may take long


def refuse_phases(workdir: str) -> None:
  """Raises ConfigError where a new phase is to begin in a bucket, which cannot rename what was before."""
  if files.is_address(workdir):
    raise ConfigError(
      f"--new_phase: {workdir} is in a bucket, which renames nothing; give a new {_FLAG} and "
      f"--config.train.init_from={workdir}"
    )


def bring_down(mirror: Mirror) -> None:
  """Makes the copy what is in the bucket, but for checkpoints older than the newest that is not damaged."""
  there = mirror.place.files()
  mirror.keep_only(there)
  wanted = [name for name in there if bucket_steps.step_of(name) is None and not _NOT_NEEDED.match(name)]
  mirror.pull(there, wanted)
  steps = bucket_steps.by_step(there)
  for step in sorted(steps, reverse=True):
    names, path = steps[step], mirror.directory / checkpoint.DIRECTORY / str(step)
    wanted += names
    mirror.pull(there, names)
    if integrity.problem(path) is not None:  # what was damaged on the way, or here, must not count as damaged
      mirror.forget(names)
      mirror.pull(there, names)
    if integrity.problem(path) is None:
      break
  mirror.keep_only(set(wanted))


class _Steps:
  """Sends the checkpoints that a run commits, and all else behind them."""

  def __init__(self, mirror: Mirror, config: ConfigDict, log: Log) -> None:
    self._mirror, self._log = mirror, log
    self._keep, self._keep_steps = config.train.checkpoints_to_keep, set(config.train.checkpoint_steps)

  def __call__(self, *, is_end: bool) -> None:
    """Sends checkpoints that are not in the bucket yet; at the `is_end` of a run all else too."""
    here = self._mirror.local()
    steps = bucket_steps.by_step(here)
    new = [step for step, names in steps.items() if self._mirror.has_changed(names)]
    if not new and not is_end:
      return
    others = [name for name in here if bucket_steps.step_of(name) is None]
    others = [name for name in others if not NOT_SENT.match(name)]
    self._mirror.push([name for name in others if name != workdir_files.HAS_SAVED])
    # The newest matters most, but one to keep for good must not be missing below it.
    for step in sorted(new, key=lambda step: (step not in self._keep_steps, -step)):
      self._send_step(step, steps[step])
    if bucket_steps.by_step(self._mirror.known):  # a whole one is there
      self._mirror.push([name for name in others if name == workdir_files.HAS_SAVED])
    self._remove_old(set(steps))

  def _send_step(self, step: int, names: list[str]) -> None:
    """Sends a checkpoint; a run may remove it meanwhile, and what was sent of it is then not whole."""
    path = self._mirror.directory / checkpoint.DIRECTORY / str(step)
    there = [name for name in self._mirror.place.files() if bucket_steps.step_of(name) == step]
    self._mirror.remove({*there} - {*names})  # what is left of an upload that was killed

    def is_last(name: str) -> bool:
      return name.endswith(checkpoint.COMMITTED)

    try:
      self._mirror.push([name for name in names if not is_last(name)])
      if not integrity.is_complete(path):
        return
      self._mirror.push(names)
    except UserError:
      if integrity.is_complete(path):
        raise
      return
    self._log(f"Step {step:,} is in {self._mirror.place.address}")

  def _remove_old(self, here: set[int]) -> None:
    """Removes what the run has removed, and checkpoints above the number to keep, their marks first."""
    gone = [name for name in self._mirror.known if not (self._mirror.directory / name).exists()]
    there = self._mirror.place.files()
    steps = bucket_steps.by_step(there.keys() - {*gone})
    if here - steps.keys():
      return  # not before the newer ones are there
    kept = {*sorted(steps)[-self._keep :], *self._keep_steps, *here}
    gone += [name for step, names in steps.items() if step not in kept for name in names]
    self._mirror.remove([name for name in gone if name.endswith(checkpoint.COMMITTED)])
    self._mirror.remove([name for name in gone if not name.endswith(checkpoint.COMMITTED)])
