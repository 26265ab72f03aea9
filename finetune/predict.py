"""Answers of a fine-tuned model: `python -m finetune.predict --model=DIR --input=new.csv --output=out.csv`.

`--help` lists the flags. Exit codes are those of data/errors.py; 75: stopped on request, the same command
continues.
"""

import argparse
import logging
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from data import command, rows
from data.command import FETCHED, OPENED, SENT, Parser
from data.errors import ConfigError, DataError, listed
from data.output import columns, formats
from data.output.parts import Parts
from data.rows import Row
from data.rows.read import STANDARD_INPUT, TEXT
from pretrain.command import kept_memory

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = "-"
_EPILOG = """\
A row of the input gives a row of the output, in order: its own columns, then 'predicted' and what goes with
it (the probability of each label; of a question how far "no answer" leads). A million rows take no more
memory than ten thousand. A killed command goes on where it was when it is started again; a finished one says
so (answers.csv.done holds what the answers were made from); nothing that is there already is replaced.

  python -m finetune.predict --model=runs/own/model --input=new.csv --output=answers.csv
  python -m finetune.predict --model=runs/own/model --input=new.jsonl.gz --text=review --output=new.parquet
  echo 'it broke at once' | python -m finetune.predict --model=runs/own/model --input=-

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage; 75 stopped on request, the same
command continues.
"""


def add_model_flags(made: Parser) -> None:
  """Flags of every command that opens a fine-tuned model."""
  made.add_argument(
    "--model",
    required=True,
    bucket=OPENED,
    help="folder of a fine-tuned model, such as runs/own/model or runs/glue/rte/model",
  )
  made.add_argument("--step", type=int, help="of its checkpoint; default: the newest")
  made.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="its directory; default: the one beside the checkpoint"
  )
  made.add_argument(
    "--text", default="", help="column of the text; default: the one the model was trained on"
  )
  made.add_argument("--text_pair", default="", help="column of the second text of a pair; default: likewise")
  made.add_argument("--batch_size", type=int, default=32, help="texts computed at once")


def parser() -> Parser:
  """Flags of the command."""
  made = Parser(
    prog="python -m finetune.predict",
    description="Answers every row of a file with a fine-tuned model.",
    epilog=_EPILOG,
  )
  add_model_flags(made)
  made.add_argument(
    "--input",
    required=True,
    bucket=FETCHED,
    help="CSV, TSV, JSONL, Parquet, or text with a line each (.gz, .zst too); - reads lines from a pipe",
  )
  made.add_argument(
    "--output",
    default="",
    bucket=SENT,
    help="answers.csv, .jsonl or .parquet; - prints JSON lines, the default for a pipe",
  )
  return made


def model_of(asked: argparse.Namespace, label: str = ""):
  """The model on the devices, and its schema with the columns that the flags name."""
  # JAX is imported after the flags are known to be good.
  from finetune.inference import model
  from pretrain.mesh import devices

  devices.start()
  return model.open_answering(
    asked.model,
    step=asked.step,
    vocabulary=asked.vocabulary,
    batch_size=asked.batch_size,
    names=lambda schema: model.renamed(schema, asked.text, asked.text_pair, label),
  )


def check_columns(path: str, wanted: Sequence[str], flags: str) -> None:
  """Raises DataError where a file lacks one of the columns, with those that it has and the flags to use."""
  there = rows.columns(path)
  missing = [name for name in wanted if name not in there]
  if missing:
    raise DataError(
      f"{path}: no column {missing[0]!r}, which the model reads; there are {listed(there)}; name the "
      f"right one with {flags}"
    )


