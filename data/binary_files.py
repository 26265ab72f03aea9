"""Refuses binary files that are named like text, by their first bytes or their control characters."""

import re

from data import errors

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


def refuse(path: str, start: bytes) -> None:
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
