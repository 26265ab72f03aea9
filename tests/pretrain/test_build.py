"""Run: pytest tests/pretrain/test_build.py. From fields to settings; published sizes of recipes."""

import dataclasses
import math

import jax
import pytest

from configs import base
from data.errors import ConfigError
from pretrain.build import build
from pretrain.corruption.masking import TokenIds
from tests.pretrain.small_recipe import AMOS, COCO_LM, TOKENS, UNION, small_recipe


def test_models_have_their_published_sizes(subtests):
  official = {"objectives.scl.head": "projection", "generator.share_embeddings": "all"}
  amos = {"generator.num_layers": 8, "generator.mlm_layers": (4, 6, 8)}
  large = {"model.num_layers": 24, "model.hidden_size": 1_024, "model.mlp_size": 4_096, "model.num_heads": 16}
  plus = {"model.vocab_size": 64_000, "model.relative_buckets": 64}
  for name, fields, published in (
    ("base encoder", {}, 110_615_424),
    ("base++ encoder", plus, 134_601_984),
    ("large++ encoder", plus | large | {"model.relative_buckets": 128}, 368_373_760),
    ("COCO-LM with the official switches", COCO_LM | official, 140_217_857),
    ("AMOS", AMOS | amos, 168_339_969),
  ):
    with subtests.test(name):
      config = base.get_config()
      config.update_from_flattened_dict(fields)
      recipe = build(config, dataclasses.replace(TOKENS, vocab_size=config.model.vocab_size))
      shapes = jax.eval_shape(recipe.init, jax.random.key(0))
      assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == published


def test_token_ids_must_fit_the_table():
  config = base.get_config()
  config.model.vocab_size = 100
  tokens = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=100)
  build(config, tokens)
  with pytest.raises(ConfigError, match=r"--config.model.vocab_size=101"):
    build(config, dataclasses.replace(tokens, vocab_size=101))


def test_generator_sizes_default_to_the_encoders():
  trunk = small_recipe(COCO_LM).generator.members[0]
  assert (trunk.hidden_size, trunk.mlp_size, trunk.num_heads, trunk.num_layers) == (32, 64, 2, 2)
  narrow = {"generator.hidden_size": 16, "generator.mlp_size": 24, "generator.num_heads": 1}
  for projection, token_size in (("table", 32), ("none", 16)):
    fields = {**COCO_LM, **narrow, "generator.projection": projection}
    generator = small_recipe({**fields, "generator.share_embeddings": "none"}).generator
    trunk = generator.members[0]
    assert (trunk.hidden_size, trunk.mlp_size, trunk.num_heads) == (16, 24, 1)
    assert generator.token_size == token_size


def test_heads_default_to_the_last_layer_and_separate_generators_have_one_each():
  assert small_recipe(COCO_LM).generator.mlm_layers == (2,)
  assert small_recipe(AMOS).generator.mlm_layers == (1, 2, 3)
  separate = small_recipe({**AMOS, "generator.separate_layers": (2, 2, 1)}).generator
  assert [member.num_layers for member in separate.members] == [2, 2, 1]
  assert separate.mlm_layers == (2, 2, 1) and separate.is_separate


def test_only_the_zero_mode_takes_dropout_out_of_the_generator():
  rates = {"model.dropout": 0.2, "model.attention_dropout": 0.3}
  for mode, expected in (("zero", (0.0, 0.0)), ("eval", (0.2, 0.3)), ("train", (0.2, 0.3))):
    recipe = small_recipe({**COCO_LM, **rates, "generator.sampling_dropout": mode})
    (trunk,) = recipe.generator.members
    assert (trunk.dropout, trunk.attention_dropout) == expected, mode
    assert (recipe.encoder.dropout, recipe.encoder.attention_dropout) == (0.2, 0.3)


def test_the_chunk_is_the_rows_of_logits_divided_by_the_rows_of_a_device():
  recipes = [small_recipe(UNION, rows_per_device=rows) for rows in (1, 8, 3, 5_000, 0)]
  assert [recipe.chunk for recipe in recipes] == [1_024, 128, 341, 1, 1_024]
  assert recipes[1].context.chunk == 128


def test_what_is_frozen_is_named():
  for mode, frozen in (("none", False), ("random", True), ("checkpoint", True)):
    recipe = small_recipe({**COCO_LM, "model.freeze_embeddings": mode})
    assert recipe.is_frozen("encoder/embeddings/token/embedding") == frozen, mode
    assert not recipe.is_frozen("encoder/embeddings/position/embedding")
    assert not recipe.is_frozen("generator/mlm_head/bias")
  recipe = small_recipe({**COCO_LM, "generator.frozen": True})
  assert recipe.generator.share_embeddings == "none" and recipe.is_frozen("generator/mlm_head/bias")
  assert not recipe.is_frozen("encoder/embeddings/token/embedding")
