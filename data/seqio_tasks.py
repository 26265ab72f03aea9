"""seqio Tasks and Mixtures: registers the corpora of the papers and reads any registered Task.

TensorFlow is imported inside functions, so that a preparation from text files never loads it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from data import errors, tfds_reader, user_module

SPLIT = tfds_reader.TRAIN
HELDOUT = ("validation", "heldout", "test")  # the first of these that a Task has is its text for evaluation


class DataSet(NamedTuple):
  """A TFDS data set of a corpus, with its version, and the fraction of its documents to use."""

  tfds_name: str
  text_field: str = "text"
  keep: float = 1.0


class Corpus(NamedTuple):
  """Data sets that replace a text of the papers; docs/guides/mixtures.md has their sizes and licences."""

  papers: str  # the papers' name for the text
  parts: tuple[DataSet, ...]


_BOOKS = (DataSet("wikipedia/20230601.en:1.0.0"), DataSet("pg19:0.1.1", "book_text"))
_PAGES = (
  DataSet("c4/realnewslike:3.1.0"),
  DataSet("c4/webtextlike:3.1.0"),
  DataSet("c4/en:3.1.0", keep=0.084),
)
# Mixtures that are registered under these names: `--source=seqio:wikipedia_books`.
CORPORA = {
  "wikipedia_books": Corpus("Wikipedia and BookCorpus", _BOOKS),
  "web_160gb": Corpus("Wikipedia, BookCorpus, CC-News, OpenWebText and Stories", _BOOKS + _PAGES),
}


@dataclasses.dataclass(frozen=True)
class Tokenised:
  """The feature of a seqio Task that has token ids, its vocabulary, and the packing of its blocks."""

  feature: str
  vocabulary: str  # its directory
  digest: str  # of the vocabulary
  length: int = 0  # most ids in a block; 0: the examples are texts, not blocks
  packing: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
  """A split of a seqio Task of a source, its number of shards, and the fraction of its documents to read."""

  task: str
  num_shards: int
  keep: float = 1.0  # fraction of its documents
  tokenised: Tokenised | None = None  # None: its examples are text
  split: str = SPLIT
  has_heldout: bool = False  # whether the Task has a split for evaluation, so that no other text is held out

  @property
  def description(self) -> tuple:
    """The values that identify the Task in the digest of an input."""
    ids = self.tokenised
    of_split = () if self.split == SPLIT else (self.split,)
    return (self.task, self.num_shards, self.keep, *((ids.feature, ids.digest) if ids else ()), *of_split)


def plan(name: str, *, module: str, tfds_directory: str, text_field: str, download: bool) -> list[Part]:
  """Returns a `Part` for each Task of a registered Task or Mixture, then those of the splits for evaluation.

  Of a Mixture the largest sample without repetition is read in which the Tasks have its rates, counted in
  documents. `module` is a Python file or module that registers more Tasks; '': none.

  Raises:
    DataError: no Task or Mixture has that name, it has no training split, its TFDS data is missing, or it
      has ids of several features or of an unsupported vocabulary.
    ConfigError: a rate of the Mixture is not positive, or the module cannot be imported.
  """
  mixture_or_task = find(name, module=module, tfds_directory=tfds_directory, download=download)
  tasks = tasks_of(mixture_or_task)
  keeps = [1.0]
  if isinstance(mixture_or_task, register_corpora().Mixture):
    keeps = _keeps(
      name, [(task.name, _rate_in(mixture_or_task, task), _num_documents(task)) for task in tasks]
    )
  parts: list[Part] = []
  heldout: list[Part] = []
  for task, keep in zip(tasks, keeps):
    found = heldout_split(task)
    for split in [SPLIT, found] if found else [SPLIT]:
      with readable(f"seqio:{task.name}"):
        num_shards = len(task.source.list_shards(split))
      if not num_shards:
        raise errors.DataError(f"seqio Task {task.name!r}: its split {split!r} has no file; correct the Task")
      part = Part(task.name, num_shards, keep, ids_of(task, text_field), split, bool(found))
      (parts if split == SPLIT else heldout).append(part)
  return parts + heldout


def heldout_split(task) -> str:
  """Returns the split of a Task whose text is for evaluation; '': it has none."""
  return next((split for split in HELDOUT if split in task.splits), "")


@contextlib.contextmanager
def readable(source: str) -> Iterator[None]:
  """Turns any error of seqio, TensorFlow or a user's preprocessors in the block into a DataError."""
  try:
    yield
  except errors.UserError:
    raise
  except Exception as error:
    line = errors.on_one_line(error)
    # Messages from code that TensorFlow rewrites begin with a trace and end with the failure.
    reason = errors.named_reason(error, words=line if len(line) < 300 else f"{line[:80]} ... {line[-200:]}")
    raise errors.DataError(f"{source} cannot be read ({reason}); correct the Task") from error


