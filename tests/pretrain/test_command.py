"""The command line: what it gives, that a mistake ends it with one line and code 2, what comes before JAX."""

import importlib.util
import os
import platform
import re
import subprocess
import sys

import pytest

from data import errors
from pretrain import command
from pretrain.settings import fields
from tests.pretrain.conftest import ROOT

RECIPE = f"{ROOT}/configs/amos_base.py"
CONFIG = f"{RECIPE}:tiny"
# Of a config file: AMOS's recipe, to be changed before it is returned.
AMOS = "from configs import amos_base\ndef get_config():\n  config = amos_base.get_config()\n  "


def _read(*argv):
  return command.read_arguments(argv)


def _refused(*argv):
  """Lines of the error with which the arguments are refused."""
  with pytest.raises(errors.ConfigError) as raised:
    command.read_arguments(argv)
  return str(raised.value).splitlines()


def _file(tmp_path, text):
  path = tmp_path / "mine.py"
  path.write_text(text)
  return str(path)


def test_a_config_file_the_workdir_and_switches():
  arguments = _read(f"--config={CONFIG}")
  assert arguments.config.recipe == "amos_tiny" and arguments.config_name == "amos_base_tiny"
  assert arguments.workdir == os.path.join("runs", "amos_base_tiny")
  assert not (arguments.dry_run or arguments.download or arguments.debug)
  with pytest.raises(AttributeError):
    arguments.config.train.batch_size = 3
  arguments = _read("--workdir", "here/x", "--config", CONFIG, "--dry_run", "--download=true", "--debug=1")
  assert arguments.dry_run and arguments.download and arguments.debug and not arguments.verbose
  assert arguments.workdir == "here/x"
  assert not _read(f"--config={CONFIG}", "--download=false").download


# (change, value)
CHANGES = [
  ("train.batch_size=64", 64),
  ("train.total_steps=1_000", 1000),
  ("optimizer.learning_rate=1e-4", 1e-4),
  ("objectives.rtd.weight=10", 10.0),
  ("generator.reversal_multiplier=-0.5", -0.5),
  ("generator.mlm_layers=1,3", (1, 3)),
  ("generator.mlm_layers=(2, 3)", (2, 3)),
  ("corruption.mask_rates=(0,0.3),(0.8,0.15)", ((0, 0.3), (0.8, 0.15))),
  ("corruption.mask_rates=(0,0.3)", ((0, 0.3),)),
  ("corruption.mask_rates=", ()),
  ("train.checkpoint_steps=5", (5,)),
  ("generator.detach_blocks=False", False),
  ("generator.detach_blocks", True),
  ("model.remat=cheap", "cheap"),
  ("data.source=text/*.txt", "text/*.txt"),
]


def test_every_kind_of_field_can_be_changed_and_no_other_field_changes():
  before, failures = fields.flatten(_read(f"--config={CONFIG}").config), []
  for change, value in CHANGES:
    name = change.partition("=")[0]
    flat = fields.flatten(_read(f"--config={CONFIG}", f"--config.{change}").config)
    if flat[name] != value or type(flat[name]) is not type(value) or flat != before | {name: value}:
      failures.append(f"{change}: {flat[name]!r}")
  assert not failures, "\n".join(failures)
  twice = _read(
    f"--config={CONFIG}", *(f"--config.generator.mlm_layers={layers}" for layers in ("1,2,3", "2,3"))
  )
  assert twice.config.generator.mlm_layers == (2, 3)  # the last value counts
  apart = _read("--config", CONFIG, "--config.generator.reversal_multiplier", "-2", "--config.seed", "7")
  assert (apart.config.generator.reversal_multiplier, apart.config.seed) == (-2.0, 7)


