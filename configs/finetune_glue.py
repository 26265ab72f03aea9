"""GLUE: searches the protocol's space for each task, and prints the results as in the papers' tables.

Command: python -m finetune.main --config=configs/finetune_glue.py --config.checkpoint=DIR
  --config.data.directory=GLUE_DIR --config.tasks=all --workdir=OUT
Source: COCO-LM tables 7 and 8, AMOS table 4, TACO tables 6 to 8; --config.protocol chooses.
Expected: COCO-LM base 87.2, AMOS base 88.6 on average of eight (development sets).
Cost: the whole space of COCO-LM base is 32 to 64 cells of five runs for a small task and 12 for a large one:
  days on one accelerator. `--config.search.cells=best_known` is one cell per task.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the GLUE config."""
  config = finetune_base.get_config()
  config.recipe = "finetune_glue"
  return config
