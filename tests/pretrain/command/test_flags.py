"""The command line: what it gives, and that every mistake is reported in one list with exit code 2."""

import os
import pathlib
import subprocess
import sys

import pytest

from configs import base
from data import errors
from pretrain.command import fields, flags

ROOT = pathlib.Path(base.__file__).parent.parent
CONFIG = str(ROOT / "configs" / "amos_tiny.py")
# Of a config file: AMOS's recipe, to be changed before it is returned.
AMOS = "from configs import amos_tiny\ndef get_config():\n  config = amos_tiny.get_config()\n  "


def _read(*argv):
  return flags.read_arguments(argv)


def _refused(*argv):
  """Lines of the list with which the arguments are refused."""
  with pytest.raises(errors.ConfigError) as raised:
    flags.read_arguments(argv)
  lines = str(raised.value).splitlines()
  return lines[1:] if lines[0].endswith(" problems") else lines


def _file(tmp_path, text):
  path = tmp_path / "mine.py"
  path.write_text(text)
  return str(path)


def test_a_config_file_the_workdir_and_switches():
  arguments = _read(f"--config={CONFIG}")
  assert arguments.config.recipe == "amos_tiny" and arguments.config_name == "amos_tiny"
  assert arguments.workdir == os.path.join("runs", "amos_tiny")
  assert not (arguments.dry_run or arguments.download or arguments.debug)
  with pytest.raises(AttributeError):
    arguments.config.train.batch_size = 3
  arguments = _read("--config", CONFIG, "--workdir", "here/x", "--dry_run", "--download=true", "--debug=1")
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
  apart = _read("--config", CONFIG, "--config.generator.reversal_multiplier", "-2", "--config.seed", "7")
  assert (apart.config.generator.reversal_multiplier, apart.config.seed) == (-2.0, 7)


def test_a_config_file_may_have_an_argument(tmp_path):
  text = AMOS.replace("get_config()", "get_config(which)", 1)
  path = _file(tmp_path, f"{text}config.recipe = which\n  return config\n")
  arguments = _read(f"--config={path}:a:b")
  assert arguments.config.recipe == "a:b"
  assert arguments.config_name == "mine_a_b" and arguments.workdir == os.path.join("runs", "mine_a_b")
  assert "needs an argument" in _refused(f"--config={path}")[0]


def test_a_recipe_without_a_parameter_takes_the_name_of_a_backbone(tmp_path):
  arguments = _read(f"--config={CONFIG}:modern_tiny")
  assert arguments.workdir == os.path.join("runs", "amos_tiny_modern_tiny")
  model = arguments.config.model
  assert arguments.config.recipe == "amos_tiny:modern_tiny" and model.position == "rope"
  assert (model.vocab_size, model.norm_placement, model.num_layers) == (4_096, "pre", 4)
  assert arguments.config.optimizer.decay == "no_bias_norm" and arguments.config.objectives.rtd.weight == 50
  assert "modern, modern_large, ettin_17m" in _refused(f"--config={CONFIG}:modem")[0]
  other = _file(tmp_path, "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()\n")
  assert _refused(f"--config={other}:modern")[0].endswith("its get_config has no parameter for 'modern'")


def test_all_mistakes_are_in_one_list():
  bad = (
    "train.batchsize=3",
    "model.hidden_size=wide",
    "optimizer.learning_rate=nan",
    "corruption.mask_rate=2",
  )
  changes = [f"--config.{change}" for change in (*bad, "generator.mixture=adversial")]
  lines = _refused(f"--config={CONFIG}", *changes, "--workdr=x", "here")
  expected = [
    ("--workdr", "did you mean 'workdir'?"),
    ("here", "--help"),
    ("--config.train.batchsize", "did you mean 'train.batch_size'"),
    ("--config.model.hidden_size='wide'", "expected a whole number"),
    ("optimizer.learning_rate=nan", "finite"),
    ("corruption.mask_rate=2", "(0, 1)"),
    ("generator.mixture='adversial'", "did you mean 'adversarial'?"),
  ]
  assert len(lines) == len(expected)
  for name, text in expected:
    assert any(name in line and text in line for line in lines), name
  assert (
    len(_refused("--config=configs/amos_tny.py", "--config.model.dropout=2", "--config.model.hidden=3")) == 3
  )
  # Eight fake devices; each line names both fields, and a process of several gets no such line.
  sizes = ("--config.train.batch_size=12", "--config.train.log_every=0")
  lines = _refused(f"--config={CONFIG}", *sizes)
  assert any("use 8 or 16" in line for line in lines) and any("train.log_every=0" in line for line in lines)
  (line,) = _refused(f"--config={CONFIG}", *sizes, "--coordinator=h:1", "--num_processes=2", "--process_id=0")
  assert "train.log_every=0" in line


