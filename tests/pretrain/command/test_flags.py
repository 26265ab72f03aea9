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


def _read(*argv):
  return flags.read_arguments(argv)


def _refused(*argv):
  """Lines of the list with which the arguments are refused."""
  with pytest.raises(errors.ConfigError) as raised:
    flags.read_arguments(argv)
  lines = str(raised.value).splitlines()
  return lines[1:] if lines[0].endswith(" problems") else lines


def _file(tmp_path, text, name="mine.py"):
  path = tmp_path / name
  path.write_text(text)
  return str(path)


def test_a_process_that_joins_others_is_not_told_of_its_own_devices():
  joins = ("--coordinator=h:1", "--num_processes=2", "--process_id=0", "--config.mesh.data=2")
  lines = _refused(f"--config={CONFIG}", *joins, "--config.train.log_evry=1")
  assert "log_evry" in lines[0] and not any("mesh" in line for line in lines)


def test_a_config_file_and_nothing_else():
  arguments = _read(f"--config={CONFIG}")
  assert arguments.config.recipe == "amos_tiny" and arguments.config_name == "amos_tiny"
  assert arguments.workdir == os.path.join("runs", "amos_tiny")
  assert not (arguments.dry_run or arguments.download or arguments.debug)


def test_switches_and_workdir():
  arguments = _read("--config", CONFIG, "--workdir", "here/x", "--dry_run", "--download=true", "--debug=1")
  assert arguments.dry_run and arguments.download and arguments.debug
  assert arguments.workdir == "here/x"
  assert not _read(f"--config={CONFIG}", "--download=false").download


@pytest.mark.parametrize(
  ("change", "name", "value"),
  [
    ("train.batch_size=64", "train.batch_size", 64),
    ("train.total_steps=1_000", "train.total_steps", 1000),
    ("optimizer.learning_rate=1e-4", "optimizer.learning_rate", 1e-4),
    ("objectives.rtd.weight=10", "objectives.rtd.weight", 10.0),
    ("generator.reversal_multiplier=-0.5", "generator.reversal_multiplier", -0.5),
    ("generator.mlm_layers=1,3", "generator.mlm_layers", (1, 3)),
    ("generator.mlm_layers=(2, 3)", "generator.mlm_layers", (2, 3)),
    ("corruption.mask_rates=(0,0.3),(0.8,0.15)", "corruption.mask_rates", ((0, 0.3), (0.8, 0.15))),
    ("corruption.mask_rates=((0.0, 0.3),)", "corruption.mask_rates", ((0.0, 0.3),)),
    ("corruption.mask_rates=", "corruption.mask_rates", ()),
    ("train.checkpoint_steps=5", "train.checkpoint_steps", (5,)),
    ("train.checkpoint_steps=", "train.checkpoint_steps", ()),
    ("generator.detach_blocks=False", "generator.detach_blocks", False),
    ("generator.detach_blocks", "generator.detach_blocks", True),
    ("model.remat=cheap", "model.remat", "cheap"),
    ("model.remat", "model.remat", "full"),  # as before it had names
    ("model.remat=False", "model.remat", "none"),
    ("data.source=text/*.txt", "data.source", "text/*.txt"),
    ("model.dtype=float32", "model.dtype", "float32"),
  ],
)
def test_every_kind_of_field_can_be_changed(change, name, value):
  flat = fields.flatten(_read(f"--config={CONFIG}", f"--config.{change}").config)
  assert flat[name] == value and type(flat[name]) is type(value)


def test_a_config_file_may_say_remat_as_before_it_had_names(tmp_path):
  text = "from configs import amos_tiny\ndef get_config():\n  config = amos_tiny.get_config()\n"
  for old, name in ((True, "full"), (False, "none")):
    path = _file(tmp_path, f"{text}  config.model.remat = {old}\n  return config\n")
    assert _read(f"--config={path}").config.model.remat == name
  assert _read(f"--config={path}", "--config.model.remat=cheap").config.model.remat == "cheap"


def test_a_value_may_follow_its_flag():
  arguments = _read("--config", CONFIG, "--config.generator.reversal_multiplier", "-2", "--config.seed", "7")
  assert arguments.config.generator.reversal_multiplier == -2.0 and arguments.config.seed == 7


