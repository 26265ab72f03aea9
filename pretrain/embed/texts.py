"""Reads the texts of a file, and writes their vectors part by part: shared by `embed` and `search`."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data import rows
from data.command import FETCHED, OPENED, Parser
from data.errors import ConfigError, DataError, counted
from data.output import columns, formats
from data.output.columns import Survey
from data.rows import Row
from data.rows.read import TEXT
from pretrain.embed import dtypes
from pretrain.embed.schema import EmbeddingSchema

if TYPE_CHECKING:
  from pretrain.embed.neighbours import StoredVectors
  from pretrain.embed.vectors import Embedder

_COMPARED = 16  # rows of stored vectors
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
  made.add_argument(
    "--dtype",
    default="float32",
    choices=dtypes.DTYPES,
    help="form of the stored numbers; int8 needs vectors of unit length, binary keeps only their signs",
  )
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
    texts = cls(path, column, Survey(0, {}, ""))
    return texts._replace(survey=columns.survey(path, texts.text))

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

  ConfigError: --size or --max_length is more than the model has, or --dtype does not fit its vectors.
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
  if asked.dtype == "int8" and not schema.unit:
    raise ConfigError(
      "--dtype=int8 stores directions without lengths; ask for vectors of unit length\n  --unit"
    )
  kept = asked.size or width
  if asked.dtype == "binary" and kept % 8:
    raise ConfigError(
      f"--dtype=binary packs 8 numbers into a byte, but vectors have {kept}; use\n  --size={kept // 8 * 8}"
    )
  return Embedder(encoder, schema, batch_size=asked.batch_size, size=asked.size)


def npy(embedder: "Embedder", dtype: str) -> formats.Npy:
  """Returns the format of a .npy file with an embedder's vectors in one of DTYPES."""
  return formats.Npy(VECTOR, dtypes.stored_width(embedder.width, dtype), dtypes.stored_type(dtype).str)


def write_vectors(
  asked: argparse.Namespace,
  texts: Texts,
  embedder: "Embedder",
  form: Callable[[], formats.Format],
  see: Callable[[np.ndarray, Sequence[Row]], None] | None = None,
) -> None:
  """Writes a vector for each text to --output in parts; a killed command, run again, resumes.

  `asked` has input, output, side, dtype and batch_size. `see` is called with the float32 vectors and rows of
  each computed part.
  """
  from pretrain.inference import stream

  schema, longest = embedder.schema, embedder.length(asked.side)

  def prepare(part: list[Row]) -> list[Any]:
    return embedder.inputs([texts.text(row) for row in part], asked.side)

  def compute(part: list[Row], inputs: list[Any]) -> list[dict[str, Any]]:
    vectors = embedder.vectors(inputs)
    if see is not None:
      see(vectors, part)
    stored = dtypes.compressed(vectors, asked.dtype)
    return [{**row.fields, VECTOR: vector} for row, vector in zip(part, stored)]

  def summary() -> tuple[str, str, int, int]:
    what = f"of {embedder.width} numbers, {schema.pooling} of {texts.column!r}"
    return "vector", what, embedder.cut, longest

  identity = {"command": "pretrain.embed", "model": embedder.digest, "column": texts.column}
  identity |= {"pooling": schema.pooling, "unit": schema.unit, "max_length": longest}
  identity |= {"prefix": schema.prefix(asked.side), "size": embedder.width, "dtype": asked.dtype}
  stream.answer_file(asked, form, texts.survey, identity, prepare, compute, summary)


def check_stored(stored: "StoredVectors", texts: Texts, embedder: "Embedder", side: str, advice: str) -> None:
  """Raises DataError, which ends in `advice`, if stored vectors are not those of the texts and the model.

  Their number and width are compared, and vectors spread evenly over the rows: of the numbers of each, 5% may
  differ.
  """
  if (stored.count, stored.width) != (texts.survey.rows, embedder.width):
    raise DataError(
      f"{stored.path}: {counted(stored.count, 'vector')} of {stored.width} numbers; expected "
      f"{texts.survey.rows:,} of {embedder.width}; the input or model differs; {advice}"
    )
  numbers = np.unique(np.linspace(0, stored.count - 1, _COMPARED).astype(int)).tolist()
  chosen = [texts.text(row) for number, row in enumerate(rows.read(texts.path)) if number in numbers]
  vectors = embedder.vectors(embedder.inputs(chosen, side))
  kept = np.stack([*stored.rows(numbers)])
  kept = dtypes.unit(kept) if embedder.schema.unit else kept  # an index takes vectors of any length
  for number, vector, of_file in zip(numbers, vectors, kept):
    expected = dtypes.restored(dtypes.compressed(vector, stored.dtype))
    difference = np.abs(of_file - expected)
    # Rounding changes a bit or a step of int8 if a number lies on the edge.
    if not np.mean(difference <= 1e-2 * np.abs(expected).max()) >= 0.95:
      raise DataError(
        f"{stored.path}: the vector of row {number + 1:,} differs by {difference.max():.1e} from that of "
        f"this input, model and --pooling; {advice}"
      )
