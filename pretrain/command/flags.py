"""Parses the command line of `python -m pretrain.main`: a config file, changes of fields, switches.

config_flags of ml_collections stops at the first mistake with a traceback. So arguments are parsed here:
every mistake is found, explained with the closest name, and reported in one list. Imports jax only after a
mistake.
"""

import dataclasses
import os
import pathlib
import sys
import traceback
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from data import progress
from data.errors import ConfigError, did_you_mean
from pretrain.command import fields, paths, validate
from pretrain.command.config_file import load_config
from pretrain.mesh import chips

# Flags about one process of several; not config fields, because they differ between processes.
PLACE = ("coordinator", "num_processes", "process_id", "join_timeout", "peer_timeout")
SWITCHES = ("dry_run", "download", "quiet", "verbose", "debug")  # in every program

HELP = """\
Pretrains a text encoder.

  python -m pretrain.main --config=FILE[:ARGUMENT] [--config.FIELD=VALUE ...]
                          [--workdir=DIRECTORY] [--dry_run [--plan=MACHINE]] [--download]
                          [--quiet | --verbose] [--debug]
                          [--coordinator=HOST:PORT --num_processes=N --process_id=I]

  --config=FILE         a config file, for example configs/amos_base.py. It is a Python program: read it
                        before you run one from elsewhere. ARGUMENT is passed to its get_config;
                        configs/ablations/*.py expect the name of a row:
                        --config=configs/ablations/amos.py:no_adv; where get_config has no
                        parameter, the name of a backbone of configs/backbones.py:
                        --config=configs/amos_base.py:modern
  --config.FIELD=VALUE  changes a field: --config.train.batch_size=64,
                        --config.generator.mlm_layers=4,6,8, --config.generator.detach_blocks=false.
                        Fields are listed below and explained in configs/base.py
  --workdir=DIRECTORY   folder of checkpoints, metrics and the resolved config; a run in it is resumed.
                        Default: runs/<name of the config file>, with _ARGUMENT if there is one.
                        It may be at gs://bucket/run; inputs may be at any address (s3://,
                        https://): docs/guides/launch.md
  --dry_run             prints the resolved config, parameter counts, mesh, sharding of every parameter,
                        cost and memory, and exits
  --plan=MACHINE        with --dry_run: compiles the real step for another machine and prints its memory,
                        the largest microbatch that fits, FLOPs and the cost of the run: v5e:2x4,
                        v5p:4x4x4, h100:16, h200:8, cpu:8
  --download            allows downloads of a source that is not on this machine; without it nothing is
                        downloaded
  --quiet               shows warnings and errors only
  --verbose             shows more, what libraries log, and the lines of all processes
  --debug               shows the traceback of an error, and the lines of all processes
  --coordinator=HOST:PORT, --num_processes=N, --process_id=I
                        for runs of several processes that JAX cannot find by itself. On Cloud TPU, GKE,
                        Slurm and Open MPI --config.train.multihost=true is enough: docs/guides/launch.md
  --join_timeout=120, --peer_timeout=30
                        seconds to wait for a process to join, or to answer, before the run fails
  --help                this text

JAX finds the devices. JAX_PLATFORMS=cpu keeps a run on the CPU; with --config.train.platform=gpu (or tpu,
cpu) a run fails at once on any other platform.
Exit codes: 0 finished; 2 config or flags; 3 data, vocabulary or checkpoint; 4 diverged; 5 storage;
6 another process failed; 75 stopped on request, the same command resumes.
"""


@dataclasses.dataclass(frozen=True)
class Program:
  """A command line to parse: its help text, the rules of its configs, and an example config for messages."""

  help: str
  rules: validate.Rules
  example: str
  switches: tuple[str, ...] = SWITCHES
  options: tuple[str, ...] = ()  # flags with a value, besides config and workdir

  @property
  def flags(self) -> tuple[str, ...]:
    """All flag names, without '--', except fields of the config."""
    return ("config", "workdir", *self.options, *self.switches, "help")


