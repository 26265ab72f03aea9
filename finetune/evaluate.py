"""Evaluates a model on a file or a folder: `python -m finetune.evaluate --model=DIR --data=test.csv`.

A fine-tuned model gets the scores of its training, a checkpoint without a task those of its vectors. `--help`
lists the flags; data/errors.py lists the exit codes.
"""

import argparse
import logging
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from data import command, files, output_files
from data.command import FETCHED, OPENED, Parser
from data.errors import ConfigError, DataError
from data.rows import Row
from data.rows.read import STANDARD_INPUT
from finetune.predict import add_model_flags, check_columns, model_of, saved_of
from pretrain.command import keep_temporaries

logger = logging.getLogger(__name__)

PART = 1024  # questions answered in one call of the model
_EPILOG = """\
Every row needs a label of the model; an error names the first row without one. Classes: accuracy, macro F1,
scores by class and confused classes. Numbers: Spearman, Pearson, RMSE. Several labels: micro and macro F1,
average precision. Tags of spans: F1, precision, recall of entities. Questions, in a file of SQuAD's format:
exact match and F1. GLUE's own metrics (F1 of MRPC and QQP, Matthews of CoLA) are in the search's results.
A table needs a first line with the names of its columns; CoLA's files have none.

A checkpoint without the head of a task is evaluated by its vectors. Pairs of texts with a number: Spearman
and Pearson of cosines. Pairs with a yes or no (1 and 0, or true and false): average precision, best accuracy
and F1. A BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv): nDCG@10, MRR@10, recall and MAP, beside
those of BM25; it needs `pip install -r requirements-embeddings.txt`.

  python -m finetune.evaluate --model=runs/own/model --data=test.csv
  python -m finetune.evaluate --model=runs/glue/sst2/model --data=GLUE/SST-2/dev.tsv --output=runs/sst2_dev
  python -m finetune.evaluate --model=runs/embedding/model --data=GLUE/STS-B/dev.tsv --sizes=256,64
  python -m finetune.evaluate --model=runs/embedding/model --data=scifact --beside=runs/base

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage; 75 stopped on request.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m finetune.evaluate",
    description="Evaluates a model on a file with labels, or on a BEIR folder.",
    epilog=_EPILOG,
  )
  add_model_flags(made)
  made.add_argument(
    "--data",
    required=True,
    bucket=FETCHED,
    help="CSV, TSV, JSONL or Parquet with texts and labels; for questions, JSON in SQuAD's format; for "
    "vectors also a BEIR folder",
  )
  made.add_argument(
    "--label", default="", help="column of the label; default: the one the model was trained on"
  )
  made.add_argument("--split", default="", help="qrels of a BEIR folder; default: test")
  made.add_argument(
    "--sizes",
    default="",
    help="with commas: also evaluate so many first numbers of each vector (Matryoshka), such as 256,64",
  )
  made.add_argument(
    "--beside",
    default="",
    bucket=OPENED,
    help="second checkpoint whose vectors are evaluated on the same data, such as the untrained encoder",
  )
  made.add_argument(
    "--output",
    default="",
    help="folder for results.md, .csv and .json; default: no files are written",
  )
  return made


def _evaluate(asked: argparse.Namespace) -> None:
  command.refuse_below_one(asked, "batch_size")
  if asked.data == STANDARD_INPUT:
    raise ConfigError("--data=-: lines of a pipe have no labels; give a file")
  if asked.output:
    files.refuse_others(asked.output)
  if not pathlib.Path(asked.data).exists():
    raise DataError(f"--data={asked.data}: there is no such file")
  saved = saved_of(asked)
  from finetune.answering import is_answering

  if not is_answering(saved):
    from finetune.embedding import evaluate

    evaluate.evaluate(asked, saved)
    return
  if not pathlib.Path(asked.data).is_file():
    raise DataError(
      f"--data={asked.data}: this is a folder, but {asked.model} has the head of a task; give a file"
    )
  for flag in ("split", "sizes", "beside"):
    if value := getattr(asked, flag):
      raise ConfigError(f"--{flag}={value}: only for vectors, but {asked.model} has the head of a task")
  model = model_of(asked, saved, asked.label)
  if model.schema.kind == "question_answering":
    _evaluate_questions(asked, model)
  else:
    _evaluate_rows(asked, model)


def _evaluate_questions(asked: argparse.Namespace, model) -> None:
  """Prints the official SQuAD scores of the model's answers; with `--output` also writes the answers."""
  from data import squad
  from finetune.squad import answers

  questions, (question, context) = squad.read(asked.data).questions, model.schema.text
  predictions = {}
  for start in range(0, len(questions), PART):
    part = questions[start : start + PART]
    asked_rows = [
      Row({question: each.question, context: each.context}, at, asked.data)
      for at, each in enumerate(part, start + 1)
    ]
    found = model.outputs(asked_rows, model.kind.inputs(asked_rows))
    predictions |= {one.id: prediction for one, prediction in zip(part, found, strict=True)}
  scores = answers.evaluate(questions, predictions)
  print("\n".join(answers.report_lines(scores, questions, predictions, name=asked.data)))
  if asked.output:
    written = answers.write_scored(asked.output, questions, predictions, scores)
    logger.info(f"Wrote answers and scores: {', '.join(map(str, written))}")


def _evaluate_rows(asked: argparse.Namespace, model) -> None:
  """Prints the report on rows with labels or numbers; with `--output` also writes it."""
  schema = model.schema
  flags = ("--text=NAME", "--text_pair=NAME", "--label=NAME")
  check_columns(asked.data, [*schema.text, schema.label], flags)
  from finetune.own import answers as own_answers
  from finetune.own import search
  from finetune.own.target_values import shown_text, targets
  from pretrain.inference import stream

  survey = output_files.survey(asked.data, lambda row: (targets([row], schema), shown_text(row, schema)))
  answers: list[np.ndarray] = []
  gold: list[np.ndarray] = []  # one part for each row of words or targets, else for each batch

  def compute(part: list[Row], inputs) -> list[dict]:
    of_part, right = model.outputs(part, inputs), targets(part, schema)
    answers.extend(of_part if isinstance(of_part, list) else [of_part])
    gold.extend(right if isinstance(right, list) else [right])
    return []

  sizes = {"batch_size": asked.batch_size, "total": survey.rows}
  stream.answer(asked.data, model.kind.inputs, compute, **sizes)
  outputs, labels = (answers, gold) if schema.is_several else (np.concatenate(answers), np.concatenate(gold))
  made = search.of_one(
    f"{asked.model} on {asked.data}",
    schema,
    own_answers.measure(schema, labels, outputs),
    own_answers.details(schema, labels, outputs),
    rows=len(labels),
  )
  if asked.output:
    made.publish(asked.output)
  else:
    made.print()


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _evaluate(parser().parse_args(argv)))


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
