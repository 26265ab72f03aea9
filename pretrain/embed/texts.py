"""Reads the texts of a file and computes their vectors: shared by `embed` and `search`."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from data import output_files, rows
from data.command import FETCHED, OPENED, Parser
from data.errors import ConfigError, DataError
from data.output_files import Survey
from data.rows import Row
from data.rows.read import TEXT
from pretrain.embed.schema import DTYPES, EmbeddingSchema

if TYPE_CHECKING:
  from pretrain.embed.vectors import Embedder

VECTOR = "vector"  # column in a Parquet output


def add_flags(made: Parser) -> None:
  """Adds the flags of every command that computes vectors of texts."""
  made.add_argument(
    "--checkpoint", required=True, bucket=OPENED, help="workdir of a run, or the directory of one step"
  )
  made.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
  made.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="vocabulary directory; default: the checkpoint's own"
  )
  made.add_argument("--column", default="", help="column with the texts; default: 'text', or the only column")
  made.add_argument("--size", type=int, default=0, help="first numbers of a vector to keep; default: all")
  made.add_argument("--dtype", default="float32", choices=DTYPES, help="of the stored numbers")
  made.add_argument("--batch_size", type=int, default=32, help="texts computed at once")


class Texts(NamedTuple):
  """The texts in a column of a file whose rows were all read and checked."""

  path: str
  column: str
  survey: Survey

  @classmethod
  def read(cls, path: str, asked_column: str) -> "Texts":
    """Surveys a file; DataError, as for `rows.read`, or if it lacks the column or has other values there."""
    column = _column_of(path, asked_column)
    texts = cls(path, column, Survey(0, {}))
    return texts._replace(survey=output_files.survey(path, texts.text))

  def text(self, row: Row) -> str:
    """Returns the text of a row; DataError, with file and row number, if it is not text."""
    return row.text(self.column)


def _column_of(path: str, asked: str) -> str:
  names = rows.columns(path)
  if asked in names:
    return asked
  if not asked and (TEXT in names or len(names) == 1):
    return TEXT if TEXT in names else names[0]
  problem = f"no column {asked!r}" if asked else "several columns, but none with the name 'text'"
  raise DataError(f"{path}: {problem}; its columns are {', '.join(names)}; choose one with --column=NAME")


def open_embedder(asked: argparse.Namespace) -> "Embedder":
  """Opens the encoder of --checkpoint; --pooling, --unit and --max_length change its embedding schema.

  ConfigError: --size or --max_length is more than the model has.
  """
  # Imported here, so that mistakes in flags and rows are reported at once.
  from pretrain.checkpoints.saved_model import open_model
  from pretrain.embed.vectors import Embedder
  from pretrain.mesh import devices

  devices.start()
  saved = open_model(asked.checkpoint, asked.step)
  encoder = saved.open_encoder(asked.vocabulary, flag="--vocabulary")
  positions, width = encoder.config.max_length, encoder.config.hidden_size
  if asked.max_length > positions:
    raise ConfigError(
      f"--max_length={asked.max_length}: the checkpoint supports at most {positions} tokens; use\n"
      f"  --max_length={positions}"
    )
  if not 0 <= asked.size <= width:
    raise ConfigError(
      f"--size={asked.size}: the model's vectors have {width} numbers; expected 1 to {width}, or 0 for all"
    )
  schema = EmbeddingSchema.read(saved.workdir)
  schema = dataclasses.replace(
    schema,
    pooling=asked.pooling or schema.pooling,
    unit=asked.unit or schema.unit,
    query_length=asked.max_length or schema.query_length,
    passage_length=asked.max_length or schema.passage_length,
  )
  return Embedder(encoder, schema, batch_size=asked.batch_size, size=asked.size)


def answering(texts: Texts, embedder: "Embedder", side: str, dtype: str = "float32") -> tuple[Any, Any]:
  """Returns the arguments `prepare` and `compute` of `stream.answer`: a row gets the column VECTOR.

  `side` is 'query' or 'passage', `dtype` one of DTYPES.
  """

  def prepare(part: list[Row]) -> list[Any]:
    return embedder.inputs([texts.text(row) for row in part], side)

  def compute(part: list[Row], inputs: list[Any]) -> list[dict[str, Any]]:
    vectors = embedder.vectors(inputs).astype(dtype)
    return [{**row.fields, VECTOR: vector} for row, vector in zip(part, vectors)]

  return prepare, compute
