"""Sizes that several recipes share: `small` for one GPU, TACO's `taco_small`, `tiny` for two CPU cores."""

from ml_collections import ConfigDict


def small(config: ConfigDict) -> ConfigDict:
  """Changes a base recipe of the COCO-LM family to size small, in place; returns it.

  Sizes are those of the official `cocolm_small`; batch size, length, steps and learning rate are those of
  ELECTRA-small, the best-known run of that size.
  """
  config.model.update(
    {
      "hidden_size": 256,  # official fairseq/models/cocolm/model.py, cocolm_small
      "num_layers": 12,
      "num_heads": 4,
      "mlp_size": 1_024,
    }
  )
  config.generator.num_layers = 2  # official cocolm_small
  config.data.length = 128  # tokens; ELECTRA table 6 (small) and official max_seq_length
  config.optimizer.learning_rate = 5e-4  # ELECTRA table 6
  config.optimizer.warmup_steps = 10_000  # ELECTRA table 6
  config.train.batch_size = 128  # ELECTRA table 6
  config.train.total_steps = 1_000_000  # ELECTRA table 6
  return _named(config, "small")


def taco_small(config: ConfigDict) -> ConfigDict:
  """Changes taco_base or bert_base to the size small of TACO's table 5, in place; returns it."""
  config.model.update({"hidden_size": 512, "num_layers": 4, "num_heads": 8, "mlp_size": 2_048})
  config.optimizer.warmup_steps = 2_500
  config.train.total_steps = 250_000
  return _named(config, "small")


def tiny(config: ConfigDict) -> ConfigDict:
  """Changes a recipe so that it trains in minutes on two CPU cores without a download, in place; returns it.

  No number is from a paper: a step takes a fraction of a second. Initial values, dropout, learning rate and
  Adam's epsilon were changed together, because with the papers' values a narrow model stays on the plateau of
  token frequencies two to three times as long (docs/results/learning.md).
  """
  config.model.update(
    {
      "vocab_size": 4_096,
      "hidden_size": 128,
      "num_layers": 2,
      "num_heads": 2,
      "mlp_size": 512,
      "max_length": 64,
      "init_stddev": 0.05,  # 0.02 suits width 768; at 128 attention would pass almost no signal
      "dropout": 0.0,  # this size underfits
      "attention_dropout": 0.0,
    }
  )
  config.generator.num_layers = 1
  config.objectives.scl.group_size = 32  # the whole batch
  config.objectives.taco.group_size = 32
  config.data.source = "installed_docs"
  config.data.length = 64
  config.optimizer.learning_rate = 2e-3
  config.optimizer.warmup_steps = 200
  # At RTD weight 50, clipping scales the generator's attention gradients to 2e-7, below an epsilon of 1e-6.
  config.optimizer.adam_eps = 1e-8
  config.train.update(
    {
      "batch_size": 32,
      "total_steps": 4_000,
      "log_every": 50,
      "eval_every": 500,
      "eval_batches": 8,
      "checkpoint_every": 1_000,
    }
  )
  return _named(config, "tiny")


def narrow_generator(config: ConfigDict, *, num_layers: int) -> ConfigDict:
  """Sets the generator's width to 64, a quarter of ELECTRA-small's (ELECTRA table 6), in place."""
  config.generator.update({"num_layers": num_layers, "hidden_size": 64, "mlp_size": 256, "num_heads": 1})
  return config


def _named(config: ConfigDict, size: str) -> ConfigDict:
  config.recipe = config.recipe.removesuffix("base") + size
  return config
