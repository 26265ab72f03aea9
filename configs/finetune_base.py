"""Every field of fine-tuning, with its unit and source. The finetune_* configs start from it.

Usage: not run directly. What a protocol fixes (optimizer, head, dropout, seeds, search space) is chosen by
its name and changed by the fields of `search` and `model`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference


def get_config() -> ConfigDict:
  """Returns the defaults, locked. Every field has a value of its final type."""
  config = ConfigDict()
  config.recipe = "finetune"  # name of the config; the default workdir is runs/<config file name>
  config.kind = "glue"  # 'glue', 'squad', 'prompt', 'own'
  config.checkpoint = (
    ""  # workdir of pretrain.main, output of `pretrain.export import`, or a step's directory
  )
  config.checkpoint_step = -1  # updates; -1: the newest
  config.vocabulary = ""  # directory of the checkpoint's vocabulary; '': `vocabulary` in its workdir
  config.from_scratch = False  # same encoder and vocabulary, fresh values: what does pretraining give?
  config.protocol = "coco_lm"  # 'coco_lm', 'amos', 'taco': search space, seeds, optimizer, head
  config.size = "auto"  # whose search space: 'small', 'base', 'large'; 'auto': by the encoder's width
  config.tasks = "all"  # 'all', or names with commas: 'cola,rte'
  config.seed = 0  # runs have the seeds seed, seed + 1, ...
  config.model = _model()
  config.search = _search()
  config.data = _data()
  config.squad = _squad()
  config.prompt = _prompt()
  config.own = _own()
  config.train = _train()
  config.output = _output()
  config.lock()
  return config


def _model() -> ConfigDict:
  return ConfigDict(
    {
      "dropout": -1.0,  # of hidden states and attention probabilities; -1: the protocol's, 0.1 in all of them
      "dtype": "auto",  # of the computation: 'float32', 'bfloat16', 'auto' (float32 on CPU, else bfloat16)
      "remat": FieldReference("cheap", field_type=object),  # as in configs/base.py: 'none', 'cheap', 'full'
      # Layers in a turn of the loop over layers; 0: all, without a loop, on TPUs and GPUs. By estimate a base
      # model's step on a v5e is a fifth shorter so, and each length compiles four times as long, for minutes.
      "scan_unroll": 1,
    }
  )


def _search() -> ConfigDict:
  return ConfigDict(
    {
      # 'all' of the protocol's space, 'best_known' (the one the authors' READMEs give), 'one' (a rate and
      # epochs that suit the encoder's width, one seed).
      "cells": "all",
      # These replace a dimension of the space where they are not empty. kind='prompt' reads the first two.
      "batch_sizes": (),  # examples
      "learning_rates": (),  # peaks, at most 1
      "epochs": (),  # passes over the training rows
      "warmup_fractions": (),  # of all steps
      "num_seeds": 0,  # runs of a cell; 0: the protocol's
      "num_test_seeds": 0,  # runs of the chosen cell, whose best predicts the test set; 0: the protocol's
      "evaluations_per_epoch": 0,  # of the development set; a run counts with its best; 0: the protocol's
    }
  )


def _data() -> ConfigDict:
  return ConfigDict(
    {
      "directory": "",  # official files, or a TFDS data_dir (`data.glue import`); '': TFDS's default
      "max_length": 0,  # tokens with special ones; 0: the protocol's, at most the checkpoint's positions
      "train_rows": 0,  # of the training set, drawn with `seed`; 0, or more than a task has: all of it
      "buckets": 6,  # most padded lengths, each of which is compiled; chosen so that padding is least
      "bucket_multiple": 8,  # tokens: padded lengths are multiples of it
      "eval_batch_size": 64,  # examples computed at once in an evaluation
      # Of kind='own'; the others have names of their own for their files.
      # CSV, TSV, JSONL, Parquet, CoNLL; .gz and .zst too, but for Parquet. tfds:NAME and seqio:TASK are data
      # sets; #SPLIT behind them names another split than 'train', or 'validation' for dev_file.
      "train_file": "",
      "dev_file": "",  # rows to judge by; '': a share of the training file
      "module": "",  # Python file or module that registers the Task of train_file
      "dev_fraction": 0.1,  # of the training file, chosen by a hash of the text, so equal texts stay together
      "text": "",  # column of the text; '': guessed by name, and the guess is printed
      "text_pair": "",  # column of the second of two texts; '': there is none if `text` is given
      "label": "",  # column of the label; '': guessed by name
      "labels": "",  # names with commas, class 0 first; '': as they first appear in the training file
      "separator": "",  # between several labels of a cell; '': '|', ';' or ',', whichever is there
      "empty": "refuse",  # rows without a text: 'refuse', or 'skip', with a line that counts them
      "long": "cut",  # texts above `max_length`: 'cut', or 'windows', whose outputs are averaged
    }
  )


def _squad() -> ConfigDict:
  return ConfigDict(
    {
      "train_file": "train-v2.0.json",  # in data.directory, or a path; .gz too
      "dev_file": "dev-v2.0.json",  # as train_file
      "stride": 128,  # tokens from the start of a window to that of the next; run_squad.sh
      "max_query_length": 64,  # tokens of a question
      "max_answer_length": 30,  # tokens of an answer
      "n_best": 20,  # answers of a window that are compared
      "mask_query": True,  # no answer in the question (fairseq); False: as the official Hugging Face code
    }
  )


def _prompt() -> ConfigDict:
  return ConfigDict(
    {
      "shots": 16,  # examples of a class; K of LM-BFF
      "splits": (13, 21, 42, 87, 100),  # seeds of LM-BFF's draws
      "directory": "",  # LM-BFF's TASK/16-13/train.tsv; '': drawn from the training set in data.directory
      "words": "",  # label words with commas, in the order of the classes; '': LM-BFF's
      "max_length": 0,  # tokens of a prompt with demonstrations; 0: LM-BFF's (256 for MNLI, else 128)
      "num_samples": 0,  # sets of demonstrations that are averaged; 0: LM-BFF's (4 for MNLI, else 16)
      "num_steps": 1_000,  # updates; LM-BFF
      "eval_every": 100,  # steps between evaluations
    }
  )


def _own() -> ConfigDict:
  return ConfigDict(
    {
      # 'classification', 'regression', 'multilabel', 'tagging' (of each word of a list), 'span_pairs' (of
      # spans of a text, alone or in pairs: the JSON lines of edge probing), 'question_answering' (both files
      # in SQuAD's JSON form); 'auto': by the labels, and the guess is printed.
      "task": "auto",
      "pooling": "cls",  # the vector of a text: 'cls', 'mean' or 'max' of its tokens
      "class_weights": "none",  # 'balanced': a class counts as if all were equally frequent
      "label_smoothing": 0.0,  # share of the target that goes to all classes
      # Of a regression: 'standard' (less their mean, by their deviation), 'largest' (by the largest, as the
      # papers divide the scores of STS-B by 5). The saved model gives numbers as in the file.
      "targets": "standard",
    }
  )


def _train() -> ConfigDict:
  return ConfigDict(
    {
      "runs_at_once": 0,  # most runs in one program; 0: as many as memory holds
      "mapping": "auto",  # 'vectorized', 'one_by_one', 'auto' (one by one on CPU): how they share a device
      "microbatches": 1,  # parts of the batch taken one after another
      "save_minutes": 10.0,  # between saves of unfinished runs; 0: one at every evaluation
    }
  )


def _output() -> ConfigDict:
  return ConfigDict(
    {
      "save_model": True,  # the best run's model of each task, for `pretrain.export`
      # GLUE: the test sets, for the leaderboard, with the best of num_test_seeds. SQuAD: the best run's
      # answers to the development set, as the official files.
      "predict": False,
      # Recipe whose row of the papers, with its baselines, is shown beside ours, such as
      # 'coco_lm_base_plus_plus' for an imported official model; '': that of the checkpoint's own recipe.
      "compare_with": "",
    }
  )
