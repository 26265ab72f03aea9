"""Fast-ELECTRA base: detects tokens of a finished masked LM, sampled at a temperature that falls.

The generator comes from a run of its own, on the same text and with the same vocabulary:

  python -m pretrain.main --config=configs/roberta_base.py --config.model.num_layers=4 \\
    --workdir=runs/fast_electra_base_auxiliary

The generator of another finished run serves too: --config.generator.init_from=DIR. Give a backbone, such as
`:modern`, to both runs.

Command: python -m pretrain.main --config=configs/fast_electra_base.py
Source: Fast-ELECTRA (2310.07347, ICLR 2024), of which the abstract and reviews could be read: a frozen
  generator, no other loss, and the form of the temperature. The marked constants are ours: the paper's
  could not be found; everything else as coco_lm_base.
Expected: the paper's numbers could not be read; compare with electra_base.
Cost: 131.1 B tokens; 75 GPU-hours on H200s at 310 TFLOP/s, measured for electra_base
  (docs/results/speed.md; 637 training MFLOP per token), without the generator's own run.
"""

from ml_collections import ConfigDict

from configs import coco_lm_base, sizes

SIZES = {"tiny": sizes.TINY | {"generator.init_from": "runs/fast_electra_tiny_auxiliary"}}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = coco_lm_base.get_config()
  config.recipe = "fast_electra_base"
  config.generator.update(
    {
      "num_layers": 4,  # reviews: a quarter to a third of the encoder's depth, its width
      "frozen": True,
      "init_from": "runs/fast_electra_base_auxiliary",
      "share_embeddings": "none",
      "sampling_dropout": "zero",
      "temperature_start": 2.0,  # ours; it ends at 1
      "temperature_decay": 0.1,  # ours
    }
  )
  config.objectives.rtd.weight = 50.0  # not in what could be read; as coco_lm_base, with its clip_norm
  config.objectives.clm.weight = 0.0
  config.objectives.scl.weight = 0.0
  return config
