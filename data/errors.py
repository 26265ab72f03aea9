"""Errors that a user can cause: each has a message for the user and an exit code.

`data`, `pretrain` and `finetune` raise these errors; a command prints the message and exits with the code.
Any other exception is a bug of this project and keeps its traceback.
"""

import contextlib
import difflib
import errno
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Messages of a full disk: the system's (array_record, safetensors, tokenizers), torch's, numpy's.
_FULL = re.compile(
  f"{'|'.join(map(os.strerror, _FULL_CODES))}|unexpected pos \\d+ vs \\d+|\\d+ requested and \\d+ written"
)


class UserError(Exception):
  """A mistake that the user can correct.

  The message says what is wrong, what was found and what was expected. Commands and flags that help are its
  last lines, each indented by two spaces.
  """

  exit_code = 1


class ConfigError(UserError):
  """A config field or a flag is wrong."""

  exit_code = 2


class DataError(UserError):
  """Data, a vocabulary or a checkpoint is missing or wrong."""

  exit_code = 3


class ResumableError(DataError):
  """Work ended early by no fault of the input, such as a killed worker; the same command goes on with it."""


class DivergedError(UserError):
  """Training diverged: loss or gradients were not finite for too long."""

  exit_code = 4


class StorageError(UserError):
  """A file or checkpoint could not be written."""

  exit_code = 5


class PeerError(UserError):
  """Another process of the run is missing, has ended, or has failed."""

  exit_code = 6


def of_code(code: int, line: str, *, otherwise: type[UserError] = PeerError) -> UserError:
  """Returns a UserError with message `line`, of the class with exit code `code`, or else of `otherwise`."""
  kinds = {kind.exit_code: kind for kind in (ConfigError, DataError, DivergedError, StorageError)}
  return kinds.get(code, otherwise)(line)


def reason(error: BaseException) -> str:
  """Returns why something failed: the system's error text, the first line of the message, or the type."""
  words = getattr(error, "strerror", None) or str(error)
  return (str(words).strip().splitlines() or [type(error).__name__])[0].strip()


def named_reason(error: BaseException, *, most: int | None = None, words: str | None = None) -> str:
  """Returns the type and the reason of an error, such as 'KeyError: name'.

  The reason is cut to `most` characters; `words` replaces it.
  """
  return f"{type(error).__name__}: {reason(error)[:most] if words is None else words}"


def on_one_line(error: BaseException) -> str:
  """Returns an error's whole message with its lines joined to one."""
  return " ".join(str(error).split())


def did_you_mean(name: str, known: Iterable[str], *, most: int = 2, also: Iterable[str] = ()) -> str:
  """Returns "; did you mean 'a' or 'b'?" with the known names closest to `name`; '' if none is close.

  Case, hyphens and underscores are ignored: 'SST-2' matches 'sst2'. At most `most` close names are shown,
  then the names of `also`, three names in all.
  """
  by_letters = {plain_name(known_name): known_name for known_name in known}
  close = [by_letters[match] for match in difflib.get_close_matches(plain_name(name), by_letters, n=most)]
  shown = list(dict.fromkeys([*close, *also]))[:3]
  return f"; did you mean {' or '.join(map(repr, shown))}?" if shown else ""


def nearest(name: str, among: Iterable[str]) -> str:
  """Returns the name in `among` from which a long name differs by a letter or two; '' if there is none."""
  return next(iter(difflib.get_close_matches(name, list(among), n=1, cutoff=0.8)), "")


def plain_name(name: str) -> str:
  """Returns a name in lower case without hyphens and underscores: 'sst2' for 'SST-2'."""
  return name.lower().replace("-", "").replace("_", "")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
  """Returns a message such as "unknown task 'colla'; did you mean 'cola'? Known: cola, rte"."""
  names = list(known)
  hint = did_you_mean(name, names, most=1)
  return f"unknown {kind} {name!r}{hint + ' Known' if hint else '; known'}: {listed(names, most=100)}"


def listed(names: Iterable[str], *, most: int = 10) -> str:
  """Returns names for a message, 'a, b and 9,998 more': at most `most`, each cut to 80 characters."""
  known = list(names)
  shown = ", ".join(name if len(name) <= 80 else f"{name[:77]}..." for name in known[:most])
  return shown + (f" and {len(known) - most:,} more" if len(known) > most else "")


def counted(number: float, noun: str) -> str:
  """Returns a number with its noun, '1 file' or '1,200 files'; the noun gets an 's' unless it is 1."""
  return f"{number:,.0f} {noun}{'s' * (number != 1)}"


def changes(
  saved: Mapping[str, Any], asked: Mapping[str, Any], *, show: Callable[[Any], str] = str
) -> dict[str, str]:
  """Returns {name: 'name: saved -> asked'} of settings that differ, sorted; None equals absent."""
  return {
    name: f"{name}: {show(saved.get(name, 'absent'))} -> {show(asked.get(name, 'absent'))}"
    for name in sorted({*saved, *asked})
    if saved.get(name) != asked.get(name)
  }


@contextlib.contextmanager
def reading(path: str | os.PathLike, *, advice: str) -> Iterator[None]:
  """Turns an error of the block, which reads or unpacks `path`, into a DataError that ends in `advice`."""
  try:
    yield
  except (OSError, EOFError, zlib.error) as error:
    raise DataError(f"{path}: cannot be read ({reason(error)}); {advice}") from error


def is_full_disk(error: BaseException) -> bool:
  """Returns whether an error means a full disk; libraries raise other types than OSError for it."""
  if getattr(error, "errno", None) in _FULL_CODES:
    return True
  return not isinstance(error, UserError) and bool(_FULL.search(str(error)))


@contextlib.contextmanager
def writing(place: str | os.PathLike) -> Iterator[None]:
  """Turns an OSError of the block, or any error of a full disk, into a StorageError.

  `place` is the output as the user named it: '--output=DIR' or a path.
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
  """Turns any error of the block into an error of `kind` with the message 'START (REASON); ADVICE'."""
  try:
    yield
  except Exception as error:
    line = named_reason(error)
    if len(line) > 200:
      line = f"{line[:90]} ... {line[-100:]}"  # libraries say first what they tried, last why it failed
    raise kind(f"{start} ({line}); {advice}") from error