def test_only_named_fields_change():
  config = _read(f"--config={CONFIG}", "--config.seed=7").config
  unchanged = _read(f"--config={CONFIG}").config
  flat, other = fields.flatten(config), fields.flatten(unchanged)
  assert {name for name in flat if flat[name] != other[name]} == {"seed"}


def test_the_config_is_frozen():
  config = _read(f"--config={CONFIG}").config
  with pytest.raises(AttributeError):
    config.train.batch_size = 3
  with pytest.raises(AttributeError):
    config.seed = 3


def test_an_argument_goes_to_get_config(tmp_path):
  path = _file(
    tmp_path,
    "from configs import amos_tiny\n"
    "def get_config(which):\n"
    "  config = amos_tiny.get_config()\n"
    "  config.recipe = which\n"
    "  return config\n",
  )
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
  (problem,) = _refused(f"--config={CONFIG}:modem")
  assert "no parameter for 'modem'; expected a backbone: modern, modern_large, ettin_17m" in problem
  other = _file(tmp_path, "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()\n")
  assert _refused(f"--config={other}:modern")[0].endswith("its get_config has no parameter for 'modern'")


def test_all_mistakes_are_in_one_list():
  lines = _refused(
    f"--config={CONFIG}",
    "--config.train.batchsize=3",
    "--config.model.hidden_size=wide",
    "--config.optimizer.learning_rate=nan",
    "--config.corruption.mask_rate=1.5",
    "--config.generator.mixture=adversial",
    "--workdr=x",
    "here",
  )
  expected = [
    ("--workdr", "did you mean 'workdir'?"),
    ("here", "--help"),
    ("--config.train.batchsize", "did you mean 'train.batch_size'"),
    ("--config.model.hidden_size='wide'", "expected a whole number"),
    ("optimizer.learning_rate=nan", "finite"),
    ("corruption.mask_rate=1.5", "(0, 1)"),
    ("generator.mixture='adversial'", "did you mean 'adversarial'?"),
  ]
  assert len(lines) == len(expected)
  for name, text in expected:
    assert any(name in line and text in line for line in lines), name


def test_changes_are_looked_at_even_without_a_config_file():
  lines = _refused("--config=configs/amos_tny.py", "--config.model.dropout=2", "--config.model.hidden=3")
  assert len(lines) == 3
  assert any("model.dropout=2" in line for line in lines)
  assert any("did you mean 'model.hidden_size'" in line for line in lines)


def test_sizes_are_held_against_the_devices_once_there_is_a_list():
  # Eight fake devices; neither line alone would name the other.
  lines = _refused(f"--config={CONFIG}", "--config.train.batch_size=12", "--config.train.log_every=0")
  assert any("not a multiple of 8" in line and "use 8 or 16" in line for line in lines)
  assert any("train.log_every=0" in line for line in lines)


