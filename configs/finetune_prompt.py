"""Prompts with demonstrations: 16 examples per class, answered by the language-modelling head.

Command: python -m finetune.main --config=configs/finetune_prompt.py --config.checkpoint=DIR
  --config.prompt.directory=KSHOT_DIR --config.data.directory=GLUE_DIR --workdir=OUT
Source: COCO-LM section 5.3 and table 4; LM-BFF (Gao et al. 2021) run_experiment.sh for the rest. KSHOT_DIR
  has LM-BFF's draws, MNLI/16-13/train.tsv; without it they are drawn from GLUE_DIR's training set.
Expected: MNLI matched/mismatched, mean (standard deviation) over five draws: COCO-LM base++ 66.5 (2.1)/68.0
  (2.3), large++ 72.0 (1.5)/73.3 (1.1). Only recipes with a clm or mlm head can answer, not amos or electra.
Cost: per task 45 runs of 1,000 steps of 2 to 8 sequences, and five passes over the development set: for
  MNLI about 400,000 sequences of 256 tokens.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the config of prompting."""
  config = finetune_base.get_config()
  config.recipe = "finetune_prompt"
  config.kind = "prompt"
  config.tasks = "mnli"  # mnli, snli, sst2, cola, mrpc, qqp, qnli, rte, stsb
  return config
