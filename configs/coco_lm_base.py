"""COCO-LM base: detects and corrects tokens of a generator, and contrasts crops of sentences.

Command: python -m pretrain.main --config=configs/coco_lm_base.py
Source: COCO-LM (Meng et al., NeurIPS 2021), sections 3 and 4, appendices B and D, table 6; values it does
  not state are from the official code (microsoft/COCO-LM) and its author's posts in issue 2.
Expected: GLUE dev MNLI 88.5/88.3, average 87.2; SQuAD 2.0 dev 82.4/85.2 (tables 1 and 3).
Cost: 131.1 B tokens; 140 GPU-hours at the 260,000 tokens/s measured on one H200
  (docs/results/speed.md; 1,375 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import base, sizes

SIZES = {"small": sizes.SMALL, "tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = base.get_config()
  config.recipe = "coco_lm_base"

  config.corruption.kind = "generator"
  config.corruption.mask_rate = 0.15  # appendix B
  config.corruption.mask_special = "all"  # appendix D: special tokens are masked as in RoBERTa
  config.generator.num_layers = 4  # section 4, "a shallow 4-layer Transformer"; width as the encoder
  config.generator.sampling_dropout = "eval"  # sections 3 and 4; official default generator_sample_mode
  # Appendix B shares only token embeddings; the official generator also shares positions and norm.
  config.generator.share_embeddings = "all"

  config.objectives.rtd.weight = 50.0  # appendix B, lambda_copy
  config.objectives.clm.weight = 1.0  # appendix B: equal weights except lambda_copy
  config.objectives.scl.weight = 1.0
  config.objectives.scl.crop_fraction = 0.9  # appendix B
  config.objectives.scl.temperature = 1.0  # appendix B
  config.objectives.scl.group_size = 32  # 2,048 rows on the 64 GPUs of figure 3; inferred

  config.model.update(
    {
      "vocab_size": 32_768,  # section 4, uncased BPE as TUPE's
      "relative_buckets": 32,  # table 6
      "relative_max_distance": 128,  # table 6
      "dropout": 0.1,  # table 6
      "attention_dropout": 0.1,  # table 6
    }
  )
  config.optimizer.update(
    {
      "learning_rate": 5e-4,  # table 6, like all below
      "warmup_steps": 10_000,
      "adam_b1": 0.9,
      "adam_b2": 0.98,
      "adam_eps": 1e-6,
      "weight_decay": 0.01,
      "decay": "all",  # official: one parameter group, biases and norms decay too
      "clip_norm": 2.0,
    }
  )
  config.data.source = "seqio:wikipedia_books"  # section 4: Wikipedia and BookCorpus, here PG-19
  config.data.length = 512  # table 6
  config.data.packing = "complete"  # MC-BERT, the base of the official task: --sample-break-mode complete
  config.train.batch_size = 2_048  # table 6
  config.train.total_steps = 125_000  # table 6
  return config