def find(name: str, *, module: str, tfds_directory: str, download: bool):
  """Returns a registered Task or Mixture after checking its data; arguments and errors as for `plan`."""
  seqio = _registry(module, tfds_directory)
  mixture_or_task = _registered(name, seqio, flag="--source")
  for task in seqio.get_subtasks(mixture_or_task):
    _find_data(task, seqio, tfds_directory, download=download)
    if SPLIT not in task.splits:
      raise errors.DataError(
        f"seqio Task {task.name!r} has no split {SPLIT!r}; its splits are {', '.join(sorted(task.splits))}"
      )
  return mixture_or_task


def tasks_of(mixture_or_task) -> list:
  """Returns the Tasks of a Mixture, or a list of the Task itself."""
  import seqio

  return seqio.get_subtasks(mixture_or_task)


def rates(name: str, *, module: str, tfds_directory: str, download: bool) -> list[tuple[str, float]]:
  """Returns (task, rate) for each Task of a registered Mixture, in its order; rates need not add up to 1.

  Raises:
    DataError: no Mixture has that name, or TFDS data that a rate depends on is missing.
    ConfigError: a rate is not a finite number above 0, or the module cannot be imported.
  """
  seqio = _registry(module, tfds_directory)
  mixture = _registered(name, seqio, flag="--mixture")
  if not isinstance(mixture, seqio.Mixture):
    raise errors.DataError(
      f"seqio:{name} is a Task, not a Mixture; to train on it alone:\n  --config.data.source=seqio:{name}"
    )
  pairs = []
  for task in seqio.get_subtasks(mixture):
    _find_data(task, seqio, tfds_directory, download=download)
    rate = _rate_in(mixture, task)
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
      f"{flag}=seqio:{name}: {errors.unknown('Task or Mixture', name, names)}; to import a file that "
      "registers more, or the packed corpora of this project:\n  --module=FILE\n  --module=data.tasks"
    ) from error


def _find_data(task, seqio, tfds_directory: str, *, download: bool) -> None:
  """Downloads a Task's missing TFDS data, or raises DataError; seqio itself would raise a KeyError.

  Examples of a source that does not know their number are counted when a rate asks for it.
  """
  if not isinstance(task.source, seqio.TfdsDataSource):
    with contextlib.suppress(NotImplementedError, KeyError):
      if task.num_input_examples(SPLIT) is not None:
        return
    task.source.num_input_examples = functools.partial(_count, task)
    return
  try:
    name, data_dir = task.source.tfds_dataset.get_split_params(SPLIT)
  except ValueError:  # the Task names a data set for each split, and none for training
    return
  if name and "://" not in (data_dir or ""):
    tfds_reader.find_or_download(data_dir or tfds_directory, name, download=download)


def _keeps(name: str, rates: list[tuple[str, float, int]]) -> list[float]:
  """Returns the fraction of each Task's documents that gives a Mixture's rates without repetition."""
  for task, rate, documents in rates:
    if not rate > 0 or not documents:
      raise errors.ConfigError(
        f"seqio Mixture {name!r}: its Task {task!r} has rate {rate} and {documents} documents; expected both "
        "above 0"
      )
  densities = [rate / documents for _, rate, documents in rates]
  return [density / max(densities) for density in densities]


def _num_documents(task) -> int:
  with readable(f"seqio:{task.name}"):
    number = task.num_input_examples(SPLIT)  # None: TFDS has no number
    return _count(task, SPLIT) if number is None else number


@functools.cache
def _count(task, split: str) -> int:
  """Returns the number of examples in the source of a Task, all of which are read."""
  return sum(1 for _ in task.source.get_dataset(split=split, shuffle=False).as_numpy_iterator())


def _rate_in(mixture, task) -> float:
  """Returns the rate of a Task in a Mixture; DataError: its function fails."""
  with readable(f"seqio Mixture {mixture.name!r}: the rate of its Task {task.name!r}"):
    return float(mixture.get_rate(task))


def read(
  part: Part, shard: int, *, module: str, tfds_directory: str, text_field: str
) -> Iterator[str | np.ndarray]:
  """Yields the texts (or ids, [tokens] int32) in one shard of a split of a Task.

  Shards count from 0. Whether `part.keep` includes a text depends only on its content. DataError: the
  examples cannot be read, or have no text feature (see `text_feature`). Other errors as `plan`.
  """
  seqio = _registry(module, tfds_directory)
  task = seqio.get_mixture_or_task(part.task)
  shard_info = seqio.ShardInfo(shard, part.num_shards) if part.num_shards > 1 else None
  with readable(f"seqio:{part.task}"):
    dataset = task.get_dataset(
      sequence_length=None, split=part.split, shuffle=False, seed=0, shard_info=shard_info
    )
    if part.tokenised:
      feature = part.tokenised.feature
    else:
      feature = text_feature(task, dataset.element_spec, text_field)
    for example in dataset.as_numpy_iterator():
      value = example[feature] if part.tokenised else tfds_reader.as_text(example[feature])
      content = value.encode("utf-8", "replace") if isinstance(value, str) else value.tobytes()
      key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
      if key < part.keep * 2**64:
        yield value


