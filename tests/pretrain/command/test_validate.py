"""Every config that cannot work is refused with a line that names the field, all of them in one list."""

import importlib
import re

import pytest

from data import errors
from pretrain.command import fields, validate
from pretrain.settings.objectives import OBJECTIVES
from tests.pretrain.command.bad_configs import CASES


def _config(recipe="amos_coco_taco_tiny", **changes):
  config = importlib.import_module(f"configs.{recipe}").get_config()
  with config.ignore_type():
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in changes.items()})
  return config


def _problems(recipe, changes, **devices):
  config = importlib.import_module(f"configs.{recipe}").get_config()
  with config.ignore_type():
    config.update_from_flattened_dict(changes)
  return validate.problems(config, **devices)


@pytest.mark.parametrize(("recipe", "changes", "expected"), CASES)
def test_a_bad_config_is_refused_with_a_line_that_names_the_fields(recipe, changes, expected):
  found = _problems(recipe, changes)
  assert len(found) == 1, found
  assert expected in found[0]
  assert any(name in found[0] for name in changes)
  assert all(line.startswith("  --config.") for line in found[0].splitlines()[1:])


def test_two_objectives_that_read_a_crop_are_refused(monkeypatch):
  # None of the product's objectives meet in this rule, so token alignment is made to read a crop too.
  monkeypatch.setattr(OBJECTIVES["taco"], "reads", ("crop",))
  (line,) = _problems("amos_coco_taco_tiny", {})
  assert re.fullmatch(
    r"objectives\.scl\.weight=\S+, objectives\.taco\.weight=\S+: a step has one crop, .* switch on one", line
  )
  for name in ("scl", "taco"):
    assert _problems("amos_coco_taco_tiny", {f"objectives.{name}.weight": 0.0}) == []


def test_the_unchanged_recipes_of_the_cases_are_good():
  for recipe in {recipe for recipe, _, _ in CASES}:
    assert _problems(recipe, {}) == []


def test_all_problems_are_told_at_once():
  changes = {"model.dropout": 1.5, "corruption.mask_rate": 0.0, "optimizer.warmup_steps": 10**9}
  found = _problems("coco_lm_tiny", changes | {"generator.mixture": "best", "model.num_heads": 3})
  assert len(found) == 6  # num_heads divides neither the encoder's width nor the generator's
  for name in changes:
    assert any(name in line for line in found)


def test_a_field_that_is_wrong_by_itself_is_named_once():
  found = _problems("coco_lm_tiny", {"model.num_heads": 0, "train.batch_size": 0})
  assert len(found) == 2


@pytest.mark.parametrize("name", sorted(fields.known_fields()))
def test_every_field_has_a_rule_or_a_reason_to_have_none(name):
  default = fields.known_fields()[name]
  free_numbers = {"generator.reversal_multiplier", "generator.adv_mlm_multiplier"}  # any finite number
  free_texts = {"recipe", "model.freeze_embeddings_from", "generator.init_from", "train.init_from"}
  free_texts |= {"train.probe_data", "train.trackers"}  # preflight looks at them
  free_texts |= {"data.mixture", "data.stages"}  # a rule reads them
  # data.prepare looks at them.
  data_side = {"source", "directory", "text_field", "module", "tfds_directory", "clean", "vocabulary"}
  free_texts |= {f"data.{leaf}" for leaf in data_side}
  if isinstance(default, bool | tuple):
    return
  kind = fields.kinds()[name]
  assert bool(kind.choices if isinstance(default, str) else kind.limit) != (name in free_numbers | free_texts)


@pytest.mark.parametrize("name", sorted(name for name, kind in fields.kinds().items() if kind.choices))
def test_every_choice_lists_the_known_names_and_the_nearest(name):
  known = fields.kinds()[name].choices
  line = validate.value_problem(name, known[0] + "x")
  assert name in line and all(choice in line for choice in known)
  assert all(validate.value_problem(name, choice) is None for choice in known)


def test_a_misspelt_choice_names_the_nearest():
  assert "did you mean 'adversarial'?" in validate.value_problem("generator.mixture", "adversial")


@pytest.mark.parametrize("name", sorted(fields.known_fields()))
def test_every_field_refuses_a_value_of_another_type(name):
  default = fields.known_fields()[name]
  wrong = 3 if isinstance(default, str | tuple) else "3"
  assert f"{name}={wrong!r}: expected " in validate.value_problem(name, wrong)
  assert validate.value_problem(name, None) is not None
  assert validate.value_problem(name, default) is None


