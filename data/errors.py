"""Errors a user can cause. Each has one line for the user and the exit code of the process.

The lowest layer: `data`, `pretrain` and `finetune` raise these; the entry points print the line and
leave with the code. Anything else that escapes is a bug of ours and keeps its traceback.
"""

import contextlib
import difflib
import errno
import os
import re
import zlib
from collections.abc import Iterable, Iterator

_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The words of array_record, safetensors and tokenizers; of torch; of numpy.
_FULL = re.compile(
  f"{'|'.join(map(os.strerror, _FULL_CODES))}|unexpected pos \\d+ vs \\d+|\\d+ requested and \\d+ written"
)


class UserError(Exception):
  """Something the user can mend. The message says what, what was found, what was expected, what to do."""

  exit_code = 1


class ConfigError(UserError):
  """A config field or a flag is wrong."""

  exit_code = 2


class DataError(UserError):
  """Data, a vocabulary or a checkpoint is missing or wrong."""

  exit_code = 3


class DivergedError(UserError):
  """Training diverged: loss or gradients were not finite for too long."""

  exit_code = 4


class StorageError(UserError):
  """A file or checkpoint could not be written."""

  exit_code = 5


class PeerError(UserError):
  """Another process of the run is missing, has gone, or did not do its part."""

  exit_code = 6


def of_code(code: int, line: str, *, otherwise: type[UserError] = PeerError) -> UserError:
  """The error of an exit code with another process's line; `otherwise` where no error has that code."""
  kinds = {kind.exit_code: kind for kind in (ConfigError, DataError, DivergedError, StorageError)}
  return kinds.get(code, otherwise)(line)


def reason(error: BaseException) -> str:
  """Why something failed: the system's words, else the first line of the message, else the type."""
  words = getattr(error, "strerror", None) or str(error)
  return (str(words).strip().splitlines() or [type(error).__name__])[0].strip()


def named_reason(error: BaseException, *, most: int | None = None, words: str | None = None) -> str:
  """The type and why it failed, 'KeyError: name', where a type says more.

  That is `most` letters of its reason, or `words`, the part of its message that says why.
  """
  return f"{type(error).__name__}: {reason(error)[:most] if words is None else words}"


def on_one_line(error: BaseException) -> str:
  """The whole message without its line breaks."""
  return " ".join(str(error).split())


def did_you_mean(name: str, known: Iterable[str], *, most: int = 2, also: Iterable[str] = ()) -> str:
  """'; did you mean 'a' or 'b'?' with the known names that `name` may stand for, '' without any.

  Case, hyphens and underscores do not count: 'SST-2' is like 'sst2'. At most `most` names like it are shown,
  and those of `also` whatever they are like, as far as three names in all allow.
  """
  by_letters = {plain_name(known_name): known_name for known_name in known}
  close = [by_letters[match] for match in difflib.get_close_matches(plain_name(name), by_letters, n=most)]
  shown = list(dict.fromkeys([*close, *also]))[:3]
  return f"; did you mean {' or '.join(map(repr, shown))}?" if shown else ""


def nearest(name: str, among: Iterable[str]) -> str:
  """The one that a long, dotted name is misspelt of by a letter or two; '' if none is so like it."""
  return next(iter(difflib.get_close_matches(name, list(among), n=1, cutoff=0.8)), "")


def plain_name(name: str) -> str:
  """A name without what does not count in it: 'sst2' of 'SST-2'."""
  return name.lower().replace("-", "").replace("_", "")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
  """The line that refuses a name: "unknown task 'colla'; did you mean 'cola'? Known: cola, rte"."""
  names = list(known)
  hint = did_you_mean(name, names, most=1)
  return f"unknown {kind} {name!r}{hint + ' Known' if hint else '; known'}: {listed(names, most=100)}"


def listed(names: Iterable[str], *, most: int = 10) -> str:
  """Names for a message, 'a, b and 9,998 more': no more than `most`, none longer than 80 letters."""
  known = list(names)
  shown = ", ".join(name if len(name) <= 80 else f"{name[:77]}..." for name in known[:most])
  return shown + (f" and {len(known) - most:,} more" if len(known) > most else "")


@contextlib.contextmanager
def reading(path: str | os.PathLike, *, advice: str) -> Iterator[None]:
  """Turns an error of reading or unpacking a file into a DataError of one line that ends in `advice`."""
  try:
    yield
  except (OSError, EOFError, zlib.error) as error:
    raise DataError(f"{path}: cannot be read ({reason(error)}); {advice}") from error


def is_full_disk(error: BaseException) -> bool:
  """Whether the error is that of a full disk, also where a library raises it as another than OSError."""
  if getattr(error, "errno", None) in _FULL_CODES:
    return True
  return not isinstance(error, UserError) and bool(_FULL.search(str(error)))


@contextlib.contextmanager
def writing(place: str | os.PathLike) -> Iterator[None]:
  """Turns an OSError of the block, and what libraries raise on a full disk, into a StorageError of one line.

  `place` is what is written, as the user knows it ('--output=DIR' or a path).
  """
  try:
    yield
  except Exception as error:
    if isinstance(error, OSError) or is_full_disk(error):
      raise StorageError(
        f"{place}: cannot be written ({reason(error)}); check space and permissions"
      ) from error
    raise


@contextlib.contextmanager
def translated(kind: type[UserError], start: str, advice: str) -> Iterator[None]:
  """Turns any error of the block, whose libraries raise what they like, into 'START (REASON); ADVICE'."""
  try:
    yield
  except Exception as error:
    line = named_reason(error)
    if len(line) > 200:
      line = f"{line[:90]} ... {line[-100:]}"  # what was tried comes first, why it failed last
    raise kind(f"{start} ({line}); {advice}") from error
