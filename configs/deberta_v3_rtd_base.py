"""DeBERTaV3's training (RTD with GDES) on this encoder, which has no disentangled attention.

Command: python -m pretrain.main --config=configs/deberta_v3_rtd_base.py
Source: DeBERTaV3 (2111.09543) and microsoft/DeBERTa at 4d7fe0b: rtd_base.json, rtd_task.py,
  mlm_task.py. Of the paper only a summary could be read; fields from it are marked. Ours are the encoder
  (as coco_lm_base), the text, and one update of both networks: the official code updates the generator first.
Expected: unknown; DeBERTaV3's published numbers are of another encoder.
Cost: 2.1 T tokens; 1,772 GPU-hours on H200s at 310 TFLOP/s, measured for electra_base
  (docs/results/speed.md; 942 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base, sizes

SIZES = {"tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base.get_config()
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
  config.objectives.rtd.head = "dense"  # theirs also adds the state of [CLS] and a norm before it
  config.objectives.clm.weight = 0.0
  config.objectives.scl.weight = 0.0
  config.model.vocab_size = 128_000  # summary
  config.model.layer_norm_eps = 1e-7  # rtd_base.json
  config.optimizer.update(
    {
      "learning_rate": 6e-4,  # summary, like betas, epsilon, decay and warm-up, which are coco_lm_base's
      "decay": "no_bias_norm",  # optimizer_utils.py
      "clip_norm": 1.0,  # summary
    }
  )
  config.data.source = "seqio:web_160gb"  # summary: 160 GB; here parts of C4
  config.data.vocabulary_cased = True  # not in what could be read
  config.train.batch_size = 8_192  # summary, like the steps
  config.train.total_steps = 500_000
  return config
