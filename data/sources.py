"""Plans the reading of `--source` as input units, and reads the documents of one unit.

A source is `installed_docs`, `tfds:NAME`, `seqio:NAME` (a registered Task or Mixture), or file globs
separated by commas. A unit is what one process reads: a part of a large file, or small files, whose texts
then share records. The units depend only on the input, not on the number of processes, so everything made
from them does too.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import glob
import math
import os
import pathlib
from collections.abc import Callable, Iterator

from data import command, errors, fetched, files, rows, seqio_tasks, tabular, text_files, tfds_reader

MIN_UNIT_BYTES = 1 << 20
MAX_UNIT_BYTES = 64 << 20
WANTED_UNITS = 64  # enough for many processes; few, because each unit ends with a short last record


@dataclasses.dataclass(frozen=True)
class Request:
  """The values of the flags that name the input text; `add_flags` explains them in its help texts."""

  source: str
  text_field: str = "text"
  module: str = ""
  tfds_directory: str = ""
  download: bool = False
  limit: int = 0


def add_flags(parser: command.Parser, *, is_required: bool = True, several: bool = False) -> None:
  """Adds the flags that name the input text, for every command that reads text.

  With `several`, --source and --text_field may be given more than once, and are lists.
  """
  action = "append" if several else "store"
  parser.add_argument(
    "--source",
    action=action,
    required=is_required,
    default=[] if several else "",
    bucket=command.OPENED,
    help="installed_docs; tfds:NAME; seqio:NAME (registered Task or Mixture; here: wikipedia_books, "
    "web_160gb); or file globs separated by commas: text (a line is a paragraph, a blank line ends a "
    "document), *.jsonl, *.csv, *.tsv, *.parquet, *.arrow; all but the last two also as .gz or .zst",
  )
  parser.add_argument(
    "--text_field",
    action=action,
    default=[] if several else "text",
    help="JSON field, column or feature with the text (default: text)",
  )
  parser.add_argument("--module", default="", help="file or module to import, which registers seqio Tasks")
  parser.add_argument(
    "--tfds_directory", default="", bucket=command.OPENED, help="data_dir of TFDS; default: its own default"
  )
  parser.add_argument("--download", action="store_true", help="let TFDS download what is missing")
  parser.add_argument("--limit", type=int, default=0, help="most documents from each input unit (0: all)")
  parser.add_argument("--workers", type=int, default=0, help="processes (0: one per core)")


def request(args: argparse.Namespace) -> Request:
  """Returns the values of the flags of `add_flags`."""
  return Request(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Request)})


@dataclasses.dataclass(frozen=True)
class Unit:
  """A part of the input that one process reads: a range of a file or of a Task's shards, or small files."""

  kind: str  # 'file', 'tfds' or 'seqio'
  name: str  # path of the file, directory of the TFDS version, or name of the Task
  start: int = 0  # first byte, row group or shard
  stop: int = -1  # behind the last byte, row group or shard; -1: to the end
  part: seqio_tasks.Part | None = None  # of a 'seqio' unit
  rest: tuple["Unit", ...] = ()  # small files that are read after this one and packed together with it

  @property
  def parts(self) -> tuple["Unit", ...]:
    """The unit's files, each as a unit of its own; of other units the unit itself."""
    return (dataclasses.replace(self, rest=()), *self.rest)

  @property
  def is_tokenised(self) -> bool:
    """True if the unit holds ids instead of text."""
    return bool(self.part and self.part.tokenised)

  @property
  def is_heldout(self) -> bool:
    """True if the unit is of a Task's split for evaluation."""
    return bool(self.part and self.part.split != seqio_tasks.SPLIT)

  def __str__(self) -> str:
    """The unit for messages: 'corpus/a.txt from 0 to 1048576'."""
    if self.rest:
      return f"{self.name} to {self.rest[-1].name}"
    return f"{self.name} from {self.start} to {'its end' if self.stop < 0 else self.stop}"


@dataclasses.dataclass(frozen=True)
class Plan:
  """The units of a source, and a digest of its names and sizes; files add '/' and a digest of content."""

  units: tuple[Unit, ...]
  input_digest: str


