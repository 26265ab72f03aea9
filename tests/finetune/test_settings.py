"""The settings of fine-tuning name fields of its base config, and each default is allowed."""

from finetune import settings
from finetune.validate import RULES, SCHEMA
from pretrain.command import fields, validate


def test_every_setting_is_of_a_field_and_every_default_within_its_limits():
  known = fields.known_fields(SCHEMA)
  assert settings.FIELDS.keys() <= known.keys()
  for name, default in known.items():
    assert validate.value_problem(name, default, RULES) is None
    wanted = fields.kinds(SCHEMA)[name].value_type
    assert type(default) is (tuple if wanted in (tuple[int, ...], tuple[float, ...]) else wanted), name
