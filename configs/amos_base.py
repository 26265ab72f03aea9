"""AMOS base: detects replaced tokens that an adversarial mixture of three generator heads samples.

Command: python -m pretrain.main --config=configs/amos_base.py
Source: AMOS (Meng et al., ICLR 2022), sections 3 and 4, appendix B, table 3; values it does not state are
  from the official code (microsoft/AMOS), then from COCO-LM, whose setting it uses.
Expected: GLUE dev MNLI 88.9/88.7, average 88.6; SQuAD 2.0 dev 84.2/87.2 (table 1).
Cost: 131.1 B tokens; 105 GPU-hours at the 347,000 tokens/s measured on one H200
  (docs/results/speed.md; 1,036 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import base, sizes

SIZES = {
  # Depths are half of the paper's.
  "small": sizes.SMALL | {"generator.num_layers": 4, "generator.mlm_layers": (2, 3, 4)},
  # One layer more than the encoder: three heads need three depths.
  "tiny": sizes.TINY | {"generator.num_layers": 3, "generator.mlm_layers": (1, 2, 3)},
}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = base.get_config()
  config.recipe = "amos_base"

  config.corruption.kind = "generator"
  config.corruption.mask_rate = 0.15  # appendix B
  config.generator.update(
    {
      "num_layers": 8,  # section 4; width as the encoder
      "mlm_layers": (4, 6, 8),  # section 4, the set D
      "share_embeddings": "tokens",  # appendix B; official: own positions and norm where dropout is zero
      "sampling_dropout": "zero",  # section 4; official default generator_sample_mode
      "detach_blocks": True,  # section 3
      "mixture": "adversarial",  # section 3, equation 4
      "gumbel_temperature": 0.3,  # appendix B
      "reversal_multiplier": -1.0,  # section 3; official disc_grad_mul
    }
  )
  config.objectives.rtd.weight = 50.0  # appendix B, lambda

  config.model.update(
    {
      "vocab_size": 32_768,  # section 4, uncased BPE
      "relative_buckets": 32,  # the paper gives none; official default
      "relative_max_distance": 128,  # the same
      "dropout": 0.1,  # table 3; of the encoder
      "attention_dropout": 0.1,
    }
  )
  config.optimizer.update(
    {
      "learning_rate": 5e-4,  # table 3, like all below except the decay
      "warmup_steps": 10_000,
      "adam_b1": 0.9,
      "adam_b2": 0.98,
      "adam_eps": 1e-6,
      "clip_norm": 2.0,
      "weight_decay": 0.01,  # not in table 3; COCO-LM table 6
    }
  )
  config.data.source = "seqio:wikipedia_books"  # section 4: Wikipedia and BookCorpus, here PG-19
  config.data.length = 512  # table 3
  config.train.batch_size = 2_048  # table 3
  config.train.total_steps = 125_000  # table 3
  return config
