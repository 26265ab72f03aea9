"""What may change between a checkpoint and the run that continues it; what a run takes from others."""

import functools

import jax
import numpy as np
import pytest

from configs import base
from data import command, manifest
from data.errors import ConfigError, DataError, StorageError
from pretrain.checkpoints import checkpoint, opened, resume, warm_start
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.command.fields import known_fields
from pretrain.mesh import trees
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  run_training,
  saved_params,
  small_config,
  small_run,
)

DIGESTS = {"vocabulary_digest": "a" * 64, "records_digest": "b" * 64, "manifest_digest": "d" * 64}


def _meta(**changes):
  return {"config": base.get_config().to_dict(), "interval_sums": {}, **DIGESTS, **changes}


def _changed(fields: dict):
  config = base.get_config()
  config.update_from_flattened_dict(fields)
  return config


def test_the_same_config_has_no_changes():
  assert resume.check_same_run(base.get_config(), DIGESTS, _meta()) == []


def test_a_config_read_back_from_json_is_the_same():
  saved = _meta()
  saved["config"]["generator"]["mlm_layers"] = [1, 2]
  saved["config"]["corruption"]["mask_rates"] = [[0.0, 0.3], [0.8, 0.15]]
  config = _changed({"generator.mlm_layers": (1, 2), "corruption.mask_rates": ((0.0, 0.3), (0.8, 0.15))})
  assert resume.check_same_run(config, DIGESTS, saved) == []
  assert resume.flatten(opened.config_of(saved["config"])) == resume.flatten(config)


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
    with pytest.raises(ConfigError, match=r"of the first 13 steps differs .* only stages from step 13 on"):
      check(other)


WSD = {"optimizer.schedule": "wsd", "optimizer.warmup_steps": 10, "train.total_steps": 100}


@pytest.mark.parametrize(
  ("step", "saved", "given", "refused"),
  [
    (100, {}, {"train.total_steps": 150, "optimizer.decay_steps": 50}, None),
    (60, {"optimizer.decay_steps": 40}, {"train.total_steps": 80, "optimizer.decay_steps": 20}, None),
    (60, {"optimizer.decay_steps": 40}, {"optimizer.decay_steps": 0}, None),
    (60, {}, {"optimizer.decay_steps": 40}, None),
    (60, {}, {"optimizer.decay_steps": 40, "optimizer.decay_shape": "one_minus_sqrt"}, None),
    (60, {}, {"optimizer.decay_steps": 40, "optimizer.end_learning_rate": 1e-5}, None),
    (
      61,
      {"optimizer.decay_steps": 40},
      {"optimizer.decay_shape": "one_minus_sqrt"},
      r"one_minus_sqrt \(step 61 is past step 60, where the rate",
    ),
    (
      10,
      {"optimizer.schedule": "linear"},
      {"optimizer.schedule": "linear", "optimizer.end_learning_rate": 1e-5},
      "end_learning_rate",
    ),
    (
      61,
      {},
      {"optimizer.decay_steps": 40},
      r"decay_steps: 0 -> 40 \(step 61 is past step 60, where the rate",
    ),
    (
      61,
      {"optimizer.decay_steps": 40},
      {"train.total_steps": 150},
      r"total_steps: 100 -> 150 \(step 61 is past",
    ),
    (70, {}, {"train.total_steps": 60}, r"total_steps: 100 -> 60 \(step 70 is past step 60"),
    (
      10,
      {"corruption.mask_rates": ((0.0, 0.3), (0.5, 0.15))},
      {"train.total_steps": 150},
      r"150 \(corruption.mask_rates are by fractions of all steps\)",
    ),
    (
      10,
      {"corruption.mask_rates": ((0.0, 0.3), (0.5, 0.15)), "optimizer.schedule": "linear"},
      {"train.total_steps": 150},
      r"150 \(corruption.mask_rates are by fractions of all steps\)",
    ),
    (
      10,
      {"generator.temperature_start": 2.0, "generator.temperature_decay": 0.1},
      {"train.total_steps": 150},
      r"150 \(generator.temperature_decay is a fraction of all steps\)",
    ),
    (
      10,
      {"generator.mixture": "schedule"},
      {"train.total_steps": 150},
      r"150 \(generator.mixture='schedule' goes",
    ),
    (
      10,
      {"generator.mixture": "schedule", "optimizer.schedule": "linear"},
      {"train.total_steps": 150},
      "goes",
    ),
    (10, {"optimizer.schedule": "linear"}, {"optimizer.schedule": "wsd", "train.total_steps": 90}, "90"),
    (10, {"optimizer.schedule": "linear"}, {"train.total_steps": 150}, None),
    (10, {"optimizer.schedule": "linear"}, {"train.total_steps": 90}, "total_steps: 100 -> 90"),
    (
      10,
      {},
      {"train.total_steps": 150, "optimizer.learning_rate": 1e-3},
      r"\(optimizer.learning_rate: 0.0005 -> 0.001\); resume",
    ),
  ],
)
def test_the_end_of_a_run_may_move_while_its_rate_is_flat(step, saved, given, refused):
  meta = _meta(step=step)
  meta["config"] = _changed(WSD | saved).to_dict()
  now = _changed(WSD | saved | given)
  if refused is None:
    assert len(resume.check_same_run(now, DIGESTS, meta)) == len(given)
  else:
    with pytest.raises(ConfigError, match=refused):
      resume.check_same_run(now, DIGESTS, meta)


