"""Every row of the papers' ablation tables is a config that changes exactly what it names."""

import importlib
import pathlib

import pytest

from configs.ablations import amos, coco_lm, taco
from data import errors
from pretrain.command import fields, flags, validate

TABLES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}
ALL = [(family, name) for family, table in TABLES.items() for name in table.ROWS]

# What the user must give, as a run that has ended would have it.
GIVEN = {
  "generator.init_from": "runs/roberta_base",
  "generator.mixture_weights": (0.5, 0.25, 0.25),
  "model.freeze_embeddings_from": "runs/bert_small",
}

PAPER_ROWS = {
  "coco_lm": "rtd_only clm_only scl_rtd no_relpos electra_aux random_replace converged_aux all_token_lm "
  "clm_no_copy clm_no_stopgrad crop_70 crop_80 crop_90 crop_100",
  "amos": "random_layer layer_switch no_adv adv_mlm final_weights no_stopgrad separate_gens three_4layer "
  "gen_4 gen_6 gen_8 gen_12 heads_48 heads_2468 heads_all8",
  "taco": "mlm_small mlm_base taco_small taco_base taco_masked15 taco_except_mlm mlm_tp taco_k10 taco_k50 "
  "taco_w3 taco_w5 taco_w10 taco_w50 taco_25pct mlm_25pct mlm_frozen_random mlm_frozen_trained",
}


def _recipe(name):
  return importlib.import_module(f"configs.{name}").get_config()


def _changes(family, name, *, tiny):
  """(config of the row, its recipe, the changes it names), with what the user must give."""
  entry = TABLES[family].ROWS[name]
  config = TABLES[family].get_config(f"{name}:tiny" if tiny else name)
  config.update_from_flattened_dict({field: GIVEN[field] for field in entry.required})
  changes = entry.tiny_changes if tiny and entry.tiny_changes is not None else entry.changes
  return config, _recipe(entry.tiny_recipe if tiny else entry.recipe), changes


@pytest.mark.parametrize("family", TABLES)
def test_every_row_of_the_papers_is_there(family):
  assert set(PAPER_ROWS[family].split()) <= TABLES[family].ROWS.keys()


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize(("family", "name"), ALL)
def test_a_row_changes_exactly_the_fields_it_names(family, name, tiny):
  config, recipe, changes = _changes(family, name, tiny=tiny)
  given, original = fields.flatten(config), fields.flatten(recipe)
  required = TABLES[family].ROWS[name].required
  assert given.keys() == original.keys()
  for field, value in original.items():
    if field in changes:
      assert given[field] == changes[field]
    elif field not in ("recipe", *required):
      assert given[field] == value, field
  suffix = ":tiny" if tiny else ""
  assert given["recipe"] == f"{family}:{name}{suffix}"


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize(("family", "name"), ALL)
def test_every_row_is_valid(family, name, tiny):
  config, _, _ = _changes(family, name, tiny=tiny)
  assert validate.problems(config, num_devices=1) == []


@pytest.mark.parametrize(("family", "name"), ALL)
def test_rows_that_wait_for_another_run_are_refused_without_it(family, name):
  entry = TABLES[family].ROWS[name]
  found = validate.problems(TABLES[family].get_config(name))
  assert bool(found) == bool(entry.required)
  assert all(any(field in line for line in found) for field in entry.required)


@pytest.mark.parametrize(("family", "name"), ALL)
def test_tiny_changes_name_the_same_fields(family, name):
  entry = TABLES[family].ROWS[name]
  assert entry.tiny_changes is None or entry.tiny_changes.keys() == entry.changes.keys()


@pytest.mark.parametrize(("family", "name"), ALL)
def test_a_row_says_what_it_does(family, name):
  entry = TABLES[family].ROWS[name]
  assert entry.note
  if name in PAPER_ROWS[family].split() and entry.changes and not name.startswith("taco_"):
    assert entry.paper


def test_rows_with_one_meaning_are_not_repeated_with_other_names():
  settings = {}
  defaults = {"crop_90", "taco_small", "taco_k50", "taco_w5"}  # the ends of grids that hold the paper's value
  for family, name in ALL:
    if name not in defaults:
      key = (TABLES[family].ROWS[name].recipe, tuple(sorted(TABLES[family].ROWS[name].changes.items())))
      assert key not in settings, (name, settings.get(key))
      settings[key] = name


def test_a_row_is_an_argument_of_the_config_flag():
  path = str(pathlib.Path(amos.__file__))
  arguments = flags.read_arguments([f"--config={path}:gen_12"])
  assert arguments.config.generator.num_layers == 12
  assert arguments.config_name == "amos_gen_12" and arguments.workdir == "runs/amos_gen_12"


@pytest.mark.parametrize("argument", ["rdt_only", "rtd_only:small", ""])
def test_an_unknown_row_lists_those_there_are(argument):
  with pytest.raises(errors.ConfigError, match=r"there is no row .*It has rtd_only, clm_only"):
    coco_lm.get_config(argument)


def test_a_misspelt_row_names_the_nearest():
  with pytest.raises(errors.ConfigError, match="did you mean 'rtd_only'"):
    coco_lm.get_config("rdt_only")


def test_a_change_of_a_field_that_does_not_exist_raises():
  with pytest.raises((AttributeError, KeyError)):
    _recipe("coco_lm_tiny").update_from_flattened_dict({"model.hiden_size": 3})
