"""What an import does: it changes nothing outside our modules, and flags and refusals load nothing heavy."""

import json
import os
import subprocess
import sys

from data.programs import PROGRAMS
from tests import test_layering

# Prints {module: what its import changed} as JSON. What packages of others do on import is not ours. So a
# first round loads all of them, then the state is made blank and our modules alone are imported again.
_PROGRAM = """
import importlib, json, logging, os, signal, sys, threading, warnings
import triton  # crashes where TensorFlow was loaded before it
import jax, seqio

hooks = [(sys, "excepthook"), (sys, "unraisablehook"), (sys, "displayhook"), (threading, "excepthook")]
names, parts = json.loads(sys.argv[1])

def blank(kind, error=None, *_):
  print(repr(error), file=sys.stderr)

def loggers():
  known = logging.root.manager.loggerDict.values()
  return [logging.root, *(it for it in known if isinstance(it, logging.Logger))]

def state(of):
  return {
    "hooks": [getattr(*hook) for hook in hooks],
    "signals": [signal.getsignal(number) for number in signal.valid_signals()],
    "warnings": list(warnings.filters),
    "environment": dict(os.environ),
    "logging": [(it.name, it.filters[:], it.handlers[:], it.level) for it in of],
    "disabled": logging.root.manager.disable,
    "jax": dict(jax.config.values),
    "path": sys.path[:],
  }

def import_all():
  for name in names:
    others = loggers()
    before = state(others)
    importlib.import_module(name)
    after = state(others)
    yield name, [what for what in before if before[what] != after[what]]

environment, path = dict(os.environ), sys.path[:]
for _ in import_all():
  pass
for hook in hooks:
  setattr(*hook, blank)
warnings.resetwarnings()
os.environ.clear()
os.environ.update(environment)
sys.path[:] = path
for logger in loggers():
  logger.filters, logger.handlers, logger.level = [], [], logging.NOTSET
for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
  registry.reset()  # they refuse a second task of one name
for name in [name for name in sys.modules if name.partition(".")[0] in parts]:
  del sys.modules[name]
print(json.dumps({name: changed for name, changed in import_all() if changed}))
"""


def test_importing_every_module_changes_nothing_outside_it():
  parts = [part for part in test_layering.PARTS if part != "tests"]
  names = [name for name in test_layering._sources() if name.partition(".")[0] in parts]
  command = [sys.executable, "-c", _PROGRAM, json.dumps([names, parts])]
  env = os.environ | {"EPATH_USE_TF": "0"}  # `pretrain.checkpoints` sets it: epath reads it at its first use
  done = subprocess.run(command, cwd=test_layering.ROOT, capture_output=True, text=True, env=env, check=False)
  assert done.returncode == 0, done.stderr[-3_000:]
  assert json.loads(done.stdout.splitlines()[-1]) == {}


# Runs every command in one process, and prints what had been loaded after each.
_COMMANDS = """
import contextlib, io, json, runpy, sys
heavy, found = ("jax", "torch", "tensorflow", "grain", "orbax", "transformers"), []
for module in json.loads(sys.argv[1]):
  for flag in ("--help", "--no_such_flag=1"):
    sys.argv, out = [module, flag], io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
      try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
      except SystemExit as end:
        code = end.code
    found.append([module, flag, code or 0, [name for name in heavy if name in sys.modules]])
print(json.dumps(found))
"""


def test_help_and_refusals_of_every_command_load_nothing_heavy():
  command = [sys.executable, "-c", _COMMANDS, json.dumps(sorted(PROGRAMS.values()))]
  done = subprocess.run(command, cwd=test_layering.ROOT, capture_output=True, text=True, check=True)
  found = json.loads(done.stdout.splitlines()[-1])
  assert len(found) == 2 * len(PROGRAMS)
  assert not [row for row in found if row[2:] != [2 if row[1] == "--no_such_flag=1" else 0, []]]


def test_a_package_names_its_commands_and_a_folder_that_hides_ours_is_named(tmp_path):
  environment = os.environ | {"PYTHONPATH": str(test_layering.ROOT), "JAX_PLATFORMS": "cpu"}

  def run(module: str) -> str:
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout, module
    return done.stderr

  for package in ("data", "pretrain", "finetune"):
    said = run(package)
    others = [name.removeprefix(package) for name in PROGRAMS.values() if name.startswith(f"{package}.")]
    assert not [name for name in others if name not in said], package
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "__init__.py").touch()
  for module in ("pretrain.main", "finetune.main"):
    (line,) = run(module).splitlines()
    assert line.startswith(f"error: {tmp_path / 'data'} hides the package `data`")
