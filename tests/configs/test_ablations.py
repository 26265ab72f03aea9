"""Every row of the papers' ablation tables: the fields that it changes, by value, and its parameters."""

import dataclasses
import functools
import importlib
import pathlib

import jax
import pytest

from configs.ablations import amos, coco_lm, table, taco
from data import errors
from pretrain.build import build
from pretrain.command import fields, flags, validate
from pretrain.mesh.trees import by_path
from pretrain.recipe import Recipe
from tests.configs.paper_values import of_text
from tests.pretrain.small_recipe import TOKENS

TABLES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}

# What differs from the recipe, typed from the papers' tables; '?' is what the user must give.
CHANGES = {
  "coco_lm": """
    rtd_only: objectives.clm.weight=0.0 objectives.scl.weight=0.0
    clm_only: objectives.scl.weight=0.0
    scl_rtd: objectives.clm.weight=0.0
    no_relpos: model.relative_position=none
    electra_aux: generator.num_layers=12 generator.hidden_size=256 generator.mlp_size=1024
    electra_aux: generator.num_heads=4 generator.share_embeddings=tokens
    random_replace: corruption.kind=random
    converged_aux: generator.frozen=True generator.init_from=?
    all_token_lm: objectives.all_token.weight=1.0 objectives.rtd.weight=0.0 objectives.clm.weight=0.0
    all_token_lm: objectives.scl.weight=0.0
    clm_no_copy: objectives.clm.copy=False objectives.rtd.weight=0.0 objectives.scl.weight=0.0
    clm_no_stopgrad: objectives.clm.stop_gradient=False objectives.scl.weight=0.0
    crop_70: objectives.scl.crop_fraction=0.7
    crop_80: objectives.scl.crop_fraction=0.8
    crop_90:
    crop_100: objectives.scl.crop_fraction=1.0 objectives.scl.crop_add_cls=False
    scl_tau_0p1: objectives.scl.temperature=0.1
    scl_tau_0p5: objectives.scl.temperature=0.5
    scl_gather: objectives.scl.group_size=0
    official: objectives.clm.form=weighted objectives.scl.head=projection corruption.mask_special=sep_only
    official: model.relative_position=official
  """,
  "amos": """
    random_layer: generator.mixture=random_layer
    layer_switch: generator.mixture=schedule
    no_adv: generator.mixture=uniform
    adv_mlm: generator.adv_mlm_multiplier=0.1
    final_weights: generator.mixture=fixed generator.mixture_weights=?
    no_stopgrad: generator.detach_blocks=False
    separate_gens: generator.mlm_layers=() generator.separate_layers=(4,6,8)
    three_4layer: generator.mlm_layers=() generator.separate_layers=(4,4,4)
    gen_4: generator.num_layers=4 generator.mlm_layers=() generator.mixture=none
    gen_6: generator.num_layers=6 generator.mlm_layers=() generator.mixture=none
    gen_8: generator.mlm_layers=() generator.mixture=none
    gen_12: generator.num_layers=12 generator.mlm_layers=() generator.mixture=none
    heads_48: generator.mlm_layers=(4,8)
    heads_2468: generator.mlm_layers=(2,4,6,8)
    heads_all8: generator.mlm_layers=(1,2,3,4,5,6,7,8)
    no_reversal: generator.reversal_multiplier=0.0
  """,
  "taco": """
    mlm_small: objectives.taco.weight=0.0
    mlm_base: objectives.taco.weight=0.0
    taco_small:
    taco_base:
    taco_masked15: objectives.taco.anchors=masked
    taco_except_mlm: objectives.taco.anchors=unmasked
    mlm_tp: objectives.taco.weight=0.0 objectives.mlm.positions=all
    taco_k10: objectives.taco.num_negatives=10
    taco_k50:
    taco_w3: objectives.taco.window=3
    taco_w5:
    taco_w10: objectives.taco.window=10
    taco_w50: objectives.taco.window=50
    taco_25pct: data.fraction=0.25
    mlm_25pct: objectives.taco.weight=0.0 data.fraction=0.25
    mlm_frozen_random: objectives.taco.weight=0.0 model.freeze_embeddings=random
    mlm_frozen_trained: objectives.taco.weight=0.0 model.freeze_embeddings=checkpoint
    mlm_frozen_trained: model.freeze_embeddings_from=?
  """,
}
# As a run that has ended would give it.
GIVEN = {
  "generator.init_from": "runs/roberta_base",
  "generator.mixture_weights": (0.5, 0.25, 0.25),
  "model.freeze_embeddings_from": "runs/bert_small",
}
# {(family, row): number of parameters removed, added and resized below a path}: one row of each kind.
PARAMETERS = {
  ("coco_lm", "rtd_only"): ({"heads/clm/bias": 1}, {}, {}),
  ("coco_lm", "no_relpos"): (
    {f"{net}/trunk/relative_position": 1 for net in ("encoder", "generator")},
    {},
    {},
  ),
  ("coco_lm", "electra_aux"): ({}, {"generator/projection": 2, "generator/embeddings": 3}, {"generator": 21}),
  ("coco_lm", "random_replace"): ({"generator": 22}, {}, {}),
  ("coco_lm", "converged_aux"): ({}, {"generator/embeddings": 4}, {}),
  ("coco_lm", "clm_no_copy"): ({"heads/rtd": 2}, {}, {}),
  ("coco_lm", "official"): ({}, {"heads/scl": 4}, {}),
  ("amos", "no_adv"): ({"generator/mixture/kernel": 1}, {}, {}),
  ("amos", "gen_12"): ({"generator/mixture/kernel": 1}, {}, {"generator/trunk/layers": 16}),
  ("amos", "separate_gens"): (
    {"generator/embeddings": 3, "generator/mlm_head": 5, "generator/trunk": 17},
    {f"generator/member_{i}": 25 for i in range(3)},
    {},
  ),
  ("taco", "mlm_frozen_random"): ({}, {}, {}),
}
FROZEN = {
  "converged_aux": "generator/",
  "mlm_frozen_random": "encoder/embeddings/token/",
}


