"""Computes vectors of texts: `python -m pretrain.embed --checkpoint=DIR --input=a.csv --output=vectors.npy`.

`--help` lists the flags. Exit codes are those of data/errors.py; 75: stopped on request, the same command
resumes.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from data import command, rows
from data.command import FETCHED, SENT, Parser
from data.errors import ConfigError, DataError
from data.output import columns, formats
from data.output.parts import Parts
from data.rows import Row
from data.rows.read import STANDARD_INPUT
from pretrain.command import kept_memory
from pretrain.embed import dtypes, texts
from pretrain.embed.schema import POOLINGS, SIDES
from pretrain.embed.texts import VECTOR, Texts

_EPILOG = """\
Each row of the input becomes a row of the output, in order; blank lines of text are skipped. A vector is the
mean of the last layer over a text's tokens, or its value at [CLS]. Vectors equal those of the exported model
in transformers, and with --pooling=mean those of sentence-transformers. If the command is killed, run it
again: it resumes where it stopped. Existing files are never overwritten.

  python -m pretrain.embed --checkpoint=runs/base --input=lines.txt --output=vectors.npy
  python -m pretrain.embed --checkpoint=runs/base --input=shop.csv --column=review --output=shop.parquet
  python -m pretrain.embed --checkpoint=runs/base --input=shop.csv --neighbours='it broke at once'

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 4 a vector is not finite; 5 storage; 75
stopped on request, the same command resumes.
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
    default="",
    bucket=SENT,
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
  made.add_argument(
    "--neighbours",
    default="",
    metavar="QUERY",
    help="print the texts nearest to this one by cosine; reads --output if it exists, but does not need it",
  )
  made.add_argument("--top", type=int, default=10, help="number of neighbours to print")
  return made


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
    forms = {".npy": lambda: texts.npy(self.embedder, asked.dtype), ".parquet": self._parquet}
    self.form = formats.choose(asked.output, forms if asked.output else {"": formats.Nothing})
    self.texts = Texts.read(asked.input, asked.column)
    self.has_vectors = bool(asked.output) and self.output.exists()
    if self.has_vectors and not asked.neighbours:
      Parts.refuse_foreign(self.output)
    self.embedder = texts.open_embedder(asked)

  def run(self) -> None:
    """Writes the vectors, unless they exist, and prints the neighbours."""
    nearest, asked = self._nearest(), self.asked
    if not (self.has_vectors and asked.neighbours):
      see = None if asked.output or nearest is None else self._seen_by(nearest)
      texts.write_vectors(asked, self.texts, self.embedder, self.form, see)
    if nearest is not None:
      if asked.output:
        self._look(nearest)
      print(f"nearest to {asked.neighbours!r}, by cosine:")
      for line in nearest.lines():
        print(line)

  def _parquet(self) -> formats.Format:
    import pyarrow

    numbers = pyarrow.from_numpy_dtype(dtypes.stored_type(self.asked.dtype))
    columns_read = self.texts.survey.columns
    if VECTOR in columns_read:
      raise DataError(
        f"{self.asked.input}: its column {VECTOR!r} has the name of the output's column; rename it"
      )
    of_vector = {VECTOR: pyarrow.list_(numbers)}
    return formats.Parquet(columns.arrow_schema(self.asked.input, columns_read, of_vector))

  def _seen_by(self, nearest):
    return lambda vectors, part: nearest.add(vectors, [self._shown(row) for row in part])

  def _shown(self, row: Row) -> tuple[str, str]:
    return row.place, self.texts.text(row)

  def _nearest(self):
    if not self.asked.neighbours:
      return None
    from pretrain.embed.neighbours import Nearest

    (query,) = self.embedder.vectors(self.embedder.inputs([self.asked.neighbours], "query"))
    self.embedder.cut = 0  # it counts truncated rows
    return Nearest(query, self.asked.top)

  def _look(self, nearest) -> None:
    from pretrain.embed import neighbours

    stored = neighbours.StoredVectors(self.output, VECTOR)
    texts.check_stored(stored, self.texts, self.embedder, self.asked.side, "choose another --output")
    neighbours.look(nearest, stored.blocks(), map(self._shown, rows.read(self.asked.input)))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run_with_output(parser().parse_args, lambda asked: _Command(asked).run(), argv, is_file=True)


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(main())
