"""Fields and defaults of the settings; costs, kinds of layers, meshes and sizes of batches worked by hand."""

import dataclasses
import itertools
import typing

import jax
import jax.numpy as jnp
import pytest

from pretrain.build import loss_class
from pretrain.corruption.masking import TokenIds
from pretrain.run import make_run
from pretrain.settings import FIELDS, PRETRAINING, fields
from pretrain.settings.model import EncoderSettings, GeneratorSettings, MaskingSettings
from pretrain.settings.objectives import OBJECTIVES, crop_size, switched_on
from pretrain.settings.run import BatchSizes, MeshSettings, OptimizerFields, batch_sizes
from tests.pretrain.small_run import get_config


def test_settings_and_the_base_config_have_the_same_fields_and_allowed_defaults():
  assert fields.flatten(FIELDS).keys() == PRETRAINING.defaults.keys()
  for name, default in PRETRAINING.defaults.items():
    kind = PRETRAINING.kinds[name]
    assert type(default) is (typing.get_origin(kind.value_type) or kind.value_type), name
    assert kind.limit is None or kind.value_type in (int, float)
    assert not kind.choices or kind.value_type is str


def test_every_objective_says_its_name_and_its_paper_and_has_code():
  for name, settings in OBJECTIVES.items():
    assert settings.name == name
    assert settings.paper.endswith(".")
    assert issubclass(loss_class(settings), settings)
    assert "weight" in {field.name for field in dataclasses.fields(settings)}


def test_objectives_of_weight_zero_or_that_an_old_config_lacks_are_off():
  groups = {"rtd": {"weight": 50.0, "head": "linear"}, "all_token": {"weight": 0.0}}
  assert switched_on(groups).keys() == {"rtd"}
  # A later field has its default.
  old = {f.name: 1 for f in dataclasses.fields(OBJECTIVES["scl"]) if f.name != "max_segments"}
  settings = switched_on({"scl": old})["scl"]
  assert (settings.group_size, settings.max_segments) == (1, 0)


def _on(name, **given):
  fields_of = {field.name: 0 for field in dataclasses.fields(OBJECTIVES[name])}
  return OBJECTIVES[name](**fields_of | given)


def test_what_an_objective_costs_is_worked_by_hand():
  model = {"hidden_size": 8, "vocab_size": 100}
  masked_lm = 2 * 8**2 + 2 * 8 * 100
  for settings, flops in (
    (_on("mlm", positions="masked"), {"mlm head": 0.25 * masked_lm}),
    (_on("mlm", positions="all"), {"mlm head": masked_lm}),
    (_on("rtd", head="linear"), {"rtd head": 16}),
    (_on("rtd", head="dense"), {"rtd head": 16 + 128}),
    (_on("rtd", head="context"), {"rtd head": 16 + 128}),
    (_on("clm"), {"clm head": 0.25 * 1600}),
    (_on("all_token"), {"all_token head": 1600}),
    (_on("taco", num_negatives=4), {"contrast": 2 * 8 * 5}),
    (_on("mae"), {"mae head": 0.25 * masked_lm}),
  ):
    assert settings.flops(model, 0.25) == flops, settings
  assert [crop_size(fraction, 10) for fraction in (0.75, 1.0, 7.0)] == [7, 10, 7]
  assert _on("scl", crop_fraction=20.0).crop_tokens(10) == 10
  assert (
    _on("scl", crop_fraction=0.5).crop_tokens(10) == 5 and _on("scl", max_segments=2).crop_tokens(10) == 10
  )
  (line,) = _on("scl", max_segments=2).remarks({"most_segments_in_a_record": 3})
  assert "up to 3 texts" in line
  assert not [*_on("scl", max_segments=3).remarks({"most_segments_in_a_record": 3})]
  assert _on("mae", decoder_layers=4).own_layers == 4 and _on("mlm").own_layers == 0