@pytest.mark.parametrize(
  ("argv", "expected"),
  [
    ([], "--config is missing"),
    (["--config"], "--config: needs a value"),
    (["--config="], "--config: needs a value"),
    ([f"--config={ROOT / 'configs'}"], "is a directory; expected a file, such as"),
    ([f"--config={ROOT / 'configs' / 'amos_tinny.py'}"], "no such file; did you mean"),
    (["--config=nowhere/at/all.py"], "no such file"),
    ([f"--config={CONFIG}", "--train.batch_size=3"], "use --config.train.batch_size=VALUE"),
    ([f"--config={CONFIG}", "--config.train"], "a group of fields"),
    ([f"--config={CONFIG}", "--config.train=3"], "a group of fields"),
    ([f"--config={CONFIG}", "--config.train.batch_size"], "needs a value"),
    ([f"--config={CONFIG}", "--config.batch_size=3"], "did you mean 'train.batch_size'"),
    ([f"--config={CONFIG}", "--config.model.remat=maybe"], "expected one of none, cheap, full"),
    ([f"--config={CONFIG}", "--config.model.num_layers=2.0"], "expected a whole number"),
    ([f"--config={CONFIG}", "--config.model.num_layers="], "expected a whole number"),
    ([f"--config={CONFIG}", "--config.model.dropout=inf"], "expected a finite number"),
    ([f"--config={CONFIG}", "--config.generator.mlm_layers=1,x"], "expected whole numbers (such as 4,6,8)"),
    (
      [f"--config={CONFIG}", "--config.train.checkpoint_steps=-4,6"],
      "train.checkpoint_steps=-4,6, train.total_steps",
    ),
    ([f"--config={CONFIG}", "--config.generator.mlm_layers=1.5,3"], "expected whole numbers (such as 4,6,8)"),
    ([f"--config={CONFIG}", "--dry_run=perhaps"], "expected true or false"),
    ([f"--config={CONFIG}", "--colour=red"], "no such flag; flags are --config"),
    ([f"--config={CONFIG}", f"--workdir={CONFIG}"], "is a file; expected a directory"),
  ],
)
def test_a_mistake_is_told_in_one_line_with_its_ways_out(argv, expected):
  first, *ways = _refused(*argv)
  assert expected in first and all(way.startswith("  --") for way in ways), (first, ways)


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("x = 1\n1 / 0\n", "raised ZeroDivisionError: division by zero (line 2)"),
    ("def get_config(:\n", "raised SyntaxError"),
    ("import nothing_of_this_name\n", "raised ModuleNotFoundError"),
    ("raise SystemExit(3)\n", "raised SystemExit"),
    ("def get_config():\n  return {'a': 1}['b']\n", "raised KeyError: 'b' (line 2)"),
    ("config = 3\n", "the file has no function get_config()"),
    ("get_config = 3\n", "the file has no function get_config()"),
    ("def get_config():\n  return {}\n", "get_config returned dict; expected a ConfigDict"),
    ("def get_config():\n  return None\n", "get_config returned NoneType"),
    ("from configs import base\ndef get_config():\n  return base.get_config()\n", "no objective is on"),
  ],
)
def test_a_bad_config_file_is_told_in_one_line_with_its_way_out(tmp_path, text, expected):
  first, *ways = _refused(f"--config={_file(tmp_path, text)}")
  assert expected in first and ways in ([], ["  --debug"]), (first, ways)


def test_a_field_that_a_file_lacks_is_named_even_if_it_is_given(tmp_path):
  text = (
    "from configs import amos_tiny\n"
    "def get_config():\n"
    "  config = amos_tiny.get_config()\n"
    "  with config.unlocked():\n"
    "    del config.seed\n"
    "  return config\n"
  )
  assert "seed: missing" in _refused(f"--config={_file(tmp_path, text)}", "--config.seed=3")[0]


def test_a_config_file_may_define_dataclasses(tmp_path):
  text = (
    "from __future__ import annotations\n"
    "import dataclasses\n"
    "from configs import amos_tiny\n"
    "@dataclasses.dataclass\n"
    "class Choice:\n"
    "  seed: int = 5\n"
    "def get_config():\n"
    "  config = amos_tiny.get_config()\n"
    "  config.seed = Choice().seed\n"
    "  return config\n"
  )
  assert _read(f"--config={_file(tmp_path, text)}").config.seed == 5


def test_help_names_every_flag_and_every_field(capsys):
  with pytest.raises(SystemExit) as left:
    flags.parse_arguments(["--help"])
  assert left.value.code == 0
  text = capsys.readouterr().out
  assert all(f"--{flag}" in text for flag in flags.PRETRAINING.flags)
  assert all(f"--config.{name}=" in text for name in fields.known_fields())
  assert "It is a Python program: read it" in text


def test_parse_arguments_prints_and_leaves_with_2(capsys):
  with pytest.raises(SystemExit) as left:
    flags.parse_arguments([f"--config={CONFIG}", "--config.seed=-1"])
  assert left.value.code == 2
  assert capsys.readouterr().err == "error: seed=-1: expected a number in [0, 4.29497e+09]\n"


@pytest.mark.parametrize("debug", [False, True])
def test_the_traceback_of_a_config_file_needs_debug(tmp_path, capsys, debug):
  path = _file(tmp_path, "1 / 0\n")
  with pytest.raises(SystemExit):
    flags.parse_arguments([f"--config={path}", *(["--debug"] if debug else [])])
  shown = capsys.readouterr().err
  assert ("Traceback" in shown) == debug
  assert "error: --config=" in shown


def test_good_flags_are_read_without_jax():
  program = (
    "import sys; from pretrain.command import flags; "
    f"flags.parse_arguments(['--config={CONFIG}']); print('jax' in sys.modules)"
  )
  result = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
  )
  assert result.stdout.strip() == "False"