def _config(family: str, name: str, *, tiny: bool = False):
  """The config of a row, with what the user must give."""
  config = TABLES[family].get_config(f"{name}:tiny" if tiny else name)
  config.update_from_flattened_dict({field: GIVEN[field] for field in TABLES[family].ROWS[name].required})
  return config


def _expected(family: str) -> dict[str, dict]:
  """{row: {changed field: its value}} of `CHANGES`."""
  rows: dict[str, dict] = {}
  for line in CHANGES[family].strip().splitlines():
    name, _, pairs = line.strip().partition(":")
    rows.setdefault(name, {}).update(of_text(f":{pairs}".replace("=?", "='?'")))
  return {
    name: {field: GIVEN[field] if value == "?" else value for field, value in changes.items()}
    for name, changes in rows.items()
  }


def test_a_row_changes_the_fields_of_the_papers_table_to_its_values_and_is_valid():
  failures = []
  for family, module in TABLES.items():
    expected = _expected(family)
    assert expected.keys() == module.ROWS.keys()
    for name, row in module.ROWS.items():
      config = _config(family, name)
      given = fields.flatten(config)
      recipe = fields.flatten(importlib.import_module(f"configs.{row.recipe}").get_config())
      changed = {field: given[field] for field in given if given[field] != recipe[field]}
      if changed != expected[name] | {"recipe": f"{family}:{name}"}:
        failures.append(f"{family}:{name}: {changed}")
      tiny = _config(family, name, tiny=True)
      if (
        tiny.recipe != f"{family}:{name}:tiny"
        or (row.tiny_changes or row.changes).keys() != row.changes.keys()
      ):
        failures.append(f"{family}:{name}:tiny: {tiny.recipe}, {row.tiny_changes}")
      for one in (config, tiny):
        failures += [f"{one.recipe}: {line}" for line in validate.problems(one, num_devices=1)]
      refused = validate.problems(module.get_config(name))  # without what the user must give
      if bool(refused) != bool(row.required) or not all(row.required[0] in line for line in refused):
        failures.append(f"{family}:{name}, required: {refused}")
  assert not failures, "\n".join(failures)


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


def _counted(paths: set[str], below: dict[str, int]) -> dict[str, int]:
  """{path: how many of `paths` are at or below it}, and those below none of them as ''."""
  counted = {prefix: sum(f"{path}/".startswith(f"{prefix}/") for path in paths) for prefix in below}
  rest = len(paths) - sum(counted.values())
  return counted | ({"": rest} if rest else {})


def test_a_row_has_the_parameters_that_it_names_and_freezes_what_it_names():
  failures = []
  for (family, row), expected in PARAMETERS.items():
    before, after = _shapes("", TABLES[family].ROWS[row].recipe), _shapes(family, row)
    resized = {path for path in before.keys() & after.keys() if before[path] != after[path]}
    found = (before.keys() - after.keys(), after.keys() - before.keys(), resized)
    if tuple(map(_counted, found, expected)) != expected:
      failures.append(f"{family}:{row}: {tuple(map(_counted, found, expected))}")
    frozen, is_frozen = FROZEN.get(row, "-"), _recipe(family, row).is_frozen
    failures += [f"{row}: {path}" for path in after if is_frozen(path) != path.startswith(frozen)]
  assert not failures, "\n".join(failures)


def test_generators_have_the_sizes_of_the_paper():
  shapes = _shapes("coco_lm", "electra_aux")
  assert shapes["generator/trunk/layers/attention/query/kernel"] == (12, 256, 4, 64)
  assert shapes["generator/projection/kernel"] == (768, 256)
  kernels = [
    _shapes("amos", "separate_gens")[f"generator/member_{i}/trunk/layers/up/kernel"] for i in range(3)
  ]
  assert [kernel[0] for kernel in kernels] == [4, 6, 8]
  assert _shapes("amos", "gen_12")["generator/trunk/layers/up/kernel"][0] == 12


def test_a_row_is_an_argument_of_the_config_flag_and_an_unknown_one_is_refused():
  arguments = flags.read_arguments([f"--config={pathlib.Path(amos.__file__)}:gen_12"])
  assert arguments.config.generator.num_layers == 12
  assert arguments.config_name == "amos_gen_12" and arguments.workdir == "runs/amos_gen_12"
  for argument, expected in (
    ("rdt_only", "mean 'rtd_only'"),
    ("rtd_only:small", "clm_only"),
    ("", "clm_only"),
  ):
    with pytest.raises(errors.ConfigError, match=expected):
      coco_lm.get_config(argument)


def test_the_page_of_all_rows_is_up_to_date():
  assert table.PATH.read_text(encoding="utf-8") == table.render(), "run `python -m configs.ablations.table`"
  no_relpos = (
    "| `no_relpos` | `coco_lm_base` | `model.relative_position=none` | absolute positions only | "
    "MNLI 88.2/87.7, average 87.6 |"
  )
  assert no_relpos in table.render() and "**`generator.init_from`**" in table.render()
