"""Every config that cannot work is refused with a line that names the field, all of them in one list."""

import importlib

import pytest

from data import errors
from pretrain.command import fields, validate
from pretrain.settings.objectives import OBJECTIVES
from tests.pretrain.command.bad_configs import BAD, GOOD, rows

KNOWN = fields.known_fields()


def _config(recipe, changes):
  config = importlib.import_module(f"configs.{recipe}").get_config()
  with config.ignore_type():
    config.update_from_flattened_dict(changes)
  return config


def _problems(recipe, given):
  """Of a recipe with fields as text."""
  devices = given.pop("devices", None)
  changes = {name: fields.parse_value(name, text) for name, text in given.items()}
  return validate.problems(_config(recipe, changes), num_devices=devices and int(devices))


def test_a_bad_config_is_refused_with_a_line_that_names_the_fields_and_the_way_out():
  failures = []
  for recipe, given, word in rows(BAD):
    found = _problems(recipe, given)
    line = " ".join(found[0].split()) if found else ""
    ways = found[0].splitlines()[1:] if found else []
    is_told = word in line and any(name in line for name in given)
    if len(found) != 1 or not is_told or not all(way.startswith("  --config.") for way in ways):
      failures.append(f"{recipe} {given}: expected {word!r}, found {found}")
  assert not failures, "\n".join(failures)


def test_good_configs_and_fields_that_nothing_reads_are_not_refused():
  tables = [*rows(GOOD), *((recipe, {}, "") for recipe in {recipe for recipe, *_ in rows(BAD)})]
  failures = [
    f"{recipe} {given}: {found}" for recipe, given, _ in tables if (found := _problems(recipe, given))
  ]
  assert not failures, "\n".join(failures)


def test_two_objectives_that_read_a_crop_are_refused(monkeypatch):
  # None of the product's objectives meet in this rule, so token alignment is made to read a crop too.
  monkeypatch.setattr(OBJECTIVES["taco"], "reads", ("crop",))
  (line,) = _problems("amos_coco_taco_tiny", {})
  assert line.startswith("objectives.scl.weight=1.0, objectives.taco.weight=1.0: a step has one crop")
  for name in ("scl", "taco"):
    assert _problems("amos_coco_taco_tiny", {f"objectives.{name}.weight": "0"}) == []


def test_all_problems_are_told_at_once_and_a_field_that_is_wrong_by_itself_is_named_once():
  changes = {"model.dropout": 1.5, "corruption.mask_rate": 0.0, "optimizer.warmup_steps": 10**9}
  config = _config("coco_lm_tiny", changes | {"generator.mixture": "best", "model.num_heads": 3})
  found = validate.problems(config)
  assert len(found) == 6  # num_heads divides neither the encoder's width nor the generator's
  assert all(any(name in line for line in found) for name in changes)
  with pytest.raises(errors.ConfigError) as raised:
    validate.check(config)
  lines = str(raised.value).splitlines()
  assert lines[0] == "6 problems" and lines[1].startswith("  1. ") and raised.value.exit_code == 2
  assert len(validate.problems(_config("coco_lm_tiny", {"model.num_heads": 0, "train.batch_size": 0}))) == 2
  with pytest.raises(errors.ConfigError, match=r"^train\.log_every=0: expected a number of at least 1$"):
    validate.check(_config("roberta_tiny", {"train.log_every": 0}))


def test_a_checked_config_is_checked_again_for_its_devices_only():
  checked = validate.check(_config("roberta_tiny", {}))
  assert validate.check(checked, num_devices=8) == checked
  with pytest.raises(errors.ConfigError, match="use 33"):
    validate.check(checked, num_devices=33)


def test_missing_and_unknown_fields_are_named():
  config = _config("coco_lm_tiny", {})
  with config.unlocked():
    del config.seed
    config.objectives.rtd.wieght = 3.0
    config.colour = "red"
  found = validate.problems(config)
  assert [line.partition(":")[0] for line in found] == ["colour", "objectives.rtd.wieght", "seed"]
  assert "did you mean 'objectives.rtd.weight'" in found[1]
  assert "missing" in found[2]


# Fields without a limit or choices, because others look at them: data.prepare, preflight, a rule.
FREE = {"generator.reversal_multiplier", "generator.adv_mlm_multiplier", "recipe", "generator.init_from"}
FREE |= {"model.freeze_embeddings_from", "train.init_from", "train.probe_data", "train.trackers"}
FREE |= {"data.mixture", "data.stages", "data.source", "data.directory", "data.text_field", "data.module"}
FREE |= {"data.tfds_directory", "data.clean", "data.vocabulary"}


def test_every_field_keeps_its_type_its_choices_and_its_limits():
  failures = []
  for name, default in KNOWN.items():
    kind = fields.kinds()[name]
    wrong = 3 if isinstance(default, str | tuple) else "3"
    refused = [
      wrong,
      None,
      *([True] if type(default) in (int, float) else [1] if default in (True, False) else []),
    ]
    if isinstance(default, float):
      refused += [float("nan"), float("inf"), -float("inf")]
    if kind.choices:
      refused.append(kind.choices[0] + "x")
    phrase = [validate.value_problem(name, value) or "" for value in refused]
    failures += [f"{name}: {line!r}" for line in phrase if not line.startswith(f"{name}=")]
    taken = [default, *kind.choices]
    failures += [f"{name}={value!r}" for value in taken if validate.value_problem(name, value) is not None]
    if not isinstance(default, bool | tuple):
      is_free = not (kind.choices if isinstance(default, str) else kind.limit)
      failures += [f"{name}: no rule"] * (is_free != (name in FREE))
  assert not failures, "\n".join(failures)
  assert "did you mean 'adversarial'?" in validate.value_problem("generator.mixture", "adversial")
  assert "finite" in validate.value_problem("generator.mixture_weights", (0.5, float("nan")))
  for wrong in ((0.0, 0.3), ((0.0, 0.3, 0.1),), ((0.0, "0.3"),), ((0.0, float("inf")),)):
    assert "corruption.mask_rates=" in (validate.value_problem("corruption.mask_rates", wrong) or ""), wrong
  assert validate.value_problem("generator.mlm_layers", (1.0, 2)) and validate.value_problem("seed", 2**32)
  assert validate.value_problem("seed", 2**32 - 1) is None
