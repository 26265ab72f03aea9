"""Checks paths on a command line: whether they exist, and whether an address of a bucket is allowed."""

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
  """Returns errors for flags (named without '--') that have an address but do not support one."""
  values = {name: value for name, value in flags.items() if name not in rules.addresses}
  return [*filter(None, (files.address_problem(f"--{name}", value) for name, value in values.items()))]


def workdir_problems(workdir: str, rules: Rules) -> list[str]:
  """Returns an error if the workdir is a file, or an address at which orbax cannot save."""
  if "workdir" in rules.addresses and files.is_address(workdir) and not workdir.startswith("gs://"):
    return [
      f"--workdir={workdir}: checkpoints are saved in a directory or at gs://; use a directory and copy it"
      f"\n  aws s3 sync DIRECTORY {workdir}"
    ]
  if not os.path.exists(workdir) or os.path.isdir(workdir):
    return []
  return [f"--workdir={workdir}: is a file; expected a directory, new or with a run to resume"]


def missing_records(changed: fields.Fields) -> list[str]:
  """Returns errors for records that the user names but that do not exist.

  A missing directory is allowed if the user also names the text to prepare in it; the recipe's own text may
  differ from it. The sources of a mixture must exist. Addresses are checked when they are
  downloaded.
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
    "text to prepare, or prepare it first\n  --config.data.source=FILES\n"
    f"  python -m data.prepare --source=FILES --output={named}"
  ]


def _missing_sources(asked: Mapping[str, str], changed: fields.Fields) -> Iterator[str]:
  if changed.get("data.source"):
    yield f"data.source={changed['data.source']}: a mixture reads prepared records; leave this field out"
  if mixture.seqio_name(asked):
    return
  with contextlib.suppress(ValueError):  # `mixture.problems` reports a malformed mixture
    for directory in filter(_is_missing, mixture.directories(asked)):
      behind = directory.rpartition(":")[2].partition(",")[0]
      is_rate = ":" in directory and "/" not in behind
      hint = f"; {behind!r} is not a rate, a number such as 0.7;" if is_rate else _near(directory) or ";"
      name = "stages" if asked["stages"] else "mixture"
      yield (
        f"--config.data.{name}: no prepared records in {directory}{hint} prepare them\n"
        f"  python -m data.prepare --source=FILES --output={directory}"
      )


def _is_missing(directory: str) -> bool:
  return not files.is_address(directory) and not (pathlib.Path(directory) / manifest.NAME).exists()


def _near(directory: str) -> str:
  """Returns '; did you mean ...?' with similar directories of records; '' if there are none."""
  beside = sorted(str(path.parent) for path in pathlib.Path(directory).parent.glob(f"*/{manifest.NAME}"))
  return did_you_mean(str(pathlib.Path(directory)), beside)
