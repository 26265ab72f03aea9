"""Importing a module of the product changes nothing outside it: no hook, handler, filter or variable."""

import json
import pathlib
import subprocess
import sys

from tests import test_layering

# Prints {module: what its import changed} as JSON. What packages of others do when they are imported is not
# ours: all of them are loaded by a first round, then the state is made blank and our modules are imported
# again. A module whose optional package is not installed is left out.
_PROGRAM = """
import contextlib, importlib, json, logging, os, signal, sys, threading, warnings
import jax

ours = json.loads(sys.argv[1])
hooks = [(sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook"), (sys, "displayhook")]

def blank(*_):
  pass

def loggers():
  known = [it for it in logging.root.manager.loggerDict.values() if isinstance(it, logging.Logger)]
  return [logging.root, *known]

def state():
  return {
    "hooks": [getattr(*hook) for hook in hooks],
    "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
    "warnings": list(warnings.filters),
    "environment": dict(os.environ),
    "logging": {it.name: (it.filters[:], it.handlers[:], it.level) for it in loggers()},
    "jax": dict(jax.config.values),
    "path": sys.path[:],
  }

def import_all():
  for name in ours:
    with contextlib.suppress(ModuleNotFoundError):
      before = state()
      importlib.import_module(name)
      after = state()
      for known, old in (("logging", before["logging"]),):
        after[known] = {key: value for key, value in after[known].items() if key in old}
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
for name in [name for name in sys.modules if name.partition(".")[0] in sys.argv[2].split(",")]:
  del sys.modules[name]
print(json.dumps({name: changed for name, changed in import_all() if changed}))
"""


def test_importing_every_module_changes_nothing_outside_it():
  names = [name for name in test_layering._sources() if name.partition(".")[0] != "tests"]
  names.sort(reverse=True)  # `data` last: Triton crashes where TensorFlow is loaded before it
  roots = ",".join(sorted({name.partition(".")[0] for name in names}))
  command = [sys.executable, "-c", _PROGRAM, json.dumps(names), roots]
  done = subprocess.run(command, cwd=test_layering.ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3_000:]
  assert json.loads(done.stdout.splitlines()[-1]) == {}
