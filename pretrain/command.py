"""The command line of a program with a config: its file, changes of fields, switches. Imports no jax.

Fields are parsed by `ml_collections.config_flags`, other flags by absl; the first mistake ends the command
with one line. Also here: what a process does before JAX starts.
"""

import contextlib
import ctypes
import dataclasses
import importlib.machinery
import importlib.util
import inspect
import itertools
import os
import pathlib
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict, config_flags

from configs import arguments
from data import files, manifest, programs, progress
from data.errors import ConfigError, UserError, did_you_mean, named_reason, on_one_line
from pretrain import continued, settings
from pretrain.mesh import chips
from pretrain.settings.fields import Fields, Pairs, Schema

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
                        before you run one from elsewhere. ARGUMENT is a size of the recipe, tiny or
                        small, a backbone of configs/backbones.py, or both:
                        --config=configs/amos_base.py:tiny, amos_base.py:modern, amos_base.py:modern_tiny;
                        or a folder with an encoder to continue, --config=configs/amos_base.py:imported/xlmr;
                        configs/ablations/*.py expect the name of a row:
                        --config=configs/ablations/amos.py:no_adv
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
  """A command line: its help text, the fields of its configs, an example config, and flags of its own."""

  help: str
  schema: Schema
  example: str
  options: tuple[str, ...] = ()  # flags with a value, besides config and workdir


PRETRAINING = Program(HELP, settings.PRETRAINING, "configs/coco_lm_base.py:tiny", options=("plan", *PLACE))


@dataclasses.dataclass(frozen=True)
class Arguments:
  """The parsed command line."""

  config: FrozenConfigDict
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
  """Parses the arguments after the program's name; prints the help or an error and exits.

  Raises:
    SystemExit: 0 after --help; 2 after a mistake, which is on stderr (with --debug also the traceback of a
      config file that raised).
  """
  if any(argument in ("--help", "-h") for argument in argv):
    print(programs.as_started(program.help), *_rooms(program.schema), sep="\n")
    raise SystemExit(0)
  try:
    return read_arguments(argv, program)
  except ConfigError as error:
    if "--debug" in argv and error.__cause__ is not None:
      traceback.print_exception(error.__cause__)
    print(f"error: {programs.as_started(str(error))}", file=sys.stderr)
    raise SystemExit(ConfigError.exit_code) from None


def _rooms(schema: Schema) -> Iterator[str]:
  """Yields lines of a help text: the fields of each group, with their defaults."""
  yield "Fields, and their defaults if the recipe does not set them; docs/reference/fields.md explains each:"
  by_group = sorted((name.rpartition(".")[::2], value) for name, value in schema.defaults.items())
  for group, members in itertools.groupby(by_group, lambda item: item[0][0]):
    start = f"  --config.{group}{'.' * bool(group)}"
    words = " ".join(f"{name}={as_text(value)}" for (_, name), value in members)
    yield textwrap.fill(
      words, 110, initial_indent=f"{start:32}", subsequent_indent=" " * 32, break_on_hyphens=False
    )


def read_arguments(argv: Sequence[str], program: Program = PRETRAINING) -> Arguments:
  """Parses the arguments like `parse_arguments`, but raises ConfigError instead of printing.

  Raises:
    ConfigError: the first mistake; its cause is the exception of the config file, if it raised one.
  """
  schema, given = program.schema, flags.FlagValues()
  for name in ("workdir", *program.options):
    flags.DEFINE_string(name, None, "", flag_values=given)
  for name in SWITCHES:
    flags.DEFINE_bool(name, False, "", flag_values=given)
  spec, others = _config_of(argv, program)
  config = load_config(spec)
  schema.check_names(config)
  changed = override(config, others, schema, given)
  values = {name: given[name].value for name in ("workdir", *program.options)}
  for name, value in values.items():
    if value == "":
      raise ConfigError(f"--{name}: needs a value, --{name}=VALUE")
  if given.quiet and given.verbose:
    raise ConfigError(progress.TOGETHER)
  plan = chips.parse(given.plan) if values.get("plan") else None
  if plan and not given.dry_run:
    raise ConfigError(f"--plan={given.plan}: only a dry run makes a plan; add\n  --dry_run")
  schema.check(config, num_devices=plan.size if plan else None)
  path, argument = _parts(spec)
  own, folder = continued.split(argument or "")
  parts = [pathlib.PurePath(path).stem, *re.split("[:/]", own), os.path.basename(folder.rstrip("/"))]
  name = "_".join(filter(None, parts))
  workdir = values["workdir"] or os.path.join("runs", name)
  _check_workdir(workdir, can_be_far="workdir" in schema.addresses)
  if not given.dry_run and "data.stages" in schema.defaults:
    _check_records(changed)
  place = {name: values.get(name) or "" for name in PLACE}
  switches = {name: bool(getattr(given, name)) for name in SWITCHES}
  frozen = FrozenConfigDict(config)
  return Arguments(frozen, workdir, config_name=name, plan=plan, place=place, **switches)


def _config_of(argv: Sequence[str], program: Program) -> tuple[str, list[str]]:
  """Returns the value of --config, and the other arguments."""
  alone = flags.FlagValues()
  flags.DEFINE_string("config", "", "", flag_values=alone)
  alone.set_gnu_getopt()  # absl otherwise stops at the first word that is not a flag
  with contextlib.suppress(flags.Error):  # --config without a value
    _, *others = alone(["", *argv], known_only=True)
    if alone.config:
      return alone.config, others
    for flag in filter(None, (re.match(r"--?\w+(?==|$)", word) for word in others)):
      if hint := did_you_mean(flag[0], ["--config"]):
        raise ConfigError(f"{flag[0]}: no such flag{hint}")
  raise ConfigError(f"--config is missing; expected a config file, such as\n  --config={program.example}")


def override(
  config: ConfigDict, words: Sequence[str], schema: Schema, given: flags.FlagValues | None = None
) -> Fields:
  """Sets fields of a config in place, as words such as --config.train.batch_size=64 say, and other flags.

  Returns {name: value} of the fields that were given. ConfigError: a field or a flag is unknown, or a value
  has another type.
  """
  given = flags.FlagValues() if given is None else given
  # The last value of a field counts; config_flags would join those of a tuple.
  starts = [word.partition("=")[0] if "=" in word else "" for word in words]
  words = [word for at, word in enumerate(words) if not starts[at] or starts[at] not in starts[at + 1 :]]
  for name in filter(None, (re.match(r"--?(?:no)?config\.([^=]*)", word) for word in words)):
    if name[1] not in schema.defaults:
      raise ConfigError(f"--config.{schema.unknown_field(name[1])}")
  try:
    config_flags.DEFINE_config_dict("config", config, flag_values=given, sys_argv=["", *words])
    _, *rest = given(["", *words])
  except flags.UnrecognizedFlagError as error:
    name = error.flagname
    if name in schema.defaults:
      raise ConfigError(f"--{name}: a field of the config; use --config.{name}=VALUE") from None
    known = [*given, *(f"config.{field}" for field in schema.defaults)]
    hint = did_you_mean(f"--{name}", (f"--{flag}" for flag in known), most=1)
    raise ConfigError(f"--{name}: no such flag{hint or ';'} all flags are in --help") from None
  except flags.Error as error:
    wrong = re.match(r"flag --config\.([\w.]+)=([^:]*)", str(error))
    raise ConfigError(schema.type_problem(*wrong.groups()) if wrong else on_one_line(error)) from None
  if rest:
    raise ConfigError(f"{rest[0]}: expected a flag such as --config=FILE; all flags are in --help")
  changed = dict(given["config"].override_values)  # type: ignore[attr-defined]
  for name, value in changed.items():
    if value == ("",):
      changed[name] = ()
    elif schema.kinds[name].value_type == Pairs and not isinstance(value[0], tuple):
      changed[name] = (value,)
  config.update_from_flattened_dict(changed)
  return changed


def _check_workdir(workdir: str, *, can_be_far: bool) -> None:
  """Raises ConfigError if the workdir is a file, or an address at which orbax cannot save."""
  if files.is_address(workdir) and can_be_far and not workdir.startswith("gs://"):
    raise ConfigError(
      f"--workdir={workdir}: checkpoints are saved in a directory or at gs://; use a directory and copy it\n"
      f"  aws s3 sync DIRECTORY {workdir}"
    )
  if not can_be_far and (problem := files.address_problem("--workdir", workdir)):
    raise ConfigError(problem)
  if os.path.isfile(workdir):
    raise ConfigError(f"--workdir={workdir}: is a file; expected a directory, new or with a run to resume")


def _check_records(changed: Fields) -> None:
  """Raises ConfigError if the user names records that do not exist, but not the text to prepare in them.

  The recipe's own text may be another one.
  """
  if changed.get("data.source") and (changed.get("data.mixture") or changed.get("data.stages")):
    raise ConfigError(
      f"data.source={changed['data.source']}: a mixture reads prepared records; leave this field out"
    )
  named = changed.get("data.directory", "")
  if not named or files.is_address(named) or "data.source" in changed:
    return
  if not (pathlib.Path(named) / manifest.NAME).exists():
    beside = sorted(str(path.parent) for path in pathlib.Path(named).parent.glob(f"*/{manifest.NAME}"))
    hint = did_you_mean(str(pathlib.Path(named)), beside) or ";"
    raise ConfigError(
      f"--config.data.directory={named}: no prepared records there{hint} name the text, or prepare it first"
      f"\n  --config.data.source=FILES\n  python -m data.prepare --source=FILES --output={named}"
    )


