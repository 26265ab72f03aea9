"""TFDS data sets: finds or downloads them, reads training texts, and reads small ones as Python values.

`find` and `split_sizes` need no TensorFlow; other functions import it when they are called.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data import errors, files

TRAIN = "train"  # the split that a preparation reads
_BATCH = 512  # examples
_PACKAGES = ("tensorflow", "tensorflow_datasets", "seqio")

Example = dict[str, Any]


def place(directory: str) -> pathlib.Path:
  """Returns the folder of TFDS data sets: `directory`, or for '' the default of TFDS."""
  default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return pathlib.Path(directory or default).expanduser()


def find(directory: str, name: str) -> pathlib.Path | None:
  """Returns the directory of the highest version of a prepared data set; None if there is none.

  DataError: it has several configs, and the name has none.

  `directory` is as for `place`; `name` is `dataset[/config][:version]`, such as 'glue/cola'.
  """
  plain, _, version = name.partition(":")
  patterns = [f"{plain}/{version or '*'}/dataset_info.json"]
  if "/" not in plain:
    patterns.append(f"{plain}/*/{version or '*'}/dataset_info.json")
  for pattern in patterns:
    descriptions = sorted(place(directory).glob(pattern), key=lambda path: _version_key(path.parent.name))
    configs = sorted({path.parent.parent.name for path in descriptions})
    if len(configs) > 1:
      raise errors.DataError(
        f"{name}: several configs are there ({errors.listed(configs)}); name one, as {plain}/{configs[0]}"
      )
    if descriptions:
      return descriptions[-1].parent
  return None


def split_name(split: str) -> str:
  """Returns TFDS's name of a split of this project: 'validation_matched' for 'dev_matched'."""
  return split.replace("dev", "validation")


def _version_key(version: str) -> tuple[int, ...]:
  return tuple(int(number) if number.isdecimal() else 0 for number in version.split("."))


def find_or_download(directory: str, name: str, *, download: bool) -> pathlib.Path:
  """Returns the directory of a data set as `find` does, downloading a missing one if `download` is set.

  DataError: the data set is missing, and `download` is not set or the download failed.
  """
  if files.is_address(directory):
    return _at_address(directory, name)
  if path := find(directory, name):
    return path
  if not download:
    raise errors.DataError(
      f"TFDS data set {name!r} is not in {place(directory)}; download it there, name another folder, or "
      "use a source that needs no download:\n  --download\n  --tfds_directory=DIR\n  --source=installed_docs"
    )
  tfds = import_tfds()
  try:
    builder = tfds.builder(name, data_dir=str(place(directory)))
    builder.download_and_prepare()
  except Exception as error:  # network, disk, an unknown name: TFDS's errors have no common base class
    raise errors.DataError(
      f"TFDS could not download {name!r} to {place(directory)} ({errors.named_reason(error, most=200)}); "
      "check the name and the network, or prepare it elsewhere and name its folder:\n  --tfds_directory=DIR"
    ) from error
  return pathlib.Path(str(builder.data_path))


def _at_address(directory: str, name: str) -> pathlib.Path:
  """Returns the folder of a prepared data set in a bucket, which TFDS opens; DataError if it is not there."""
  try:
    builder = import_tfds().builder(name, data_dir=directory)
    if builder.is_prepared():
      return builder.data_path
    reason = "it is not prepared there"
  except Exception as error:  # an unknown name, no rights, network: they have no common base class
    reason = errors.named_reason(error, most=200)
  raise errors.DataError(
    f"TFDS data set {name!r} in {directory}: {reason}; copy it there, or name a folder on a disk\n"
    "  --tfds_directory=DIR"
  )


def check_installed(what: str) -> None:
  """Raises ConfigError if TensorFlow, TFDS or seqio is not installed; `what` needs them."""
  missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    where = "install"
    if sys.version_info >= (3, 14):  # TensorFlow has no wheel for it
      where = "use text in files, or Python 3.11 to 3.13 with"
    raise errors.ConfigError(
      f"{what} needs {', '.join(missing)}, not installed here; {where}\n"
      "  pip install -r requirements-seqio.txt"
    )


def import_tfds() -> Any:
  """Imports and returns TFDS, and hides accelerators from TensorFlow; ConfigError if not installed."""
  check_installed("reading a TFDS data set or a seqio Task")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise
  is_first = "tensorflow" not in sys.modules
  with _without_notices():
    if is_first and importlib.util.find_spec("triton"):
      importlib.import_module("triton")  # imported after TensorFlow, it ends the process (segmentation fault)
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # Reading text needs no accelerator, and TensorFlow would take all of its memory from the trainer.
    # In a notebook that imported TensorFlow itself nothing is hidden: its own model may need the accelerator.
    if is_first:
      tf.config.set_visible_devices([], "GPU")
  return tfds


def import_seqio() -> Any:
  """Imports and returns seqio, as `import_tfds`."""
  import_tfds()
  with _without_notices():
    import seqio

  return seqio


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
  """Drops what TensorFlow's libraries write to file descriptor 2 when they are imported, at any log level."""
  try:
    stderr = os.dup(2)
  except OSError:  # the command has no stderr
    yield
    return
  try:
    with open(os.devnull, "wb") as nowhere:
      os.dup2(nowhere.fileno(), 2)
    yield
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)


