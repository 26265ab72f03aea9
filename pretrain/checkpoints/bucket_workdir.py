"""A workdir in a bucket: the command works in a local copy of it, and what it finishes goes up behind it.

The bucket is the truth. A start brings down the newest checkpoint whose digests hold and all other files, and
removes what else is in the copy. What changes goes up in an order that makes sense wherever it ends: logs,
weights and states, the marks that make them whole, then what tells of them. So whatever is killed, the bucket
holds a whole run up to its newest checkpoint, or a search with the cells that had gone up.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from data import files
from data.buckets import owner, uploads
from data.buckets.mirror import CACHE, WORKDIRS, Mirror
from data.buckets.place import Address
from data.errors import ConfigError, UserError
from pretrain.checkpoints import bucket_steps, checkpoint, integrity
from pretrain.checkpoints import workdir as workdir_files
from pretrain.pod.peers import PREPARING, here

logger = logging.getLogger(__name__)

_FLAG = "--workdir"
_NOT_NEEDED = re.compile(rf"tensorboard/|{re.escape(owner.NAME)}$")
_NOT_SENT = re.compile(rf"{workdir_files.LOCK}$|{files.UNFINISHED}|.*{checkpoint.TEMPORARY}")


class Order(NamedTuple):
  """Names of files in a workdir, by when they go up."""

  quiet: re.Pattern[str]  # change all the time, and go up only with what else does
  last: re.Pattern[str]  # tell of the others, and go up after their marks


_RUN = Order(re.compile(rf"(?!{checkpoint.DIRECTORY}/\d+/)"), re.compile(workdir_files.HAS_SAVED))


@contextlib.contextmanager
def opened(workdir: str, config: ConfigDict | None, order: Order = _RUN) -> Iterator[str]:
  """The directory to work in, which log lines name by its address; for a path that path.

  When the block ends, everything is in the bucket. Where something cannot be sent, the command is asked to
  stop, and the block raises the reason. `config` is a run's, whose checkpoints above the number to keep are
  removed. DataError: another command is at work there. ConfigError: processes that do not share one copy.
  """
  if not files.is_address(workdir):
    yield workdir
    return
  remote, peers = Address(workdir, flag=_FLAG), here()
  with contextlib.ExitStack() as stack:
    sending = None

    def begin() -> str:
      nonlocal sending
      mirror = Mirror(remote, WORKDIRS)
      sending = stack.enter_context(uploads.owned(mirror, _Changes(mirror, order, config)))
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
      yield str(mirror.directory)
    peers.gather("the last upload", None, seconds=PREPARING)  # of process 0, which may take long


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


class _Changes:
  """Sends what a command has written or removed."""

  def __init__(self, mirror: Mirror, order: Order, config: ConfigDict | None) -> None:
    self._mirror, self._order = mirror, order
    self._train: Any = config and config.train

  def __call__(self, *, is_end: bool) -> None:
    """Sends what has changed; unless it `is_end`, not for quiet files alone."""
    mirror, local = self._mirror, self._mirror.local()
    steps = bucket_steps.by_step(local)
    whole = {name for names in steps.values() for name in names}
    here = [name for name in local if bucket_steps.step_of(name) is None or name in whole]
    here = [name for name in here if not _NOT_SENT.match(name)]
    gone = [name for name in mirror.known if name not in local]
    new = [name for name in here if not self._order.quiet.match(name) and mirror.has_changed([name])]
    if not (new or gone or is_end):
      return
    sent = {step for step, names in steps.items() if mirror.has_changed(names)}
    if sent:  # a killed upload may have left files of these steps
      left = mirror.place.files().keys() - local.keys()
      mirror.remove([name for name in left if bucket_steps.step_of(name) in sent])
    last = [name for name in here if self._order.last.fullmatch(name)]
    marks = [name for name in here if name.endswith(checkpoint.COMMITTED)]
    try:
      mirror.push([name for name in here if name not in {*last, *marks}])
      if not all(self._is_complete(step) for step in sent):
        return  # removed meanwhile: the next look sends what there is
      mirror.push(marks)
      mirror.push(last)
    except UserError:
      # Checkpoints, weights and states of the past are removed: the next look sends what there is.
      if is_end or all((mirror.directory / name).exists() for name in here):
        raise
      return
    for step in sorted(sent):
      logger.info(f"Step {step:,} is in {mirror.place.address}")
    self._remove(gone)
    if self._train is not None:
      self._remove(self._old(set(steps)))

  def _remove(self, names: list[str]) -> None:
    for of_marks in (True, False):
      self._mirror.remove([name for name in names if name.endswith(checkpoint.COMMITTED) is of_marks])

  def _is_complete(self, step: int) -> bool:
    return integrity.is_complete(self._mirror.directory / checkpoint.DIRECTORY / str(step))

  def _old(self, here: set[int]) -> list[str]:
    """Returns the names of checkpoints in the bucket above the number to keep."""
    steps = bucket_steps.by_step(self._mirror.place.files())
    keep = {*sorted(steps)[-self._train.checkpoints_to_keep :], *self._train.checkpoint_steps, *here}
    return [name for step, names in steps.items() if step not in keep for name in names]