PRETRAINING = Program(HELP, validate.PRETRAINING, "configs/coco_lm_tiny.py", options=("plan", *PLACE))


@dataclasses.dataclass(frozen=True)
class Arguments:
  """The parsed command line."""

  config: validate.Checked
  workdir: str
  dry_run: bool
  download: bool
  quiet: bool
  verbose: bool
  debug: bool
  config_name: str  # the config file's name without '.py', with '_ARGUMENT' if one was given
  plan: chips.Machine | None = None  # the machine to plan for
  place: Mapping[str, str] = dataclasses.field(default_factory=dict)  # {flag of PLACE: value or ''}


def parse_arguments(argv: Sequence[str], program: Program = PRETRAINING) -> Arguments:
  """Parses the arguments after the program's name; prints help or errors and exits.

  Raises:
    SystemExit: 0 after --help; 2 after mistakes, which are on stderr (with --debug also the traceback of a
      config file that raised).
  """
  if any(argument in ("--help", "-h") for argument in argv):
    print(program.help + "\n" + _field_list(program.rules.schema))
    raise SystemExit(0)
  try:
    return read_arguments(argv, program)
  except ConfigError as error:
    if "--debug" in argv and error.__cause__ is not None:
      traceback.print_exception(error.__cause__)
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(ConfigError.exit_code) from None


def read_arguments(argv: Sequence[str], program: Program = PRETRAINING) -> Arguments:
  """Parses the arguments like `parse_arguments`, but raises ConfigError instead of printing.

  Raises:
    ConfigError: all mistakes; its cause is the exception of the config file, if it raised one.
  """
  schema = program.rules.schema
  values, changes, problems = _split(argv, program)
  switches = {name: _switch(name, values, problems) for name in program.switches}
  if switches["quiet"] and switches["verbose"]:
    problems.append(progress.TOGETHER)
  problems += paths.address_problems(values, program.rules)
  plan = _machine(values.get("plan") or "", problems, dry_run=switches["dry_run"])
  cluster = {name: values.get(name) or "" for name in PLACE}
  path, argument = _split_path(values.get("config") or "")
  config, cause = None, None
  try:
    config = load_config(path, argument) if path else None
  except ConfigError as error:
    problems.append(str(error))
    cause = error.__cause__
  changed = _read_changes(changes, problems, schema)
  if config is None:  # so that wrong values are reported together with the wrong file
    problems += filter(None, (validate.value_problem(*change, program.rules) for change in changed.items()))
  else:
    _set_fields(config, changed)
    joins = any(cluster.values()) or fields.flatten(config).get("train.multihost") is not False
    devices = plan.size if plan else None
    problems += _config_problems(config, program.rules, in_doubt=bool(problems), planned=devices, joins=joins)
  name = pathlib.Path(path).stem + (f"_{argument.replace(':', '_')}" if argument else "")
  workdir = values.get("workdir") or os.path.join("runs", name)
  problems += paths.workdir_problems(workdir, program.rules)
  if not switches["dry_run"] and "data.source" in fields.known_fields(schema):
    problems += paths.missing_records(changed)
  if problems or config is None:
    raise ConfigError(validate.listing(problems)) from cause
  return Arguments(validate.Checked(config), workdir, config_name=name, plan=plan, place=cluster, **switches)


def _machine(plan: str, problems: list[str], *, dry_run: bool) -> chips.Machine | None:
  """Returns the machine of --plan=MACHINE; None without a plan or for an unknown machine."""
  if not plan:
    return None
  if not dry_run:
    problems.append(f"--plan={plan}: only a dry run makes a plan; add\n  --dry_run")
  try:
    return chips.parse(plan)
  except ConfigError as error:
    problems.append(f"--plan: {error}")
    return None