def test_the_argument_is_a_size_a_backbone_or_both_or_that_of_get_config(tmp_path):
  for argument, name, shape in (
    ("tiny", "amos_tiny", ("learned", "post", 2)),
    ("modern", "amos_base:modern", ("rope", "pre", 22)),
    ("modern_tiny", "amos_tiny:modern_tiny", ("rope", "pre", 4)),
    ("deberta_tiny", "amos_tiny:deberta_tiny", ("none", "post", 2)),
    ("small:ettin_17m", "amos_small:ettin_17m", ("rope", "pre", 7)),
  ):
    arguments = _read(f"--config={RECIPE}:{argument}")
    model, stem = arguments.config.model, f"amos_base_{argument.replace(':', '_')}"
    assert arguments.config.recipe == name and arguments.workdir == os.path.join("runs", stem)
    assert (model.position, model.norm_placement, model.num_layers) == shape
  assert "small, tiny, modern, modern_large, ettin_17m" in _refused(f"--config={RECIPE}:modem")[0]
  other = _file(tmp_path, "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()\n")
  assert _refused(f"--config={other}:modern")[0].endswith("its get_config has no parameter")
  path = _file(tmp_path, AMOS.replace("()", "(which)", 1) + "config.recipe = which\n  return config\n")
  arguments = _read(f"--config={path}:a:b")
  assert arguments.config.recipe == "a:b" and arguments.config_name == "mine_a_b"
  assert "needs an argument" in _refused(f"--config={path}")[0]


# (arguments behind --config=CONFIG, or all of them where they name a file, part of the message)
REFUSED = [
  (["--config"], "--config is missing"),
  ([f"--config={ROOT}/configs"], "no such file"),
  ([f"--config={ROOT}/configs/amos_bsae.py"], "amos_base.py"),
  (["--config=configs/amos_tiny.py"], "\n  --config=configs/amos_base.py:tiny"),
  (["--config=configs/taco_small.py"], "\n  --config=configs/taco_base.py:small"),
  (["--config=nowhere/at/all.py"], "no such file"),
  (["--train.batch_size=3"], "use --config.train.batch_size=VALUE"),
  (["--config.train=3"], "a group of fields"),
  (["--config.train.batch_size"], "--config.train.batch_size"),
  (["--config.batch_size=3"], "did you mean 'train.batch_size'"),
  (["--config.train.batchsize=3"], "did you mean 'train.batch_size'"),
  (["--config.train.optimizer.seed=3"], "or 'seed'"),
  (["--config.model.remat=maybe"], "none, cheap, full"),
  (["--config.generator.mixture=adversial"], "did you mean 'adversarial'?"),
  (["--config.corruption.mask_rate=2"], "(0, 1)"),
  (["--config.model.num_layers=2.0"], "whole number"),
  (["--config.model.dropout=inf"], "finite"),
  (["--config.generator.detach_blocks=no"], "true or false"),
  (["--config.generator.mlm_layers=1,x"], "4,6,8"),
  (["--config.train.checkpoint_steps=-4,6"], "train.checkpoint_steps=-4,6"),
  (["--dry_run=perhaps"], "boolean"),
  (["--workdr=x"], "--workdr: no such flag; did you mean '--workdir'?"),
  ([f"--confg={CONFIG}"], "--confg: no such flag; did you mean '--config'?"),
  (["--confg.train.batch_size=3"], "did you mean '--config.train.batch_size'?"),
  (["--zzz"], "--zzz: no such flag; all flags are in --help"),
  (["here"], "--help"),
  (["--workdir="], "--workdir=VALUE"),
  (["--quiet", "--verbose"], "--verbose"),
  (["--plan=h100:16"], "--plan=h100:16"),
  (["--plan=h100x:16", "--dry_run"], "h100x"),
  (["--plan=cpu:3", "--dry_run"], "a multiple of 3"),
  ([f"--workdir={RECIPE}"], "is a file"),
  (["--workdir=s3://bucket/run"], "\n  aws s3 sync"),
  (["--config.data.directory=nowhere"], "nowhere"),
]
# (text of a config file, part of the first line)
BAD_FILES = [
  ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
  ("def get_config(:\n", "SyntaxError"),
  ("import nothing_of_this_name\n", "ModuleNotFoundError"),
  (f"{AMOS}config.train.batchsize = 3\n", "no such field 'batchsize'; did you mean 'batch_size'? (line 4)"),
  (f"{AMOS}config.train.batch_size = '3'\n", "batch_size"),
  ("get_config = 3\n", "get_config()"),
  ("def get_config():\n  return {}\n", "returned dict"),
  ("from configs import base\ndef get_config():\n  return base.get_config()\n", "no objective is on"),
  (f"{AMOS}with config.unlocked():\n    del config.seed\n  return config\n", "seed: missing"),
]