def load_config(spec: str) -> ConfigDict:
  """Returns the unchecked config of 'FILE' or 'FILE:ARGUMENT', as --config names it.

  The argument goes to the file's `get_config`; without a parameter there, `configs/arguments.py` applies a
  size or backbone, and `continued` a folder.

  Raises:
    ConfigError: the file does not exist, has no get_config, or its get_config raised (the cause) or did not
      return a config.
  """
  path, argument = _parts(spec)
  path = _shipped(path)
  if not os.path.isfile(path):
    raise ConfigError(f"--config={spec}: no such file{_hint(path)}")
  try:
    module = _run_file(path)
    if not callable(getattr(module, "get_config", None)):
      raise ConfigError("the file has no function get_config(), which returns the config")
    takes_one = bool(inspect.signature(module.get_config).parameters)
    if takes_one and argument is None:
      raise ConfigError("its get_config needs an argument: --config=FILE:ARGUMENT")
    config = module.get_config(argument) if takes_one else module.get_config()
    if argument is not None and not takes_one:
      own, folder = continued.split(argument)
      if own or not folder:
        arguments.apply(config, own, getattr(module, "SIZES", {}))
      if folder:
        continued.apply(config, folder)
  except UserError as error:
    raise ConfigError(f"--config={spec}: {error}") from error.__cause__
  except (Exception, SystemExit) as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f" (line {frame.lineno})" for frame in frames if frame.filename == path]
    # Of ConfigDict's message, which lists all other fields.
    typo = re.search(r'Did you mean "(\w+)" instead of "(\w+)"', str(error))
    what = (
      f"no such field {typo[2]!r}; did you mean {typo[1]!r}?" if typo else f"raised {named_reason(error)}"
    )
    where = lines[-1] if lines else ""
    raise ConfigError(f"--config={spec}: {what}{where}; for its traceback add\n  --debug") from error
  if not isinstance(config, ConfigDict):
    raise ConfigError(f"--config={spec}: get_config returned {type(config).__name__}; expected a ConfigDict")
  return config


