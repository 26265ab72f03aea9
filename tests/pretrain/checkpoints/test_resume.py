"""What may change between a checkpoint and the run that continues it."""

import pytest

from configs import base
from data import command
from data.errors import ConfigError, DataError
from pretrain.checkpoints import checkpoint, resume, saved_model
from pretrain.settings import PRETRAINING
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  run_training,
  saved_params,
  small_config,
)

DIGESTS = {"vocabulary_digest": "a" * 64, "records_digest": "b" * 64, "manifest_digest": "d" * 64}


def _meta(**changes):
  return {"config": base.get_config().to_dict(), "interval_sums": {}, **DIGESTS, **changes}


def _changed(fields: dict):
  config = base.get_config()
  config.update_from_flattened_dict(fields)
  return config


def test_the_same_config_has_no_changes_also_when_read_back_from_json():
  assert resume.check_same_run(base.get_config(), DIGESTS, _meta()) == []
  saved = _meta()
  saved["config"]["generator"]["mlm_layers"] = [1, 2]
  saved["config"]["corruption"]["mask_rates"] = [[0.0, 0.3], [0.8, 0.15]]
  config = _changed({"generator.mlm_layers": (1, 2), "corruption.mask_rates": ((0.0, 0.3), (0.8, 0.15))})
  assert resume.check_same_run(config, DIGESTS, saved) == []
  assert resume.flatten(saved_model.config_of(saved["config"])) == resume.flatten(config)
  # A field that came later has its default.
  del saved["config"]["objectives"]["taco"]["window"]
  assert resume.check_same_run(config, DIGESTS, saved) == []
  config.objectives.taco.window = 6
  with pytest.raises(ConfigError, match=r"objectives\.taco\.window: 5 -> 6"):
    resume.check_same_run(config, DIGESTS, saved)


def test_stages_of_a_mixture_count_the_batches_that_were_left_out():
  def stages(step, digest="c", name="wiki"):
    return [[0, [[name, "a", "7/10"], ["books", "b", "3/10"]]], [step, [["books", digest, "1/1"]]]]

  def check(now):
    digests = {"vocabulary_digest": "a" * 64, "mixture": now}
    meta = {"config": base.get_config().to_dict(), "interval_sums": {}, "step": 10, "mixture": stages(12)}
    meta["spikes"] = {"skips": [[4, 3, 7, 9.0, 8.5]]}  # ten updates have taken thirteen batches
    return resume.check_same_run(base.get_config(), digests, {**meta, "vocabulary_digest": "a" * 64})

  assert check(stages(12)) == []
  assert check(stages(12, name="moved")) == []
  for other in (stages(11), stages(12, digest="d"), stages(13)):
    with pytest.raises(ConfigError, match=r"of the first 13 steps .* only stages from step 13 on"):
      check(other)


GROWING = {"train.batch_size_start": 512, "train.batch_warmup_steps": 3}
# (fields of the run, changed fields, the refused one)
REFUSED = [
  ({}, {"model.hidden_size": 64}, "model.hidden_size: 768 -> 64"),
  ({}, {"train.batch_size": 64}, "train.batch_size: 2048 -> 64"),
  ({}, {"data.length": 64}, "data.length: 512 -> 64"),
  ({}, {"data.fraction": 0.5}, "data.fraction: 1.0 -> 0.5"),
  ({}, {"seed": 1}, "seed: 0 -> 1"),
  ({}, {"objectives.rtd.weight": 50.0}, "objectives.rtd.weight: 0.0 -> 50.0"),
  ({}, {"optimizer.adam_eps_placement": "corrected"}, "uncorrected -> corrected"),
  (
    {},
    {"train.total_steps": 150, "optimizer.learning_rate": 1e-3},
    "(optimizer.learning_rate: 0.0005 -> 0.001)",
  ),
  (
    {"train.batch_size_start": 512, "train.batch_warmup_steps": 3},
    {"train.microbatches": 4},
    "microbatches: 1 -> 4",
  ),
]
ALLOWED = [
  ("train.log_every", 7),
  ("train.total_steps", 125_001),
  ("optimizer.decay_steps", 40),
  ("optimizer.decay_shape", "one_minus_sqrt"),
  ("optimizer.end_learning_rate", 1e-5),
  ("train.microbatches", 4),
  ("mesh.fsdp", 4),
  ("data.directory", "elsewhere"),
]


