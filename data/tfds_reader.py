"""TFDS data sets: where they are, their training texts, and small ones as plain Python values.

`find` and `split_sizes` look at names and descriptions alone. `read` is for processes that must not load
TensorFlow: a child process reads the data sets.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data import child, errors

TRAIN = "train"  # the split that a preparation reads
_BATCH = 512  # examples
_PACKAGES = ("tensorflow", "tensorflow_datasets", "seqio")

Example = dict[str, Any]


def place(directory: str) -> pathlib.Path:
  """Returns where TFDS keeps its data sets: `directory`, or its default for ''."""
  default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return pathlib.Path(directory or default).expanduser()


def find(directory: str, name: str) -> pathlib.Path | None:
  """Returns the directory of a prepared data set, the highest version there is; None: it is not there.

  `directory` is as for `place`; `name` is `dataset[/config][:version]`, such as 'glue/cola'.
  """
  plain, _, version = name.partition(":")
  patterns = [f"{plain}/{version or '*'}/dataset_info.json"]
  if "/" not in plain:
    patterns.append(f"{plain}/*/{version or '*'}/dataset_info.json")
  for pattern in patterns:
    descriptions = sorted(place(directory).glob(pattern), key=lambda path: _version_key(path.parent.name))
    if descriptions:
      return descriptions[-1].parent
  return None


def split_name(split: str) -> str:
  """Returns what TFDS calls one of our splits: 'validation_matched' for 'dev_matched'."""
  return split.replace("dev", "validation")


def _version_key(version: str) -> tuple[int, ...]:
  return tuple(int(number) if number.isdecimal() else 0 for number in version.split("."))


def find_or_download(directory: str, name: str, *, download: bool) -> pathlib.Path:
  """As `find`; a data set that is not there is fetched and prepared if `download` allows it.

  DataError: the data set is not there, and may not be or could not be downloaded.
  """
  if path := find(directory, name):
    return path
  if not download:
    raise errors.DataError(
      f"TFDS data set {name!r} is not in {place(directory)}; add --download to fetch and prepare it there, "
      "name another place with --tfds_directory, or use a source that needs no download: "
      "--source=installed_docs"
    )
  tfds = import_tfds()
  try:
    builder = tfds.builder(name, data_dir=str(place(directory)))
    builder.download_and_prepare()
  except Exception as error:  # of whatever kind: network, disk, an unknown name; TFDS has no common base
    raise errors.DataError(
      f"TFDS could not download {name!r} to {place(directory)} ({errors.named_reason(error, most=200)}); "
      "check the name and the network, or prepare it elsewhere and give --tfds_directory"
    ) from error
  return pathlib.Path(str(builder.data_path))


def check_installed(what: str) -> None:
  """Raises ConfigError, which says that `what` needs them, if TensorFlow, TFDS or seqio is not installed."""
  missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise errors.ConfigError(
      f"{what} needs {', '.join(missing)}, not installed here (TensorFlow has no wheel for Python 3.14); use "
      "Python 3.11 to 3.13 with requirements.txt installed, or text in files"
    )


def import_tfds() -> Any:
  """Returns TFDS, with TensorFlow kept from the accelerator; ConfigError where it is not installed."""
  check_installed("reading a TFDS data set or a seqio Task")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its notices about CUDA; what fails raises
  # Reading text needs no accelerator, and TensorFlow would take all of its memory from the trainer. From a
  # notebook that loaded TensorFlow itself nothing is hidden: its own model may be about to compute.
  if "tensorflow" not in sys.modules:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
  import tensorflow_datasets as tfds

  return tfds


def num_train_shards(path: pathlib.Path, text_field: str) -> int:
  """Returns the shards of the training split; DataError without that split or the text feature."""
  info = import_tfds().builder_from_directory(str(path)).info
  if TRAIN not in info.splits:
    raise errors.DataError(f"{path} has no split {TRAIN!r}; its splits are {', '.join(sorted(info.splits))}")
  if text_field not in info.features:
    names = errors.listed(sorted(info.features))
    raise errors.DataError(f"{path} has no feature {text_field!r}; it has {names}; set --text_field")
  return info.splits[TRAIN].num_shards


def train_texts(path: str, text_field: str, *, start: int, stop: int) -> Iterator[str]:
  """Yields the texts in shards [start, stop) of the training split, loading TensorFlow in this process.

  DataError: a file of the data set is damaged or gone.
  """
  dataset = (
    import_tfds()
    .builder_from_directory(path)
    .as_dataset(split=f"{TRAIN}[{start}shard:{stop}shard]", shuffle_files=False)
  )
  with readable(f"TFDS data set {path}"):
    for example in dataset.as_numpy_iterator():
      yield as_text(example[text_field])


def readable(what: str) -> contextlib.AbstractContextManager[None]:
  """Makes a DataError of whatever TensorFlow raises while it reads examples in the block."""
  return errors.translated(errors.DataError, f"{what} cannot be read", "build it again, or take another copy")


def as_text(value: Any) -> str:
  """Returns a feature's value as text: bytes are UTF-8, of which invalid ones become U+FFFD."""
  return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def split_sizes(path: pathlib.Path) -> dict[str, int]:
  """Returns the rows of each split, from the data set's own description; DataError if that is damaged."""
  try:
    info = json.loads((path / "dataset_info.json").read_text(encoding="utf-8"))
    return {split["name"]: sum(map(int, split["shardLengths"])) for split in info["splits"]}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.DataError(
      f"{path}/dataset_info.json: damaged ({errors.named_reason(error)}); remove {path} and build it again"
    ) from error


