"""Every recipe loads, is valid, says what it is, and has the numbers of its paper's table."""

import ast
import importlib
import pathlib
import re

import pytest

from configs import backbones, base
from data import errors
from pretrain import optim
from pretrain.command import fields, validate
from pretrain.command.config_file import load_config
from pretrain.settings.batch_sizes import batch_sizes
from tests.configs.paper_values import NO_PAPER, VALUES

CONFIGS = pathlib.Path(base.__file__).parent
NOT_RECIPES = ("__init__", "backbones", "base", "sizes", "studies")
FAMILIES = ("bert", "roberta", "electra", "electra_google", "all_token", "coco_lm", "amos", "taco")
# Fine-tuning configs have fields of their own.
RECIPES = sorted(
  path.stem
  for path in CONFIGS.glob("*.py")
  if path.stem not in NOT_RECIPES and not path.stem.startswith("finetune")
)
TINY = [name for name in RECIPES if name.endswith("_tiny") or name == "demo"]
UNITS = {"T": 1e12, "B": 1e9, "M": 1e6}


def _config(name):
  return importlib.import_module(f"configs.{name}").get_config()


def _header(name):
  """{'Command': ..., 'Source': ...} of a recipe's docstring, lines joined."""
  text = ast.get_docstring(ast.parse((CONFIGS / f"{name}.py").read_text()))
  joined = re.sub(r"\n +", " ", text)
  return dict(re.findall(r"^(Command|Source|Expected|Cost): (.+)$", joined, re.M))


def _tokens(config):
  return batch_sizes(config.train).rows_before(config.train.total_steps) * config.data.length


def _differences(config, other):
  flat, flat_other = fields.flatten(config), fields.flatten(other)
  assert flat.keys() == flat_other.keys()
  return {name for name in flat if flat[name] != flat_other[name]}


def test_every_family_has_a_base_a_small_and_a_tiny_recipe():
  wanted = {f"{family}_{size}" for family in FAMILIES for size in ("base", "small", "tiny")}
  wanted |= {"coco_lm_base_plus_plus", "coco_lm_large_plus_plus", "amos_base_plus_plus"}
  wanted |= {"amos_coco_taco_base", "amos_coco_taco_tiny", "demo", "modernbert_base", "modernbert_tiny"}
  assert wanted <= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("num_devices", [1, 8])
def test_every_recipe_is_valid(name, num_devices):
  assert validate.problems(_config(name), num_devices=num_devices) == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_valid_on_the_modern_backbone(name):
  config = backbones.apply(_config(name), "modern_tiny" if name in TINY else "modern")
  assert validate.problems(config, num_devices=1) == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_the_fields_of_the_base_config_and_its_own_name(name):
  config = _config(name)
  assert config.is_locked and config.recipe == name
  assert fields.flatten(config).keys() == fields.known_fields().keys()


def test_recipes_do_not_share_state():
  _config("coco_lm_tiny").model.hidden_size = 1
  assert _config("coco_lm_tiny").model.hidden_size == 128
  assert base.get_config().model.hidden_size == 768


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_command_source_expected_result_and_cost(name):
  header = _header(name)
  assert set(header) == {"Command", "Source", "Expected", "Cost"}
  command = "make demo" if name == "demo" else f"python -m pretrain.main --config=configs/{name}.py"
  assert header["Command"] == command


@pytest.mark.parametrize("name", RECIPES)
def test_the_tokens_in_the_header_are_those_of_the_config(name):
  config = _config(name)
  tokens = _tokens(config)
  number, unit = re.match(r"([\d.]+) ([TBM]) tokens", _header(name)["Cost"]).groups()
  # The header has two digits at least: 1.2 M is 1,228,800.
  assert float(number) * UNITS[unit] == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in TINY])
def test_the_gpu_hours_in_the_header_follow_from_the_config(name):
  from pretrain.plan import flops

  config, cost = _config(name), _header(name)["Cost"]
  hours, rate, mflop = re.search(
    r"([\d.,]+) GPU-hours on H200s at (\d+) TFLOP/s \(([\d,]+) training MFLOP", cost
  ).groups()
  per_token = flops.training_flops_per_token(config.to_dict())
  tokens = _tokens(config)
  assert float(mflop.replace(",", "")) == pytest.approx(per_token / 1e6, rel=0.01)
  # Two digits in the header.
  assert float(hours.replace(",", "")) == pytest.approx(per_token * tokens / (int(rate) * 3.6e15), rel=0.06)


@pytest.mark.parametrize("name", VALUES)
def test_the_numbers_of_the_papers_tables_are_in_the_recipes(name):
  flat = fields.flatten(_config(name))
  assert {field: flat[field] for field in VALUES[name]} == VALUES[name]


def test_every_recipe_but_the_tiny_ones_is_held_against_its_paper():
  assert set(VALUES) | set(NO_PAPER) == set(RECIPES) - set(TINY)


def test_the_baselines_have_coco_lms_backbone():
  for name in ("roberta_base", "electra_base", "all_token_base", "mae_lm_base", "metro_lm_base"):
    changed = _differences(_config(name), _config("coco_lm_base"))
    assert {field.partition(".")[0] for field in changed} <= {
      "recipe",
      "corruption",
      "generator",
      "objectives",
    }, name


@pytest.mark.parametrize(("phase", "tokens", "rows"), [(2, 250e9, 576), (3, 50e9, 576)])
def test_commands_of_later_phases_are_valid_and_have_their_tokens(phase, tokens, rows):
  text = (CONFIGS / "modernbert_base.py").read_text()
  command = re.search(rf"workdir=runs/modernbert_base_{phase} .*?(?=\nPhase|\n\"\"\")", text, re.S)[0]
  changes = dict(re.findall(r"--config\.([\w.]+)=(\S+)", command))
  config = _config("modernbert_base")
  config.update_from_flattened_dict(
    {name: fields.parse_value(name, value) for name, value in changes.items()}
  )
  assert validate.problems(config, num_devices=8) == []
  assert _tokens(config) == pytest.approx(tokens, rel=1e-4) and config.train.batch_size == rows
  falls = optim.make_schedule(
    optim.OptimizerSettings(**config.optimizer.to_dict(), total_steps=config.train.total_steps)
  )
  last = config.train.total_steps
  assert [float(falls(step)) for step in (0, last)] == pytest.approx([3e-4, 3e-7 if phase == 3 else 3e-4])


def test_taco_is_bert_and_one_objective():
  for size in ("base", "small"):
    changed = _differences(_config(f"taco_{size}"), _config(f"bert_{size}"))
    assert changed == {"recipe", "objectives.taco.weight"}


def test_the_union_is_amos_and_three_objectives():
  changed = _differences(_config("amos_coco_taco_base"), _config("amos_base"))
  weights = {f"objectives.{name}.weight" for name in ("clm", "scl", "taco")}
  assert changed == {"recipe", "objectives.taco.group_size"} | weights


@pytest.mark.parametrize("name", TINY)
def test_tiny_recipes_need_no_download_and_little_time(name):
  config = _config(name)
  assert config.data.source == "installed_docs"
  assert config.model.hidden_size == 128 and config.model.num_layers == 2
  assert config.train.total_steps <= 5_000


def test_a_recipe_is_the_same_by_path_and_by_import():
  assert load_config(str(CONFIGS / "amos_tiny.py")) == _config("amos_tiny")


def test_the_base_config_alone_trains_nothing():
  with pytest.raises(errors.ConfigError, match="no objective is on"):
    validate.check(base.get_config())
