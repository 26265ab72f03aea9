"""Every field of `configs/base.py` with another value for it and the facets (of `facets.py`) it changes."""

import ast
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from tests.pretrain import small_run

# Configs in which every field of `_ROWS` has something to do.
_BASES = {
  "mlm": {
    "model.num_layers": 2,
    "model.max_length": 48,
    "train.batch_size": 16,
    "corruption.mask_token_rate": 0.8,
    "corruption.random_token_rate": 0.1,
    "train.checkpoint_every": 2,
    "optimizer.end_learning_rate": 1e-5,
  },
  "coco_lm": {
    "model.freeze_embeddings": "checkpoint",
    "model.freeze_embeddings_from": "t",
    "generator.hidden_size": 8,
    "generator.share_embeddings": "tokens",
    "objectives.scl.head": "projection",
  },
  "amos": {
    "corruption.kind": "generator",
    "generator.num_layers": 2,
    "generator.mlm_layers": (1, 2),
    "generator.share_embeddings": "tokens",
    "generator.sampling_dropout": "zero",
    "generator.mixture": "adversarial",
    "objectives.rtd.weight": 50.0,
    "objectives.mlm.weight": 0.0,
  },
  "tokens": {
    "objectives.all_token.weight": 1.0,
    "objectives.mlm.positions": "all",
    "objectives.taco.weight": 1.0,
  },
  "modern": {
    "model.num_layers": 3,
    "model.relative_position": "none",
    "model.position": "rope",
    "model.norm_placement": "pre",
    "model.norm_bias": False,
    "model.window": 8,
    "model.global_every": 2,
    "optimizer.schedule": "wsd",
    "optimizer.decay_steps": 2,
    "train.batch_size": 32,
    "train.microbatches": 4,
    "train.batch_size_start": 8,
    "train.batch_warmup_steps": 6,
  },
  "segments": {
    "corruption.kind": "generator",
    "objectives.rtd.weight": 50.0,
    "objectives.mlm.weight": 0.0,
    "objectives.scl.weight": 1.0,
    "objectives.scl.max_segments": 4,
    "data.packing": "segments",
  },
  "mae": {"objectives.mlm.weight": 0.0, "objectives.mae.weight": 1.0, "objectives.mae.decoder_layers": 1},
  "sharded": {"mesh.data": 4, "mesh.fsdp": -1},
  "fixed": {
    "corruption.kind": "generator",
    "objectives.rtd.weight": 50.0,
    "objectives.mlm.weight": 0.0,
    "generator.num_layers": 2,
    "generator.mlm_layers": (1, 2),
    "generator.mixture": "fixed",
    "generator.mixture_weights": (0.5, 0.5),
    "generator.temperature_start": 2.0,
    "generator.temperature_decay": 0.1,
  },
}


class Row(NamedTuple):
  """A field, another value for it in one of the bases, and what that changes.

  'resume': a run may be continued with it, by the tests of `checkpoints/test_resume.py` under conditions.
  Fields without a facet say when something happens: tests of their rooms read what a run leaves.
  """

  field: str
  value: Any
  changes: frozenset[str]


def base_config(base: str) -> ConfigDict:
  """A config in which the fields of a base do something."""
  config = small_run.get_config(base if base in small_run.RECIPES else "mlm")
  config.update_from_flattened_dict(_BASES[base])
  return config


