"""Opens files of text, also as gzip or zstd: their kind, ranges of whole documents, lines, JSON records.

Memory is bounded for any input: lines and documents above a limit are cut and counted. Binary files that are
named like text are refused by their first bytes or their control characters.
"""

import collections
import gzip
import io
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from data import errors, manifest, tabular

MAX_LINE_BYTES = 1 << 20  # of text; a longer line becomes several paragraphs, cut at a space if there is one
MAX_RECORD_BYTES = 64 << 20  # of a JSON line; a longer one is an error
MAX_DOCUMENT_CHARACTERS = 8 << 20  # a longer document becomes several

FIRST_LOOK = 64 << 10  # bytes read first to find the end of a unit; each further read doubles the total
_BOM = b"\xef\xbb\xbf"
_BORDER = re.compile(rb"\n[ \t\r]*\n")
_LINE_END = re.compile(rb"\n")
_BETWEEN_ITEMS = re.compile(r"[\s,]*")  # of an array of JSON

LOOKED_AT = 1 << 20  # bytes at the start of a file

_MAGIC = {
  b"\x1f\x8b": "gzip data; name it *.gz",
  b"\x28\xb5\x2f\xfd": "zstd data; name it *.zst",
  b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
  b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
  b"PAR1\x15": "a Parquet file; name it *.parquet",
  b"ARROW1": "an Arrow file; name it *.arrow",
  b"\xff\xff\xff\xff": "an Arrow stream; name it *.arrow",
  b"PK\x03\x04": "a zip archive; unpack it first",
  **{b"BZh%d1AY&SY" % size: "bzip2 data; unpack it first" for size in range(1, 10)},
  b"\xfd7zXZ": "xz data; unpack it first",
  b"7z\xbc\xaf": "a 7z archive; unpack it first",
  b"%PDF-1.": "a PDF; extract its text first",
}
# As in the command `file`, tab, line ends, form feed, bell, backspace and escape count as text.
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\a\b\t\n\v\f\r\x1b"})
_MOST = 100  # at most one byte in so many may be a control character
_FEW = 3  # this many are always accepted
_NUL_RUN = re.compile(rb"\0{4}")  # binary numbers or padding of archives; separators are single NULs


def unpacked_name(path: str) -> str:
  """Returns the name of a file in lower case without '.gz' or '.zst'."""
  return re.sub(r"\.(gz|zst)$", "", path.lower())


def kind_of(path: str) -> str:
  """Returns 'jsonl', 'csv', 'tsv', 'parquet', 'arrow' or 'text' by a file's name, without '.gz' or '.zst'."""
  suffix = pathlib.PurePath(unpacked_name(path)).suffix
  if suffix in (".jsonl", ".json", ".ndjson"):
    return "jsonl"
  return suffix[1:] if suffix in (".csv", ".tsv") else tabular.ENDINGS.get(suffix, "text")


def is_whole(path: str) -> bool:
  """Returns whether a file must be read from start to end: it is compressed, CSV, TSV, Arrow or an array."""
  if path.lower().endswith((".gz", ".zst")) or kind_of(path) in ("csv", "tsv", "arrow"):
    return True
  with open(path, "rb") as file:
    return kind_of(path) == "jsonl" and is_array(file)


def is_array(file: Any) -> bool:
  """Returns whether a file that is open for reading bytes goes on with an array of JSON."""
  return file.peek(FIRST_LOOK).removeprefix(_BOM).lstrip()[:1] == b"["


def byte_ranges(path: str, size: int, unit_bytes: int) -> list[tuple[int, int]]:
  """Cuts an uncompressed text or JSONL file of `size` bytes into ranges of whole documents.

  Returns (start, stop) pairs of about `unit_bytes` bytes that cover the file; they depend only on its content
  and the arguments.
  """
  border = _BORDER if kind_of(path) == "text" else _LINE_END
  borders = [0]
  with open(path, "rb") as file:
    for nominal in range(unit_bytes, size, unit_bytes):
      if nominal <= borders[-1]:
        continue
      file.seek(nominal)
      piece, match = b"", None
      # Doubled each time: a border is usually near, and if it is far, few bytes are searched again.
      while (
        match is None
        and len(piece) < unit_bytes
        and (more := file.read(len(piece) or min(FIRST_LOOK, unit_bytes)))
      ):
        piece += more
        match = border.search(piece, 0, unit_bytes)
      if match and nominal + match.end() < size:
        borders.append(nominal + match.end())
  return list(zip(borders, [*borders[1:], size]))


