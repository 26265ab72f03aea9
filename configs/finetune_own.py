"""Your own task: trains a model on a file with texts and labels.

Command: python -m finetune.main --config=configs/finetune_own.py --config.checkpoint=DIR
  --config.data.train_file=train.csv --workdir=OUT
  CSV, TSV, JSONL or Parquet; a tenth of the rows is held out unless --config.data.dev_file=FILE is set.
  Columns and kind of task are guessed and printed; --config.data.text, data.label, own.task change them.
Source: our choice. One run with a learning rate and epochs suited to the encoder's width;
  --config.search.num_seeds=5 runs several seeds, --config.search.learning_rates=2e-5,5e-5 several rates, and
  --config.search.cells=all the papers' whole space for a small task.
Expected: results.md with the scores, a table of classes and a confusion matrix; the model in OUT/model, for
  finetune.predict, finetune.evaluate and pretrain.export.
Cost: five epochs of the file, up to 30 of a small one, and two evaluations of the held-out rows an epoch.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the config of an own task."""
  config = finetune_base.get_config()
  config.recipe = "finetune_own"
  config.kind = "own"
  config.search.cells = "one"
  config.data.buckets = 3  # for a small file, compiling more lengths takes longer than training
  return config
