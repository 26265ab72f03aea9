"""ELECTRA small as released by Google: 12 layers x 256 with a generator of a quarter of the width.

Command: python -m pretrain.main --config=configs/electra_google_small.py
Source: ELECTRA (Clark et al., ICLR 2020), table 6 (small), and configure_pretraining.py (its defaults);
  the rest as electra_google_base. Unlike there (128), the token table is as wide as the encoder.
Expected: GLUE dev average 79.9 (table 1), with a token table of half the width.
Cost: 16.4 B tokens; 0.9 GPU-hours on H200s at 395 TFLOP/s (74 training MFLOP per token; derived, and
  more than sizes this small will reach).
"""

from ml_collections import ConfigDict

from configs import electra_google_base, sizes


def get_config() -> ConfigDict:
  """Returns the recipe."""
  return sizes.narrow_generator(sizes.small(electra_google_base.get_config()), num_layers=12)
