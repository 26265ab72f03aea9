"""All fields of a fine-tuning config, with units, sources and defaults; finetune_* configs change some.

Usage: not run directly. `protocol` names a paper's optimizer, head, dropout, seeds and search space; the
fields of `search` and `model` override them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the default config, locked; every field has a value of its final type."""
  config = ConfigDict()
  config.recipe = "finetune"  # name of the config; the default workdir is runs/<config file name>
  config.kind = "glue"  # 'glue', 'squad', 'prompt', 'own', 'embedding'
  config.checkpoint = (
    ""  # workdir of pretrain.main, output of `pretrain.export import`, or a step's directory
  )
  config.checkpoint_step = -1  # updates; -1: the newest
  # First layers of the encoder that are kept; 0: all. The last layers of an encoder that was trained by
  # replaced-token detection make poor vectors (Rep et al. 2024, arXiv 2402.13130).
  config.checkpoint_layers = 0
  config.vocabulary = ""  # directory of the checkpoint's vocabulary; '': `vocabulary` in its workdir
  config.from_scratch = False  # same encoder and vocabulary, random values: a baseline
  config.protocol = "coco_lm"  # 'coco_lm', 'amos', 'taco': search space, seeds, optimizer, head
  config.size = "auto"  # the search space: 'small', 'base', 'large'; 'auto': by the encoder's width
  config.tasks = "all"  # 'all', or names with commas: 'cola,rte'
  config.seed = 0  # runs have the seeds seed, seed + 1, ...
  config.model = _model()
  config.search = _search()
  config.data = _data()
  config.squad = _squad()
  config.prompt = _prompt()
  config.own = _own()
  config.embedding = _embedding()
  config.train = _train()
  config.output = _output()
  config.lock()
  return config


def _model() -> ConfigDict:
  return ConfigDict(
    {
      # Of hidden states and attention probabilities. -1: the protocol's, 0.1 in all of them; for kind
      # 'embedding' the checkpoint's own rates.
      "dropout": -1.0,
      "dtype": "auto",  # of the computation: 'float32', 'bfloat16', 'auto' (float32 on CPU, else bfloat16)
      "remat": "cheap",  # as in configs/base.py: 'none', 'cheap', 'full'
      # Layers unrolled in each iteration of the loop over layers; 0: all, without a loop, on TPUs and GPUs.
      # Estimated for a base model on a v5e: steps a fifth shorter, compilation of a length four times longer.
      "scan_unroll": 1,
    }
  )


def _search() -> ConfigDict:
  return ConfigDict(
    {
      # 'all' of the protocol's space, 'best_known' (the one in the authors' READMEs), 'one' (a learning rate
      # and epochs suited to the encoder's width, one seed).
      "cells": "all",
      # If not empty, each replaces a dimension of the space. kind='prompt' reads the first two.
      "batch_sizes": (),  # examples
      "learning_rates": (),  # peaks, at most 1
      "epochs": (),  # passes over the training rows
      "warmup_fractions": (),  # of all steps
      "num_seeds": 0,  # runs per cell; 0: the protocol's
      "num_test_seeds": 0,  # runs of the best cell; the best predicts the test set; 0: the protocol's
      "evaluations_per_epoch": 0,  # of the development set; the best one counts; 0: the protocol's
    }
  )


def _data() -> ConfigDict:
  return ConfigDict(
    {
      "directory": "",  # official files, or a TFDS data_dir; '': TFDS's default
      "max_length": 0,  # tokens with special ones; 0: the protocol's, at most the checkpoint's positions
      "train_rows": 0,  # random part of the training set, drawn with `seed`; 0: all rows
      "buckets": 6,  # most padded lengths, chosen to minimise padding; each is compiled
      "bucket_multiple": 8,  # tokens: padded lengths are multiples of it
      "eval_batch_size": 64,  # examples computed at once in an evaluation
      # The following fields are for kind='own'; those up to label, and empty, for 'embedding' too.
      # CSV, TSV, JSONL, Parquet, CoNLL; also .gz and .zst, except for Parquet. tfds:NAME and seqio:TASK are
      # data sets; #SPLIT after them replaces the default split, 'train', or 'validation' for dev_file.
      "train_file": "",
      "dev_file": "",  # rows to judge by; '': a part of the training file
      "module": "",  # Python file or module that registers the Task of train_file
      "dev_fraction": 0.1,  # of the training file, chosen by a hash of the text: equal texts stay together
      "text": "",  # column of the text; '': guessed by name, and the guess is printed
      "text_pair": "",  # column of the second text of a pair; '': none, if `text` is set
      "label": "",  # column of the label; '': guessed by name
      "labels": "",  # names separated by commas, class 0 first; '': as first seen in the rows trained on
      "separator": "",  # between several labels in a cell; '': '|', ';' or ',', whichever occurs
      "empty": "refuse",  # rows without text: 'refuse' (an error), or 'skip', which prints their number
      "long": "cut",  # texts longer than `max_length`: 'cut', or 'windows', whose outputs are averaged
    }
  )


