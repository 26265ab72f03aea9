"""seqio Tasks and Mixtures: the corpora of the papers, and how any registered Task is read.

TensorFlow is imported inside functions: a preparation from text files or `installed_docs` never pays for it.
"""

import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any

from data import errors, tfds_reader, user_module
from data.corpora import CORPORA

SPLIT = tfds_reader.TRAIN


def plan(name: str, *, module: str, tfds_directory: str, download: bool) -> list[tuple[str, int, float]]:
  """Returns (task, shards, fraction of its documents) for each Task of a registered Task or Mixture.

  A Mixture is read without repeating anything: the largest sample in which the Tasks keep its rates,
  counted in documents. `module` is a Python file or module that registers more of them; '': none.

  Raises:
    DataError: nothing of that name is registered (the nearest names are given), it has no training split, or
      its TFDS data is not there.
    ConfigError: a rate of the Mixture is not positive, or the module cannot be imported.
  """
  seqio = _registry(module, tfds_directory)
  mixture_or_task = _registered(name, seqio, flag="--source")
  tasks = seqio.get_subtasks(mixture_or_task)
  for task in tasks:
    _find_data(task, seqio, tfds_directory, download=download)
    if SPLIT not in task.splits:
      raise errors.DataError(
        f"seqio Task {task.name!r} has no split {SPLIT!r}; its splits are {', '.join(sorted(task.splits))}"
      )
  keeps = [1.0]
  if isinstance(mixture_or_task, seqio.Mixture):
    keeps = _keeps(
      name, [(task.name, mixture_or_task.get_rate(task), _num_documents(task)) for task in tasks]
    )
  return [(task.name, len(task.source.list_shards(SPLIT)), keep) for task, keep in zip(tasks, keeps)]


def rates(name: str, *, module: str, tfds_directory: str, download: bool) -> list[tuple[str, float]]:
  """Returns (task, rate) for each Task of a registered Mixture, in its order; rates in any scale.

  Raises:
    DataError: nothing of that name is registered, it is no Mixture, or TFDS data for a rate is not there.
    ConfigError: a rate is not a finite number above 0, or the module cannot be imported.
  """
  seqio = _registry(module, tfds_directory)
  mixture = _registered(name, seqio, flag="--mixture")
  if not isinstance(mixture, seqio.Mixture):
    raise errors.DataError(
      f"seqio:{name} is a Task, not a Mixture; train on it alone with --config.data.source=seqio:{name}"
    )
  pairs = []
  for task in seqio.get_subtasks(mixture):
    _find_data(task, seqio, tfds_directory, download=download)
    rate = float(mixture.get_rate(task))
    if not 0 < rate < float("inf"):
      raise errors.ConfigError(
        f"seqio Mixture {name!r}: the rate of its Task {task.name!r} is {rate}; expected a finite number "
        "above 0"
      )
    pairs.append((task.name, rate))
  return pairs


def _registered(name: str, seqio, *, flag: str):
  try:
    return seqio.get_mixture_or_task(name)
  except ValueError as error:
    names = sorted([*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()])
    raise errors.DataError(
      f"{flag}=seqio:{name}: {errors.unknown('Task or Mixture', name, names)}; --module=FILE imports a "
      "file that registers more"
    ) from error


def _find_data(task, seqio, tfds_directory: str, *, download: bool) -> None:
  """Refuses, or downloads, a TFDS set of a Task that is not there: seqio itself would end in a KeyError."""
  if not isinstance(task.source, seqio.TfdsDataSource):
    return
  try:
    name, data_dir = task.source.tfds_dataset.get_split_params(SPLIT)
  except ValueError:  # several sets, none of them for training: there is no such split
    return
  if name and "://" not in (data_dir or ""):
    tfds_reader.find_or_download(data_dir or tfds_directory, name, download=download)


def _keeps(name: str, rates: list[tuple[str, float, int]]) -> list[float]:
  """Returns the fraction of each Task's documents that the largest sample of a Mixture takes."""
  for task, rate, documents in rates:
    if not rate > 0 or not documents:
      raise errors.ConfigError(
        f"seqio Mixture {name!r}: its Task {task!r} has rate {rate} and {documents} documents; expected both "
        "above 0"
      )
  densities = [rate / documents for _, rate, documents in rates]
  return [density / max(densities) for density in densities]


def _num_documents(task) -> int:
  number = task.num_input_examples(SPLIT)
  if number is None:
    number = sum(1 for _ in task.source.get_dataset(split=SPLIT, shuffle=False).as_numpy_iterator())
  return number