# What the other values of fields change in one of the bases, and the fields with these values.
_TABLE = """
mlm: resume
  recipe='other' data.temperature=2.0 train.log_every=2 train.eval_every=3
  train.eval_batches=1 train.checkpoint_every=3 train.checkpoints_to_keep=1 train.checkpoint_steps=(1,)
  train.max_nonfinite_steps=3 train.spike_zscore=3.0 train.spike_window=5 train.spike_roll_back=True
  train.trackers='wandb' train.probe_every=2 train.probe_data='annotated'
  train.multihost=True train.platform='cpu' train.peak_flops=1000000000000.0 mesh.fsdp_across_slices=True
mlm: start step
  seed=7
mlm: start step eval prepare
  model.vocab_size=301
mlm: start step eval
  model.hidden_size=32 model.num_layers=3 model.num_heads=4 model.mlp_size=64 model.max_length=64
  model.relative_position='official' model.relative_buckets=16
mlm: start step eval layout
  model.num_segments=2 model.position='none' model.mlp='gated' model.norm_bias=False
  model.embedding_size=8 objectives.mlm.head='table'
  model.attention_bias=False model.mlp_bias=False
mlm: step eval
  model.relative_max_distance=24 model.layer_norm_eps=1e-12 model.norm_placement='pre'
  model.activation='silu' model.global_every=2 model.dtype='bfloat16' corruption.kind='random'
  corruption.mask_rule='bernoulli' corruption.mask_rate=0.3 corruption.mask_rates=((0.0,0.3),(0.5,0.15))
  corruption.whole_words=True corruption.mask_special='none' corruption.mask_token_rate=0.7
  corruption.random_token_rate=0.05 corruption.random_token_from='all' objectives.mlm.weight=2.0
  train.batch_size=32
mlm: step
  model.dropout=0.2 model.dropout_at='attention' model.attention_dropout=0.2 optimizer.learning_rate=0.002
  optimizer.schedule='electra_google' optimizer.warmup_steps=3
  optimizer.decay_scale='rate_over_peak' optimizer.adam_b1=0.8 optimizer.adam_b2=0.95
  optimizer.adam_eps=0.0001 optimizer.adam_eps_placement='corrected' optimizer.adam_bias_correction=False
  optimizer.weight_decay=0.1 optimizer.clip_norm=1.0
mlm: start
  model.init='megatron_cut' model.init_stddev=0.05
mlm: step eval resume
  model.attention='plain' model.remat='full' model.scan_unroll=2 model.vocab_chunk_rows=3
mlm: eval
  corruption.eval_mask_rate=0.3
mlm: step layout
  optimizer.update_clipping='stable_adamw' optimizer.decay='no_bias_norm'
mlm: step layout resume
  optimizer.shard_update=True
mlm: prepare resume
  data.source='more.txt' data.directory='elsewhere' data.mixture='RECORDS:1' data.stages='0:RECORDS:1'
  data.module='tasks.py' data.tfds_directory='tfds' data.clean='exact' data.workers=3
mlm: prepare
  data.feed='seqio' data.text_field='body' data.vocabulary='words' data.vocabulary_kind='wordpiece'
  data.vocabulary_cased=True data.packing='concat'
mlm: step eval prepare
  data.length=40
mlm:
  data.fraction=0.5 model.pair_segments=True
mlm: step resume
  train.microbatches=2 train.total_steps=8 optimizer.end_learning_rate=0.0001
mlm: start step eval layout resume
  mesh.fsdp=2 mesh.tensor=2
modern: start step eval
  model.num_kv_heads=1
modern: step resume
  optimizer.decay_steps=3 optimizer.decay_shape='one_minus_sqrt'
modern: step
  train.batch_size_start=16 train.batch_warmup_steps=3
modern: step eval
  model.rope_theta=10000.0 model.rope_theta_local=1000.0 model.window=4 model.global_layers=(0,1)
  model.norm='rmsnorm'
modern: start step eval layout
  model.embedding_norm=False
coco_lm: start step eval layout from
  model.freeze_embeddings='none'
coco_lm: from
  model.freeze_embeddings_from='a' train.init_from='b' generator.init_from='c'
coco_lm:
  train.init_grow='tile'
coco_lm: start step eval
  generator.num_layers=2 generator.hidden_size=4 generator.mlp_size=8 generator.num_heads=1
  generator.projection='embeddings' objectives.scl.projection_size=24
coco_lm: start step eval layout
  generator.share_embeddings='none' generator.frozen=True objectives.rtd.head='dense'
  objectives.scl.head='cls'
coco_lm: step
  generator.sampling_dropout='train'
coco_lm: step eval
  generator.temperature=0.5 generator.disallow_correct=True generator.loss_weight=2.0
  objectives.rtd.weight=10.0 objectives.clm.weight=2.0 objectives.clm.form='weighted'
  objectives.clm.stop_gradient=False objectives.clm.copy=False objectives.scl.weight=2.0
  objectives.scl.crop_fraction=0.5 objectives.scl.crop_add_cls=False objectives.scl.temperature=0.5
  objectives.scl.group_size=4
amos: step eval
  generator.mlm_layers=(2,) generator.detach_blocks=False
amos: start step eval layout
  generator.separate_layers=(1,2) generator.mixture='uniform'
amos: step
  generator.gumbel_temperature=0.5 generator.reversal_multiplier=-0.5 generator.adv_mlm_multiplier=0.1
tokens: step eval
  objectives.mlm.positions='masked' objectives.all_token.weight=2.0 objectives.taco.weight=2.0
  objectives.taco.anchors='masked' objectives.taco.window=7 objectives.taco.num_negatives=3
  objectives.taco.temperature=0.1 objectives.taco.group_size=4
segments: step eval
  objectives.scl.max_segments=2
mae: step eval
  objectives.mae.weight=2.0
mae: start step eval
  objectives.mae.decoder_layers=2
mae: start step eval layout
  objectives.mae.decoder_positions='shared' objectives.mae.decoder_relative_position=True
mae: step
  objectives.mae.decoder_dropout='encoder'
sharded: start step eval layout resume
  mesh.data=2
fixed: step eval
  generator.mixture_weights=(0.25,0.75) generator.temperature_start=3.0 generator.temperature_decay=0.2
"""


def _rows() -> dict[str, list[Row]]:
  rows: dict[str, list[Row]] = {}
  for line in _TABLE.strip().splitlines():
    if not line.startswith(" "):
      base, _, changes = line.partition(":")
      continue
    for field in line.split():
      name, _, value = field.partition("=")
      rows.setdefault(base, []).append(Row(name, ast.literal_eval(value), frozenset(changes.split())))
  return rows


ROWS = _rows()
