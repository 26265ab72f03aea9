"""Missing data is reported before anything else; the settings of fine-tuning are of fields."""

import subprocess
import sys

import pytest

from configs import finetune_glue, finetune_own, finetune_prompt, finetune_squad
from data.errors import ConfigError, DataError
from finetune import main, needed_files, settings
from finetune.validate import RULES, SCHEMA
from pretrain.command import fields, validate
from pretrain.mesh import devices

HEAVY = {"jax", "orbax", "flax", "optax", "tensorflow", "tensorflow_datasets", "seqio", "grain"}
_START = """
import sys
from finetune import main
for kind in ("glue", "squad", "prompt"):
  arguments = [f"--config=configs/finetune_{kind}.py", "--config.checkpoint=RUN", *sys.argv[1:]]
  print(main.main(arguments), sorted(set(sys.modules) & HEAVY))
"""


def test_the_command_tells_it_without_jax_or_a_checkpoint(tmp_path):
  code = _START.replace("HEAVY", repr(HEAVY))
  found = subprocess.run(
    [sys.executable, "-c", code, f"--config.data.directory={tmp_path}"], capture_output=True, text=True
  )
  assert found.stdout == "3 []\n" * 3, found.stderr
  before, glue, squad, prompt = found.stderr.split("error: --config.checkpoint=RUN ")
  assert before == "" and "mnli" in glue and "wnli dev" in glue and "--config.data.directory" in glue
  assert "train-v2.0.json" in squad and "\n  --config.squad.train_file=FILE\n" in squad
  assert "--config.prompt.directory=DIR" in prompt and "dev" not in prompt.partition(": looked")[0]


def _config(module, **changed):
  config = module.get_config()
  config.update_from_flattened_dict(changed)
  return config


def test_each_kind_looks_for_its_own(tmp_path):
  (tmp_path / "SST-2").mkdir()
  for name in ("train", "dev"):
    (tmp_path / "SST-2" / f"{name}.tsv").write_text("")
  for name in ("train-v2.0", "dev-v2.0"):
    (tmp_path / f"{name}.json").write_text("")
  given = {"data.directory": str(tmp_path)}
  needed_files.check(_config(finetune_glue, tasks="SST-2", **given), download=False)
  needed_files.check(_config(finetune_squad, **given), download=False)
  prompts = {"tasks": "sst2", "prompt.splits": (13,), **given}
  needed_files.check(_config(finetune_prompt, **prompts), download=False)
  with pytest.raises(DataError, match="SST-2/16-13/train"):
    needed_files.check(
      _config(finetune_prompt, **{"prompt.directory": str(tmp_path)}, **prompts), download=True
    )


def test_a_file_of_ones_own_that_is_none_is_named(tmp_path):
  for name in ("", "a.csv"):  # a folder, and no file
    with pytest.raises(DataError, match=f"data.train_file={tmp_path / name}: "):
      needed_files.check(_config(finetune_own, **{"data.train_file": str(tmp_path / name)}), download=False)


def test_every_setting_is_of_a_field_and_every_default_within_its_limits():
  known = fields.known_fields(SCHEMA)
  assert settings.FIELDS.keys() <= known.keys()
  for name, default in known.items():
    assert validate.value_problem(name, default, RULES) is None
    wanted = fields.kinds(SCHEMA)[name].value_type
    assert type(default) is (tuple if wanted in (tuple[int, ...], tuple[float, ...]) else wanted), name


def test_devices_that_cannot_be_started_are_one_line_before_any_work(
  small_encoder_run, small_glue_folder, tmp_path, monkeypatch, capsys
):
  def refuse():
    raise ConfigError("JAX_PLATFORMS=gpu: there is none")

  monkeypatch.setattr(devices, "start", refuse)
  flags = {"checkpoint": small_encoder_run, "data.directory": small_glue_folder, "tasks": "sst2"}
  command = [f"--config={finetune_glue.__file__}", f"--workdir={tmp_path / 'run'}"]
  assert main.main([*command, *(f"--config.{name}={value}" for name, value in flags.items())]) == 2
  assert capsys.readouterr().err == "error: JAX_PLATFORMS=gpu: there is none\n"
  assert not list(tmp_path.rglob("*.json"))