def _squad() -> ConfigDict:
  return ConfigDict(
    {
      "train_file": "train-v2.0.json",  # in data.directory, or a path; also .gz
      "dev_file": "dev-v2.0.json",  # as train_file
      "stride": 128,  # tokens between the starts of windows; run_squad.sh
      "max_query_length": 64,  # tokens of a question
      "max_answer_length": 30,  # tokens of an answer
      "n_best": 20,  # answers of a window that are compared
      "mask_query": True,  # no answer in the question (fairseq); False: allowed (official Hugging Face code)
    }
  )


def _prompt() -> ConfigDict:
  return ConfigDict(
    {
      "shots": 16,  # examples per class; LM-BFF's K
      "splits": (13, 21, 42, 87, 100),  # seeds of LM-BFF's draws
      "directory": "",  # LM-BFF's TASK/16-13/train.tsv; '': drawn from the training set in data.directory
      "words": "",  # label words separated by commas, in the order of the classes; '': LM-BFF's
      "max_length": 0,  # tokens of a prompt with demonstrations; 0: LM-BFF's (256 for MNLI, else 128)
      "num_samples": 0,  # sets of demonstrations that are averaged; 0: LM-BFF's (4 for MNLI, else 16)
      "num_steps": 1_000,  # updates; LM-BFF
      "eval_every": 100,  # steps between evaluations
    }
  )


def _own() -> ConfigDict:
  return ConfigDict(
    {
      # 'classification', 'regression', 'multilabel', 'tagging' (each word of a list), 'span_pairs' (spans of
      # a text, single or in pairs: the JSON lines of edge probing), 'question_answering' (files in SQuAD's
      # JSON format); 'auto': guessed from the labels, and the guess is printed.
      "task": "auto",
      "pooling": "cls",  # the vector of a text: 'cls', 'mean' or 'max' of its tokens
      "class_weights": "none",  # 'balanced': a class counts as if all were equally frequent
      "label_smoothing": 0.0,  # share of the target that is spread over all classes
      # Scaling for regression: 'standard' (subtract the mean, divide by the standard deviation), 'largest'
      # (divide by the largest, as the papers do for STS-B). The saved model returns the file's scale.
      "targets": "standard",
    }
  )


def _embedding() -> ConfigDict:
  return ConfigDict(
    {
      # 'ranking' (multiple negatives, InfoNCE: the positive among all positives and negatives of the batch),
      # 'cosent' (scores, by their order), 'cosine' (squared error of cosine and score), 'simcse' (a text and
      # itself under another dropout); 'auto': cosent with a score, ranking with a second text, else simcse.
      "objective": "auto",
      "temperature": 0.05,  # by which products are divided; sentence-transformers' scale is 1 / temperature
      "both_ways": False,  # ranking: a positive also chooses among the queries; the mean of both losses
      "negatives": 0,  # most hard negatives of a row; 0: all that the rows have
      # The vector of a text: 'cls', 'mean' of its tokens, 'last' token. 'auto', also of the prefixes: as the
      # checkpoint's embedding.json says, and without one the mean and no prefix.
      "pooling": "auto",
      "unit": True,  # vectors of unit length, so that products are cosines
      "query_prefix": "auto",  # text before each query (data.text)
      "passage_prefix": "auto",  # text before each positive and negative
      "query_length": 0,  # tokens with special ones; 0: data.max_length, or as embedding.json, or 512 at most
      "passage_length": 0,  # as query_length
      # Matryoshka: the first so many numbers of a vector are trained to suffice alone; the sum of the losses.
      "sizes": (),
      # Least and largest score, which become 0 and 1; (): unchanged, and of objective 'cosine' 0 and 1.
      "score_range": (),
    }
  )


def _train() -> ConfigDict:
  return ConfigDict(
    {
      "microbatches": 1,  # parts of the batch that are computed one after another
      "save_minutes": 10.0,  # minutes between checkpoints of an unfinished run; 0: at every evaluation
    }
  )


def _output() -> ConfigDict:
  return ConfigDict(
    {
      "save_model": True,  # the best run's model for each task, for `pretrain.export`
      # GLUE: predict the test sets, for the leaderboard, with the best of num_test_seeds runs. SQuAD: write
      # the best run's answers for the development set in the official format.
      "predict": False,
      # Recipe whose published results, with baselines, are shown next to this run's, such as
      # 'coco_lm_base_plus_plus' for an imported official model; '': the checkpoint's own recipe.
      "compare_with": "",
    }
  )
