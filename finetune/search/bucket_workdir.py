"""A search whose workdir is in a bucket: it works in a local copy, and what is finished goes up behind it.

The bucket is the truth, as for a pretraining run. What changes goes up in an order that makes sense wherever
it ends: weights and saved states, the marks that make them whole, then results and tables. So a search that
is killed goes on from the bucket, on any machine, with all that had gone up.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

from data.buckets import owner, uploads
from data.buckets.mirror import WORKDIRS, Mirror
from data.buckets.place import Address
from data.errors import UserError
from finetune.search.search import LOGS
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.bucket_workdir import NOT_SENT

Log = Callable[[str], None]

_OF_LOGS = re.compile(rf"[^/]+/{LOGS}/")  # change with every evaluation, and go up with what else does
_LAST = re.compile(r"([^/]+/)?[^/]+\.\w+")  # a cell's result, tables, pictures


@contextlib.contextmanager
def opened(workdir: str, log: Log) -> Iterator[tuple[str, Log]]:
  """The directory to work in and a log that names it by its address.

  When the block ends, everything is in the bucket. Where something cannot be sent, the search is asked to
  stop, and the block raises the reason. DataError: another run is at work there.
  """
  mirror = Mirror(Address(workdir, flag="--workdir"), WORKDIRS)
  with uploads.owned(mirror, _Changes(mirror), log=log) as sending:
    there = mirror.place.files()
    there.pop(owner.NAME, None)
    mirror.keep_only(there)
    mirror.pull(there, there)
    with mirror.naming(), sending:
      yield str(mirror.directory), lambda line: log(mirror.named(line))


class _Changes:
  """Sends what a search has written or removed."""

  def __init__(self, mirror: Mirror) -> None:
    self._mirror = mirror

  def __call__(self, *, is_end: bool) -> None:
    """Sends what has changed; unless it `is_end`, not for logs alone."""
    local = self._mirror.local()
    here = [name for name in local if not NOT_SENT.match(name)]
    gone = [name for name in self._mirror.known if name not in local]
    new = [name for name in here if not _OF_LOGS.match(name) and self._mirror.has_changed([name])]
    if not (new or gone or is_end):
      return
    last = [name for name in here if _LAST.fullmatch(name)]
    marks = [name for name in here if name.endswith(checkpoint.COMMITTED)]
    try:
      self._mirror.push([name for name in here if name not in {*last, *marks}])
      self._mirror.push(marks)
      self._mirror.push(last)
    except UserError:
      # The search removes weights that are beaten and states of the past: the next look sends what there is.
      if is_end or all((self._mirror.directory / name).exists() for name in here):
        raise
      return
    for of_marks in (True, False):
      self._mirror.remove([name for name in gone if name.endswith(checkpoint.COMMITTED) is of_marks])