def listing(directory: str | pathlib.Path) -> list[tuple[str, int]]:
  """Returns (name, bytes) of the files of a prepared data set, which may be at an address, by name."""
  from etils import epath  # the paths of TFDS, which needs this package

  return sorted((entry.name, entry.stat().length) for entry in epath.Path(str(directory)).iterdir())


def num_train_shards(path: pathlib.Path, text_field: str) -> int:
  """Returns the number of shards of the training split; DataError without that split or the text feature."""
  info = import_tfds().builder_from_directory(str(path)).info
  if TRAIN not in info.splits:
    raise errors.DataError(f"{path} has no split {TRAIN!r}; its splits are {', '.join(sorted(info.splits))}")
  if text_field not in info.features:
    names = errors.listed(sorted(info.features))
    raise errors.DataError(f"{path} has no feature {text_field!r}; it has {names}; set --text_field")
  return info.splits[TRAIN].num_shards


def train_texts(path: str, text_field: str, *, start: int, stop: int) -> Iterator[str]:
  """Yields the texts in shards [start, stop) of the training split; loads TensorFlow in this process.

  DataError: a file of the data set is damaged or missing.
  """
  dataset = (
    import_tfds()
    .builder_from_directory(path)
    .as_dataset(split=f"{TRAIN}[{start}shard:{stop}shard]", shuffle_files=False)
  )
  advice = "build it again, or take another copy"
  with errors.translated(errors.DataError, f"TFDS data set {path} cannot be read", advice):
    for example in dataset.as_numpy_iterator():
      yield as_text(example[text_field])


def as_text(value: Any) -> str:
  """Returns a feature's value as text; bytes are decoded as UTF-8, invalid ones become U+FFFD."""
  return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def split_sizes(path: pathlib.Path) -> dict[str, int]:
  """Returns {split: rows} from the data set's `dataset_info.json`; DataError if that is damaged."""
  try:
    info = json.loads((path / "dataset_info.json").read_text(encoding="utf-8"))
    return {split["name"]: sum(map(int, split["shardLengths"])) for split in info["splits"]}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.DataError(
      f"{path}/dataset_info.json: damaged ({errors.named_reason(error)}); remove {path} and build it again"
    ) from error


def read(directory: str, wanted: Sequence[tuple[str, str]], *, download: bool = False) -> list[list[Example]]:
  """Reads splits of data sets; loading TensorFlow takes some seconds.

  Args:
    directory: data_dir of TFDS; '': its default.
    wanted: (data set, split) pairs, such as ('glue/cola', 'validation').
    download: whether TFDS may download and prepare what is missing.

  Returns:
    For each pair its examples: text as str, class labels as names (None: no label), numbers unchanged.

  DataError: a data set or split is missing, cannot be downloaded, or is damaged.
  """
  if not wanted:
    return []
  for name, split in wanted:
    path = find(directory, name)
    if path:
      _check_split(path, split)
    elif not download:
      ways = "  --config.data.directory=DIR\n  --download"
      raise errors.DataError(f"no TFDS data set {name} in {place(directory)}; name its folder\n{ways}")
  splits = []
  for name, split in wanted:
    path = find_or_download(directory, name, download=download)
    _check_split(path, split)
    splits.append(_examples(path, split))
  return splits


def _check_split(path: pathlib.Path, split: str) -> None:
  sizes = split_sizes(path)
  if split not in sizes:
    raise errors.DataError(f"{path} has no split {split!r}; its splits are {', '.join(sizes)}")


def _examples(path: pathlib.Path, split: str) -> list[Example]:
  tfds = import_tfds()
  try:
    builder: Any = tfds.builder_from_directory(str(path))
    features = dict(builder.info.features)
    # In batches, because one example at a time takes ten times as long.
    batches = builder.as_dataset(split=split, shuffle_files=False).ragged_batch(_BATCH).as_numpy_iterator()
    examples = []
    for batch in batches:
      columns = {key: _column(value, features[key]) for key, value in batch.items()}
      examples += [dict(zip(columns, row)) for row in zip(*columns.values())]
  except Exception as error:  # errors of TensorFlow and TFDS have no common base class
    raise errors.DataError(
      f"{path}: split {split!r} cannot be read ({errors.named_reason(error, most=300)}); "
      f"remove {path} and build it again"
    ) from error
  return examples


def _column(batch: Any, feature: Any) -> list[Any]:
  """Returns the values of one feature in a batch as JSON types; class labels as names."""
  if isinstance(batch, dict):
    columns = {key: _column(value, feature[key]) for key, value in batch.items()}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]
  values = batch.tolist()
  if hasattr(feature, "int2str"):
    return [_names(as_json(value), feature) for value in values]
  return [as_json(value) for value in values]


def _names(value: Any, feature: Any) -> Any:
  if isinstance(value, list):
    return [_names(inner, feature) for inner in value]
  return feature.int2str(value) if value >= 0 else None


def as_json(value: Any) -> Any:
  """Returns `value` with bytes decoded and arrays, also ragged ones, as lists."""
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, list):
    return [as_json(inner) for inner in value]
  return as_text(value) if isinstance(value, bytes) else value
