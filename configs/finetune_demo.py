"""The fine-tuning demo, which needs no download: which library does a paragraph of documentation come from?

Command: python -m finetune.main --config=configs/finetune_demo.py --config.checkpoint=runs/demo
Source: our choice. 1e-3 is of the size that these narrow models are pretrained with (the papers' 1e-5 to 5e-5
  are for widths from 768) and was not tuned. For a fair look at one checkpoint give both encoders several
  rates, --config.search.learning_rates=3e-4,1e-3,3e-3: each uses the one best on the development set.
Expected: naive Bayes a little above 50 %. Pretraining as short as `make demo` may well be worse than none:
  docs/results.md says why.
Cost: about 1,900 steps of single runs (2 encoders x 3 seeds x 5 epochs), 0.17 CPU-seconds each for 2 layers x
  128 on a busy core, after 15 CPU-seconds of gathering text.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the config."""
  config = finetune_base.get_config()
  config.recipe = "finetune_demo"
  config.kind = "docs"
  config.search.update(
    {
      "batch_sizes": (32,),
      "learning_rates": (1e-3,),
      "epochs": (5,),
      "warmup_fractions": (0.1,),
      "num_seeds": 3,
      "evaluations_per_epoch": 1,
    }
  )
  config.data.buckets = 2  # compiling another length takes longer than the padding it saves
  config.output.save_model = False
  return config