def test_layers_that_read_all_keys_and_the_decay_of_an_update():
  def encoder(**given):
    return EncoderSettings(32, 8, 6, 2, 16, 16, **given)

  every = encoder(global_every=3)
  assert [every.is_global(layer) for layer in range(6)] == [True, False, False] * 2
  assert every.has_windows and every.period == 3
  listed = encoder(global_layers=[1, 5])
  assert [layer for layer in range(6) if listed.is_global(layer)] == [1, 5] and listed.period == 4
  assert not encoder().has_windows and encoder().period == 1
  assert OptimizerFields(learning_rate=0.5, weight_decay=0.1).decay_factor == 0.1
  assert (
    OptimizerFields(learning_rate=0.5, weight_decay=0.1, decay_scale="rate_over_peak").decay_factor == 0.2
  )


def test_masks_of_an_evaluation_and_generators_with_a_table_of_their_own():
  masks = MaskingSettings("mask", "count", 0.3, "all", 0.8, 0.1, "all", mask_rates=((0.0, 0.3), (0.5, 0.2)))
  assert masks.rates == (0.3, 0.2) and masks.in_evaluation is masks
  asked = dataclasses.replace(masks, eval_mask_rate=0.15).in_evaluation
  assert asked.rates == (0.15,) and asked.random_token_rate == 0.1
  given = PRETRAINING.defaults
  names = [field.name for field in dataclasses.fields(GeneratorSettings)]
  settings = GeneratorSettings(**{name: given[f"generator.{name}"] for name in names})
  tables = [dataclasses.replace(settings, share_embeddings=one).has_table for one in ("all", "none", "gdes")]
  assert tables == [False, True, True] and dataclasses.replace(settings, frozen=True).has_table


def test_a_mesh_takes_all_devices():
  assert MeshSettings(-1, 2, 2).filled(8) == (2, 2, 2) and MeshSettings(2, -1, 1).filled(8) == (2, 4, 1)
  assert MeshSettings(2, 2, 2).filled(16) is None and MeshSettings(-1, 3, 1).filled(8) is None


def test_each_smaller_size_has_the_same_number_of_updates():
  sizes = BatchSizes(batch_size=20, microbatches=5, batch_size_start=8, batch_warmup_steps=6)
  assert [sizes.rows(step) for step in range(8)] == [8, 8, 12, 12, 16, 16, 20, 20]
  assert [sizes.rows_before(step) for step in range(8)] == [0, 8, 16, 28, 40, 56, 72, 92]
  assert sizes.shown(3) == "24 to 60 (after 6 updates)" and BatchSizes(2_048, 8).shown(512) == "1,048,576"
  assert batch_sizes({"batch_size": 8}).rows_before(3) == 24  # of a config without the other fields
  # The device counts the microbatches of a batch.
  config = get_config()
  config.train.update({"batch_size": 20, "microbatches": 5, "batch_size_start": 8, "batch_warmup_steps": 6})
  run = make_run(config, TokenIds(0, 1, 2, 3, 4, 300), devices=jax.devices()[:1])
  assert [4 * int(run.turns(jnp.int32(step))) for step in range(8)] == [sizes.rows(step) for step in range(8)]


def test_sizes_take_the_tokens_of_the_recipe():
  # ModernBERT-base: 768 to 4,608 rows of 1,024 tokens over 50 B tokens: 3.3, 6.7, 10, 13.3, 16.7 B.
  sizes = BatchSizes(4_608, 6, 768, 5 * 4_239)
  ends = [sizes.rows_before(4_239 * number) * 1_024 for number in range(6)]
  taken = [(end - start) / 1e9 for start, end in itertools.pairwise(ends)]
  assert taken == pytest.approx([10 / 3, 20 / 3, 10, 40 / 3, 50 / 3], rel=1e-3)


def test_rows_before_a_step_are_the_sum_of_all_batches():
  for given in ((64, 8, 16, 18), (36, 9, 4, 8), (36, 9, 32, 100), (64, 8), (64, 1)):
    sizes, rows = BatchSizes(*given), 0
    for step in range(120):
      assert sizes.rows_before(step) == rows, (given, step)
      rows += sizes.rows(step)
    assert sizes.rows(10_000) == sizes.batch_size
