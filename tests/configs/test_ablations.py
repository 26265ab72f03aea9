"""Every row of the papers' ablation tables: fields and values as on the page of them, and parameters."""

import dataclasses
import functools
import pathlib

import jax
import pytest

from configs import arguments
from configs.ablations import amos, coco_lm, table, taco
from data import errors
from pretrain.build import build
from pretrain.command import read_arguments
from pretrain.mesh.trees import by_path
from pretrain.recipe import Recipe
from pretrain.settings import PRETRAINING, fields
from tests.pretrain.small_recipe import TOKENS

TABLES = {"coco_lm": coco_lm, "amos": amos, "taco": taco}

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


def test_every_row_has_its_name_a_tiny_counterpart_of_the_same_fields_and_is_valid():
  failures = []
  for family, module in TABLES.items():
    for name, row in module.ROWS.items():
      config, tiny = _config(family, name), _config(family, name, tiny=True)
      if (config.recipe, tiny.recipe) != (f"{family}:{name}", f"{family}:{name}:tiny"):
        failures.append(f"{family}:{name}: {config.recipe}, {tiny.recipe}")
      if (row.tiny_changes or row.changes).keys() != row.changes.keys():
        failures.append(f"{family}:{name}:tiny: {row.tiny_changes}")
      flat = [fields.flatten(one) for one in (config, tiny)]
      for values, changes in zip(flat, (row.changes, row.tiny_changes or row.changes)):
        failures += [f"{values['recipe']}: {field}" for field in changes if values[field] != changes[field]]
      for one in (config, tiny):
        PRETRAINING.check(one, num_devices=1)
      if row.required:  # without what the user must give
        with pytest.raises(errors.ConfigError, match=row.required[0]):
          PRETRAINING.check(module.get_config(name))
  assert not failures, "\n".join(failures)


@functools.cache
def _recipe(family: str, row: str) -> Recipe:
  """The recipe of a row, or of a whole recipe where no family is given."""
  config = TABLES[family].get_config(row) if family else arguments.recipe(row)
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
  given = read_arguments([f"--config={pathlib.Path(amos.__file__)}:gen_12"])
  assert given.config.generator.num_layers == 12
  assert given.config_name == "amos_gen_12" and given.workdir == "runs/amos_gen_12"
  for argument, expected in (
    ("rdt_only", "mean 'rtd_only'"),
    ("rtd_only:small", "clm_only"),
    ("", "clm_only"),
  ):
    with pytest.raises(errors.ConfigError, match=expected):
      coco_lm.get_config(argument)


def test_the_page_of_all_rows_has_their_fields_and_values():
  assert table.PATH.read_text(encoding="utf-8") == table.render(), "run `python -m configs.ablations.table`"
  no_relpos = (
    "| `no_relpos` | `coco_lm_base` | `model.relative_position=none` | absolute positions only | "
    "MNLI 88.2/87.7, average 87.6 |"
  )
  assert no_relpos in table.render() and "**`generator.init_from`**" in table.render()
