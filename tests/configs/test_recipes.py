"""Every recipe loads, is valid, and has the numbers of its paper's table."""

import collections
import functools
import importlib
import pathlib
import re

import jax
import pytest

from configs import arguments, backbones, base
from data import errors
from pretrain import optim
from pretrain.command import load_config, override
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import encoder_config
from pretrain.plan import rates
from pretrain.settings import PRETRAINING, fields
from pretrain.settings.run import batch_sizes
from tests.configs import paper_values

CONFIGS = pathlib.Path(base.__file__).parent
NOT_RECIPES = ("__init__", "arguments", "backbones", "base", "sizes")
# Fine-tuning configs have fields of their own.
FILES = sorted(
  path.stem
  for path in CONFIGS.glob("*.py")
  if path.stem not in NOT_RECIPES and not path.stem.startswith("finetune")
)
SIZES = {stem: getattr(importlib.import_module(f"configs.{stem}"), "SIZES", {}) for stem in FILES}
RECIPES = [*FILES, *(f"{stem}:{size}" for stem, sizes in SIZES.items() for size in sizes)]
TINY = [name for name in RECIPES if name.endswith(":tiny") or name == "demo"]
_config = arguments.recipe


@functools.cache
def _flat(name):
  return fields.flatten(_config(name))


def stem_of(name):
  return name.partition(":")[0]


def _tokens(config):
  return batch_sizes(config.train).rows_before(config.train.total_steps) * config.data.length


def _differences(name, other):
  return {field for field in _flat(name) if _flat(name)[field] != _flat(other)[field]}


def test_every_base_recipe_has_size_tiny_and_every_recipe_its_papers_values():
  assert {stem for stem in FILES if stem.endswith("_base")} == {
    stem for stem in FILES if "tiny" in SIZES[stem]
  }
  small = ("all_token", "amos", "bert", "coco_lm", "electra", "electra_google", "roberta", "taco")
  assert {stem for stem in FILES if "small" in SIZES[stem]} == {f"{family}_base" for family in small}
  assert set(paper_values.VALUES) | set(paper_values.NO_PAPER) == set(RECIPES) - set(TINY)


def test_every_recipe_is_valid_and_has_the_fields_of_the_base_config():
  failures = []
  for name in RECIPES:
    config = _config(name)
    named = re.sub("(_base)?:", "_", name)
    if stem_of(name) == "continue":
      config.data.source = "installed_docs"  # a user's own
    if not config.is_locked or config.recipe != named or _flat(name).keys() != PRETRAINING.defaults.keys():
      failures.append(f"{name}: other fields, or another name")
    for devices in (1, 8):
      PRETRAINING.check(config, num_devices=devices)
    PRETRAINING.check(backbones.apply(config, "modern_tiny" if name in TINY else "modern"), num_devices=1)
  assert not failures, "\n".join(failures)


def test_headers_and_pages_have_the_hours_that_a_plan_prints():
  def hours(name):
    config = _config(name)
    return rates.hours(config, rates.expected(config, "NVIDIA H200")[0])

  found = []  # (recipe, hours as printed, where)
  for stem in FILES:
    shown = re.search(r"([\d,]+) GPU-hours", (CONFIGS / f"{stem}.py").read_text())
    found += [(stem, shown[1], "its header")] if shown else []
  for page in ("guides/recipes.md", "guides/pretraining.md"):
    for line in (CONFIGS.parent / "docs" / page).read_text().splitlines():
      if row := re.fullmatch(r"\| (?:[^|]*\| )?`(\w+)_\*`.*\| ([\d,]+)(?:, [\w' ]+)? \|", line):
        found.append((f"{row[1]}_base", row[2], page))
      if row := re.fullmatch(r"\| `(\w+:small)` .*\| ([\d.]+) \|", line):
        found.append((row[1], row[2], page))
  readme = (CONFIGS.parent / "README.md").read_text()
  measured = readme.partition("measured on one H200: ")[2].partition("hours")[0]
  for name, number in re.findall(r"([\w-]+) (\d+)", measured):
    found.append((f"{name.lower().replace('-', '_')}_base", number, "README.md"))
  wrong = [row for row in found if row[1] != f"{hours(row[0]):,.{1 if ':' in row[0] else 0}f}"]
  assert not wrong and collections.Counter(where for _, _, where in found) == {
    "its header": 18,
    "guides/recipes.md": 23,
    "guides/pretraining.md": 7,
    "README.md": 5,
  }


