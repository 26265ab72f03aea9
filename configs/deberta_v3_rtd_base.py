"""DeBERTaV3: replaced token detection with gradient-disentangled embeddings on disentangled attention.

Command: python -m pretrain.main --config=configs/deberta_v3_rtd_base.py
Source: DeBERTaV3 (2111.09543) and microsoft/DeBERTa at 4d7fe0b: rtd_base.json, rtd_task.py,
  mlm_task.py, replaced_token_detection_model.py. Of the paper only a summary could be read; fields from it
  are marked. Ours are the text, one update of both networks (the official code updates the generator first),
  and no dropout on the table of relative positions, whose mask all rows of a batch would share.
Expected: MNLI-m dev 90.6, as the released model's card has it; this recipe was not run.
Cost: 2.1 T tokens; 1,210 GPU-hours on H200s at half of the peak, not measured (1,027 training MFLOP per
  token).
"""

from ml_collections import ConfigDict

from configs import backbones, coco_lm_base, sizes

_TINY = {f"model.{name}": value for name, value in backbones.BACKBONES["deberta_tiny"].items()}
SIZES = {"tiny": sizes.TINY | _TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = backbones.apply(coco_lm_base.get_config(), "deberta")
  config.recipe = "deberta_v3_rtd_base"
  config.corruption.mask_rule = "deberta"  # mlm_task.py, NGramMaskGenerator; 15 %, always [MASK]
  config.corruption.mask_special = "none"
  config.generator.update(
    {
      "num_layers": 6,  # rtd_base.json: half the encoder's depth, its width
      "share_embeddings": "gdes",
      "sampling_dropout": "train",  # rtd_task.py: tokens are sampled from the pass that is trained
    }
  )
  config.objectives.rtd.weight = 50.0  # summary; the code's default is 10
  config.objectives.rtd.head = "context"  # replaced_token_detection_model.py
  config.objectives.clm.weight = 0.0
  config.objectives.scl.weight = 0.0
  config.model.vocab_size = 128_100  # config.json of deberta-v3-base
  config.optimizer.update(
    {
      "learning_rate": 6e-4,  # summary, like betas, epsilon, decay and warm-up, which are coco_lm_base's
      # Bias and norm are not decayed (optimizer_utils.py), as on every DeBERTa backbone.
      "clip_norm": 1.0,  # summary
    }
  )
  config.data.source = "seqio:web_160gb"  # summary: 160 GB; here parts of C4
  config.data.vocabulary_cased = True  # not in what could be read
  config.train.batch_size = 8_192  # summary, like the steps
  config.train.total_steps = 500_000
  return config