def free_names(names: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
  """{name: the same, or with a number behind it where the input has such a column}."""
  renamed: dict[str, str] = {}
  for name in names:
    free, number = name, 2
    while free in taken:
      free, number = f"{name} {number}", number + 1
    renamed[name] = free
  return renamed


class _Command:
  """One start of the command, its flags checked and its input read once."""

  def __init__(self, asked: argparse.Namespace) -> None:
    command.refuse_below_one(asked, "batch_size")
    is_pipe, self.asked = asked.input == STANDARD_INPUT, asked
    asked.output = asked.output or (STANDARD_OUTPUT if is_pipe else "")
    forms = {
      ".csv": lambda: formats.Csv([*self.survey.columns, *self.names.values()]),
      ".jsonl": formats.JsonLines,
      ".parquet": self._parquet,
      STANDARD_OUTPUT: formats.JsonLines,
    }
    self.form = formats.choose(asked.output, forms)
    self.is_csv = self.form is forms[".csv"]
    if asked.output != STANDARD_OUTPUT:
      Parts.refuse_foreign(pathlib.Path(asked.output))
    if is_pipe:
      asked.text = TEXT  # whatever the column was called that the model was trained on
    rows.columns(asked.input)  # a file that is not there is reported at once
    self.model = model_of(asked)
    schema = self.model.schema
    if is_pipe and schema.is_several:
      raise ConfigError(f"--input=-: a line is a text, and the model reads {schema.things}; give a file")
    if is_pipe and len(schema.text) > 1:
      raise ConfigError(
        "--input=-: a line is one text, and the model reads two; give a file with two columns"
      )
    wanted = [*schema.text, schema.label] if schema.kind == "span_pairs" else schema.text
    check_columns(asked.input, wanted, "--text=NAME (of a pair also --text_pair=NAME)")
    from finetune.own.targets import has_text, shown_text

    self.has_text = lambda row: has_text(row, schema)
    self.blank = 0  # rows without a text

    def check(row: Row) -> None:
      if self.has_text(row):
        shown_text(row, schema)
      else:
        self.blank += 1

    self.survey = columns.survey(asked.input, check)
    if self.blank:
      logger.info(
        f"{asked.input}: {self.blank:,} of {self.survey.rows:,} rows have no text and get no answer"
      )
    self.names = free_names(list(self.model.kind.columns()), list(self.survey.columns))

  def run(self) -> None:
    """Writes or prints the answers."""
    from pretrain.inference import stream

    asked, model, schema = self.asked, self.model, self.model.schema

    def prepare(part: list[Row]) -> Any:
      asked_rows = list(filter(self.has_text, part))
      return asked_rows, model.kind.inputs(asked_rows) if asked_rows else None

    def compute(part: list[Row], prepared: tuple[list[Row], Any]) -> list[dict[str, Any]]:
      answers = iter(model.answers(*prepared) if prepared[0] else [])
      empty = dict.fromkeys(self.names)
      return [self._joined(row, next(answers) if self.has_text(row) else empty) for row in part]

    def summary() -> tuple[str, int, int]:
      return f"rows answered ({schema.kind})", model.kind.cut, schema.max_length

    identity = {"command": "finetune.predict", "model": model.digest, "columns": [*self.names.values()]}
    identity |= {"text": list(schema.text), "labels": list(schema.labels)}
    identity |= {"max_length": schema.max_length, "long": schema.long}
    stream.answer_file(asked, self.form, self.survey, identity, prepare, compute, summary)

  def _parquet(self) -> formats.Format:
    import pyarrow

    arrow = {"string": pyarrow.string(), "float64": pyarrow.float64()}
    arrow |= {f"list of {name}": pyarrow.list_(kind) for name, kind in arrow.items()}
    more = {self.names[name]: arrow[kind] for name, kind in self.model.kind.columns().items()}
    return formats.Parquet(columns.arrow_schema(self.asked.input, self.survey.columns, more))

  def _joined(self, row: Row, answer: dict[str, Any]) -> dict[str, Any]:
    values = {self.names[name]: _short(value) for name, value in answer.items()}
    separator = self.model.schema.separator
    if self.is_csv and separator:  # as the model's own training file had them
      values = {
        name: separator.join(value) if isinstance(value, list) else value for name, value in values.items()
      }
    return {**row.fields, **values}


def _short(value: Any) -> Any:
  """Numbers with the seven digits that float32 has, not those of their sums in float64."""
  if isinstance(value, list):
    return [_short(item) for item in value]
  return float(f"{value:.7g}") if isinstance(value, float) else value


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run_with_output(parser().parse_args, lambda asked: _Command(asked).run(), argv, is_file=True)


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(main())
