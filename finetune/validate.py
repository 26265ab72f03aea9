"""Types, choices and limits of the fields in `configs/finetune_base.py`, and rules. Imports no jax.

`configs/finetune_base.py` lists the fields with defaults, units and sources. A field that is not in `FIELDS`
may have any value of its default's type.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from configs import finetune_base
from data.errors import plain_name, unknown
from data.glue.tasks import TASKS
from finetune.papers import protocols
from pretrain.embed.schema import POOLINGS
from pretrain.settings import fields
from pretrain.settings.fields import Count, CountOrZero, FractionBelowOne, Limit, NotNegative
from pretrain.settings.model import Dtype, Remat

OWN_TASKS = ("classification", "regression", "multilabel", "tagging", "question_answering", "span_pairs")
# {kind: (module, class)}; each class is a `finetune.search.search.Kind`.
KINDS = {
  "glue": ("finetune.glue.search", "Glue"),
  "squad": ("finetune.squad.search", "Squad"),
  "prompt": ("finetune.prompt.search", "Prompts"),
  "own": ("finetune.own.search", "Own"),
  "embedding": ("finetune.embedding.search", "Embedding"),
}
# {name: the field's type with its limits, or its choices}.
FIELDS: Mapping[str, Any] = {
  "kind": tuple(KINDS),
  "checkpoint_step": Annotated[int, Limit(-1)],
  "checkpoint_layers": CountOrZero,
  "protocol": protocols.NAMES,
  "size": ("auto", *protocols.SIZES),
  "seed": Annotated[int, Limit(0, 2**31 - 1)],
  "model.dtype": Dtype,
  "model.remat": Remat,
  "model.scan_unroll": CountOrZero,
  "search.cells": ("all", "best_known", "one"),
  "search.learning_rates": tuple[float, ...],
  "search.warmup_fractions": tuple[float, ...],
  "search.num_seeds": CountOrZero,
  "search.num_test_seeds": CountOrZero,
  "search.evaluations_per_epoch": CountOrZero,
  "data.max_length": CountOrZero,
  "data.train_rows": CountOrZero,
  "data.buckets": Count,
  "data.bucket_multiple": Count,
  "data.eval_batch_size": Count,
  "data.dev_fraction": Annotated[float, Limit(0, 1, low_open=True, high_open=True)],
  "data.empty": ("refuse", "skip"),
  "data.long": ("cut", "windows"),
  "squad.stride": Count,
  "squad.max_query_length": Count,
  "squad.max_answer_length": Count,
  "squad.n_best": Annotated[int, Limit(2)],  # of one answer, "no answer" would take its place
  "prompt.shots": Count,
  "prompt.max_length": CountOrZero,
  "prompt.num_samples": CountOrZero,
  "prompt.num_steps": Count,
  "prompt.eval_every": Count,
  "own.task": ("auto", *OWN_TASKS),
  "own.pooling": ("cls", "mean", "max"),
  "own.class_weights": ("none", "balanced"),
  "own.label_smoothing": FractionBelowOne,
  "own.targets": ("standard", "largest"),
  "embedding.objective": ("auto", "ranking", "cosent", "cosine", "simcse"),
  "embedding.pooling": ("auto", *POOLINGS),
  "embedding.temperature": Annotated[float, Limit(1e-4, 1e4)],  # beyond, float32 products are not finite
  "embedding.query_length": CountOrZero,
  "embedding.passage_length": CountOrZero,
  "embedding.negatives": CountOrZero,
  "embedding.sizes": tuple[int, ...],
  "embedding.score_range": tuple[float, ...],
  "train.microbatches": Count,
  "train.save_minutes": NotNegative,
}


# The keys of `glue_metrics.METRICS` and of `prompt.templates.TEMPLATES`, repeated because the first module
# imports scikit-learn, which takes a second.
GLUE_TASKS = tuple(name for name, row in TASKS.items() if name != "snli" and "train" in row.sizes)
PROMPT_TASKS = ("mnli", "snli", "sst2", "cola", "mrpc", "qqp", "qnli", "rte", "stsb")


def task_names(config: Mapping[str, Any]) -> list[str]:
  """Returns the names of a config's tasks, as in `data.glue.tasks`; 'all' of GLUE means nine tasks.

  Official spellings such as 'SST-2' are accepted too. An unknown name is returned as it is.
  """
  if config["kind"] not in ("glue", "prompt"):
    return [str(config["kind"])]
  known = _known_tasks(config)
  asked = [name.strip() for name in config["tasks"].split(",") if name.strip()]
  if list(map(plain_name, asked)) == ["all"]:
    return list(known)
  return [plain_name(name) if plain_name(name) in known else name for name in asked]


def _known_tasks(config: Mapping[str, Any]) -> tuple[str, ...]:
  return GLUE_TASKS if config["kind"] == "glue" else PROMPT_TASKS


def _together(config: Mapping[str, Any]) -> list[str]:
  """Returns a message for each rule about several fields that the config breaks."""
  problems = [*_task_problems(config)]
  dropout = config["model.dropout"]
  if dropout != -1.0 and not 0 <= dropout < 1:
    problems.append(f"model.dropout={dropout}: expected a number in [0, 1), or -1 for the usual rate")
  if not config["checkpoint"]:
    problems.append(
      "checkpoint: none given; --config.checkpoint=DIR, the workdir of a pretraining run or the output of "
      "`python -m pretrain.export import`"
    )
  if config["kind"] == "prompt" and not config["prompt.splits"]:
    problems.append("prompt.splits is empty; give at least one")
  return [*problems, *_file_problems(config), *_embedding_problems(config), *_reference_problems(config)]


# The way out for files of one's own, by kind.
_OWN = "--config=configs/finetune_own.py"
_INSTEAD = {"squad": "--config.squad.{}=FILE"}


def _embedding_problems(config: Mapping[str, Any]) -> list[str]:
  if config["kind"] != "embedding":
    return []
  problems, bounds, sizes = [], config["embedding.score_range"], config["embedding.sizes"]
  if bounds and not (len(bounds) == 2 and bounds[0] < bounds[1]):
    problems.append(f"embedding.score_range={bounds}: expected two numbers, the smaller first, such as 0,5")
  if any(size < 1 for size in sizes) or len(set(sizes)) < len(sizes):
    problems.append(f"embedding.sizes={sizes}: expected different sizes of at least 1, such as 256,64")
  return problems


def _file_problems(config: Mapping[str, Any]) -> list[str]:
  if config["kind"] not in ("own", "embedding"):
    return [
      f"data.{name}={config[f'data.{name}']!r}: kind={config['kind']!r} does not read it; use\n  {instead}"
      for name in ("train_file", "dev_file")
      if config[f"data.{name}"]
      for instead in [_INSTEAD.get(config["kind"], _OWN).format(name)]
    ]
  problems = []
  if not config["data.train_file"]:
    problems.append("data.train_file: none given; --config.data.train_file=FILE, CSV, TSV, JSONL or Parquet")
  if config["kind"] == "own" and config["own.task"] == "question_answering" and not config["data.dev_file"]:
    problems.append("own.task='question_answering': give data.dev_file, too; no questions are held out")
  if config["data.text_pair"] and not config["data.text"]:
    problems.append(f"data.text_pair={config['data.text_pair']!r}: give data.text, the first text, too")
  if config["output.predict"]:
    problems.append("output.predict=True: rows without labels are answered by `python -m finetune.predict`")
  return problems


def _reference_problems(config: Mapping[str, Any]) -> list[str]:
  name, protocol = config["output.compare_with"], config["protocol"]
  if not name or protocol not in protocols.NAMES:
    return []
  if config["kind"] not in ("glue", "squad"):
    return [f"{fields.show(dict(config), 'kind', 'output.compare_with')}: expected kind='glue' or 'squad'"]
  from finetune.papers import glue_metrics  # it imports scikit-learn, which takes a second

  known = glue_metrics.known_recipes(protocol)
  if name in known or glue_metrics.reference_rows(name, protocol):
    return []
  return [f"{protocol=}, output.compare_with={name!r}: {unknown('row', name, known)}"]


def _task_problems(config: Mapping[str, Any]) -> list[str]:
  names = task_names(config)
  if config["kind"] not in ("glue", "prompt"):
    return []
  known = _known_tasks(config)
  problems = [
    f"tasks={config['tasks']!r}: {unknown('task', name, ['all', *known])}"
    for name in names
    if name not in known
  ]
  if not names:
    problems.append("tasks is empty; give 'all' or names with commas")
  if len(set(names)) < len(names):
    problems.append(f"tasks={config['tasks']!r}: a task is listed twice; give each once")
  return problems


# Fields with files or folders of data; those with an address are downloaded.
DATA = (
  "data.directory",
  "data.train_file",
  "data.dev_file",
  "squad.train_file",
  "squad.dev_file",
  "prompt.directory",
)
SCHEMA = fields.Schema(
  finetune_base.get_config,
  "configs/finetune_base.py",
  FIELDS,
  lambda config, _: _together(fields.flatten(config)),
  addresses=("checkpoint", "vocabulary", *DATA),
)
