"""A task of your own: a file with texts and labels becomes a model that answers.

Command: python -m finetune.main --config=configs/finetune_own.py --config.checkpoint=DIR
  --config.data.train_file=train.csv --workdir=OUT
  CSV, TSV, JSONL or Parquet; a tenth of the rows is held out unless --config.data.dev_file=FILE gives others.
  Columns and the kind of task are guessed and printed: --config.data.text, data.label, own.task change them.
Source: our choice. One run of a rate and a number of epochs that suit the encoder's width;
  --config.search.num_seeds=5 runs several seeds, --config.search.learning_rates=2e-5,5e-5 several rates, and
  --config.search.cells=all the papers' whole space of a small task.
Expected: results.md with the scores, a table of every class and which was taken for which; the model in
  OUT/model, for finetune.predict, finetune.evaluate and pretrain.export.
Cost: five epochs of the file, and ten evaluations of what is held out.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the config."""
  config = finetune_base.get_config()
  config.recipe = "finetune_own"
  config.kind = "own"
  config.search.cells = "one"
  config.data.buckets = 3  # a small file is trained on sooner than many lengths are compiled
  return config