def _refusal(config, meta, digests=DIGESTS, error=ConfigError) -> str:
  with pytest.raises(error) as refused:
    resume.check_same_run(config, digests, meta)
  return str(refused.value)


def test_fields_of_the_table_may_change_and_are_told_and_all_others_are_refused():
  assert {*resume.SAFE_FIELDS, *resume.END_FIELDS} <= set(PRETRAINING.defaults)
  for name, value in ALLOWED:
    (line,) = resume.check_same_run(_changed({name: value}), DIGESTS, _meta())
    assert line.startswith(name) and line.endswith(f"-> {value}")
  for of_run, fields, part in REFUSED:
    line = _refusal(_changed(of_run | fields), _meta(config=_changed(of_run).to_dict()))
    assert part in line, line


def test_a_run_with_a_field_that_is_gone_is_refused_with_the_commit_that_reads_it():
  saved = _meta() | {"commit": "0123abcd"}
  saved["config"]["optimizer"]["power"] = 2.0
  line = _refusal(base.get_config(), saved)
  assert "lacks (optimizer.power); resume it with commit 0123abcd, " in line


def test_other_records_another_vocabulary_and_meta_that_lacks_a_part_are_refused():
  config = base.get_config()
  for what in ("vocabulary", "records", "manifest"):
    line = _refusal(config, _meta(), DIGESTS | {f"{what}_digest": "c" * 64}, DataError)
    assert f"({what}_digest: {DIGESTS[f'{what}_digest'][:12]} -> cccccccccccc)" in line
  for name in ("config", "interval_sums", "records_digest"):
    meta = _meta()
    del meta[name]
    assert f"lacks {name}: " in _refusal(config, meta, error=DataError)


FACTS = {
  "source": "seqio:one",
  "module": "a" * 64,
  "versions": {"seqio": "1", "tensorflow": "2"},
  "records": "",
}


def test_a_feed_that_would_give_other_blocks_is_refused():
  for given, error, part in (
    (FACTS | {"source": "seqio:two"}, ConfigError, "a run on seqio:one, but seqio:two is given"),
    (FACTS | {"module": "b" * 64}, DataError, "(module: aaaaaaaaaaaa -> bbbbbbbbbbbb)"),
    (FACTS | {"versions": {"seqio": "1", "tensorflow": "3"}}, DataError, "(versions.tensorflow: 2 -> 3)"),
    (FACTS | {"records": "c" * 64}, DataError, "(records:  -> cccccccccccc)"),
    (None, ConfigError, "a run on seqio:one, but one directory of records is given"),
  ):
    assert part in _refusal(base.get_config(), _meta(feed=FACTS), DIGESTS | {"feed": given}, error), part
  assert resume.check_same_run(base.get_config(), DIGESTS | {"feed": FACTS}, _meta(feed={**FACTS})) == []
  mixture = {"mixture": [[0, [["a", "d" * 64, "1"]]]]}
  assert "a run on seqio:one, but a mixture of records is given" in _refusal(
    base.get_config(), {"feed": FACTS}, mixture
  )


def test_a_stable_phase_goes_on_into_a_decay_as_if_it_had_been_planned(small_records, tmp_path):
  flat = {"optimizer.schedule": "wsd", "train.total_steps": 4, "train.checkpoint_every": 4}
  falling = flat | {"train.total_steps": 6, "optimizer.decay_steps": 2}
  assert run_training(small_config("mlm", small_records, flat), tmp_path / "run") == 0
  for name in ("run", "whole"):
    assert run_training(small_config("mlm", small_records, falling), tmp_path / name) == 0
  assert_same_params(saved_params(tmp_path / "run"), saved_params(tmp_path / "whole"))
  lines = metric_lines(tmp_path / "run")
  rates = [line["train/learning_rate"] for line in lines if "train/learning_rate" in line]
  assert rates[-1] < rates[0]


def test_other_packages_are_named_once_they_differ():
  now = command.versions(checkpoint.PACKAGES)
  assert resume.changed_packages({"packages": now}) == [] == resume.changed_packages({})
  assert resume.changed_packages({"packages": now | {"jax": "0.1"}}) == [f"jax: 0.1 -> {now['jax']}"]
