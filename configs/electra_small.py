"""ELECTRA small in COCO-LM's setting: 12 layers x 256 with a 12 x 64 generator, for one GPU.

Command: python -m pretrain.main --config=configs/electra_small.py
Source: ELECTRA (Clark et al., ICLR 2020), table 6 (small), for sizes, batch, length, steps and learning
  rate; the rest as electra_base. Unlike there, the token table is as wide as the encoder.
Expected: no paper trains it in this setting.
Cost: 16.4 B tokens; 0.9 GPU-hours on H200s at 395 TFLOP/s (74 training MFLOP per token; derived, and
  more than sizes this small will reach).
"""

from ml_collections import ConfigDict

from configs import electra_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.narrow_generator(sizes.small(electra_base.get_config()), num_layers=12)
