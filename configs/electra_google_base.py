"""ELECTRA base as released by Google: BERT's encoder with ELECTRA's masks, optimizer and head.

Command: python -m pretrain.main --config=configs/electra_google_base.py
Source: ELECTRA (Clark et al., ICLR 2020), table 6 (base), and the official code
  (google-research/electra): configure_pretraining.py, pretrain/pretrain_helpers.py, model/modeling.py,
  model/optimization.py.
Expected: GLUE dev average 85.1 (table 2).
Cost: 100.4 B tokens; 60 GPU-hours on H200s at 310 TFLOP/s, measured for electra_base
  (docs/results/speed.md; 668 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import base, sizes

SIZES = {"small": sizes.SMALL | sizes.narrow_generator(12), "tiny": sizes.TINY | sizes.narrow_generator(2)}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = base.get_config()
  config.recipe = "electra_google_base"

  config.corruption.update(
    {
      "kind": "generator",
      "mask_rate": 0.15,  # table 6
      "mask_rule": "electra_google",  # pretrain_helpers.mask: drawn with replacement
      "mask_special": "none",
      "mask_token_rate": 0.85,  # pretrain_helpers.mask; the other 15 % keep their token
    }
  )
  config.generator.update(
    {
      "num_layers": 12,  # configure_pretraining: generator_layers = 1.0
      "hidden_size": 256,  # table 6: a third of 768
      "mlp_size": 1_024,  # four times the width
      "num_heads": 4,  # width // 64
      "share_embeddings": "all",  # one variable scope for tables and norm
      "projection": "embeddings",  # modeling.py: embeddings_project
      "sampling_dropout": "train",
    }
  )
  config.objectives.rtd.weight = 50.0  # section 3.1; disc_weight
  config.objectives.rtd.head = "dense"  # run_pretraining.py: one hidden layer

  config.model.update(
    {
      "vocab_size": 30_522,  # WordPiece of bert-base-uncased
      "num_segments": 2,
      "relative_position": "none",
      "layer_norm_eps": 1e-12,
    }
  )
  config.optimizer.update(
    {
      "learning_rate": 2e-4,  # table 6
      "schedule": "electra_google",
      "warmup_steps": 10_000,  # table 6
      "adam_b1": 0.9,  # table 6
      "adam_b2": 0.999,  # table 6
      "adam_eps": 1e-6,  # table 6
      "adam_eps_placement": "corrected",  # without bias correction both placements are equal
      "adam_bias_correction": False,  # AdamWeightDecayOptimizer has none
      "weight_decay": 0.01,  # table 6
      "decay": "no_bias_norm",
      "clip_norm": 1.0,
    }
  )
  config.data.source = "seqio:wikipedia_books"  # section 3.1; PG-19 for BookCorpus
  config.data.vocabulary_kind = "wordpiece"
  config.data.length = 512
  # build_pretraining_dataset.py ends an example with its document; its second segment is not used here.
  config.data.packing = "complete_doc"
  config.train.batch_size = 256  # table 6
  config.train.total_steps = 766_000  # table 6
  return config
