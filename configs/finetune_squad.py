"""SQuAD 2.0 or 1.1: searches the protocol's space; writes results, the best run's answers and model.

Command: python -m finetune.main --config=configs/finetune_squad.py --config.checkpoint=DIR
  --config.data.directory=SQUAD_DIR --workdir=OUT
  SQUAD_DIR has train-v2.0.json and dev-v2.0.json, or is a TFDS data_dir with squad/v2.0. SQuAD 1.1:
  --config.squad.train_file=train-v1.1.json --config.squad.dev_file=dev-v1.1.json
Source: COCO-LM tables 7 and 8, AMOS table 4; fairseq/run_squad.sh for windows (384 tokens, stride 128).
Expected: EM/F1 at the best threshold, development set of 2.0: COCO-LM base 82.4/85.2, AMOS base 84.2/87.2.
  The papers report no results for 1.1.
Cost: the whole space is 32 cells of five runs, of two or three epochs of about 131,000 windows each: days on
  one accelerator. `--config.search.cells=best_known` is one cell.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the SQuAD config."""
  config = finetune_base.get_config()
  config.recipe = "finetune_squad"
  config.kind = "squad"
  config.output.predict = True
  return config
