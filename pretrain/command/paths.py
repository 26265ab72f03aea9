"""Paths that a command line names: are they there, and may they be addresses of buckets? Imports no jax."""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping

from data import files, manifest
from data.errors import did_you_mean
from pretrain.command import fields
from pretrain.command.validate import Rules
from pretrain.settings import mixture


def address_problems(flags: Mapping[str, str | None], rules: Rules) -> list[str]:
  """Lines that refuse addresses as values of flags, which are named without '--'."""
  values = {name: value for name, value in flags.items() if name not in rules.addresses}
  return [*filter(None, (files.address_problem(f"--{name}", value) for name, value in values.items()))]


def workdir_problems(workdir: str) -> list[str]:
  """A line if the workdir is a file."""
  if not os.path.exists(workdir) or os.path.isdir(workdir):
    return []
  return [f"--workdir={workdir}: is a file; give a directory, new or with the run to continue"]


def missing_records(changed: fields.Fields) -> list[str]:
  """Returns problems with records that the user names and that are not there.

  A directory is no problem if the text that it is to be made of is named too: to prepare the recipe's own
  text under that name would train on what nobody asked for. The sources of a mixture must be there. Whether
  there are some at an address is found out where they are fetched.
  """
  if mixture.is_asked(
    asked := {name: str(changed.get(f"data.{name}", "")) for name in ("mixture", "stages")}
  ):
    return [*_missing_sources(asked, changed)]
  named = str(changed.get("data.directory", ""))
  if not named or "data.source" in changed or not _is_missing(named):
    return []
  return [
    f"--config.data.directory={pathlib.Path(named)}: no prepared records there{_near(named) or ';'} name the "
    "text to prepare there too (--config.data.source=FILES), or prepare it with python -m data.prepare"
  ]


def _missing_sources(asked: Mapping[str, str], changed: fields.Fields) -> Iterator[str]:
  if changed.get("data.source"):
    yield f"data.source={changed['data.source']}: a mixture names prepared records instead; leave it out"
  if mixture.seqio_name(asked):
    return
  with contextlib.suppress(ValueError):  # the rules say what is wrong with the text
    for directory in filter(_is_missing, mixture.directories(asked)):
      behind = directory.rpartition(":")[2].partition(",")[0]
      is_rate = ":" in directory and "/" not in behind
      hint = (
        f"; {behind!r} is no rate, which is a number such as 0.7;" if is_rate else _near(directory) or ";"
      )
      name = "stages" if asked["stages"] else "mixture"
      yield (
        f"--config.data.{name}: no prepared records in {directory}{hint} "
        f"prepare them with `python -m data.prepare --source=FILES --output={directory}`"
      )


def _is_missing(directory: str) -> bool:
  return not files.is_address(directory) and not (pathlib.Path(directory) / manifest.NAME).exists()


def _near(directory: str) -> str:
  """'; did you mean ...?' with directories of records beside one that has none; '' if none is like it."""
  beside = sorted(str(path.parent) for path in pathlib.Path(directory).parent.glob(f"*/{manifest.NAME}"))
  return did_you_mean(str(pathlib.Path(directory)), beside)