def read(directory: str, wanted: Sequence[tuple[str, str]], *, download: bool = False) -> list[list[Example]]:
  """Reads splits of data sets in one child process; loading TensorFlow there takes about ten seconds.

  Args:
    directory: data_dir of TFDS; '': its default.
    wanted: (data set, split) pairs, such as ('glue/cola', 'validation').
    download: whether TFDS may download and prepare what is missing.

  Returns:
    For each pair its examples: text as str, class labels by name (None: no label), numbers as they are.

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
  at = str(place(directory).absolute())
  found = child.call(examples, relay=download, directory=at, wanted=list(wanted), download=download)
  splits: list[list[Example]] = [[] for _ in wanted]
  for number, example in found:
    splits[number].append(example)
  return splits


def examples(
  directory: str, wanted: Sequence[tuple[str, str]], *, download: bool
) -> Iterator[tuple[int, Example]]:
  """Yields the examples of all pairs of `read`, each with its pair's number, loading TensorFlow here."""
  for number, (name, split) in enumerate(wanted):
    path = find_or_download(directory, name, download=download)
    _check_split(path, split)
    for example in _examples(path, split):
      yield number, example


def _check_split(path: pathlib.Path, split: str) -> None:
  sizes = split_sizes(path)
  if split not in sizes:
    raise errors.DataError(f"{path} has no split {split!r}; its splits are {', '.join(sizes)}")


def _examples(path: pathlib.Path, split: str) -> list[Example]:
  tfds = import_tfds()
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
    raise errors.DataError(
      f"{path}: split {split!r} cannot be read ({errors.named_reason(error, most=300)}); "
      f"remove {path} and build it again"
    ) from error
  return examples


def _column(batch: Any, feature: Any) -> list[Any]:
  """Returns the values of one feature in a batch as JSON knows them; class labels by name."""
  if isinstance(batch, dict):
    columns = {key: _column(value, None) for key, value in batch.items()}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]
  values = batch.tolist()
  if hasattr(feature, "int2str"):
    return [_names(as_json(value), feature) for value in values]
  return [as_json(value) for value in values]


def _names(value: Any, feature: Any) -> Any:
  """The name of a class, or of each in a list."""
  if isinstance(value, list):
    return [_names(inner, feature) for inner in value]
  return feature.int2str(value) if value >= 0 else None


def as_json(value: Any) -> Any:
  """Returns `value` with its bytes decoded and its arrays, rows of different lengths, as lists."""
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, list):
    return [as_json(inner) for inner in value]
  return as_text(value) if isinstance(value, bytes) else value