def _parts(spec: str) -> tuple[str, str | None]:
  """Splits 'a.py:row' into ('a.py', 'row'); any other colon is a part of the path."""
  path, separator, argument = spec.partition(".py:")
  return (path + ".py", argument) if separator else (spec, None)


def _shipped(path: str) -> str:
  """Returns the installed recipe for 'configs/NAME.py' if this folder has no such file, else `path`."""
  parts = pathlib.PurePath(path).parts
  if os.path.exists(path) or parts[:1] != ("configs",) or ".." in parts:
    return path
  beside = pathlib.Path(__file__).resolve().parents[1] / path
  return str(beside) if beside.is_file() else path


def _hint(path: str) -> str:
  """Returns what to give instead of a config file that does not exist."""
  folder, name = os.path.split(path)
  old = re.fullmatch(r"(\w+)_(tiny|small)\.py", name)
  if old and os.path.isfile(_shipped(recipe := os.path.join(folder, f"{old[1]}_base.py"))):
    return f"; a size is an argument now:\n  --config={recipe}:{old[2]}"
  files_there = sorted(map(str, pathlib.Path(folder or ".").glob("*.py")))
  return did_you_mean(path, files_there) or "; expected a config file, such as those in configs/"


def _run_file(path: str) -> types.ModuleType:
  name = "config_file"  # dataclasses in the file look their module up in sys.modules
  loader = importlib.machinery.SourceFileLoader(name, path)  # works for every suffix
  module = types.ModuleType(name)
  module.__file__ = path
  sys.modules[name] = module
  loader.exec_module(module)
  return module


def as_text(value: Any) -> str:
  """Returns a value as on a command line: 4,6,8."""
  return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# (parameter, value) of mallopt, from glibc's malloc.h.
_ONE_ARENA, _NO_MAPPED_BLOCKS, _NEVER_GIVEN_BACK = (-8, 1), (-4, 0), (-1, -1)


def keep_temporaries() -> None:
  """Makes glibc keep freed memory for the next step, if JAX will run on CPU.

  XLA allocates a step's memory at its start and frees it at its end. By default each such block returns to
  the system, which clears it again page by page: a tenth of a step. The price is memory: up to another block
  of the same size, if the freed one does not fit exactly.

  Call it before JAX starts its threads, which then choose their part of the heap. It does nothing with
  another C library, if an accelerator's plug-in is installed, or if the user has configured malloc.
  """
  platforms = os.environ.get("JAX_PLATFORMS", "")
  has_plugin = any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
  is_cpu_alone = platforms == "cpu" or (not platforms and not has_plugin)
  if not is_cpu_alone or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
    return
  library = ctypes.CDLL(None)
  if hasattr(library, "mallopt"):
    for parameter, value in (_ONE_ARENA, _NO_MAPPED_BLOCKS, _NEVER_GIVEN_BACK):
      library.mallopt(parameter, value)
