"""Messages from a feed to its trainer: a line of JSON, then rows of raw int32 if it has a shape."""

import json
from typing import Any, BinaryIO

import numpy as np

_DTYPE = np.dtype("<i4")


def send(pipe: BinaryIO, content: dict[str, Any], rows: np.ndarray | None = None) -> None:
  """Writes a message, with optional ids of shape [rows, length]."""
  shape = None if rows is None else rows.shape
  pipe.write(json.dumps(content | {"shape": shape}).encode() + b"\n")
  if rows is not None:
    pipe.write(rows.astype(_DTYPE).tobytes())
  pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], np.ndarray]:
  """Reads a message and its rows, [0] int32 if it has none; EOFError: the sender has ended."""
  line = pipe.readline()
  if not line.endswith(b"\n"):
    raise EOFError
  content = json.loads(line)
  shape = content.pop("shape") or [0]
  size = int(np.prod(shape)) * _DTYPE.itemsize
  data = pipe.read(size)
  if len(data) < size:
    raise EOFError
  return content, np.frombuffer(data, _DTYPE).reshape(shape).astype(np.int32)
