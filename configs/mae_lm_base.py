"""MAE-LM base: the encoder reads the tokens that are not masked, and a small decoder predicts the others.

Command: python -m pretrain.main --config=configs/mae_lm_base.py
Source: MAE-LM (Meng et al., ICLR 2024, arXiv 2302.02060) by its official code (yumeng5/MAE-LM at 153ffe9,
  run_pretrain.sh) for the method. Of the paper only the first page could be read: that its base setting is
  coco_lm_base's (125,000 steps on 16 GB) is from memory; check it before you cite this recipe. The script is
  for a longer run, which these flags give; with 64 buckets an encoder cannot become an MPNet:
  --config.train.total_steps=2000000 --config.optimizer.learning_rate=2e-4 --config.data.packing=complete_doc
  --config.model.relative_buckets=64
Expected: no number, since the paper's tables could not be read; its abstract says better than masked LM on
  GLUE and SQuAD. Compare with roberta_base at equal nominal FLOPs: a step costs 32 % more.
Cost: 131.1 B tokens; 82 GPU-hours on H200s at 345 TFLOP/s, the mean measured for 5 recipes
  (docs/results/speed.md; 778 training MFLOP per token).
"""

from ml_collections import ConfigDict

from configs import base, sizes

SIZES = {"tiny": sizes.TINY | {"objectives.mae.decoder_layers": 1}}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = base.get_config()  # its model, optimizer and training are those of coco_lm_base
  config.recipe = "mae_lm_base"
  config.corruption.update(
    {
      "kind": "mask",
      "mask_rate": 0.15,  # run_pretrain.sh
      "mask_rule": "count",  # official mask_tokens_dataset.py: floor(0.15 n + u)
      "mask_special": "all",  # the same: [CLS] and [SEP] too
      "mask_token_rate": 1.0,  # --no-return-mask: left out, no mix of 80/10/10
    }
  )
  config.objectives.mae.weight = 1.0
  config.objectives.mae.decoder_layers = 4  # run_pretrain.sh, --gen-decoder-layers
  config.objectives.mae.decoder_positions = "own"  # official default: no share_pos_emb
  config.objectives.mae.decoder_relative_position = False  # official default of decoder_rel_pos
  config.objectives.mae.decoder_dropout = "zero"  # official decoder_sample_mode, decoder_attn_mode
  config.data.source = "seqio:wikipedia_books"  # PG-19 for BookCorpus
  return config