def test_a_stable_phase_goes_on_into_a_decay_as_if_it_had_been_planned(small_records, tmp_path):
  flat = {"optimizer.schedule": "wsd", "train.total_steps": 4, "train.checkpoint_every": 4}
  falling = flat | {"train.total_steps": 6, "optimizer.decay_steps": 2}
  assert run_training(small_config("mlm", small_records, flat), tmp_path / "run") == 0
  for name in ("run", "whole"):
    assert run_training(small_config("mlm", small_records, falling), tmp_path / name) == 0
  assert_same_params(saved_params(tmp_path / "run"), saved_params(tmp_path / "whole"))
  rates = [
    line["train/learning_rate"] for line in metric_lines(tmp_path / "run") if "train/learning_rate" in line
  ]
  assert rates[-1] < rates[0]


def test_every_safe_field_exists():
  assert set(resume.SAFE_FIELDS) <= set(known_fields())


@pytest.mark.parametrize(
  "fields, line",
  [
    ({"model.hidden_size": 64}, "model.hidden_size: 768 -> 64"),
    ({"train.batch_size": 64}, "train.batch_size: 2048 -> 64"),
    ({"data.length": 64}, "data.length: 512 -> 64"),
    ({"seed": 1}, "seed: 0 -> 1"),
    ({"objectives.rtd.weight": 50.0}, "objectives.rtd.weight: 0.0 -> 50.0"),
    ({"optimizer.adam_eps_placement": "corrected"}, "uncorrected -> corrected"),
    ({"train.total_steps": 10}, "train.total_steps: 125000 -> 10"),
  ],
)
def test_a_field_that_changes_the_meaning_of_the_state_is_refused(fields, line):
  with pytest.raises(ConfigError) as caught:
    resume.check_same_run(_changed(fields), DIGESTS, _meta())
  assert line in str(caught.value)


def test_a_field_that_came_later_changes_nothing_at_its_default():
  saved = _meta()
  del saved["config"]["objectives"]["taco"]["window"]
  assert resume.check_same_run(base.get_config(), DIGESTS, saved) == []
  with pytest.raises(ConfigError, match=r"objectives\.taco\.window: 5 -> 6"):
    resume.check_same_run(_changed({"objectives.taco.window": 6}), DIGESTS, saved)


@pytest.mark.parametrize("name", resume.GONE_FIELDS)
def test_a_field_that_is_gone_is_refused_at_any_value_but_the_one_that_is_left(name):
  saved, (*groups, field) = _meta(), name.split(".")
  group = functools.reduce(dict.__getitem__, groups, saved["config"])
  group[field] = resume.GONE_FIELDS[name]
  assert name not in known_fields()
  assert resume.check_same_run(base.get_config(), DIGESTS, saved) == []
  group[field] = "other"
  with pytest.raises(
    ConfigError, match=rf"{name}: other -> {resume.GONE_FIELDS[name]} \(the only value of this version"
  ):
    resume.check_same_run(base.get_config(), DIGESTS, saved)


@pytest.mark.parametrize(
  "fields",
  [
    {"train.log_every": 7},
    {"train.total_steps": 125_001},
    {"train.microbatches": 4},
    {"mesh.fsdp": 4},
    {"data.directory": "elsewhere"},
  ],
)
def test_a_field_that_changes_only_the_way_is_told(fields):
  (name, value), *_ = fields.items()
  (line,) = resume.check_same_run(_changed(fields), DIGESTS, _meta())
  assert line.startswith(name) and line.endswith(f"-> {value}")


@pytest.mark.parametrize("what", ["vocabulary", "records", "manifest"])
def test_another_vocabulary_or_other_records_are_refused(what):
  with pytest.raises(DataError, match=f"the {what} changed .*cccccccccccc"):
    resume.check_same_run(base.get_config(), DIGESTS | {f"{what}_digest": "c" * 64}, _meta())


