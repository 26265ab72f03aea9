"""Converts official GLUE files, after checks, to a data_dir that TFDS can read offline."""

import contextlib
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from data import errors, tfds_reader
from data.glue import tsv
from data.glue.tasks import TASKS, GlueTask, Split

logger = logging.getLogger(__name__)

# A task, the name of a split, and its content; None: the file is missing.
_Row = tuple[GlueTask, str, Split | None]


def import_files(directory: str, output: str, *, allow_differing_sizes: bool = False) -> None:
  """Builds `<output>/glue/<task>/<version>` for every official task in a directory.

  `output` is a data_dir of TFDS; its other contents stay.

  Raises:
    ConfigError: the output is a file.
    DataError: there is no task, a file is damaged, a size is not the official one and that is not allowed,
      or the output has other data of a task.
  """
  target = pathlib.Path(output).expanduser().absolute()
  if target.exists() and not target.is_dir():
    raise errors.ConfigError(f"--output={output} is a file; name a directory")
  if not pathlib.Path(directory).expanduser().is_dir():
    raise errors.DataError(f"{directory}: no such directory; expected a folder with CoLA, SST-2, ... in it")
  rows = list(_look(directory))
  tasks: dict[str, dict[str, Split]] = {}
  for task, name, split in rows:
    if split:
      tasks.setdefault(task.name, {})[name] = split
  if not tasks:
    folders = dict.fromkeys(task.folders[0] for task, *_ in rows)
    raise errors.DataError(
      f"{directory}: no official GLUE file; looked for train.tsv, dev.tsv, test.tsv (or .tsv.gz) in its "
      f"folders {', '.join(folders)}"
    )
  print(_report(rows), flush=True)
  differing = [f"{task.name} {name}" for task, name, split in rows if split and not split.is_official]
  if differing and not allow_differing_sizes:
    raise errors.DataError(
      f"{', '.join(differing)}: not the official number of rows (see the table); use the complete official "
      "files, or accept the difference:\n  --allow_differing_sizes"
    )
  _build(tasks, target)


def _look(directory: str) -> Iterator[_Row]:
  for task in TASKS.values():
    if task.tfds_name.startswith("glue/"):
      for split in task.sizes:
        file = tsv.find(directory, task, split)
        yield task, split, tsv.read(file, task, split) if file and file.layout != "generic" else None


def _report(rows: list[_Row]) -> str:
  lines = [f"{'task':6} {'split':16} {'rows found':>10} {'official':>17} {'dropped':>8}  state"]
  for task, name, split in rows:
    num_rows, dropped, state = "-", "-", "missing"
    if split:
      num_rows, dropped = f"{len(split):,}", f"{split.dropped:,}"
      state = "ok" if split.is_official else "differs"
    official = " / ".join(f"{size:,}" for size in task.sizes[name])
    lines.append(f"{task.name:6} {name:16} {num_rows:>10} {official:>17} {dropped:>8}  {state}")
  return "\n".join(lines)


def _build(splits_of_tasks: dict[str, dict[str, Split]], output: pathlib.Path) -> None:
  wanted = {name: splits for name, splits in splits_of_tasks.items() if not _is_there(name, splits, output)}
  if wanted:
    logger.info(f"building {', '.join(wanted)} (TensorFlow takes some seconds to load)")
    output.parent.mkdir(parents=True, exist_ok=True)
    # TFDS builds in <data_dir>/glue/<task>/<version>, so the temporary directory is a whole data_dir.
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", suffix=".part", dir=output.parent) as aside:
      with _quiet_tfds() as tfds:
        built = [_build_task(tfds, TASKS[name], splits, aside) for name, splits in wanted.items()]
      for path in built:
        target = output / path.relative_to(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
  kept = [name for name in splits_of_tasks if name not in wanted]
  logger.info(f"{output}: added tasks: {', '.join(wanted) or 'none'}")
  if kept:
    logger.info(f"{output}: there already, with the same numbers of rows: {', '.join(kept)}")
  logger.info(f"use it with --config.data.directory={output}, or tfds.load('glue/...', data_dir={output!s})")


def _is_there(name: str, splits: dict[str, Split], output: pathlib.Path) -> bool:
  path = tfds_reader.find(str(output), TASKS[name].tfds_name)
  if path is None:
    return False
  there = tfds_reader.split_sizes(path)
  new = {tfds_reader.split_name(split): len(value) for split, value in splits.items()}
  if there != new:
    raise errors.DataError(
      f"{path} is there with other rows ({there}) than the files ({new}); remove it or name another --output"
    )
  return True


@contextlib.contextmanager
def _quiet_tfds():
  """Yields TFDS without its progress bars and notices."""
  tfds = tfds_reader.import_tfds()
  from absl import logging

  level = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  tfds.disable_progress_bar()
  try:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
      yield tfds
  finally:
    logging.set_verbosity(level)


def _build_task(tfds: Any, task: GlueTask, splits: dict[str, Split], data_dir: str) -> pathlib.Path:
  """Builds one data set with the features, order of labels, splits and version of TFDS's own builder."""
  config = next(
    config for config in tfds.builder_cls("glue").BUILDER_CONFIGS if f"glue/{config.name}" == task.tfds_name
  )
  features: dict[str, Any] = {name: tfds.features.Text() for name in config.text_features}
  classes = config.label_classes
  features["label"] = tfds.features.ClassLabel(names=classes) if classes else np.float32
  features["idx"] = np.int32
  builder = tfds.dataset_builders.TfDataBuilder(
    name="glue",
    config=tfds.core.BuilderConfig(name=config.name, version=config.version, description=config.description),
    version=config.version,
    data_dir=data_dir,
    features=tfds.features.FeaturesDict(features),
    split_datasets={
      tfds_reader.split_name(name): list(enumerate(_examples(task, split))) for name, split in splits.items()
    },
    description="GLUE from local official files",
    homepage=config.url,
    citation=config.citation,
  )
  builder.download_and_prepare()
  return pathlib.Path(str(builder.data_path))


def _examples(task: GlueTask, split: Split) -> Iterator[dict[str, Any]]:
  class_names = task.tfds_labels or task.labels
  columns = [split.first] if split.second is None else [split.first, split.second]
  for row, texts in enumerate(zip(*columns)):
    label: Any = -1  # TFDS's label of a test row
    if split.labels is not None:
      label = float(split.labels[row]) if task.is_regression else class_names[split.labels[row]]
    yield {**dict(zip(task.tfds_texts or task.texts, texts)), "label": label, "idx": row}
