"""Predicts with a fine-tuned model: `python -m finetune.predict --model=DIR --input=in.csv --output=out.csv`.

`--help` lists the flags and the exit codes.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import IO, Any

from data import command, output_files, rows
from data.command import FETCHED, OPENED, Parser
from data.errors import ConfigError, DataError, listed
from data.rows import Row
from data.rows.read import STANDARD_INPUT, TEXT
from pretrain.command import keep_temporaries

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = "-"
_EPILOG = """\
The output has one row for each row of the input, in order: the input's columns, then 'predicted' and
probabilities; for questions, also the lead of "no answer". A million rows take no more memory than ten
thousand. The file appears when all rows are answered; a killed command begins again. The command never
overwrites a file.

  python -m finetune.predict --model=runs/own/model --input=new.csv --output=answers.csv
  python -m finetune.predict --model=runs/own/model --input=new.jsonl.gz --text=review --output=new.parquet
  echo 'it broke at once' | python -m finetune.predict --model=runs/own/model --input=-

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage; 75 stopped on request, the same
command begins again.
"""


def add_model_flags(made: Parser) -> None:
  """Adds the flags of every command that opens a fine-tuned model."""
  made.add_argument(
    "--model",
    required=True,
    bucket=OPENED,
    help="folder of a fine-tuned model, such as runs/own/model or runs/glue/rte/model",
  )
  made.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
  made.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="directory; default: the one beside the checkpoint"
  )
  made.add_argument(
    "--text", default="", help="column of the text; default: the one the model was trained on"
  )
  made.add_argument("--text_pair", default="", help="column of a pair's second text; default: as for --text")
  made.add_argument("--batch_size", type=int, default=32, help="texts in a batch")


def parser() -> Parser:
  """Returns the parser of the command's flags."""
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
    help="CSV, TSV, JSONL, Parquet, or one text a line (also .gz, .zst); - reads lines from a pipe",
  )
  made.add_argument(
    "--output",
    default="",
    help="answers.csv, .jsonl or .parquet; - prints JSON lines, the default for a pipe",
  )
  return made


def saved_of(asked: argparse.Namespace):
  """Starts the devices and reads the checkpoint of the flags, a `SavedModel`."""
  # JAX is imported after the flags are checked, so that a typo is reported at once.
  from pretrain.checkpoints.saved_model import open_model
  from pretrain.mesh import devices

  devices.start()
  return open_model(asked.model, asked.step)


def model_of(asked: argparse.Namespace, saved, label: str = ""):
  """Puts the model of the flags on the devices; its schema has the columns that the flags name."""
  from finetune import answering

  return answering.open_answering(
    saved,
    vocabulary=asked.vocabulary,
    batch_size=asked.batch_size,
    names=lambda schema: answering.renamed(schema, asked.text, asked.text_pair, label),
  )


def check_columns(path: str, wanted: Sequence[str], flags: Sequence[str]) -> None:
  """Raises DataError if a file lacks a column; the message lists its columns and the flags to use."""
  there = rows.columns(path)
  missing = [name for name in wanted if name not in there]
  if missing:
    raise DataError(
      f"{path}: no column {missing[0]!r}, which the model reads; it has {listed(there)}; name the right one:"
      + "".join(f"\n  {flag}" for flag in flags)
    )


