"""The schema of an embedding model (pooling, prefixes, lengths), stored in `embedding.json`. No jax."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from data.errors import DataError, named_reason, reading
from data.files import digest_json

FILE = "embedding.json"  # beside the model's `checkpoints` and `vocabulary`
VERSION = 1
POOLINGS = ("cls", "mean", "last")
SIDES = ("query", "passage")

DTYPES = ("float32", "float16")  # of stored vectors


def unit(vectors: np.ndarray) -> np.ndarray:
  """Divides vectors [..., width] by their lengths; vectors of zeros stay unchanged."""
  sizes = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors / np.where(sizes > 0, sizes, 1)


@dataclasses.dataclass(frozen=True)
class EmbeddingSchema:
  """How an encoder turns a text into a vector, as its embedding stage trained it.

  A text is a 'query' or a 'passage' (a document, or a text that is compared with its like).
  """

  pooling: str = "mean"  # 'cls', 'mean' over all tokens, or 'last' token
  unit: bool = False  # whether vectors are divided by their length
  query_prefix: str = ""  # text before every query
  passage_prefix: str = ""  # text before every passage
  query_length: int = 0  # most tokens of a query with special tokens; 0: the encoder's positions
  passage_length: int = 0  # of a passage
  sizes: tuple[int, ...] = ()  # Matryoshka: so many first numbers of a vector were trained to suffice
  version: int = VERSION

  def prefix(self, side: str) -> str:
    """Returns the text before every text of a side, 'query' or 'passage'."""
    return self.query_prefix if side == "query" else self.passage_prefix

  def length(self, side: str, positions: int) -> int:
    """Returns the most tokens of a side's texts for an encoder with so many positions."""
    return min((self.query_length if side == "query" else self.passage_length) or positions, positions)

  def longest(self, positions: int) -> int:
    """Returns the most tokens of a text of either side."""
    return max(self.length(side, positions) for side in SIDES)

  def as_json(self) -> str:
    """Returns the content of `embedding.json`, with its own sha256."""
    values = dataclasses.asdict(self)
    return json.dumps(values | {"sha256": digest_json(values)}, indent=1) + "\n"

  @classmethod
  def read(cls, directory: str | os.PathLike) -> "EmbeddingSchema":
    """Reads the schema of the model in a directory; without a file it is the mean of unchanged texts.

    Raises:
      DataError: the file is damaged or of another version.
    """
    path = pathlib.Path(directory) / FILE
    if not path.is_file():
      return cls()
    with reading(path, advice="train the model again"):
      content = path.read_bytes()
    try:
      values = json.loads(content)
      if values["version"] != VERSION:
        raise DataError(
          f"{path}: version {values['version']}, expected {VERSION}; use the program that wrote it"
        )
      # A file that was written by hand may have no digest.
      if values.pop("sha256", None) not in (None, digest_json(values)):
        raise ValueError("its sha256 differs")
      return cls(**{field.name: _value(values, field) for field in dataclasses.fields(cls)})
    except (ValueError, KeyError, TypeError) as error:
      raise DataError(f"{path}: damaged ({named_reason(error)}); train the model again") from error


def _value(values: dict[str, Any], field: dataclasses.Field) -> Any:
  default, value = field.default, values[field.name]
  value = tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value
  counts = value if isinstance(value, tuple) else (value,) if type(value) is int else ()
  is_known = (
    value in POOLINGS if field.name == "pooling" else all(type(one) is int and one >= 0 for one in counts)
  )
  if type(value) is not type(default) or not is_known:
    raise ValueError(f"{field.name} is {value!r}")
  return value