def _split(
  argv: Sequence[str], program: Program
) -> tuple[dict[str, str | None], dict[str, str | None], list[str]]:
  """Returns flags by name, config fields by dotted name (None: no value given), and mistakes."""
  values: dict[str, str | None] = {}
  changes: dict[str, str | None] = {}
  problems: list[str] = []
  rest = list(argv)
  while rest:
    word = rest.pop(0)
    if not word.startswith("--") or word == "--":
      problems.append(f"{word}: expected a flag such as --config=FILE; all flags are in --help")
      continue
    name, equals, value = word[2:].partition("=")
    text: str | None = value if equals else None
    if text is None and name not in program.switches and rest and not rest[0].startswith("--"):
      text = rest.pop(0)
    if name.startswith("config."):
      changes[name.removeprefix("config.")] = text
    elif name not in program.flags:
      problems.append(_unknown_flag(name, program))
    elif not text and name not in program.switches:
      problems.append(f"--{name}: needs a value, --{name}=VALUE")
      values[name] = ""
    else:
      values[name] = text
  if "config" not in values:
    problems.append(f"--config is missing; expected a config file, such as\n  --config={program.example}")
  return values, changes, problems


def _unknown_flag(name: str, program: Program) -> str:
  if name in fields.known_fields(program.rules.schema):
    return f"--{name}: a field of the config; use --config.{name}=VALUE"
  hint = (
    did_you_mean(name, program.flags) or f"; flags are {', '.join('--' + flag for flag in program.flags)}"
  )
  return f"--{name}: no such flag{hint}"


def _switch(name: str, values: dict[str, str | None], problems: list[str]) -> bool:
  text = values.get(name, "false")
  if text is None or text.lower() in ("true", "1"):
    return True
  if text.lower() not in ("false", "0"):
    problems.append(f"--{name}={text}: expected true or false, or --{name} alone")
  return False


def _split_path(text: str) -> tuple[str, str | None]:
  """Splits 'a.py:row' into ('a.py', 'row'); any other colon is a part of the path."""
  path, separator, argument = text.partition(".py:")
  return (path + ".py", argument) if separator else (text, None)


def _read_changes(
  changes: dict[str, str | None], problems: list[str], schema: fields.Schema
) -> fields.Fields:
  """Parses the values of known fields; adds mistakes to `problems`."""
  known, changed = fields.known_fields(schema), {}
  for name, text in changes.items():
    members = [field for field in known if field.startswith(name + ".")]
    if members:
      problems.append(f"--config.{name}: a group of fields; set one, such as --config.{members[0]}=VALUE")
    elif name not in known:
      problems.append("--config." + fields.unknown_field(name, schema))
    elif text is None and not fields.may_stand_alone(name, schema):
      problems.append(f"--config.{name}: needs a value, for example --config.{name}={_as_text(known[name])}")
    else:
      try:
        changed[name] = fields.parse_value(name, "true" if text is None else text, schema)
      except ValueError as error:
        problems.append(f"--config.{error}")
  return changed


def _set_fields(config: ConfigDict, changed: fields.Fields) -> None:
  """Sets fields in place; skips fields that the config lacks, which `validate` reports."""
  present = fields.flatten(config)
  with config.ignore_type():
    config.update_from_flattened_dict({name: value for name, value in changed.items() if name in present})


def _config_problems(
  config: ConfigDict, rules: validate.Rules, *, in_doubt: bool, planned: int | None, joins: bool
) -> list[str]:
  """Returns an error for each problem of the config, including sizes that do not fit the devices.

  Devices are the `planned` number; or this machine's, but only if there are problems or `in_doubt`, and not
  if the process `joins` others, since jax.distributed must be initialised first.
  """
  problems = validate.problems(config, rules=rules, num_devices=planned)
  if planned is not None or joins or not (problems or in_doubt):
    return problems
  try:
    import jax

    return validate.problems(config, rules=rules, num_devices=jax.device_count())
  except RuntimeError:
    return problems  # if no device is usable, the run reports it later


def _field_list(schema: fields.Schema) -> str:
  lines = [f"  --config.{name}={_as_text(value)}" for name, value in fields.known_fields(schema).items()]
  return "\n".join(["Fields, and their defaults if the recipe does not set them:", *lines])


def _as_text(value: fields.Value) -> str:
  return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