def free_names(names: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
  """Returns {name: free name}: the name, with a number appended if it is in `taken`."""
  renamed: dict[str, str] = {}
  for name in names:
    free, number = name, 2
    while free in taken:
      free, number = f"{name} {number}", number + 1
    renamed[name] = free
  return renamed


class _Command:
  """The command with its flags: checks them, opens the model, and checks all rows of the input."""

  def __init__(self, asked: argparse.Namespace) -> None:
    command.refuse_below_one(asked, "batch_size")
    is_pipe, self.asked = asked.input == STANDARD_INPUT, asked
    asked.output = asked.output or (STANDARD_OUTPUT if is_pipe else "")
    forms = {
      ".csv": lambda file: output_files.Csv(file, [*self.survey.columns, *self.names.values()]),
      ".jsonl": output_files.JsonLines,
      ".parquet": self._parquet,
      STANDARD_OUTPUT: output_files.JsonLines,
    }
    self.form = output_files.choose(asked.output, forms)
    self.is_csv = self.form is forms[".csv"]
    if asked.output != STANDARD_OUTPUT:
      output_files.refuse_existing(asked.output)
    if is_pipe:
      asked.text = TEXT  # the one column of a pipe, whatever the training file called its column
    rows.columns(asked.input)  # a missing file is reported before JAX starts
    self.model = model_of(asked, saved_of(asked))
    schema = self.model.schema
    if is_pipe and schema.is_several:
      raise ConfigError(f"--input=-: a line is a text, and the model reads {schema.things}; give a file")
    if is_pipe and len(schema.text) > 1:
      raise ConfigError(
        "--input=-: a line is one text, and the model reads two; give a file with two columns"
      )
    wanted = [*schema.text, schema.label] if schema.kind == "span_pairs" else schema.text
    check_columns(asked.input, wanted, ("--text=NAME", "--text_pair=NAME"))
    from finetune.own.target_values import has_text, shown_text

    self.has_text = lambda row: has_text(row, schema)
    self.blank = 0  # rows without a text

    def check(row: Row) -> None:
      if self.has_text(row):
        shown_text(row, schema)
      else:
        self.blank += 1

    self.survey = output_files.survey(asked.input, check)
    if self.blank:
      logger.info(
        f"{asked.input}: no answers for rows without a text: {self.blank:,} of {self.survey.rows:,}"
      )
    self.names = free_names(list(self.model.kind.columns()), list(self.survey.columns))

  def run(self) -> None:
    """Predicts all rows of the input, and writes or prints each row's answer."""
    from pretrain.inference import stream

    asked, model, schema = self.asked, self.model, self.model.schema

    def prepare(part: list[Row]) -> Any:
      asked_rows = list(filter(self.has_text, part))
      return asked_rows, model.kind.inputs(asked_rows) if asked_rows else None

    def compute(part: list[Row], prepared: tuple[list[Row], Any]) -> list[dict[str, Any]]:
      answers = iter(model.answers(*prepared) if prepared[0] else [])
      empty = dict.fromkeys(self.names)
      return [self._joined(row, next(answers) if self.has_text(row) else empty) for row in part]

    def summary() -> tuple[str, str, int, int]:
      return "row", f"answered ({schema.kind})", model.kind.cut, schema.max_length

    stream.answer_file(asked, self.form, prepare, compute, summary, total=self.survey.rows)

  def _parquet(self, file: IO[bytes]) -> output_files.Writer:
    import pyarrow

    arrow = {"string": pyarrow.string(), "float64": pyarrow.float64()}
    arrow |= {f"list of {name}": pyarrow.list_(kind) for name, kind in arrow.items()}
    more = {self.names[name]: arrow[kind] for name, kind in self.model.kind.columns().items()}
    return output_files.Parquet(file, output_files.arrow_schema(self.asked.input, self.survey.columns, more))

  def _joined(self, row: Row, answer: dict[str, Any]) -> dict[str, Any]:
    values = {self.names[name]: _short(value) for name, value in answer.items()}
    separator = self.model.schema.separator
    if self.is_csv and separator:  # as in the cells of the training file
      values = {
        name: separator.join(value) if isinstance(value, list) else value for name, value in values.items()
      }
    return {**row.fields, **values}


def _short(value: Any) -> Any:
  """Rounds floats, also those in a list, to the seven digits of float32."""
  if isinstance(value, list):
    return [_short(item) for item in value]
  return float(f"{value:.7g}") if isinstance(value, float) else value


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _Command(parser().parse_args(argv)).run())


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