def examples(
  name: str, split: str, *, module: str, tfds_directory: str, download: bool
) -> Iterator[dict[str, Any]]:
  """Yields the examples of a Task's split in order: {feature: bytes, number, or an array of them}.

  Raises:
    DataError: no such Task or split, `name` is a Mixture (which is endless), or its TFDS data is missing.
    ConfigError: the module cannot be imported.
  """
  seqio = _registry(module, tfds_directory)
  if name not in seqio.TaskRegistry.names():
    if name in seqio.MixtureRegistry.names():
      raise errors.DataError(f"seqio:{name} is a Mixture; name one of its Tasks, or a Task of your own")
    known = sorted(seqio.TaskRegistry.names())
    raise errors.DataError(
      f"seqio:{name}: {errors.unknown('Task', name, known)}; to import a file that registers more:\n"
      "  --config.data.module=FILE"
    )
  task = seqio.get_mixture_or_task(name)
  if split not in task.splits:
    raise errors.DataError(
      f"seqio Task {name!r} has no split {split!r}; its splits are {', '.join(sorted(task.splits))}; name "
      f"one as seqio:{name}#SPLIT"
    )
  _find_data(task, seqio, tfds_directory, download=download)
  with readable(f"seqio Task {name!r}, split {split!r},"):
    yield from task.get_dataset(sequence_length=None, split=split, shuffle=False).as_numpy_iterator()


def _registry(module: str, tfds_directory: str):
  """Returns seqio after registering this project's Mixtures and importing `module`."""
  seqio = register_corpora()
  if tfds_directory:
    seqio.set_tfds_data_dir_override(os.path.expanduser(tfds_directory))
  if module:
    user_module.import_module(module)
  return seqio


@functools.cache  # a name can be registered once per process
def register_corpora():
  """Registers the Mixtures of CORPORA once; returns seqio."""
  seqio = tfds_reader.import_seqio()
  for mixture, corpus in CORPORA.items():
    rates = []
    for part in corpus.parts:
      name = part.tfds_name.partition(":")[0].replace("/", "_").replace(".", "_")
      if name not in seqio.TaskRegistry.names():
        source = seqio.TfdsDataSource(tfds_name=part.tfds_name, splits=[SPLIT])
        add_text_task(name, source, part.text_field)
      rates.append((name, functools.partial(_rate, keep=part.keep)))
    seqio.MixtureRegistry.add(mixture, rates)
  return seqio


def add_text_task(name: str, source, text_field: str) -> None:
  """Registers the Task `name`, whose feature 'text' has the texts of a seqio DataSource."""
  import seqio
  import tensorflow as tf

  seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[functools.partial(_only_text, field=text_field)],
    output_features={
      "text": seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)
    },
  )


def _only_text(dataset, *, field: str):
  return dataset.map(lambda example: {"text": example[field]})


def _rate(task, *, keep: float) -> float:
  return keep * task.num_input_examples(SPLIT)


def ids_of(task, text_field: str) -> Tokenised | None:
  """Returns which feature of a seqio Task has token ids, as `Tokenised`; None if the Task has text.

  DataError: several features have ids of a supported vocabulary.
  """
  features = {text_field: task.output_features[text_field]} if text_field in task.output_features else None
  ids = {
    name: feature
    for name, feature in (features or task.output_features).items()
    if feature.dtype == "int32" and feature.rank == 1
  }
  ours = {name: feature for name, feature in ids.items() if hasattr(feature.vocabulary, "digest")}
  if not ours:
    return None
  if len(ours) > 1:
    raise errors.DataError(
      f"seqio Task {task.name!r} has ids under {errors.listed(ours)}; name one of them with --text_field"
    )
  ((name, feature),) = ours.items()
  words = feature.vocabulary
  is_packed = hasattr(task, "packing")  # data.tasks.BlocksTask, which imports this file
  blocks = (task.length, task.packing) if is_packed else ()
  return Tokenised(name, words.directory, words.digest, *blocks)


def text_feature(task, features, text_field: str) -> str:
  """Returns the name of the text feature: `text_field`, its `_pretokenized` copy, or the only string.

  DataError: the Task has none of these.
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
  kinds = (getattr(getattr(spec, "dtype", None), "name", type(spec).__name__) for spec in features.values())
  there = errors.listed(f"{name} ({kind})" for name, kind in zip(features, kinds))
  raise errors.DataError(
    f"seqio Task {task.name!r} has no text feature {text_field!r}; it has {there}; set --text_field. Ids "
    "need the vocabulary data.tasks.DirectoryVocabulary(DIR)"
  )
