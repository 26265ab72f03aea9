"""Computes vectors of texts: `python -m pretrain.embed --checkpoint=DIR --input=a.csv --output=vectors.npy`.

`--help` lists the flags. Exit codes are those of data/errors.py; 75: stopped on request, the same command
begins again.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import IO

from data import command, output_files
from data.command import FETCHED, Parser
from data.errors import ConfigError, DataError
from pretrain.command import keep_temporaries
from pretrain.embed import texts
from pretrain.embed.schema import POOLINGS, SIDES
from pretrain.embed.texts import VECTOR, Texts

_EPILOG = """\
Each row of the input becomes a row of the output, in order; blank lines of text are skipped. A vector is the
mean of the last layer over a text's tokens, or its value at [CLS]. Vectors equal those of the exported model
in transformers, and with --pooling=mean those of sentence-transformers. The file appears when all texts are
done; a killed command begins again. Existing files are never overwritten. `python -m pretrain.search` finds
the texts that are nearest to a query.

  python -m pretrain.embed --checkpoint=runs/base --input=lines.txt --output=vectors.npy
  python -m pretrain.embed --checkpoint=runs/base --input=shop.csv --column=review --output=shop.parquet

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 4 a vector is not finite; 5 storage; 75
stopped on request, the same command begins again.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.embed",
    description="Turns texts into vectors with a pretrained or fine-tuned encoder.",
    epilog=_EPILOG,
  )
  texts.add_flags(made)
  made.add_argument(
    "--input",
    required=True,
    bucket=FETCHED,
    help="texts: a line each, or a column of CSV, TSV, JSONL or Parquet (.gz, .zst too); - is standard input",
  )
  made.add_argument(
    "--output",
    required=True,
    help="vectors.npy: [rows, width]; vectors.parquet: the input's columns and 'vector'",
  )
  made.add_argument(
    "--pooling",
    choices=POOLINGS,
    help="mean: over all tokens except padding; cls: the vector at [CLS]; last: at the last token; default: "
    "as an embedding model was trained, mean for other models",
  )
  made.add_argument(
    "--unit", action="store_true", help="divide every vector by its length (default of models trained so)"
  )
  made.add_argument(
    "--side",
    default="passage",
    choices=SIDES,
    help="whether the texts are queries or passages; chooses the prefix and length of an embedding model",
  )
  made.add_argument(
    "--max_length", type=int, default=0, help="tokens, longer texts are truncated; default: the model's limit"
  )
  return made


def _embed(asked: argparse.Namespace) -> None:
  """Writes the vectors of --input."""
  command.refuse_below_one(asked, "batch_size")
  if asked.max_length and asked.max_length < 3:
    raise ConfigError(f"--max_length={asked.max_length}: expected at least 3, [CLS], a token and [SEP]")

  def npy(file: IO[bytes]) -> output_files.Writer:
    return output_files.Npy(file, VECTOR, embedder.width, asked.dtype)

  def parquet(file: IO[bytes]) -> output_files.Writer:
    import pyarrow

    of_vector = {VECTOR: pyarrow.list_(pyarrow.from_numpy_dtype(asked.dtype))}
    return output_files.Parquet(
      file, output_files.arrow_schema(asked.input, source.survey.columns, of_vector)
    )

  form = output_files.choose(asked.output, {".npy": npy, ".parquet": parquet})
  output_files.refuse_existing(asked.output)
  source = Texts.read(asked.input, asked.column)
  if form is parquet and VECTOR in source.survey.columns:
    raise DataError(f"{asked.input}: its column {VECTOR!r} has the name of the output's column; rename it")
  embedder = texts.open_embedder(asked)
  from pretrain.inference import stream  # imports JAX; mistakes in flags and rows are reported before

  def summary() -> tuple[str, str, int, int]:
    what = f"of {embedder.width} numbers, {embedder.schema.pooling} of {source.column!r}"
    return "vector", what, embedder.cut, embedder.length(asked.side)

  prepare, compute = texts.answering(source, embedder, asked.side, asked.dtype)
  stream.answer_file(asked, form, prepare, compute, summary, total=source.survey.rows)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _embed(parser().parse_args(argv)))


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