@pytest.mark.parametrize("name", ["config", "interval_sums", "records_digest"])
def test_meta_that_lacks_a_part_is_refused(name):
  meta = _meta()
  del meta[name]
  with pytest.raises(DataError, match=f"lacks {name}"):
    resume.check_same_run(base.get_config(), DIGESTS, meta)


def test_a_checkpoint_of_before_digests_of_manifests_continues():
  meta = _meta()
  del meta["manifest_digest"]
  assert resume.check_same_run(base.get_config(), DIGESTS, meta) == []


def _taken(recipe, directory, fields, *, digest=None) -> dict[str, np.ndarray]:
  """The arrays a warm start puts in; what it leaves alone stays a shape."""
  run = small_run(small_config(recipe, directory, fields))
  digest = digest or manifest.read(directory).vocabulary.digest
  origins = warm_start.origins(run.config.to_dict())
  params = warm_start.load_into(run.abstract_state.params, origins, vocabulary_digest=digest)
  assert trees.by_path(params).keys() == trees.by_path(run.abstract_state.params).keys()
  for name, leaf in trees.by_path(params).items():
    assert leaf.sharding == trees.by_path(run.abstract_state.params)[name].sharding
  leaves = trees.by_path(params).items()
  return {name: np.asarray(leaf) for name, leaf in leaves if isinstance(leaf, jax.Array)}


def test_nothing_is_taken_unless_asked_for(small_records):
  assert _taken("coco_lm", small_records, {}) == {}


def test_a_generator_comes_from_the_encoder_of_a_masked_lm_run(small_records, finished):
  saved = saved_params(finished)
  taken = _taken("coco_lm", small_records, {"generator.init_from": str(finished)})
  assert taken and all(name.startswith("generator/") for name in taken)
  for name, value in taken.items():
    name = name.removeprefix("generator/")
    source = name.replace("mlm_head/", "heads/mlm/") if "mlm_head" in name else "encoder/" + name
    np.testing.assert_array_equal(value, saved[source], err_msg=name)
  # The token table is the encoder's own: nothing but a generator apart takes that.
  assert "generator/embeddings/token/embedding" not in taken
  frozen = _taken("coco_lm", small_records, {"generator.init_from": str(finished), "generator.frozen": True})
  table = saved["encoder/embeddings/token/embedding"]
  np.testing.assert_array_equal(frozen["generator/embeddings/token/embedding"], table)


@pytest.fixture(scope="module")
def coco_lm(small_records, tmp_path_factory):
  """The workdir of a COCO-LM run that saved its first state."""
  workdir = tmp_path_factory.mktemp("coco_lm")
  run = small_run(small_config("coco_lm", small_records, {"seed": 1}))
  checkpoints = Checkpoints(workdir, every=1, keep=1)
  digest = manifest.read(small_records).vocabulary.digest
  meta = {"config": run.config.to_dict(), "vocabulary_digest": digest}
  assert checkpoints.save(1, run.init_state()._asdict(), meta)
  checkpoints.close()
  return workdir


def test_a_generator_comes_from_a_run_that_has_one(small_records, coco_lm):
  saved = saved_params(coco_lm)
  fields = {"generator.init_from": str(coco_lm), "generator.frozen": True}
  taken = _taken("coco_lm", small_records, fields)
  own = [name for name in taken if name in saved]
  assert own and all(name.startswith("generator/") for name in taken)
  for name, value in taken.items():
    source = name if name in saved else name.replace("generator/", "encoder/")
    np.testing.assert_array_equal(value, saved[source], err_msg=name)


def test_a_token_table_comes_from_a_checkpoint(small_records, finished):
  fields = {"model.freeze_embeddings": "checkpoint", "model.freeze_embeddings_from": str(finished)}
  taken = _taken("mlm", small_records, fields)
  name = "encoder/embeddings/token/embedding"
  assert list(taken) == [name]
  np.testing.assert_array_equal(taken[name], saved_params(finished)[name])


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"model.hidden_size": 32}, r"\(generator\): .* has shape \(.*16.*\), expected \(.*32.*\)"),
    ({"generator.num_layers": 2, "generator.mlm_layers": (1, 2)}, "is missing|has shape"),
    ({"generator.init_from": "nowhere"}, "no checkpoint in .*nowhere"),
    (
      {"generator.num_heads": 4},
      r"generator\.init_from=.*kind of model \(num_heads: 2 there, 4 here\)",
    ),
    ({"model.layer_norm_eps": 1e-12}, "layer_norm_eps: 1e-05 there, 1e-12 here"),
    ({"model.relative_position": "official"}, "relative_position: t5 there, official here"),
  ],
)
def test_a_generator_that_does_not_fit_is_refused(small_records, finished, fields, message):
  with pytest.raises(DataError, match=message):
    _taken("coco_lm", small_records, {"generator.init_from": str(finished)} | fields)


