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


def _count(fields: dict) -> int:
  config = base.get_config()
  config.update_from_flattened_dict(fields)
  recipe = build(config, dataclasses.replace(TOKENS, vocab_size=config.model.vocab_size))
  shapes = jax.eval_shape(recipe.init, jax.random.key(0))
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_coco_lm_base_with_the_official_switches_has_the_published_size():
  official = {"objectives.scl.head": "projection", "generator.share_embeddings": "all"}
  assert _count({**COCO_LM, **official}) == 140_217_857


def test_amos_base_has_the_published_size():
  assert _count({**AMOS, "generator.num_layers": 8, "generator.mlm_layers": (4, 6, 8)}) == 168_339_969


def test_a_base_encoder_alone_has_the_published_size():
  assert _count({}) == 110_615_424


def test_objectives_of_weight_zero_are_absent():
  assert list(small_recipe(COCO_LM).objectives) == ["rtd", "clm", "scl"]
  assert small_recipe({"objectives.mlm.weight": 1.0}).generator is None


def test_token_ids_must_fit_the_table():
  config = base.get_config()
  config.model.vocab_size = 100
  with pytest.raises(ConfigError, match=r"(?s)100 rows.*101 tokens.*--config.model.vocab_size=101"):
    build(config, TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=101))


def test_generator_sizes_default_to_the_encoders():
  trunk = small_recipe(COCO_LM).generator.members[0]
  assert (trunk.hidden_size, trunk.mlp_size, trunk.num_heads, trunk.num_layers) == (32, 64, 2, 2)
  narrow = {"generator.hidden_size": 16, "generator.mlp_size": 24, "generator.num_heads": 1}
  trunk = small_recipe({**COCO_LM, **narrow, "generator.share_embeddings": "tokens"}).generator.members[0]
  assert (trunk.hidden_size, trunk.mlp_size, trunk.num_heads) == (16, 24, 1)


def test_heads_default_to_the_last_layer_and_separate_generators_have_one_each():
  assert small_recipe(COCO_LM).generator.mlm_layers == (2,)
  assert small_recipe(AMOS).generator.mlm_layers == (1, 2, 3)
  separate = small_recipe({**AMOS, "generator.separate_layers": (2, 2, 1)}).generator
  assert [member.num_layers for member in separate.members] == [2, 2, 1]
  assert separate.mlm_layers == (2, 2, 1) and separate.is_separate


@pytest.mark.parametrize("mode, dropout", [("zero", 0.0), ("eval", 0.1), ("train", 0.1)])
def test_only_the_zero_mode_takes_dropout_out_of_the_generator(mode, dropout):
  recipe = small_recipe({**COCO_LM, "generator.sampling_dropout": mode})
  assert recipe.generator.members[0].dropout == recipe.generator.members[0].attention_dropout == dropout
  assert recipe.encoder.dropout == 0.1


def test_a_frozen_generator_shares_nothing():
  assert small_recipe({**COCO_LM, "generator.frozen": True}).generator.share_embeddings == "none"


@pytest.mark.parametrize("rows, chunk", [(1, 1_024), (8, 128), (3, 341), (5_000, 1)])
def test_the_chunk_is_the_rows_of_logits_divided_by_the_rows_of_a_device(rows, chunk):
  recipe = small_recipe(UNION, rows_per_device=rows)
  assert recipe.chunk == chunk == recipe.context.chunk


@pytest.mark.parametrize("mode, frozen", [("none", False), ("random", True), ("checkpoint", True)])
def test_frozen_embeddings_are_named(mode, frozen):
  recipe = small_recipe({**COCO_LM, "model.freeze_embeddings": mode})
  assert recipe.is_frozen("encoder/embeddings/token/embedding") == frozen
  assert not recipe.is_frozen("encoder/embeddings/position/embedding")
  assert not recipe.is_frozen("generator/mlm_head/bias")
  assert small_recipe({**COCO_LM, "generator.frozen": True}).is_frozen("generator/mlm_head/bias")
