"""Sizes that recipes share, as {dotted field: value}; `SIZES` of a recipe has those of `FILE:tiny`.

SMALL is for one GPU, TACO_SMALL for TACO and its baseline, TINY for two CPU cores.
"""

from typing import Any

# Sizes are those of the official `cocolm_small`; batch size, length, steps and learning rate are those of
# ELECTRA-small, the best-known run of that size.
SMALL = {
  "model.hidden_size": 256,  # official fairseq/models/cocolm/model.py, cocolm_small
  "model.num_layers": 12,
  "model.num_heads": 4,
  "model.mlp_size": 1_024,
  "generator.num_layers": 2,  # official cocolm_small
  "data.length": 128,  # tokens; ELECTRA table 6 (small) and official max_seq_length
  "optimizer.learning_rate": 5e-4,  # ELECTRA table 6
  "optimizer.warmup_steps": 10_000,  # ELECTRA table 6
  "train.batch_size": 128,  # ELECTRA table 6
  "train.total_steps": 1_000_000,  # ELECTRA table 6
}

TACO_SMALL = {  # TACO table 5
  "model.hidden_size": 512,
  "model.num_layers": 4,
  "model.num_heads": 8,
  "model.mlp_size": 2_048,
  "optimizer.warmup_steps": 2_500,
  "train.total_steps": 250_000,
}

# Trains in minutes on two CPU cores without a download. No number is from a paper: a step takes a fraction of
# a second. Initial values, dropout, learning rate and Adam's epsilon were changed together, because with the
# papers' values a narrow model stays on the plateau of token frequencies two to three times as long
# (docs/results/learning.md).
TINY = {
  "model.vocab_size": 4_096,
  "model.hidden_size": 128,
  "model.num_layers": 2,
  "model.num_heads": 2,
  "model.mlp_size": 512,
  "model.max_length": 64,
  "model.init_stddev": 0.05,  # 0.02 suits width 768; at 128 attention would pass almost no signal
  "model.dropout": 0.0,  # this size underfits
  "model.attention_dropout": 0.0,
  "generator.num_layers": 1,
  "objectives.scl.group_size": 32,  # the whole batch
  "objectives.taco.group_size": 32,
  "data.source": "installed_docs",
  "data.length": 64,
  "optimizer.learning_rate": 2e-3,
  "optimizer.warmup_steps": 200,
  # At RTD weight 50, clipping scales the generator's attention gradients to 2e-7, below an epsilon of 1e-6.
  "optimizer.adam_eps": 1e-8,
  "train.batch_size": 32,
  "train.total_steps": 4_000,
  "train.log_every": 50,
  "train.eval_every": 500,
  "train.eval_batches": 8,
  "train.checkpoint_every": 1_000,
}


def narrow_generator(num_layers: int) -> dict[str, Any]:
  """Returns the fields of a generator of width 64, a quarter of ELECTRA-small's (ELECTRA table 6)."""
  sizes = {"num_layers": num_layers, "hidden_size": 64, "mlp_size": 256, "num_heads": 1}
  return {f"generator.{name}": value for name, value in sizes.items()}