def test_true_is_no_number_and_one_is_not_true():
  assert validate.value_problem("train.total_steps", True)
  assert validate.value_problem("train.multihost", 1)
  assert validate.value_problem("optimizer.learning_rate", True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_must_be_finite(value):
  for name, default in fields.known_fields().items():
    if isinstance(default, float):
      assert "expected a finite number" in validate.value_problem(name, value)
  assert "finite" in validate.value_problem("generator.mixture_weights", (0.5, value))


def test_missing_and_unknown_fields_are_named():
  config = importlib.import_module("configs.coco_lm_tiny").get_config()
  with config.unlocked():
    del config.seed
    config.objectives.rtd.wieght = 3.0
    config.colour = "red"
  found = validate.problems(config)
  assert [line.partition(":")[0] for line in found] == ["colour", "objectives.rtd.wieght", "seed"]
  assert "did you mean 'objectives.rtd.weight'" in found[1]
  assert "missing" in found[2]


def test_check_raises_all_problems_as_a_numbered_list():
  config = _config(train__log_every=0, train__eval_every=0)
  with pytest.raises(errors.ConfigError) as raised:
    validate.check(config)
  lines = str(raised.value).splitlines()
  assert lines[0] == "2 problems" and lines[1].startswith("  1. ") and lines[2].startswith("  2. ")
  assert raised.value.exit_code == 2


def test_check_says_a_single_problem_in_one_line():
  with pytest.raises(errors.ConfigError, match=r"^train\.log_every=0: expected a number of at least 1$"):
    validate.check(_config(train__log_every=0))


@pytest.mark.parametrize(
  ("changes", "num_devices", "expected"),
  [
    ({"train.batch_size": 300}, 8, "not a multiple of 8, as needed by 8 devices"),
    ({"train.batch_size": 300}, 8, "use 296 or 304"),
    ({"train.batch_size": 5}, 8, "use 8"),
    ({"mesh.data": 3}, 8, "the product must be the number of devices, 8"),
    ({"mesh.data": 2, "mesh.fsdp": 2}, 8, "the product must be the number of devices, 8"),
    ({"mesh.tensor": 4}, 8, "model.num_heads=2: not divisible by mesh.tensor=4"),
    ({"model.hidden_size": 126, "mesh.fsdp": 4}, 8, "model.hidden_size=126: not divisible by mesh.fsdp=4"),
    ({"train.microbatches": 8}, 8, "not a multiple of 64, as needed by train.microbatches=8 and 8 devices"),
  ],
)
def test_sizes_that_do_not_fit_the_devices_are_refused(changes, num_devices, expected):
  found = _problems("roberta_tiny", changes, num_devices=num_devices)
  assert len(found) == 1 and expected in found[0], found


@pytest.mark.parametrize(
  ("changes", "num_devices", "near"),
  [
    ({"mesh.data": 3}, 8, "data=8 --config.mesh.fsdp=1 --config.mesh.tensor=1"),
    (
      {"mesh.data": 4, "mesh.fsdp": 2, "mesh.tensor": 2},
      8,
      "data=4 --config.mesh.fsdp=2 --config.mesh.tensor=1",
    ),
    # 96 rows leave data x fsdp at most 32 of 64, two heads leave tensor at most 2.
    ({"mesh.data": 1, "mesh.tensor": 8}, 64, "data=32 --config.mesh.fsdp=1 --config.mesh.tensor=2"),
    ({"mesh.fsdp": 16}, 24, "data=3 --config.mesh.fsdp=8 --config.mesh.tensor=1"),
  ],
)
def test_a_mesh_of_another_size_is_refused_with_the_nearest_that_fits(changes, num_devices, near):
  (line,) = _problems("roberta_tiny", {"train.batch_size": 96, **changes}, num_devices=num_devices)
  assert line.endswith(f"the nearest is --config.mesh.{near}"), line


def test_devices_may_share_a_contrast_group():
  assert _problems("coco_lm_tiny", {}, num_devices=8) == []  # 32 rows, one group, eight devices


def test_the_tensor_axis_does_not_cut_the_batch():
  assert _problems("roberta_tiny", {"train.batch_size": 4, "mesh.tensor": 2}, num_devices=8) == []


def test_generator_fields_are_not_looked_at_without_a_generator():
  changes = {"generator.mlm_layers": (3, 1), "generator.mixture": "adversarial"}
  assert _problems("roberta_tiny", changes) == []


def test_objective_fields_are_not_looked_at_where_the_objective_is_off():
  changes = {"objectives.scl.group_size": 7, "objectives.taco.group_size": 9, "objectives.taco.window": 500}
  assert _problems("roberta_tiny", changes) == []


def test_frozen_embeddings_and_their_checkpoint_go_together():
  given = {"model.freeze_embeddings": "checkpoint", "model.freeze_embeddings_from": "runs/x"}
  assert _problems("roberta_tiny", given) == []


def test_a_converged_generator_may_be_a_fixed_mixture():
  changes = {"generator.frozen": True, "generator.init_from": "runs/amos", "generator.mixture": "uniform"}
  assert _problems("amos_tiny", changes) == []


def test_googles_electra_keeps_some_of_the_chosen_tokens():
  assert _problems("electra_google_tiny", {"corruption.mask_token_rate": 0.7}) == []
