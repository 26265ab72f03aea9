"""Embeddings: trains vectors for search or similarity on pairs, triplets, scored pairs or plain texts.

Command: python -m finetune.main --config=configs/finetune_embedding.py --config.checkpoint=DIR
  --config.data.train_file=pairs.jsonl --workdir=OUT
  CSV, TSV, JSONL or Parquet with a query and its positive in each row (and negatives: columns negative,
  negative_1, ..., or a list), two texts and a score, or one text. Columns are guessed and printed;
  --config.data.text, data.text_pair and data.label change them. A tenth of the rows, about 4,000 at most,
  is held out unless --config.data.dev_file=FILE is set.
Source: multiple-negatives ranking (Henderson et al. 2017) with cosines, temperature 0.05 and a warm-up of a
  tenth of the steps, as sentence-transformers' examples. The optimizer is that of COCO-LM's fine-tuning
  (Adam 0.9, 0.98; decay 0.01 of all arrays; no clip); --config.protocol=taco has sentence-transformers' one
  (AdamW 0.9, 0.999; no decay; clip 1). Batch size 64 and 3 epochs: our choice. More negatives usually help:
  --config.search.batch_sizes=512, with --config.train.microbatches=8 has the memory of 64.
Expected: results.md with the scores before and after; the model in OUT/model, for pretrain.embed,
  pretrain.search, finetune.evaluate, finetune.mine and pretrain.export.
Cost: three epochs of the file, and four evaluations of the held-out rows an epoch.
"""

from ml_collections import ConfigDict

from configs import finetune_base


def get_config() -> ConfigDict:
  """Returns the config of an embedding stage."""
  config = finetune_base.get_config()
  config.recipe = "finetune_embedding"
  config.kind = "embedding"
  config.search.cells = "one"
  config.search.batch_sizes = (64,)
  config.search.epochs = (3,)
  config.search.evaluations_per_epoch = 4
  config.data.buckets = 3  # groups of a batch, each padded to its own length
  return config
