"""What every row of the papers' tables changes in the recipe and its parameters, in the paper's size.

What a setting does is tested where it is implemented. Recipes are functions of their settings, so a row
changes nothing but the settings here. Nothing is compiled.
"""

import dataclasses
import functools
import importlib

import jax
import pytest

from configs.ablations import amos, coco_lm, taco
from pretrain.build import build
from pretrain.mesh.trees import by_path
from pretrain.recipe import Recipe
from tests.pretrain.small_recipe import TOKENS

TABLES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}

# {family: {row: settings that differ from those of its recipe}}
SETTINGS = {
  "coco_lm": {
    "rtd_only": "objectives.clm objectives.scl",
    "clm_only": "objectives.scl",
    "scl_rtd": "objectives.clm",
    "no_relpos": "encoder.relative_position generator.members",
    "electra_aux": "generator.hidden_size generator.members generator.mlm_layers generator.mlp_size "
    "generator.num_heads generator.num_layers generator.share_embeddings",
    "random_replace": "generator masking.kind",
    "converged_aux": "generator.frozen generator.share_embeddings",
    "all_token_lm": "objectives.all_token objectives.clm objectives.rtd objectives.scl",
    "clm_no_copy": "objectives.clm.copy objectives.rtd objectives.scl",
    "clm_no_stopgrad": "objectives.clm.stop_gradient objectives.scl",
    **dict.fromkeys(("crop_70", "crop_80"), "objectives.scl.crop_fraction"),
    "crop_90": "",
    "crop_100": "objectives.scl.crop_add_cls objectives.scl.crop_fraction",
    **dict.fromkeys(("scl_tau_0p1", "scl_tau_0p5"), "objectives.scl.temperature"),
    "scl_gather": "objectives.scl.group_size",
    "official": "encoder.relative_position generator.members masking.mask_special objectives.clm.form "
    "objectives.scl.head",
  },
  "amos": {
    **dict.fromkeys(("random_layer", "layer_switch", "no_adv", "final_weights"), "generator.mixture"),
    "adv_mlm": "generator.adv_mlm_multiplier",
    "no_reversal": "generator.reversal_multiplier",
    "no_stopgrad": "generator.detach_blocks",
    "separate_gens": "generator.members generator.separate_layers",
    "three_4layer": "generator.members generator.mlm_layers generator.separate_layers",
    **dict.fromkeys(
      ("gen_4", "gen_6", "gen_12"),
      "generator.members generator.mixture generator.mlm_layers generator.num_layers",
    ),
    "gen_8": "generator.mixture generator.mlm_layers",
    **dict.fromkeys(("heads_48", "heads_2468", "heads_all8"), "generator.mlm_layers"),
  },
  "taco": {
    **dict.fromkeys(("taco_small", "taco_base", "taco_k50", "taco_w5", "taco_25pct"), ""),
    **dict.fromkeys(("mlm_small", "mlm_base", "mlm_25pct"), "objectives.taco"),
    **dict.fromkeys(("taco_masked15", "taco_except_mlm"), "objectives.taco.anchors"),
    "mlm_tp": "objectives.mlm.positions objectives.taco",
    "taco_k10": "objectives.taco.num_negatives",
    **dict.fromkeys(("taco_w3", "taco_w10", "taco_w50"), "objectives.taco.window"),
    **dict.fromkeys(("mlm_frozen_random", "mlm_frozen_trained"), "freeze_token_table objectives.taco"),
  },
}
# {row: number of parameters removed, added and resized below a path}; all other rows have their recipe's.
MIXTURE = ({"generator/mixture/kernel": 1}, {}, {})
DEPTH = ({"generator/mixture/kernel": 1}, {}, {"generator/trunk/layers": 16})
MEMBERS = (
  {"generator/embeddings": 3, "generator/mlm_head": 5, "generator/trunk": 17},
  {f"generator/member_{i}": 25 for i in range(3)},
  {},
)
PARAMETERS = {
  **dict.fromkeys(("rtd_only", "scl_rtd"), ({"heads/clm/bias": 1}, {}, {})),
  "no_relpos": ({f"{net}/trunk/relative_position": 1 for net in ("encoder", "generator")}, {}, {}),
  "electra_aux": ({}, {"generator/projection": 2, "generator/embeddings": 3}, {"generator": 21}),
  "random_replace": ({"generator": 22}, {}, {}),
  "converged_aux": ({}, {"generator/embeddings": 4}, {}),
  "clm_no_copy": ({"heads/rtd": 2}, {}, {}),
  "official": ({}, {"heads/scl": 4}, {}),
  **dict.fromkeys(("random_layer", "layer_switch", "no_adv", "final_weights", "gen_8"), MIXTURE),
  **dict.fromkeys(("gen_4", "gen_6", "gen_12"), DEPTH),
  **dict.fromkeys(("separate_gens", "three_4layer"), MEMBERS),
}
# Values that the paper gives and that shapes do not show.
VALUES = {
  ("coco_lm", "crop_70"): ("objectives.scl.crop_fraction", 0.7),
  ("coco_lm", "crop_100"): ("objectives.scl.crop_add_cls", False),
  ("coco_lm", "scl_tau_0p1"): ("objectives.scl.temperature", 0.1),
  ("coco_lm", "official"): ("masking.mask_special", "sep_only"),
  ("amos", "random_layer"): ("generator.mixture", "random_layer"),
  ("amos", "layer_switch"): ("generator.mixture", "schedule"),
  ("amos", "no_adv"): ("generator.mixture", "uniform"),
  ("amos", "final_weights"): ("generator.mixture", "fixed"),
  ("amos", "adv_mlm"): ("generator.adv_mlm_multiplier", 0.1),
  ("amos", "heads_48"): ("generator.mlm_layers", (4, 8)),
  ("amos", "heads_all8"): ("generator.mlm_layers", (1, 2, 3, 4, 5, 6, 7, 8)),
  ("amos", "separate_gens"): ("generator.mlm_layers", (4, 6, 8)),
  ("amos", "three_4layer"): ("generator.mlm_layers", (4, 4, 4)),
  ("amos", "gen_12"): ("generator.mlm_layers", (12,)),
  ("taco", "taco_masked15"): ("objectives.taco.anchors", "masked"),
  ("taco", "taco_except_mlm"): ("objectives.taco.anchors", "unmasked"),
  ("taco", "mlm_tp"): ("objectives.mlm.positions", "all"),
  ("taco", "taco_k10"): ("objectives.taco.num_negatives", 10),
  ("taco", "taco_w50"): ("objectives.taco.window", 50),
}
ALL = [(family, row) for family, table in TABLES.items() for row in table.ROWS]