def test_recipes_do_not_share_state():
  _config("coco_lm_base:tiny").model.hidden_size = 1
  assert _config("coco_lm_base:tiny").model.hidden_size == 128
  assert base.get_config().model.hidden_size == 768


def test_the_numbers_of_the_papers_tables_are_in_the_recipes():
  tables = paper_values.VALUES | dict.fromkeys(TINY, paper_values.TINY) | {"demo": paper_values.DEMO}
  failures = [
    f"{name}: {field}={_flat(name)[field]!r}, expected {value!r}"
    for name, values in tables.items()
    for field, value in values.items()
    if _flat(name)[field] != value
  ]
  assert not failures, "\n".join(failures)
  for name, sizes in paper_values.BACKBONES.items():
    model = backbones.apply(_config("bert_base"), name).model
    assert (model.num_layers, model.hidden_size, model.num_heads, model.mlp_size) == sizes, name
    # ModernBERT's kind, of which `modernbert_base` has every field.
    assert (model.position, model.norm_placement, model.mlp, model.num_segments) == (
      "rope",
      "pre",
      "gated",
      0,
    )
    assert (model.global_every, model.window, model.init) == (3, 128, "megatron_cut")


def test_deberta_has_the_published_numbers_of_parameters_under_every_recipe():
  for name, (sizes, layers, table) in paper_values.DEBERTA.items():
    model = backbones.apply(_config("modernbert_base"), name).model  # which is of another kind
    assert (model.num_layers, model.hidden_size, model.num_heads, model.mlp_size) == sizes, name
    model.vocab_size = max(model.vocab_size, 128_100)
    encoder = encoder_config(model.to_dict())
    shapes = jax.eval_shape(lambda key, e=encoder: init_encoder(key, e, pad_id=0), jax.random.key(0))
    rows = shapes["embeddings"]["token"]["embedding"].size
    # The cards round to millions, and up: 302.8, 85.5, 42.9 and 21.5 million.
    whole = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert 0 <= layers - (whole - rows) / 1e6 < 1.2, name
    assert abs(table - rows / 1e6) < 0.03 * table, name


def test_recipes_differ_from_their_baselines_in_their_method_only():
  for name in ("roberta_base", "electra_base", "all_token_base", "mae_lm_base"):
    groups = {field.partition(".")[0] for field in _differences(name, "coco_lm_base")}
    assert groups <= {"recipe", "corruption", "generator", "objectives"}, name
  for size in ("base", "base:small"):
    assert _differences(f"taco_{size}", f"bert_{size}") == {"recipe", "objectives.taco.weight"}
  weights = {f"objectives.{name}.weight" for name in ("clm", "scl", "taco")}
  union = {"recipe", "objectives.taco.group_size"} | weights
  assert _differences("amos_coco_taco_base", "amos_base") == union


@pytest.mark.parametrize(("phase", "tokens", "rows"), [(2, 250e9, 576), (3, 50e9, 576)])
def test_commands_of_later_phases_are_valid_and_have_their_tokens(phase, tokens, rows):
  text = (CONFIGS / "modernbert_base.py").read_text()
  command = re.search(rf"workdir=runs/modernbert_base_{phase} .*?(?=\nPhase|\n\"\"\")", text, re.S)[0]
  config = _config("modernbert_base")
  override(config, re.findall(r"--config\.[\w.]+=\S+", command), PRETRAINING)
  PRETRAINING.check(config, num_devices=8)
  assert _tokens(config) == pytest.approx(tokens, rel=1e-4) and config.train.batch_size == rows
  total = config.train.total_steps
  falls = optim.make_schedule(optim.OptimizerSettings(**config.optimizer.to_dict(), total_steps=total))
  rates = [float(falls(step)) for step in (0, total)]
  assert rates == pytest.approx([3e-4, 3e-7 if phase == 3 else 3e-4])


def test_a_recipe_is_the_same_by_path_and_by_import(tmp_path, monkeypatch):
  assert load_config(f"{CONFIGS}/amos_base.py:tiny") == _config("amos_base:tiny")
  monkeypatch.chdir(tmp_path)  # without configs/, the installed file is taken
  assert load_config("configs/amos_base.py:tiny") == _config("amos_base:tiny")


def test_the_base_config_alone_trains_nothing():
  with pytest.raises(errors.ConfigError, match="no objective is on"):
    PRETRAINING.check(base.get_config())