def read(
  name: str, shard: int, num_shards: int, keep: float, *, module: str, tfds_directory: str, text_field: str
) -> Iterator[str]:
  """Yields the texts in one shard, counted from 0, of a Task's training split.

  `keep` is the fraction of the texts that is taken; which ones depends on their content alone. DataError: the
  examples cannot be read, or have no text under `text_field`: `text_feature`. The others are those of `plan`.
  """
  seqio = _registry(module, tfds_directory)
  shard_info = seqio.ShardInfo(shard, num_shards) if num_shards > 1 else None
  dataset = seqio.get_mixture_or_task(name).get_dataset(
    sequence_length=None, split=SPLIT, shuffle=False, seed=0, shard_info=shard_info
  )
  feature = text_feature(name, dataset.element_spec, text_field)
  with tfds_reader.readable(f"seqio:{name}"):
    for example in dataset.as_numpy_iterator():
      text = tfds_reader.as_text(example[feature])
      key = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
      if key < keep * 2**64:
        yield text


def examples(
  name: str, split: str, *, module: str, tfds_directory: str, download: bool
) -> Iterator[dict[str, Any]]:
  """Yields the examples of a Task's split in order: {feature: bytes, number, or an array of them}.

  Raises:
    DataError: no such Task or split, a Mixture (whose examples do not end), or its TFDS data is not there.
    ConfigError: the module cannot be imported.
  """
  seqio = _registry(module, tfds_directory)
  if name not in seqio.TaskRegistry.names():
    if name in seqio.MixtureRegistry.names():
      raise errors.DataError(f"seqio:{name} is a Mixture; name one of its Tasks, or a Task of your own")
    known = sorted(seqio.TaskRegistry.names())
    raise errors.DataError(
      f"seqio:{name}: {errors.unknown('Task', name, known)}; --config.data.module=FILE imports a file that "
      "registers more"
    )
  task = seqio.get_mixture_or_task(name)
  if split not in task.splits:
    raise errors.DataError(
      f"seqio Task {name!r} has no split {split!r}; its splits are {', '.join(sorted(task.splits))}, named "
      f"as seqio:{name}#SPLIT"
    )
  _find_data(task, seqio, tfds_directory, download=download)
  try:
    yield from task.get_dataset(sequence_length=None, split=split, shuffle=False).as_numpy_iterator()
  except Exception as error:  # whatever a user's preprocessors may raise
    raise errors.DataError(
      f"seqio Task {name!r}, split {split!r}, cannot be read "
      f"({errors.named_reason(error, most=300)}); mend the Task"
    ) from error


def text_feature(task: str, features, text_field: str) -> str:
  """Returns the feature that holds the text: `text_field`, its untokenised copy, or the only string there is.

  DataError: none of these exists.
  """
  strings = [
    name
    for name, spec in features.items()
    if getattr(spec, "dtype", None) == "string" and spec.shape.rank == 0
  ]
  for name in (text_field, f"{text_field}_pretokenized"):
    if name in strings:
      return name
  if len(strings) == 1:
    return strings[0]
  there = errors.listed(f"{name} ({spec.dtype.name})" for name, spec in features.items())
  raise errors.DataError(
    f"seqio Task {task!r} has no text feature {text_field!r}; it has {there}; set --text_field"
  )


def _registry(module: str, tfds_directory: str):
  """Returns seqio, with this project's Mixtures and what `module` registers."""
  seqio = _seqio()
  if tfds_directory:
    seqio.set_tfds_data_dir_override(os.path.expanduser(tfds_directory))
  if module:
    user_module.import_module(module)
  return seqio


@functools.cache  # a name can be registered once per process
def _seqio():
  """Returns seqio with the Mixtures of CORPORA."""
  tfds_reader.import_tfds()
  import seqio
  import tensorflow as tf

  text = seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)
  for mixture, corpus in CORPORA.items():
    rates = []
    for part in corpus.tfds:
      source = part.source
      name = source.tfds_name.partition(":")[0].replace("/", "_").replace(".", "_")
      if name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
          name,
          source=seqio.TfdsDataSource(tfds_name=source.tfds_name, splits=[SPLIT]),
          preprocessors=[functools.partial(_only_text, field=source.text_field)],
          output_features={"text": text},
        )
      rates.append((name, functools.partial(_rate, keep=part.keep)))
    seqio.MixtureRegistry.add(mixture, rates)
  return seqio


def _only_text(dataset, *, field: str):
  return dataset.map(lambda example: {"text": example[field]})


def _rate(task, *, keep: float) -> float:
  return keep * task.num_input_examples(SPLIT)