def test_the_heads_of_a_generator_are_those_of_the_run_it_comes_from(small_records, coco_lm):
  fields = {"generator.init_from": str(coco_lm), "model.num_heads": 4, "generator.num_heads": 2}
  assert _taken("coco_lm", small_records, fields)
  with pytest.raises(DataError, match="num_heads: 2 there, 4 here"):
    _taken("coco_lm", small_records, fields | {"generator.num_heads": 0})


@pytest.mark.parametrize(
  "field, fields",
  [
    ("generator.init_from", {}),
    ("model.freeze_embeddings_from", {"model.freeze_embeddings": "checkpoint"}),
  ],
)
def test_a_part_of_a_run_with_another_vocabulary_is_refused(small_records, finished, field, fields):
  with pytest.raises(DataError, match=rf"{field}=.*is not that of the records \(cccccccccccc"):
    _taken("coco_lm", small_records, {field: str(finished)} | fields, digest="c" * 64)


def test_a_warm_start_that_does_not_fit_is_told_before_anything_is_written(small_records, finished, tmp_path):
  fields = {"generator.init_from": str(finished), "generator.num_heads": 4}
  with pytest.raises(DataError, match="another kind of model"):
    run_training(small_config("coco_lm", small_records, fields), tmp_path / "run")
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["train.init_from", "generator.init_from", "model.freeze_embeddings_from"])
def test_a_checkpoint_that_is_not_there_is_told_before_text_is_prepared(tmp_path, field):
  fields = {"data.source": str(tmp_path / "none.txt")}
  if field.startswith("model"):
    fields["model.freeze_embeddings"] = "checkpoint"
  config = small_config("coco_lm", tmp_path / "records", {field: str(tmp_path / "nowhere")} | fields)
  with pytest.raises(DataError, match=rf"{field}=.*no checkpoint in .*nowhere"):
    run_training(config, tmp_path / "run")
  assert list(tmp_path.iterdir()) == []


def test_a_workdir_that_cannot_be_written_is_told_before_text_is_prepared(tmp_path):
  (tmp_path / "file").touch()
  fields = {"data.source": str(tmp_path / "none.txt")}
  with pytest.raises(StorageError, match=r"cannot write to .*file/run"):
    run_training(small_config("mlm", tmp_path / "records", fields), tmp_path / "file" / "run")
  assert [path.name for path in tmp_path.iterdir()] == ["file"]


_FROZEN = {"train.total_steps": 2, "train.checkpoint_every": 1, "train.eval_batches": 0}


def test_a_frozen_generator_stays_bit_equal_while_the_rest_learns(small_records, finished, tmp_path):
  fields = _FROZEN | {"generator.init_from": str(finished), "generator.frozen": True}
  fields |= {"objectives.scl.weight": 0.0}
  assert run_training(small_config("coco_lm", small_records, fields), tmp_path) == 0
  start = _taken("coco_lm", small_records, fields)
  end = saved_params(tmp_path)
  assert start.keys() == {name for name in end if name.startswith("generator/")}
  for name, value in start.items():
    np.testing.assert_array_equal(end[name], value, err_msg=name)
  before = saved_params(tmp_path, 1)
  unchanged = {name for name in end if np.array_equal(end[name], before[name])}
  assert unchanged == set(start)


@pytest.mark.parametrize("kind", ["random", "checkpoint"])
def test_a_frozen_token_table_stays_bit_equal_while_the_rest_learns(small_records, finished, tmp_path, kind):
  source = str(finished) if kind == "checkpoint" else ""
  fields = _FROZEN | {"model.freeze_embeddings": kind, "model.freeze_embeddings_from": source}
  config = small_config("mlm", small_records, fields)
  assert run_training(config, tmp_path) == 0
  table = "encoder/embeddings/token/embedding"
  end, before = saved_params(tmp_path), saved_params(tmp_path, 1)
  if kind == "checkpoint":
    np.testing.assert_array_equal(end[table], saved_params(finished)[table])
  else:
    initial = small_run(config).init_state().params["encoder"]["embeddings"]["token"]["embedding"]
    np.testing.assert_array_equal(end[table], initial)
  assert {name for name in end if np.array_equal(end[name], before[name])} == {table}


def test_other_packages_are_named_once_they_differ():
  now = command.versions(checkpoint.PACKAGES)
  assert resume.changed_packages({"packages": now}) == [] == resume.changed_packages({})
  assert resume.changed_packages({"packages": now | {"jax": "0.1"}}) == [f"jax: 0.1 -> {now['jax']}"]
