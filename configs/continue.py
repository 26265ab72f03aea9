"""Continues an encoder that you have on your own text by masked LM (domain adaptation).

Command: python -m pretrain.main --config=configs/continue.py:imported/xlmr --config.data.source='/my/*.jsonl'
  imported/xlmr is what `python -m pretrain.export import` writes; sizes, vocabulary and weights are its own.
  For the texts of one task: --config=configs/continue.py:task:imported/xlmr
Source: Gururangan et al., "Don't Stop Pretraining" (ACL 2020), which continues RoBERTa base; steps, batches
  and rates are those of ADAPTIVE_PRETRAINING.md in allenai/dont-stop-pretraining at 2571ba9 (DAPT; `task` has
  the batch and rate of TAPT, there for 100 epochs). Its maintainers say of the 12,500 steps: 100,000 of 256
  rows "seemed sensible", not tuned (issue 14). Warm-up over 6 % is of the paper's appendix, from memory. A
  rate that stays flat and falls over the last tenth is our choice, so that a run can be made longer.
Expected: with released weights the held-out loss of step 0 is far below that of the token frequencies. That
  was not tried here, because no released weights were at hand.
Cost: 13.1 B tokens. It depends on the encoder; --dry_run prints it.
"""

from ml_collections import ConfigDict

from configs import roberta_base

SIZES = {
  "task": {
    "optimizer.learning_rate": 1e-4,
    "optimizer.warmup_steps": 60,
    "optimizer.decay_steps": 100,
    "train.batch_size": 256,
    "train.total_steps": 1_000,
    "train.eval_every": 100,
  },
}


def get_config() -> ConfigDict:
  """Returns the recipe."""
  config = roberta_base.get_config()
  config.recipe = "continue"
  config.data.source = ""  # yours
  config.optimizer.update(
    {
      "learning_rate": 5e-4,
      "schedule": "wsd",
      "warmup_steps": 750,
      "decay_steps": 1_250,
    }
  )
  config.train.update({"batch_size": 2_048, "total_steps": 12_500, "eval_every": 500})
  return config
