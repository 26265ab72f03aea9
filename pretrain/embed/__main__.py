"""Computes vectors of texts: `python -m pretrain.embed --checkpoint=DIR --input=a.csv --output=vectors.npy`.

`--help` lists the flags. Exit codes are those of data/errors.py; 75: stopped on request, the same command
resumes.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from data import command, rows
from data.command import FETCHED, OPENED, SENT, Parser
from data.errors import ConfigError, DataError, counted
from data.output import columns, formats
from data.output.parts import Parts
from data.rows import Row
from data.rows.read import STANDARD_INPUT, TEXT
from pretrain.command import kept_memory
from pretrain.embed.schema import POOLINGS, SIDES, EmbeddingSchema

VECTOR = "vector"  # column in a Parquet output
_EPILOG = """\
Each row of the input becomes a row of the output, in order; blank lines of text are skipped. A vector is the
mean of the last layer over a text's tokens, or its value at [CLS]. Vectors equal those of the exported model
in transformers, and with --pooling=mean those of sentence-transformers. If the command is killed, run it
again: it resumes where it stopped. Existing files are never overwritten.

  python -m pretrain.embed --checkpoint=runs/base --input=lines.txt --output=vectors.npy
  python -m pretrain.embed --checkpoint=runs/base --input=shop.csv --column=review --output=shop.parquet
  python -m pretrain.embed --checkpoint=runs/base --input=shop.csv --neighbours='it broke at once'

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage; 75 stopped on request, the same
command resumes.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.embed",
    description="Turns texts into vectors with a pretrained or fine-tuned encoder.",
    epilog=_EPILOG,
  )
  made.add_argument(
    "--checkpoint", required=True, bucket=OPENED, help="workdir of a run, or the directory of one step"
  )
  made.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
  made.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="vocabulary directory; default: the checkpoint's own"
  )
  made.add_argument(
    "--input",
    required=True,
    bucket=FETCHED,
    help="texts: a line each, or a column of CSV, TSV, JSONL or Parquet (.gz, .zst too); - is standard input",
  )
  made.add_argument("--column", default="", help="column with the texts; default: 'text', or the only column")
  made.add_argument(
    "--output",
    default="",
    bucket=SENT,
    help="vectors.npy: [rows, width] float32; vectors.parquet: the input's columns and 'vector'",
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
  made.add_argument("--size", type=int, default=0, help="first numbers of a vector to keep; default: all")
  made.add_argument(
    "--max_length", type=int, default=0, help="tokens, longer texts are truncated; default: the model's limit"
  )
  made.add_argument("--batch_size", type=int, default=32, help="texts computed at once")
  made.add_argument(
    "--neighbours",
    default="",
    metavar="QUERY",
    help="print the texts nearest to this one by cosine; reads --output if it exists, but does not need it",
  )
  made.add_argument("--top", type=int, default=10, help="number of neighbours to print")
  return made


def column_of(path: str, asked: str) -> str:
  """Returns the column with the texts: `asked`, 'text', or the only one; DataError if there is none."""
  names = rows.columns(path)
  if asked in names:
    return asked
  if not asked and (TEXT in names or len(names) == 1):
    return TEXT if TEXT in names else names[0]
  problem = f"no column {asked!r}" if asked else "several columns, but none with the name 'text'"
  raise DataError(f"{path}: {problem}; its columns are {', '.join(names)}; choose one with --column=NAME")


def _check(asked: argparse.Namespace) -> None:
  command.refuse_below_one(asked, "batch_size", "top")
  if asked.max_length and asked.max_length < 3:
    raise ConfigError(f"--max_length={asked.max_length}: expected at least 3, [CLS], a token and [SEP]")
  if not asked.output and not asked.neighbours:
    raise ConfigError(
      "nothing to do: give an output file, a query, or both\n  --output=vectors.npy\n  --neighbours=QUERY"
    )
  if asked.input == STANDARD_INPUT and asked.neighbours and asked.output:
    raise ConfigError(
      "--neighbours reads --input a second time, but a pipe can be read only once; leave out --output"
    )


class _Command:
  """One run of `pretrain.embed`: checked flags, an input that was read once, and the opened encoder."""

  def __init__(self, asked: argparse.Namespace) -> None:
    _check(asked)
    self.asked, self.output = asked, pathlib.Path(asked.output)
    forms = {".npy": lambda: formats.Npy(VECTOR, self.embedder.width), ".parquet": self._parquet}
    self.form = formats.choose(asked.output, forms if asked.output else {"": formats.Nothing})
    self.column = column_of(asked.input, asked.column)
    self.survey = columns.survey(asked.input, lambda row: row.text(self.column))
    self.has_vectors = bool(asked.output) and self.output.exists()
    if self.has_vectors and not asked.neighbours:
      Parts.refuse_foreign(self.output)
    self.embedder = self._embedder()

  def _embedder(self):
    # Imported here, so that mistakes in flags and rows are reported at once.
    from pretrain.checkpoints.saved_model import open_model
    from pretrain.embed.vectors import Embedder
    from pretrain.mesh import devices, trees

    devices.start()
    asked = self.asked
    saved = open_model(asked.checkpoint, asked.step)
    encoder = saved.open_encoder(asked.vocabulary, flag="--vocabulary")
    positions = encoder.config.max_length
    if asked.max_length > positions:
      raise ConfigError(
        f"--max_length={asked.max_length}: the checkpoint supports at most {positions} tokens; use\n"
        f"  --max_length={positions}"
      )
    width = encoder.config.hidden_size
    if asked.size > width:
      raise ConfigError(
        f"--size={asked.size}: the model's vectors have {width} numbers; expected at most that"
      )
    schema = EmbeddingSchema.read(saved.workdir)
    self.schema = dataclasses.replace(
      schema,
      pooling=asked.pooling or schema.pooling,
      unit=asked.unit or schema.unit,
      query_length=asked.max_length or schema.query_length,
      passage_length=asked.max_length or schema.passage_length,
    )
    self.longest = self.schema.length(asked.side, positions)
    self.digest = trees.digest(encoder.params)
    return Embedder(encoder, self.schema, batch_size=asked.batch_size, size=asked.size)

  def run(self) -> None:
    """Writes the vectors, unless they exist, and prints the neighbours."""
    nearest, asked = self._nearest(), self.asked
    if not (self.has_vectors and asked.neighbours):
      self._answer(None if asked.output else nearest)
    if nearest is not None:
      if asked.output:
        self._look(nearest)
      print(f"nearest to {asked.neighbours!r}, by cosine:")
      for line in nearest.lines():
        print(line)

  def _parquet(self) -> formats.Format:
    import pyarrow

    of_vector = {VECTOR: pyarrow.list_(pyarrow.float32())}
    if VECTOR in self.survey.columns:
      raise DataError(
        f"{self.asked.input}: its column {VECTOR!r} has the name of the output's column; rename it"
      )
    return formats.Parquet(columns.arrow_schema(self.asked.input, self.survey.columns, of_vector))

  def _answer(self, nearest) -> None:
    from pretrain.inference import stream

    embedder, asked = self.embedder, self.asked

    def prepare(part: list[Row]) -> list[Any]:
      return embedder.inputs([row.text(self.column) for row in part], asked.side)

    def compute(part: list[Row], inputs: list[Any]) -> list[dict[str, Any]]:
      vectors = embedder.vectors(inputs)
      if nearest is not None:
        nearest.add(vectors, [self._shown(row) for row in part])
      return [{**row.fields, VECTOR: vector} for row, vector in zip(part, vectors)]

    def summary() -> tuple[str, str, int, int]:
      what = f"of {embedder.width} numbers, {self.schema.pooling} of {self.column!r}"
      return "vector", what, embedder.cut, self.longest

    identity = {"command": "pretrain.embed", "model": self.digest, "column": self.column}
    identity |= {"pooling": self.schema.pooling, "unit": self.schema.unit, "max_length": self.longest}
    identity |= {"prefix": self.schema.prefix(asked.side), "size": embedder.width}
    stream.answer_file(asked, self.form, self.survey, identity, prepare, compute, summary)

  def _shown(self, row: Row) -> tuple[str, str]:
    return row.place, row.text(self.column)

  def _nearest(self):
    if not self.asked.neighbours:
      return None
    from pretrain.embed.neighbours import Nearest

    (query,) = self.embedder.vectors(self.embedder.inputs([self.asked.neighbours], "query"))
    return Nearest(query, self.asked.top)

  def _look(self, nearest) -> None:
    from pretrain.embed import neighbours

    stored = neighbours.StoredVectors(self.output, VECTOR)
    if (stored.count, stored.width) != (self.survey.rows, self.embedder.width):
      raise DataError(
        f"{self.output}: {counted(stored.count, 'vector')} of {stored.width} numbers; expected "
        f"{self.survey.rows:,} of {self.embedder.width}; the input or model differs; choose another --output"
      )
    first = next(rows.read(self.asked.input))
    (expected,) = self.embedder.vectors(self.embedder.inputs([first.text(self.column)], self.asked.side))
    difference = abs(next(stored.blocks())[0] - expected).max()
    if not difference <= 1e-2 * abs(expected).max():
      raise DataError(
        f"{self.output}: its first vector differs by {difference:.1e} from that of this input, model and "
        "--pooling; choose another --output"
      )
    neighbours.look(nearest, stored.blocks(), map(self._shown, rows.read(self.asked.input)))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run_with_output(parser().parse_args, lambda asked: _Command(asked).run(), argv, is_file=True)


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(main())
