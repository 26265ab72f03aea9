"""ModernBERT base: predicts masked tokens on a backbone with rotary positions and local attention.

Command: python -m pretrain.main --config=configs/modernbert_base.py
Source: ModernBERT (Warner et al. 2024) and the yamls of AnswerDotAI/ModernBERT at 8c57a0f: the first of three
  phases, 1.719 T tokens at 1,024. Steps are tokens over those of a batch. Its text is not published, and its
  vocabulary is OLMo's; here both are replaced.
Expected: GLUE dev average 88.4 after all three phases, on its text and vocabulary, as lists of models quote
  it; the paper's own table was not read.
Cost: 1.719 T tokens; 1,667 GPU-hours on H200s at 236 TFLOP/s, measured for roberta_base:modern
  (docs/results/speed.md; 824 training MFLOP per token).

The later phases start from the weights of the one before, with fresh moments, in batches of 576 rows.
Phase 2, 250 B tokens at 8,192:
  python -m pretrain.main --config=configs/modernbert_base.py --workdir=runs/modernbert_base_2 \\
    --config.train.init_from=runs/modernbert_base --config.model.rope_theta=160000 \\
    --config.data.length=8192 --config.train.batch_size=576 --config.train.total_steps=52982 \\
    --config.train.batch_size_start=0 --config.train.batch_warmup_steps=0 \\
    --config.optimizer.learning_rate=3e-4 --config.optimizer.warmup_steps=0
Phase 3, 50 B tokens in which the rate falls; what was released is a mean of its checkpoints (`average` of
python -m pretrain.checkpoints):
  python -m pretrain.main --config=configs/modernbert_base.py --workdir=runs/modernbert_base_3 \\
    --config.train.init_from=runs/modernbert_base_2 --config.model.rope_theta=160000 \\
    --config.data.length=8192 --config.train.batch_size=576 --config.train.total_steps=10597 \\
    --config.train.batch_size_start=0 --config.train.batch_warmup_steps=0 \\
    --config.optimizer.learning_rate=3e-4 --config.optimizer.warmup_steps=0 \\
    --config.optimizer.decay_steps=10597 --config.optimizer.decay_shape=one_minus_sqrt \\
    --config.optimizer.end_learning_rate=3e-7
"""

from ml_collections import ConfigDict

from configs import backbones, base, sizes

SIZES = {
  "tiny": sizes.TINY
  | {
    "model.mlp_size": 192,
    "model.window": 32,
    "optimizer.decay_steps": 1_000,
    "optimizer.decay_shape": "one_minus_sqrt",
    "train.microbatches": 4,
    "train.batch_size_start": 8,
    "train.batch_warmup_steps": 300,
  }
}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = backbones.apply(base.get_config(), "modern")
  config.recipe = "modernbert_base"
  config.model.update(
    {
      "vocab_size": 50_368,
      "max_length": 8_192,  # of phases 2 and 3
      "rope_theta": 10_000.0,  # in phase 1 as in layers with a window
    }
  )
  config.corruption.update(
    {
      "kind": "mask",
      "mask_rule": "bernoulli",  # src/sequence_packer.py, like the four below
      "mask_rate": 0.3,
      "mask_special": "all",
      "mask_token_rate": 0.8,
      "random_token_rate": 0.1,
      "random_token_from": "all",
      "eval_mask_rate": 0.15,
    }
  )
  config.objectives.mlm.weight = 1.0
  config.optimizer.update(
    {
      "learning_rate": 8e-4,
      "schedule": "wsd",  # its fall is phase 3
      "warmup_steps": 3_815,  # 3 B tokens, in batches of 768 rows
      "adam_b1": 0.9,
      "adam_b2": 0.98,
      "adam_eps": 1e-6,
      "adam_eps_placement": "corrected",
      "weight_decay": 1e-5,
      "decay": "no_bias_norm",
      "decay_scale": "rate_over_peak",
      "clip_norm": 0.0,
      "update_clipping": "stable_adamw",
    }
  )
  config.data.source = "seqio:web_160gb"  # our choice; 1.7 T tokens are many epochs of it
  config.data.vocabulary_cased = True
  config.data.length = 1_024
  config.data.packing = "segments"  # best fit, segments kept apart
  config.train.update(
    {
      "batch_size": 4_608,
      "microbatches": 6,  # of 96 rows on each of 8 devices
      "batch_size_start": 768,
      "batch_warmup_steps": 21_195,  # 50 B tokens, 5 sizes
      "total_steps": 374_902,  # 1.719 T tokens
    }
  )
  config.seed = 17
  return config
