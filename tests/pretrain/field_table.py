"""Every field of `configs/base.py` with another value for it and the facets (of `facets.py`) it changes.

A field that changes none of the compiled programs says why in its last column.
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from tests.pretrain import small_run

_ALL = "start step eval"
_LAYOUT = "start step eval layout"  # other arrays are there

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
  """A field, another value for it in one of the bases, and what that changes."""

  field: str
  value: Any
  changes: frozenset[str]
  reason: str  # why no compiled program changes, and what the field is for instead


def base_config(base: str) -> ConfigDict:
  """A config in which the fields of a base do something."""
  config = small_run.get_config(base if base in small_run.RECIPES else "mlm")
  config.update_from_flattened_dict(_BASES[base])
  return config


_ROWS: dict[str, list[tuple]] = {
  "mlm": [
    ("recipe", "other", "", "a name, for checkpoints and reports"),
    ("seed", 7, "start step batches"),
    ("model.vocab_size", 301, f"{_ALL} prepare"),
    ("model.hidden_size", 32, _ALL),
    ("model.num_layers", 3, _ALL),
    ("model.num_heads", 4, _ALL),
    ("model.mlp_size", 64, _ALL),
    ("model.max_length", 64, _ALL),
    ("model.num_segments", 2, _LAYOUT),
    ("model.relative_position", "official", _ALL),
    ("model.relative_buckets", 16, _ALL),
    ("model.relative_max_distance", 24, "step eval"),
    ("model.layer_norm_eps", 1e-12, "step eval"),
    ("model.position", "none", _LAYOUT),
    ("model.norm_placement", "pre", "step eval"),
    ("model.mlp", "gated", _LAYOUT),
    ("model.activation", "silu", "step eval"),
    ("model.norm_bias", False, _LAYOUT),
    ("model.attention_bias", False, _LAYOUT),
    ("model.mlp_bias", False, _LAYOUT),
    ("model.global_every", 2, "step eval"),
    ("model.dropout", 0.2, "step"),
    ("model.dropout_at", "attention", "step"),
    ("model.init", "megatron_cut", "start"),
    ("model.attention_dropout", 0.2, "step"),
    ("model.init_stddev", 0.05, "start"),
    ("model.dtype", "bfloat16", "step eval"),
    ("model.attention", "plain", "step eval"),
    ("model.remat", "full", "step eval"),
    ("model.scan_unroll", 2, "step eval"),
    ("model.vocab_chunk_rows", 3, "step eval"),
    ("corruption.kind", "random", "step eval"),
    ("corruption.mask_rule", "bernoulli", "step eval"),
    ("corruption.mask_rate", 0.3, "step eval"),
    ("corruption.mask_rates", ((0.0, 0.3), (0.5, 0.15)), "step eval"),
    ("corruption.eval_mask_rate", 0.3, "eval"),
    ("corruption.whole_words", True, "step eval"),
    ("corruption.mask_special", "none", "step eval"),
    ("corruption.mask_token_rate", 0.7, "step eval"),
    ("corruption.random_token_rate", 0.05, "step eval"),
    ("corruption.random_token_from", "all", "step eval"),
    ("objectives.mlm.weight", 2.0, "step eval"),
    ("optimizer.learning_rate", 2e-3, "step"),
    ("optimizer.schedule", "electra_google", "step"),
    ("optimizer.warmup_steps", 3, "step"),
    ("optimizer.end_learning_rate", 1e-4, "step"),
    ("optimizer.decay_scale", "rate_over_peak", "step"),
    ("optimizer.update_clipping", "stable_adamw", "step layout"),
    ("optimizer.adam_b1", 0.8, "step"),
    ("optimizer.adam_b2", 0.95, "step"),
    ("optimizer.adam_eps", 1e-4, "step"),
    ("optimizer.adam_eps_placement", "corrected", "step"),
    ("optimizer.adam_bias_correction", False, "step"),
    ("optimizer.weight_decay", 0.1, "step"),
    ("optimizer.decay", "no_bias_norm", "step layout"),
    ("optimizer.clip_norm", 1.0, "step"),
    ("optimizer.shard_update", True, "step layout"),
    ("data.source", "more.txt", "prepare", "what data.prepare reads"),
    ("data.feed", "seqio", "prepare batches heldout", "whether a Task is read instead of records"),
    ("data.skip_hours", 1.0, "", "which resumes of a feed are refused: tests/pretrain/reading/test_feed.py"),
    ("data.directory", "elsewhere", "prepare", "where the records are"),
    (
      "data.mixture",
      "RECORDS:1",
      "prepare batches log",
      "which records are drawn from, and how they are named",
    ),
    ("data.temperature", 2.0, "", "how rates are read: tests/pretrain/reading/test_mixed.py"),
    ("data.stages", "0: RECORDS:1", "prepare batches log", "which records are drawn from, by steps"),
    ("data.text_field", "body", "prepare", "what data.prepare reads"),
    ("data.module", "tasks.py", "prepare", "what data.prepare imports"),
    ("data.tfds_directory", "tfds", "prepare", "what data.prepare reads"),
    ("data.clean", "exact", "prepare", "what data.prepare drops"),
    ("data.vocabulary", "words", "prepare", "what data.prepare tokenizes with"),
    ("data.vocabulary_kind", "wordpiece", "prepare", "what data.prepare trains"),
    ("data.vocabulary_cased", True, "prepare", "what data.prepare trains"),
    ("data.length", 40, "step eval batches heldout prepare"),
    ("data.packing", "concat", "prepare", "how data.prepare cuts text into records"),
    ("data.fraction", 0.5, "batches", "which records are drawn from"),
    ("data.workers", 3, "prepare", "processes of data.prepare"),
    ("train.batch_size", 32, "step eval batches heldout"),
    ("train.microbatches", 2, "step heldout"),
    ("train.total_steps", 8, "step batches heldout log saves"),
    ("train.log_every", 2, "log", "when is logged"),
    ("train.eval_every", 3, "heldout log", "when is evaluated"),
    ("train.eval_batches", 1, "heldout", "how many records are evaluated on"),
    ("train.checkpoint_every", 3, "saves", "when is saved"),
    ("train.checkpoints_to_keep", 1, "saves", "what stays saved"),
    ("train.checkpoint_steps", (1,), "saves", "what stays saved"),
    ("train.max_nonfinite_steps", 3, "batches heldout log saves", "when the run ends as diverged"),
    ("train.spike_zscore", 3.0, "log", "which losses are noted as spikes"),
    ("train.spike_window", 5, "", "what a spike is compared with: tests/pretrain/watching/test_watch.py"),
    ("train.spike_roll_back", True, "", "what is done at a spike: tests/pretrain/watching/test_watch.py"),
    ("train.trackers", "wandb", "", "who gets the metrics too: tests/pretrain/logs/test_trackers.py"),
    ("train.probe_every", 2, "log", "when frozen states are asked"),
    ("train.probe_data", "annotated", "", "what probes ask: tests/lab/analysis/test_probe.py"),
    ("train.replica_check_every", 100, "", "after the last step here: tests/pretrain/watching/test_watch.py"),
    ("train.multihost", True, "", "the command joins the other hosts first: tests/pretrain/test_main.py"),
    ("train.platform", "cpu", "", "the command starts on no other: tests/pretrain/mesh/test_devices.py"),
    ("train.peak_flops", 1e12, "log", "the fraction of the peak in the log"),
    ("mesh.fsdp", 2, _LAYOUT),
    ("mesh.tensor", 2, _LAYOUT),
    (
      "mesh.fsdp_across_slices",
      True,
      "",
      "the order of several slices: tests/pretrain/mesh/test_device_order.py",
    ),
  ],
  "modern": [
    ("optimizer.decay_steps", 3, "step"),
    ("optimizer.decay_shape", "one_minus_sqrt", "step"),
    ("train.batch_size_start", 16, "step batches"),
    ("train.batch_warmup_steps", 3, "step batches"),
    ("model.rope_theta", 1e4, "step eval"),
    ("model.rope_theta_local", 1e3, "step eval"),
    ("model.window", 4, "step eval"),
    ("model.global_layers", (0, 1), "step eval"),
    ("model.norm", "rmsnorm", "step eval"),
    ("model.embedding_norm", False, _LAYOUT),
  ],
  "coco_lm": [
    ("model.freeze_embeddings", "none", f"{_LAYOUT} from"),
    ("model.freeze_embeddings_from", "a", "from", "whose token table the first state gets"),
    ("train.init_from", "b", "from", "whose weights the first state gets"),
    ("train.init_grow", "tile", "", "how a smaller model is read: tests/pretrain/checkpoints/test_growth.py"),
    ("generator.init_from", "c", "from", "whose generator the first state gets"),
    ("generator.num_layers", 2, _ALL),
    ("generator.hidden_size", 4, _ALL),
    ("generator.mlp_size", 8, _ALL),
    ("generator.num_heads", 1, _ALL),
    ("generator.share_embeddings", "none", _LAYOUT),
    ("generator.projection", "embeddings", _ALL),
    ("generator.sampling_dropout", "train", "step"),
    ("generator.temperature", 0.5, "step eval"),
    ("generator.disallow_correct", True, "step eval"),
    ("generator.loss_weight", 2.0, "step eval"),
    ("generator.frozen", True, f"{_LAYOUT}"),
    ("objectives.rtd.weight", 10.0, "step eval"),
    ("objectives.rtd.head", "dense", _LAYOUT),
    ("objectives.clm.weight", 2.0, "step eval"),
    ("objectives.clm.form", "weighted", "step eval"),
    ("objectives.clm.stop_gradient", False, "step eval"),
    ("objectives.clm.copy", False, "step eval"),
    ("objectives.scl.weight", 2.0, "step eval"),
    ("objectives.scl.crop_fraction", 0.5, "step eval"),
    ("objectives.scl.crop_add_cls", False, "step eval"),
    ("objectives.scl.temperature", 0.5, "step eval"),
    ("objectives.scl.head", "cls", _LAYOUT),
    ("objectives.scl.projection_size", 24, _ALL),
    ("objectives.scl.group_size", 4, "step eval"),
  ],
  "amos": [
    ("generator.mlm_layers", (2,), "step eval"),
    ("generator.separate_layers", (1, 2), _LAYOUT),
    ("generator.detach_blocks", False, "step eval"),
    ("generator.mixture", "uniform", _LAYOUT),
    ("generator.gumbel_temperature", 0.5, "step"),
    ("generator.reversal_multiplier", -0.5, "step"),
    ("generator.adv_mlm_multiplier", 0.1, "step"),
  ],
  "tokens": [
    ("objectives.mlm.positions", "masked", "step eval"),
    ("objectives.all_token.weight", 2.0, "step eval"),
    ("objectives.taco.weight", 2.0, "step eval"),
    ("objectives.taco.anchors", "masked", "step eval"),
    ("objectives.taco.window", 7, "step eval"),
    ("objectives.taco.num_negatives", 3, "step eval"),
    ("objectives.taco.temperature", 0.1, "step eval"),
    ("objectives.taco.group_size", 4, "step eval"),
  ],
  "segments": [("objectives.scl.max_segments", 2, "step eval")],
  "mae": [
    ("objectives.mae.weight", 2.0, "step eval"),
    ("objectives.mae.decoder_layers", 2, _ALL),
    ("objectives.mae.decoder_positions", "shared", _LAYOUT),
    ("objectives.mae.decoder_relative_position", True, _LAYOUT),
    ("objectives.mae.decoder_dropout", "encoder", "step"),
  ],
  "sharded": [("mesh.data", 2, _LAYOUT)],
  "fixed": [
    ("generator.mixture_weights", (0.25, 0.75), "step eval"),
    ("generator.temperature_start", 3.0, "step eval"),
    ("generator.temperature_decay", 0.2, "step eval"),
  ],
}

ROWS = {
  base: [
    Row(field, value, frozenset(changes.split()), "".join(reason)) for field, value, changes, *reason in rows
  ]
  for base, rows in _ROWS.items()
}
