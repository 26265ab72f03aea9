"""Messages between a feed and its trainer: a line of JSON, then the rows that it announces as raw int32."""

import json
from typing import Any, BinaryIO

import numpy as np

_DTYPE = np.dtype("<i4")


def send(pipe: BinaryIO, content: dict[str, Any], rows: np.ndarray | None = None) -> None:
  """Writes a message, with [rows, length] ids if there are some."""
  shape = None if rows is None else rows.shape
  pipe.write(json.dumps(content | {"shape": shape}).encode() + b"\n")
  if rows is not None:
    pipe.write(rows.astype(_DTYPE).tobytes())
  pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], np.ndarray]:
  """Reads a message and its rows, [0] int32 where it has none; EOFError: the other side is gone."""
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