def open_file(path: str) -> BinaryIO:
  """Returns a file opened for reading bytes, unpacked if its name ends in '.gz' or '.zst'."""
  if path.lower().endswith(".gz"):
    return gzip.open(path, "rb")  # pyright: ignore[reportReturnType]  (typeshed has it as no BinaryIO)
  if path.lower().endswith(".zst"):
    import pyarrow  # here: slow to import; unlike other readers it detects a truncated zstd file

    return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"), 1 << 20)
  return open(path, "rb")


def check(path: str) -> bytes:
  """Returns the first bytes of a file, unpacked; DataError if they are not text or cannot be unpacked."""
  with errors.reading(path, advice="repair or leave out this file"):
    if os.path.getsize(path) == 0 and unpacked_name(path) != path.lower():
      raise EOFError("it is empty, which no compressed file is")
    with open_file(path) as file:
      start = file.read(LOOKED_AT)
  refuse_binary(path, start)
  return start


def refuse_binary(path: str, start: bytes) -> None:
  """Raises DataError if `start`, the first `LOOKED_AT` bytes of a file, is not the start of UTF-8 text.

  Single NUL bytes and control characters are accepted up to one byte in 100; a preparation counts them.
  """
  for magic, meaning in _MAGIC.items():
    if start.startswith(magic):
      raise errors.DataError(f"{path}: expected text, found {meaning}")
  controls = len(start) - len(start.translate(None, _CONTROLS))
  if controls <= max(_FEW, len(start) // _MOST) and not _NUL_RUN.search(start):
    return
  nul, even = start.count(0), start[::2].count(0)
  problem = f"{path}: expected text, found {errors.counted(nul, 'NUL byte')}"
  if nul > len(start) // 20 and max(even, nul - even) > 0.9 * nul:  # in one half of each pair of bytes
    encoding = "UTF-16BE" if 2 * even > nul else "UTF-16LE"
    raise errors.DataError(
      f"{problem} in the first {len(start):,}: UTF-16 without a byte-order mark, or no text; to convert it:\n"
      f"  iconv -f {encoding} -t UTF-8 {path} > utf8.txt"
    )
  raise errors.DataError(
    f"{problem} and {errors.counted(controls - nul, 'other control character')} in the first {len(start):,} "
    f"bytes; skip it, or clean it:\n  tr -d '\\000-\\006\\016-\\032\\034-\\037\\177' < {path} > clean.txt"
  )


def check_start(path: str, file: BinaryIO) -> None:
  """Checks an open file as `check` does, and skips a byte-order mark at its start."""
  if check(path).startswith(_BOM):
    file.read(len(_BOM))


def decoded(line: bytes, counts: collections.Counter) -> str:
  """Decodes UTF-8, bytes that are none as U+FFFD; counts the U+FFFD that the line has itself."""
  if own := line.count(b"\xef\xbf\xbd"):
    counts[manifest.REPLACEMENTS] += own
  return line.decode("utf-8", "replace")


def _lines(file: BinaryIO, stop: int, most_bytes: int) -> Iterator[bytes]:
  """Yields lines up to byte `stop`; a line longer than `most_bytes` is yielded in pieces."""
  position = file.tell() if stop >= 0 else 0
  while stop < 0 or position < stop:
    line = file.readline(most_bytes)
    if not line:
      return
    position += len(line)
    yield line


def text_documents(file: BinaryIO, stop: int, counts: collections.Counter) -> Iterator[list[str]]:
  """Yields the documents of a text file up to byte `stop`: a line is a paragraph, a blank line ends one."""
  document: list[str] = []
  characters = 0
  rest = b""  # of a line that was cut
  for line in _lines(file, stop, MAX_LINE_BYTES):
    line, rest = rest + line, b""
    if not line.endswith(b"\n") and len(line) >= MAX_LINE_BYTES:
      counts["long_lines_cut"] += 1
      end = max(line.rfind(b" ", len(line) // 2), 0) or _character_border(line)
      line, rest = line[:end], line[end:]
    text = decoded(line, counts).strip()
    if text:
      document.append(text)
      characters += len(text)
      if characters > MAX_DOCUMENT_CHARACTERS:
        counts["long_documents_cut"] += 1
        yield document
        document, characters = [], 0
    elif document:
      yield document
      document, characters = [], 0
  if rest.strip():
    document.append(decoded(rest, counts).strip())
  if document:
    yield document


def _character_border(line: bytes) -> int:
  """Returns an index near the end of `line` at which a cut splits no UTF-8 character."""
  end = len(line) - 1
  while end > len(line) - 4 and line[end] & 0xC0 == 0x80:
    end -= 1
  return end


def place(path: str, number: int, unit: str, start: int = 0) -> str:
  """Returns 'a.jsonl, line 12': the place of the `number`th line or row from byte `start` of a file on."""
  if start:
    with open(path, "rb") as file:
      while start > 0:
        piece = file.read(min(start, 1 << 20))
        start -= len(piece)
        number += piece.count(b"\n")
  return f"{path}, {unit} {number:,}"


def bounded_lines(path: str, file: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
  """Yields (number, line), counted from 1 at byte `start`; DataError if one exceeds `MAX_RECORD_BYTES`."""
  for number, line in enumerate(_lines(file, stop, MAX_RECORD_BYTES + 1), start=1):
    if len(line) > MAX_RECORD_BYTES:
      where = place(path, number, "line", start)
      raise errors.DataError(f"{where}: longer than {MAX_RECORD_BYTES >> 20} MiB; split or drop this record")
    yield number, line


def json_records(path: str, file: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
  """Yields (number, JSON text) of the lines of a file, as `bounded_lines`, or of the items of its array."""
  if start or not is_array(file):
    yield from bounded_lines(path, file, start, stop)
    return
  # Bytes as letters of Latin-1: all signs of JSON are ASCII, and each line is decoded where it is read.
  text = io.TextIOWrapper(file, "latin-1", newline="")
  decoder, buffer, at, number = json.JSONDecoder(strict=False), text.read(FIRST_LOOK), 0, 0
  at = buffer.index("[") + 1
  while True:
    at = _BETWEEN_ITEMS.match(buffer, at).end()  # pyright: ignore[reportOptionalMemberAccess]
    if buffer[at : at + 1] == "]":
      break
    try:
      end = decoder.raw_decode(buffer, at)[1]
    except (ValueError, RecursionError) as error:
      more = text.read(max(len(buffer) - at, FIRST_LOOK)) if len(buffer) - at <= MAX_RECORD_BYTES else ""
      if not more:
        shown = buffer[at : at + 40].encode("latin-1").decode("utf-8", "replace")
        raise errors.DataError(
          f"{path}: item {number + 1} of its array is damaged, has no end, or exceeds "
          f"{MAX_RECORD_BYTES >> 20} MiB: {shown}; restore the file"
        ) from error
      buffer, at = buffer[at:] + more, 0
      continue
    number += 1
    yield number, buffer[at:end].encode("latin-1")
    at = end
  if (buffer[at + 1 :] + text.read(FIRST_LOOK)).strip():
    raise errors.DataError(f"{path}: more text behind its array; expected one array, or an object per line")


def paragraphs(text: str, counts: collections.Counter) -> Iterator[list[str]]:
  """Yields a document as a list of paragraphs, [] if it is empty; in several parts if it is too long."""
  for begin in range(0, len(text) or 1, MAX_DOCUMENT_CHARACTERS):
    if begin:
      counts["long_documents_cut"] += 1
    piece = text[begin : begin + MAX_DOCUMENT_CHARACTERS]
    yield [line for line in map(str.strip, piece.split("\n")) if line]