def check(request: Request) -> None:
  """Checks in well under a second, without TensorFlow, that a source exists.

  DataError: no file matches, or TFDS data is missing and --download is not set. ConfigError: the source
  needs TensorFlow, which is not installed.
  """
  kind, _, name = request.source.partition(":")
  if request.source == "installed_docs":
    return
  if kind in ("tfds", "seqio"):
    tfds_reader.check_installed(f"--source={request.source}")
  if files.is_address(request.tfds_directory) and kind in ("tfds", "seqio"):
    return  # only TensorFlow can look there
  if kind == "tfds":
    _find_tfds(name, request)
  elif kind == "seqio":
    if not name:
      raise errors.ConfigError("--source=seqio: names no Task; expected seqio:NAME")
    for part in seqio_tasks.CORPORA[name].parts if name in seqio_tasks.CORPORA else ():
      _find_tfds(part.tfds_name, request)
  else:
    expand(request.source)


def _find_tfds(name: str, request: Request) -> pathlib.Path:
  if not name.partition(":")[0]:
    raise errors.ConfigError("--source=tfds: names no data set; expected tfds:NAME[/CONFIG][:VERSION]")
  return tfds_reader.find_or_download(request.tfds_directory, name, download=request.download)


def expand(source: str) -> list[str]:
  """Returns the files that comma-separated globs match, sorted; DataError if a glob matches none.

  A file with several names (links, spellings) is returned once, under the name with the fewest slashes.
  """
  paths: dict[tuple[int, int], str] = {}
  for pattern, matches in patterns(source):
    if not matches:
      hint = (
        f", it is a directory; name its files as {pattern.rstrip('/')}/*" if os.path.isdir(pattern) else ""
      )
      expected = "file globs, tfds:NAME, seqio:NAME or installed_docs"
      raise errors.DataError(f"--source={pattern} matches no file{hint}; expected {expected}")
    for path in sorted(matches, key=lambda path: (path.count("/"), path)):
      status = os.stat(path)
      paths.setdefault((status.st_dev, status.st_ino), path)
  if not paths:
    raise errors.ConfigError(
      "--source is empty; expected file globs, tfds:NAME, seqio:NAME or installed_docs"
    )
  return sorted(paths.values())


def patterns(source: str) -> Iterator[tuple[str, list[str]]]:
  """Yields (glob, its matches) for the comma-separated globs of a source; file names may have commas.

  DataError: an address matches nothing.
  """
  parts = command.names(source)
  while parts:
    tried = ((end, _matches(",".join(parts[:end]))) for end in range(1, len(parts) + 1))
    end, matches = next(((end, matches) for end, matches in tried if matches), (1, []))
    yield ",".join(parts[:end]), matches
    parts = parts[end:]


def _matches(pattern: str) -> list[str]:
  if files.is_address(pattern):
    return [str(path) for path in fetched.matching(pattern, flag="--source")]
  head, tail = os.path.expanduser(pattern), ""
  # A path that exists is not a glob, even with brackets: '[2024] notes.txt', 'corpus [old]/*.txt'.
  while head and not os.path.lexists(head):
    head, sign, name = head.rpartition("/")
    tail = f"{sign}{name}{tail}"
  return [path for path in _glob(glob.escape(head) + tail) if os.path.isfile(path)]


def _glob(pattern: str) -> list[str]:
  """Returns the files that a glob matches; '**' follows links, but visits no linked folder twice."""
  start, sign, rest = (f"{pattern}/*" if pattern.endswith("**") else pattern).partition("**/")
  if not sign or (start and not start.endswith("/")):
    return glob.glob(pattern)
  matches, entered = [], set()
  for top in glob.glob(start) if start else ["."]:
    for folder, below, _ in os.walk(top, followlinks=True):
      real = os.path.realpath(folder)
      is_linked = real != os.path.normpath(f"{os.path.realpath(top)}/{os.path.relpath(folder, top)}")
      if is_linked and real in entered:
        below.clear()
        continue
      entered.add(real)
      below[:] = sorted(name for name in below if not name.startswith("."))
      matches += _glob(f"{glob.escape(folder.rstrip('/'))}/{rest}")
  return matches


def is_of_files(source: str) -> bool:
  """Returns whether a source names files, rather than `installed_docs`, a TFDS data set or a Task."""
  return source != "installed_docs" and source.partition(":")[0] not in ("tfds", "seqio")


def have_changed(source: str, input_digest: str, *, since: float) -> bool | None:
  """Returns whether the files of a source have changed since a plan computed `input_digest`.

  None means unknown: the source is not of files, or they are missing or at an address. Files not changed
  after `since` (seconds of the epoch) are not read again. A digest of an older version covers names and
  sizes only.
  """
  if not is_of_files(source) or any(map(files.is_address, source.split(","))):
    return None
  try:
    paths = expand(source)
  except errors.DataError:
    return None
  names, _, content = input_digest.partition("/")
  if _digest_files(paths) != names:
    return True
  # Users can set mtime (cp -p, tar), but not ctime.
  touched = max(time for path in paths for time in (os.stat(path).st_mtime, os.stat(path).st_ctime))
  if not content or touched < since:
    return False
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return files.digest_json(list(pool.map(content_digest, paths))) != content