@functools.cache
def _recipe(family: str, row: str) -> Recipe:
  """The recipe of a row, or of a whole config file where no family is given."""
  module = TABLES[family] if family else importlib.import_module(f"configs.{row}")
  config = module.get_config(row) if family else module.get_config()
  return build(config, dataclasses.replace(TOKENS, vocab_size=config.model.vocab_size))


@functools.cache
def _shapes(family: str, row: str) -> dict[str, tuple[int, ...]]:
  init = _recipe(family, row).init
  return {path: leaf.shape for path, leaf in by_path(jax.eval_shape(init, jax.random.key(0))).items()}


def _changed(before, after, name: str = ""):
  """Dotted names of the settings in which two recipes differ."""
  pair = [
    {f.name: getattr(x, f.name) for f in dataclasses.fields(x)} if dataclasses.is_dataclass(x) else x
    for x in (before, after)
  ]
  if all(isinstance(x, dict) for x in pair):
    for key in pair[0].keys() | pair[1].keys():
      yield from _changed(pair[0].get(key), pair[1].get(key), f"{name}.{key}" if name else key)
  elif before != after:
    yield name


def _counted(paths: set[str], below: dict[str, int]) -> dict[str, int]:
  """{path: how many of `paths` are at or below it}, and those below none of them as ''."""
  counted = {prefix: sum(f"{path}/".startswith(f"{prefix}/") for path in paths) for prefix in below}
  rest = len(paths) - sum(counted.values())
  return counted | ({"": rest} if rest else {})


def test_every_row_is_in_the_table_of_settings():
  assert {(family, row) for family, rows in SETTINGS.items() for row in rows} == set(ALL)
  assert PARAMETERS.keys() <= {row for _, row in ALL}


@pytest.mark.parametrize(("family", "row"), ALL)
def test_a_row_changes_what_it_names_and_nothing_else(family, row):
  parent = ("", TABLES[family].ROWS[row].recipe)
  assert set(_changed(_recipe(*parent), _recipe(family, row))) == set(SETTINGS[family][row].split())
  before, after = _shapes(*parent), _shapes(family, row)
  resized = {path for path in before.keys() & after.keys() if before[path] != after[path]}
  found = (before.keys() - after.keys(), after.keys() - before.keys(), resized)
  expected = PARAMETERS.get(row, ({}, {}, {}))
  assert tuple(map(_counted, found, expected)) == expected


@pytest.mark.parametrize(("family", "row"), VALUES)
def test_a_row_has_the_value_of_the_paper(family, row):
  name, expected = VALUES[family, row]
  value = _recipe(family, row)
  for part in name.split("."):
    value = value[part] if isinstance(value, dict) else getattr(value, part)
  assert value == expected


def test_generators_have_the_sizes_of_the_paper():
  shapes = _shapes("coco_lm", "electra_aux")
  assert shapes["generator/trunk/layers/attention/query/kernel"] == (12, 256, 4, 64)
  assert shapes["generator/projection/kernel"] == (768, 256)
  for row, depths in (("separate_gens", (4, 6, 8)), ("three_4layer", (4, 4, 4))):
    kernels = [_shapes("amos", row)[f"generator/member_{i}/trunk/layers/up/kernel"] for i in range(3)]
    assert tuple(kernel[0] for kernel in kernels) == depths
  for depth in (4, 6, 8, 12):
    assert _shapes("amos", f"gen_{depth}")["generator/trunk/layers/up/kernel"][0] == depth


@pytest.mark.parametrize(
  ("family", "row", "frozen"),
  [
    ("coco_lm", "converged_aux", "generator/"),
    *(("taco", f"mlm_frozen_{kind}", "encoder/embeddings/token/") for kind in ("random", "trained")),
  ],
)
def test_a_row_freezes_what_it_names(family, row, frozen):
  recipe = _recipe(family, row)
  assert all(recipe.is_frozen(path) == path.startswith(frozen) for path in _shapes(family, row))
