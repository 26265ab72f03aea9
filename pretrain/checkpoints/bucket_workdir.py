"""A workdir in a bucket: the command works in a local copy, and finished files are uploaded.

The bucket's state counts. A start downloads the newest undamaged checkpoint and all other files, and removes
anything else from the copy. Changes are uploaded in an order that is consistent at every moment: logs,
weights and states, then the marks that complete them, then files that refer to them. So after a kill the
bucket has a complete run up to its newest checkpoint, or a search with its uploaded cells.
"""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from data import files
from data.buckets import owner, uploads
from data.buckets.mirror import CACHE, WORKDIRS, Mirror
from data.buckets.place import Address
from data.errors import ConfigError, UserError
from pretrain import pod
from pretrain.checkpoints import bucket_steps, checkpoint, integrity
from pretrain.checkpoints import workdir as workdir_files

logger = logging.getLogger(__name__)

_FLAG = "--workdir"
_NOT_NEEDED = re.compile(rf"tensorboard/|{re.escape(owner.NAME)}$")
_NOT_SENT = re.compile(rf"{workdir_files.LOCK}$|{files.UNFINISHED}|.*{checkpoint.TEMPORARY}")


class Order(NamedTuple):
  """Upload rules for file names in a workdir: which files cause no upload, and which are sent last."""

  quiet: re.Pattern[str]  # change all the time; uploaded only together with others
  last: re.Pattern[str]  # refer to others; uploaded after their marks


class Kept(NamedTuple):
  """Selects the checkpoints that stay in the bucket: the newest, and some steps; others are removed."""

  newest: int  # number of newest checkpoints
  steps: Collection[int]  # further steps


_RUN = Order(re.compile(rf"(?!{checkpoint.DIRECTORY}/\d+/)"), re.compile(workdir_files.HAS_SAVED))


@contextlib.contextmanager
def opened(workdir: str, kept: Kept | None, order: Order = _RUN) -> Iterator[str]:
  """Yields a local copy of a bucket's workdir; a `workdir` that is a local path is yielded unchanged.

  When the block ends, everything is uploaded. If an upload fails, the command is asked to stop, and the block
  raises the reason. Checkpoints that `kept` does not name are removed; None keeps all. DataError: another
  command is active there. ConfigError: the processes do not share one copy.
  """
  if not files.is_address(workdir):
    yield workdir
    return
  remote = Address(workdir, flag=_FLAG)
  with contextlib.ExitStack() as stack:
    sending = None

    def begin() -> str:
      nonlocal sending
      mirror = Mirror(remote, WORKDIRS)
      sending = stack.enter_context(uploads.owned(mirror, _Changes(mirror, order, kept)))
      bring_down(mirror)
      return mirror.id

    first = pod.first(begin)
    mirror = Mirror(remote, WORKDIRS)
    if any(pod.gather(mirror.id != first)):
      raise ConfigError(
        f"{remote}: every process has its own local copy, but they must share one; mount the bucket, or "
        f"first run, with a directory that all hosts share,\n  export {CACHE}=DIRECTORY"
      )
    with mirror.naming(), sending or contextlib.nullcontext():
      yield str(mirror.directory)
    pod.wait_for_all()  # process 0's upload may take long


def bring_down(mirror: Mirror) -> None:
  """Updates the local copy from the bucket, without checkpoints older than the newest undamaged one."""
  there = mirror.place.files()
  mirror.keep_only(there)
  wanted = [name for name in there if bucket_steps.step_of(name) is None and not _NOT_NEEDED.match(name)]
  mirror.pull(there, wanted)
  steps = bucket_steps.by_step(there)
  for step in sorted(steps, reverse=True):
    names, path = steps[step], mirror.directory / checkpoint.DIRECTORY / str(step)
    wanted += names
    mirror.pull(there, names)
    if integrity.problem(path) is not None:  # download again: the copy may be damaged, not the bucket
      mirror.forget(names)
      mirror.pull(there, names)
    if integrity.problem(path) is None:
      break
  mirror.keep_only(set(wanted))


class _Changes:
  """Uploads files that a command has written, and removes those that it has removed."""

  def __init__(self, mirror: Mirror, order: Order, kept: Kept | None) -> None:
    self._mirror, self._order, self._kept = mirror, order, kept

  def __call__(self, *, is_end: bool) -> None:
    """Uploads changed files; if only files of `Order.quiet` changed, it waits for `is_end`."""
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
        return  # a step was removed in the meantime; the next call uploads the rest
      mirror.push(marks)
      mirror.push(last)
    except UserError:
      # Old checkpoints may have been removed in the meantime; then the next call uploads the rest.
      if is_end or all((mirror.directory / name).exists() for name in here):
        raise
      return
    for step in sorted(sent):
      logger.info(f"Step {step:,} is in {mirror.place.address}")
    self._remove(gone)
    if self._kept is not None:
      self._remove(self._old(self._kept, set(steps)))

  def _remove(self, names: list[str]) -> None:
    for of_marks in (True, False):
      self._mirror.remove([name for name in names if name.endswith(checkpoint.COMMITTED) is of_marks])

  def _is_complete(self, step: int) -> bool:
    return integrity.is_complete(self._mirror.directory / checkpoint.DIRECTORY / str(step))

  def _old(self, kept: Kept, here: set[int]) -> list[str]:
    """Returns the bucket's files of checkpoints that neither `kept` nor `here` names."""
    steps = bucket_steps.by_step(self._mirror.place.files())
    keep = {*sorted(steps)[-kept.newest :], *kept.steps, *here}
    return [name for step, names in steps.items() if step not in keep for name in names]
