"""Small TFDS data sets as plain Python values, for processes that must not load TensorFlow.

  python -m data.tfds_reader --directory=TFDS_DIR --output=DIR glue/cola validation

A child process reads the data sets and writes JSON lines; whether they are there at all is seen without it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import command, errors, files, seqio_tasks, sources

_ROOT = pathlib.Path(__file__).resolve().parent.parent

Example = dict[str, Any]
_BATCH = 512


def place(directory: str) -> pathlib.Path:
  """Returns where TFDS keeps its data sets: `directory`, or its default for ''."""
  default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return pathlib.Path(directory or default).expanduser()


def find(directory: str, name: str) -> pathlib.Path | None:
  """Returns the directory of a prepared data set, the highest version there is; None: it is not there.

  Args:
    directory: data_dir of TFDS; '': its default.
    name: such as 'glue/cola'.
  """
  try:
    return seqio_tasks.find_tfds(name, sources.Request(f"tfds:{name}", tfds_directory=directory))
  except errors.DataError:
    return None


def split_sizes(path: pathlib.Path) -> dict[str, int]:
  """Returns the rows of each split of a prepared data set, from its own description.

  Raises:
    DataError: the description is damaged.
  """
  try:
    info = json.loads((path / "dataset_info.json").read_text(encoding="utf-8"))
    return {split["name"]: sum(map(int, split["shardLengths"])) for split in info["splits"]}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.DataError(
      f"{path}/dataset_info.json: damaged ({type(error).__name__}: {error}); remove {path} and build it again"
    ) from error


def read(directory: str, wanted: Sequence[tuple[str, str]], *, download: bool = False) -> list[list[Example]]:
  """Reads splits of data sets in one child process; loading TensorFlow there takes about ten seconds.

  Args:
    directory: data_dir of TFDS; '': its default.
    wanted: (data set, split) pairs, such as ('glue/cola', 'validation').
    download: whether TFDS may download and prepare what is missing.

  Returns:
    For each pair its examples: text as str, class labels by name (None: no label), numbers as they are.

  Raises:
    DataError: a data set or split is not there, cannot be downloaded, or is damaged.
  """
  if not wanted:
    return []
  for name, split in wanted:
    path = find(directory, name)
    if path:
      _check_split(path, split)
    elif not download:
      raise errors.DataError(f"no TFDS data set {name} in {place(directory)}")
  with tempfile.TemporaryDirectory(prefix="tfds-") as output:
    flags = [f"--directory={place(directory).absolute()}", f"--output={output}", *["--download"] * download]
    pairs = [word for pair in wanted for word in pair]
    _run([*flags, *pairs], relay=download)
    return [_load(pathlib.Path(output) / f"{number}.jsonl") for number in range(len(wanted))]


def _load(path: pathlib.Path) -> list[Example]:
  with open(path, encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def _check_split(path: pathlib.Path, split: str) -> None:
  sizes = split_sizes(path)
  if split not in sizes:
    raise errors.DataError(f"{path} has no split {split!r}; its splits are {', '.join(sizes)}")


def _run(arguments: list[str], *, relay: bool) -> None:
  """Runs the child; its last line is the reason if it fails."""
  last = ""
  with subprocess.Popen(
    [sys.executable, "-m", "data.tfds_reader", *arguments],
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    errors="replace",
  ) as child:
    assert child.stderr is not None
    for line in child.stderr:
      last = line.strip() or last
      if relay and line.strip() and not line.startswith("error:"):
        print(line, end="", file=sys.stderr, flush=True)
  if child.returncode:
    reason = last.removeprefix("error: ") or f"the process that reads it ended with {child.returncode}"
    raise errors.DataError(reason)


def main(arguments: list[str] | None = None) -> int:
  """Runs the child's side; returns its exit code."""
  parser = command.Parser(prog="python -m data.tfds_reader", description="Writes DIR/0.jsonl, 1.jsonl, ...")
  parser.add_argument("--directory", default="", help="data_dir of TFDS; '': its default")
  parser.add_argument("--output", required=True, help="directory for the JSON lines")
  parser.add_argument("--download", action="store_true", help="fetch and prepare what is missing")
  parser.add_argument("pairs", nargs="+", help="data set and split, data set and split, ...")

  def dump() -> None:
    args = parser.parse_args(arguments)
    for number, (name, split) in enumerate(zip(args.pairs[::2], args.pairs[1::2])):
      request = sources.Request(f"tfds:{name}", tfds_directory=args.directory, download=args.download)
      path = seqio_tasks.find_tfds(name, request)
      _check_split(path, split)
      lines = [json.dumps(example) for example in _examples(path, split)]
      content = "".join(line + "\n" for line in lines)
      files.write_atomically(pathlib.Path(args.output) / f"{number}.jsonl", content.encode())

  return command.run(dump)


def _examples(path: pathlib.Path, split: str) -> list[Example]:
  tfds = seqio_tasks.import_tfds()
  try:
    builder: Any = tfds.builder_from_directory(str(path))
    features = dict(builder.info.features)
    # In batches: example by example takes ten times as long.
    batches = builder.as_dataset(split=split, shuffle_files=False).ragged_batch(_BATCH).as_numpy_iterator()
    examples = []
    for batch in batches:
      columns = {key: _column(value, features[key]) for key, value in batch.items()}
      examples += [dict(zip(columns, row)) for row in zip(*columns.values())]
  except Exception as error:  # TensorFlow's and TFDS's have no common base; also rows that are not there
    reason = (str(error).strip().splitlines() or [""])[0]
    raise errors.DataError(
      f"{path}: split {split!r} cannot be read ({type(error).__name__}: {reason[:300]}); remove {path} and "
      "build it again"
    ) from error
  return examples


def _column(batch: Any, feature: Any) -> list[Any]:
  """Returns the values of one feature in a batch as JSON knows them; class labels by name."""
  if isinstance(batch, dict):
    parts = {key: _column(value, None) for key, value in batch.items()}
    return [dict(zip(parts, values)) for values in zip(*parts.values())]
  values = batch.tolist()
  if hasattr(feature, "int2str"):
    return [feature.int2str(value) if value >= 0 else None for value in values]
  return [_text(value) for value in values]


def _text(value: Any) -> Any:
  """Returns `value` with its bytes decoded and its arrays, rows of different lengths, as lists."""
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, list):
    return [_text(part) for part in value]
  return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
  raise SystemExit(main())
