"""BERT base: predicts masked tokens, without sentence pairs; TACO's baseline.

Command: python -m pretrain.main --config=configs/bert_base.py
Source: TACO (Fu et al., ACL 2022), section 4.1 and table 5 (base); values it does not state are from the
  official code (FUZHIYI/TACO, on transformers 4.6).
Expected: GLUE dev average of 8 tasks 80.9 (TACO table 3, MLM-500k).
Cost: 163.8 B tokens; 71 GPU-hours on H200s at 360 TFLOP/s, measured for roberta_base
  (docs/results/speed.md; 560 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import base, sizes

SIZES = {"small": sizes.TACO_SMALL, "tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = base.get_config()
  config.recipe = "bert_base"

  config.corruption.update(
    {
      "kind": "mask",
      "mask_rate": 0.15,  # table 5
      "mask_rule": "bernoulli",  # transformers data_collator.py, like the four below
      "mask_special": "none",
      "mask_token_rate": 0.8,
      "random_token_rate": 0.1,
      "random_token_from": "all",
    }
  )
  config.objectives.mlm.weight = 1.0

  config.model.update(
    {
      "vocab_size": 30_522,  # table 5, WordPiece of bert-base-uncased
      "hidden_size": 768,  # table 5
      "num_layers": 12,  # table 5
      "num_heads": 12,  # table 5
      "mlp_size": 3_072,  # table 5
      "max_length": 512,  # table 5
      "num_segments": 2,
      "relative_position": "none",
      "layer_norm_eps": 1e-12,
      "dropout": 0.1,  # table 5
      "attention_dropout": 0.1,  # table 5
      "init_stddev": 0.02,  # table 5
    }
  )
  config.optimizer.update(
    {
      "learning_rate": 1e-4,  # table 5
      "warmup_steps": 10_000,  # table 5
      "adam_b1": 0.9,  # table 5
      "adam_b2": 0.999,  # table 5
      "adam_eps": 1e-8,  # table 5
      "weight_decay": 0.01,  # table 5
      "decay": "no_bias_norm",  # transformers trainer.py
      "clip_norm": 1.0,  # table 5
    }
  )
  config.data.source = "seqio:wikipedia_books"  # section 4.1; PG-19 for BookCorpus
  config.data.vocabulary_kind = "wordpiece"
  config.data.length = 256  # table 5
  config.data.packing = "concat"  # official run_mlm: joined and cut into blocks, never padded
  config.train.batch_size = 1_280  # table 5
  config.train.total_steps = 500_000  # table 5
  return config
