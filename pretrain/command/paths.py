"""Paths that a command line names: are they there, and may they be addresses of buckets? Imports no jax."""

import os
import pathlib
from collections.abc import Mapping

from data import files, manifest
from data.errors import did_you_mean
from pretrain.command import fields
from pretrain.command.validate import Rules


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
  """A problem if the user names records that are not there, and no text that they are to be made of.

  To prepare the recipe's own text under that name would train on what nobody asked for. Whether there are
  some at an address is found out where they are fetched.
  """
  named = str(changed.get("data.directory", ""))
  directory = pathlib.Path(named)
  if not named or "data.source" in changed or files.is_address(named) or (directory / manifest.NAME).exists():
    return []
  beside = sorted(str(path.parent) for path in directory.parent.glob(f"*/{manifest.NAME}"))
  near = did_you_mean(str(directory), beside) or ";"
  return [
    f"--config.data.directory={directory}: no prepared records there{near} name the text to prepare there "
    "too (--config.data.source=FILES), or prepare it with python -m data.prepare"
  ]