# (arguments behind --config=CONFIG, or all of them where they name a file, part of the first line)
REFUSED = [
  (["--config"], "--config: needs a value"),
  ([f"--config={ROOT / 'configs'}"], "directory"),
  ([f"--config={ROOT / 'configs' / 'amos_tinny.py'}"], "amos_tiny.py"),
  (["--config=nowhere/at/all.py"], "no such file"),
  (["--train.batch_size=3"], "use --config.train.batch_size=VALUE"),
  (["--config.train"], "a group of fields"),
  (["--config.train.batch_size"], "needs a value"),
  (["--config.batch_size=3"], "did you mean 'train.batch_size'"),
  (["--config.train.optimizer.seed=3"], "or 'seed'"),
  (["--config.model.remat=maybe"], "none, cheap, full"),
  (["--config.model.num_layers=2.0"], "whole number"),
  (["--config.model.dropout=inf"], "finite"),
  (["--config.generator.detach_blocks=no"], "true or false"),
  (["--config.generator.mlm_layers=1,x"], "4,6,8"),
  (["--config.train.checkpoint_steps=-4,6"], "train.checkpoint_steps=-4,6"),
  (["--dry_run=perhaps"], "true or false"),
  (["--colour=red"], "no such flag"),
  (["--quiet", "--verbose"], "--verbose"),
  (["--plan=h100:16"], "--plan=h100:16"),
  (["--plan=h100x:16", "--dry_run"], "h100x"),
  (["--plan=cpu:3", "--dry_run"], "not a multiple of 3"),
  ([f"--workdir={CONFIG}"], "is a file"),
  (["--config.data.directory=nowhere"], "nowhere"),
]
# (text of a config file, part of the first line)
BAD_FILES = [
  ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
  ("def get_config(:\n", "SyntaxError"),
  ("import nothing_of_this_name\n", "ModuleNotFoundError"),
  ("def get_config():\n  return {'a': 1}['b']\n", "KeyError: 'b' (line 2)"),
  ("get_config = 3\n", "get_config()"),
  ("def get_config():\n  return {}\n", "returned dict"),
  ("from configs import base\ndef get_config():\n  return base.get_config()\n", "no objective is on"),
  (f"{AMOS}with config.unlocked():\n    del config.seed\n  return config\n", "seed: missing"),
]


def test_a_mistake_is_told_in_one_line_with_its_ways_out(tmp_path):
  failures = []
  for argv, part in [([], "--config is missing"), *REFUSED]:
    of_config = [f"--config={CONFIG}"] * bool(argv and not argv[0].startswith("--config="))
    first, *ways = _refused(*of_config, *argv)
    if part not in first or not all(way.startswith("  ") for way in ways):
      failures.append(f"{argv}: expected {part!r}, found {[first, *ways]}")
  for text, part in BAD_FILES:
    first, *ways = _refused(f"--config={_file(tmp_path, text)}", "--config.seed=3")
    if part not in first or ways not in ([], ["  --debug"]):
      failures.append(f"{text!r}: expected {part!r}, found {[first, *ways]}")
  assert not failures, "\n".join(failures)


def test_mistakes_leave_with_2_and_a_traceback_needs_debug(tmp_path, capsys):
  path = _file(tmp_path, "1 / 0\n")
  for debug in ([], ["--debug"]):
    with pytest.raises(SystemExit) as left:
      flags.parse_arguments([f"--config={path}", *debug])
    said = capsys.readouterr().err
    assert left.value.code == 2 and ("Traceback" in said) == bool(debug) and "error: --config=" in said
  with pytest.raises(SystemExit) as left:
    flags.parse_arguments(["--help"])
  assert left.value.code == 0


def test_good_flags_are_read_without_jax():
  program = (
    "import sys; from pretrain.command import flags; "
    f"flags.parse_arguments(['--config={CONFIG}']); print('jax' in sys.modules)"
  )
  command = [sys.executable, "-c", program]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  assert result.stdout.strip() == "False"
