"""METRO-LM base: detects replaced tokens and predicts their originals, without a copy mechanism or contrast.

Command: python -m pretrain.main --config=configs/metro_lm_base.py
Source: after METRO-LM (Bajaj et al., arXiv 2204.06644), which has no code. Of the paper only the first page
  could be read; the losses, the rate, the clip and the packing are those of METRO-T0's official code
  (gonglinyuan/metro_t0 at b6d0867, t5_metro.py and metro_t5_base_64gpus.yaml), the rest is coco_lm_base's.
  Not settled: at which positions METRO-LM's LM head has its loss (here, as in METRO-T0, the masked ones), and
  its scaled initialisation, which is left out.
  METRO-T0 base weights that loss by the probability of a replaced token: --config.objectives.clm.copy=true
  --config.objectives.clm.form=weighted
Expected: no number, since the paper's tables could not be read.
Cost: 131.1 B tokens; 85 GPU-hours on H200s at 345 TFLOP/s, the mean measured for 5 recipes
  (docs/results/speed.md; 801 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import coco_lm_base, sizes

SIZES = {"tiny": sizes.TINY}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base.get_config()
  config.recipe = "metro_lm_base"
  config.generator.num_layers = 4  # METRO-T0 base; 6 in its large
  config.generator.sampling_dropout = "zero"  # METRO-T0; second-hand of METRO-LM
  config.generator.share_embeddings = "tokens"  # METRO-T0 base; its base++ shares positions and norm too
  config.objectives.rtd.weight = 50.0  # METRO-T0
  config.objectives.clm.weight = 1.0  # METRO-T0
  config.objectives.clm.copy = False  # METRO-T0 base++, large++; "simplified CLM" in a summary of the paper
  config.objectives.scl.weight = 0.0
  config.optimizer.learning_rate = 4e-4  # METRO-T0 base, like the two below
  config.optimizer.clip_norm = 0.0
  config.data.packing = "complete_doc"
  return config