def test_a_mistake_is_told_in_one_line_with_its_ways_out(tmp_path):
  failures = []
  for argv, part in [([], "--config is missing"), *REFUSED]:
    of_config = [f"--config={CONFIG}"] * bool(
      argv and argv[0].partition("=")[0] not in ("--config", "--confg")
    )
    _, *ways = lines = _refused(*of_config, *argv)
    if part not in "\n".join(lines) or not all(way.startswith("  ") for way in ways):
      failures.append(f"{argv}: expected {part!r}, found {lines}")
  for text, part in BAD_FILES:
    first, *ways = _refused(f"--config={_file(tmp_path, text)}", "--config.seed=3")
    if part not in first or ways not in ([], ["  --debug"]):
      failures.append(f"{text!r}: expected {part!r}, found {[first, *ways]}")
  assert not failures, "\n".join(failures)


def test_mistakes_leave_with_2_and_a_traceback_needs_debug(tmp_path, capsys):
  path = _file(tmp_path, "1 / 0\n")
  for debug in ([], ["--debug"]):
    with pytest.raises(SystemExit) as left:
      command.parse_arguments([f"--config={path}", *debug])
    said = capsys.readouterr().err
    assert left.value.code == 2 and ("Traceback" in said) == bool(debug) and "error: --config=" in said
  with pytest.raises(SystemExit) as left:
    command.parse_arguments(["--help"])
  said = capsys.readouterr().out
  assert left.value.code == 0
  assert re.search(r"\n  --config\.mesh\. +data=-1 fsdp=1 fsdp_across_slices=False tensor=1\n", said)
  names = (name.rpartition(".")[2] for name in command.PRETRAINING.schema.defaults)
  assert not [name for name in names if f" {name}=" not in said]


# Page faults of each of several steps with 20 MB of temporaries or more; flags are read without JAX.
_STEPS = f"""
import resource, sys
from pretrain import command
command.parse_arguments(["--config={CONFIG}"])
command.keep_temporaries()
assert "jax" not in sys.modules
import jax, jax.numpy as jnp
x = jnp.ones((10_000, 500))

@jax.jit
def step(x):
  y = jnp.sin(x)
  return jnp.sum(jax.lax.optimization_barrier(y[::-1]) @ jnp.ones((500, 500)) - y)

step = step.lower(x).compile()
assert step.memory_analysis().temp_size_in_bytes > 19e6
for _ in range(10):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  step(x).block_until_ready()
  print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_finds_the_memory_of_the_one_before():
  options = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
  done = subprocess.run([sys.executable, "-c", _STEPS], env=os.environ | {"JAX_PLATFORMS": "cpu"}, **options)
  # All pages of 4 KiB anew would be 5,000. Now and then a step takes new memory.
  assert min(map(int, done.stdout.split())) < 1000


def test_memory_is_kept_only_where_jax_runs_on_cpu_and_nobody_has_chosen_otherwise(monkeypatch):
  calls, installed = [], ["libtpu"]
  library = type("Library", (), {"mallopt": staticmethod(lambda *pair: calls.append(pair))})
  monkeypatch.setattr(command.ctypes, "CDLL", lambda name: library)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
  for platforms, variable in (("", "A"), ("cuda", "A"), ("cpu", "MALLOC_ARENA_MAX")):
    with monkeypatch.context() as machine:
      machine.setenv("JAX_PLATFORMS", platforms)
      machine.setenv(variable, "2")
      command.keep_temporaries()
  assert calls == []
  for platforms, installed[:] in (("cpu", ["libtpu"]), ("", [])):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    command.keep_temporaries()
  assert calls == [(-8, 1), (-4, 0), (-1, -1)] * 2  # one arena, no mapped blocks, never given back: malloc.h
