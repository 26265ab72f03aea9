"""The settings of fine-tuning and its base config have the same fields, and each default is allowed."""

from finetune import settings
from finetune.validate import RULES, SCHEMA
from pretrain.command import fields, validate


def test_settings_and_the_base_config_have_the_same_fields():
  assert fields.flatten(settings.FIELDS).keys() == fields.known_fields(SCHEMA).keys()


def test_every_default_is_of_the_type_and_within_the_limits_of_its_settings():
  for name, default in fields.known_fields(SCHEMA).items():
    assert validate.value_problem(name, default, RULES) is None
    wanted = fields.kinds(SCHEMA)[name].value_type
    assert type(default) is (tuple if wanted in (tuple[int, ...], tuple[float, ...]) else wanted), name
