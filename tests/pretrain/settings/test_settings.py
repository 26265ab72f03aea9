"""The settings and the base config have the same fields, and each default is a value its settings allow."""

import dataclasses
import typing

from pretrain.build import LOSSES
from pretrain.command import fields, validate
from pretrain.settings import FIELDS
from pretrain.settings.objectives import OBJECTIVES, switched_on


def test_settings_and_the_base_config_have_the_same_fields():
  assert fields.flatten(FIELDS).keys() == fields.known_fields().keys()


def test_every_default_is_of_the_type_and_within_the_limits_of_its_settings():
  for name, default in fields.known_fields().items():
    assert validate.value_problem(name, default) is None
    wanted = fields.kinds()[name].value_type
    assert type(default) is (typing.get_origin(wanted) or wanted), name


def test_only_numbers_have_limits_and_only_texts_choices():
  for kind in fields.kinds().values():
    assert kind.limit is None or kind.value_type in (int, float)
    assert not kind.choices or kind.value_type is str


def test_every_objective_says_its_name_and_its_paper_and_has_code():
  for name, settings in OBJECTIVES.items():
    assert settings.name == name
    assert settings.paper.endswith(".")
    assert issubclass(LOSSES[name], settings)
    assert "weight" in {field.name for field in dataclasses.fields(settings)}


def test_a_later_field_that_an_old_config_lacks_has_its_default():
  old = {f.name: 1 for f in dataclasses.fields(OBJECTIVES["scl"]) if f.name != "max_segments"}
  settings = switched_on({"scl": old})["scl"]
  assert (settings.group_size, settings.max_segments) == (1, 0)


def test_objectives_of_weight_zero_or_that_an_old_config_lacks_are_off():
  assert switched_on({"rtd": {"weight": 50.0, "head": "linear"}, "all_token": {"weight": 0.0}}).keys() == {
    "rtd"
  }
