"""Checks a config before anything is opened, built or compiled. Imports no jax.

All problems are found at once. If a field is wrong by itself, rules about several fields that name it are
skipped.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from data import files
from data.errors import ConfigError, did_you_mean
from pretrain.command import fields
from pretrain.command import rules as combinations
from pretrain.settings.field_types import Fields, show_value


@dataclasses.dataclass(frozen=True)
class Rules:
  """The rules for the configs of one program.

  Attributes:
    schema: all fields with their types, choices and limits.
    together: {name: value} of all fields -> errors about combinations of fields.
    on_devices: all fields, number of devices (None: unknown) -> errors about sizes that do not divide.
    addresses: fields and flags with paths that may be addresses of buckets.
  """

  schema: fields.Schema
  together: Callable[[Fields], list[str]]
  on_devices: Callable[[Fields, int | None], list[str]] = lambda _, number: []
  addresses: tuple[str, ...] = ()


PRETRAINING = Rules(
  fields.PRETRAINING,
  combinations.problems,
  combinations.device_problems,
  addresses=(
    "workdir",
    "data.source",
    "data.directory",
    "data.mixture",
    "data.stages",
    "data.vocabulary",
    "data.tfds_directory",  # TFDS opens it
    "train.init_from",
    "generator.init_from",
    "model.freeze_embeddings_from",
  ),
)


class Checked(FrozenConfigDict):
  """A frozen config without `problems`; the number of devices may not be known yet."""


def problems(
  config: ConfigDict,
  *,
  rules: Rules = PRETRAINING,
  num_devices: int | None = None,
) -> list[str]:
  """Returns an error for every mistake in a config; each names the field, the value and a correction.

  Args:
    config: as a config file returns it, possibly with unknown or missing fields and wrong types.
    num_devices: of all hosts; None if unknown, which skips rules about devices.
  """
  values, known = fields.flatten(config), fields.known_fields(rules.schema)
  lines = [fields.unknown_field(name, rules.schema) for name in values if name not in known]
  lines += fields.missing_fields(config, rules.schema)
  bad = {name for name in known if name not in values}
  for name in known:
    line = None if name in bad else value_problem(name, values[name], rules)
    if line is not None:
      lines.append(line)
      bad.add(name)
  sound = dict(known) | {name: value for name, value in values.items() if name in known and name not in bad}
  together = rules.together(sound) + rules.on_devices(sound, num_devices)
  return lines + [line for line in together if not any(name in line for name in bad)]


def check(config: ConfigDict, *, num_devices: int | None = None) -> Checked:
  """Returns a config of pretraining that has no `problems`; raises ConfigError with all of them.

  If the config is already `Checked`, only the rules about devices are applied.
  """
  if isinstance(config, Checked):
    lines = PRETRAINING.on_devices(fields.flatten(config), num_devices)
  else:
    lines = problems(config, num_devices=num_devices)
  if lines:
    raise ConfigError(listing(lines))
  return Checked(config)


def listing(lines: list[str]) -> str:
  """Formats one problem as it is, several as a numbered list."""
  if len(lines) == 1:
    return lines[0]
  return "\n".join(
    [
      f"{len(lines)} problems",
      *(f"  {number}. {line}".replace("\n", "\n   ") for number, line in enumerate(lines, 1)),
    ]
  )


def value_problem(name: str, value: Any, rules: Rules = PRETRAINING) -> str | None:
  """Returns the error for a field's value of wrong type, choice or range; None if it is valid."""
  line = fields.type_problem(name, value, rules.schema)
  if name not in rules.addresses:
    line = line or files.address_problem(name, value)
  if line is not None:
    return line
  _, choices, limit = fields.kinds(rules.schema)[name]
  if choices and value not in choices:
    return f"{name}={value!r}: expected one of {', '.join(choices)}{did_you_mean(value, choices)}"
  if limit is not None and not limit.holds(value):
    return f"{name}={show_value(value)}: expected {limit}"
  return None