def plan(request: Request, *, digests: Callable[[list[str]], list[str]] | None = None) -> Plan:
  """Returns the plan of a source other than `installed_docs`, whose text is first gathered into a file.

  `digests` maps paths to their `content_digest`, which reads the whole input; without it the plan's digest
  covers names and sizes only. DataError: the source is missing or cannot be read.
  """
  kind, _, name = request.source.partition(":")
  if kind == "tfds":
    directory = _find_tfds(name, request)
    num_shards = tfds_reader.num_train_shards(directory, request.text_field)
    units = [Unit("tfds", str(directory), shard, shard + 1) for shard in range(num_shards)]
    return Plan(tuple(units), files.digest_json(tfds_reader.listing(directory)))
  if kind == "seqio":
    parts = seqio_tasks.plan(name, download=request.download, **seqio_options(request))
    units = [
      Unit("seqio", part.task, shard, shard + 1, part) for part in parts for shard in range(part.num_shards)
    ]
    return Plan(tuple(units), files.digest_json([part.description for part in parts]))
  paths = expand(request.source)
  digest = _digest_files(paths)
  if digests is not None:
    digest += f"/{files.digest_json(digests(paths))}"
  return Plan(tuple(_file_units(paths)), digest)


def _digest_files(paths: list[str]) -> str:
  return files.digest_json([(os.path.basename(path), os.path.getsize(path)) for path in paths])


def content_digest(path: str) -> str:
  """Returns the sha256 of a file's bytes; DataError if it is unreadable or its start is not text."""
  if text_files.kind_of(path) not in tabular.ENDINGS.values():
    text_files.check(path)
  with errors.reading(path, advice="make it readable, or leave out this file"):
    return files.sha256(path)


def _file_units(paths: list[str]) -> list[Unit]:
  sizes = [os.path.getsize(path) for path in paths]
  unit_bytes = min(max(sum(sizes) // WANTED_UNITS, MIN_UNIT_BYTES), MAX_UNIT_BYTES)
  units: list[list[Unit]] = []
  filled = math.inf  # bytes of the small files of the last unit
  for path, size in zip(paths, sizes):
    if text_files.kind_of(path) == "parquet":
      ranges = tabular.row_groups(path, unit_bytes)
    elif text_files.is_whole(path):
      ranges = [(0, -1)]
    else:
      ranges = text_files.byte_ranges(path, size, unit_bytes)
    parts = [Unit("file", path, start, stop) for start, stop in ranges]
    if len(parts) == 1 and filled + size <= unit_bytes:
      units[-1] += parts
      filled += size
    else:
      units += [[part] for part in parts]
      filled = size if len(parts) == 1 else math.inf
  return [dataclasses.replace(first, rest=tuple(rest)) for first, *rest in units]


def read_documents(unit: Unit, request: Request, counts: collections.Counter) -> Iterator[list[str]]:
  """Yields the documents of a unit, each a list of paragraphs; `counts['documents_found']` counts them.

  DataError: the input is damaged or has no such text field.
  """
  if unit.rest:
    for part in unit.parts:
      yield from read_documents(part, request, counts)
    return
  if unit.kind == "file":
    documents = rows.documents(
      unit.name, start=unit.start, stop=unit.stop, text_field=request.text_field, counts=counts
    )
  else:
    documents = (
      [line for line in map(str.strip, text.split("\n")) if line] for text in _texts(unit, request)
    )
  for number, document in enumerate(documents):
    if request.limit and number >= request.limit:
      return
    counts["documents_found"] += 1
    yield document


def _texts(unit: Unit, request: Request) -> Iterator[str]:
  if unit.kind == "tfds":
    return tfds_reader.train_texts(unit.name, request.text_field, start=unit.start, stop=unit.stop)
  if unit.is_tokenised:
    raise errors.DataError(f"seqio Task {unit.name!r} gives ids; text is needed here")
  assert unit.part
  return map(str, seqio_tasks.read(unit.part, unit.start, **seqio_options(request)))


def seqio_options(request: Request) -> dict[str, str]:
  """Returns the fields of a request that are arguments of `seqio_tasks.read`."""
  return {name: getattr(request, name) for name in ("module", "tfds_directory", "text_field")}
