"""seqio Tasks and Mixtures: the corpora of the papers, and how any registered Task is read.

TensorFlow is imported inside functions: a preparation from text files or `installed_docs` never pays for it.
"""

import dataclasses
import difflib
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from data import errors, user_module

if TYPE_CHECKING:
  from data.sources import Request, Unit

SPLIT = "train"


@dataclasses.dataclass(frozen=True)
class Corpus:
  """One TFDS corpus of a Mixture: name with version, feature that holds the text, fraction of it that is
  used."""

  tfds_name: str
  text_field: str
  keep: float = 1.0


_WIKIPEDIA = Corpus("wikipedia/20230601.en:1.0.0", "text")
_BOOKS = Corpus("pg19:0.1.1", "book_text")

CORPORA = {
  # The 16 GB of COCO-LM base, AMOS base and TACO. BookCorpus is not distributed: PG-19 stands in for it.
  "wikipedia_books": (_WIKIPEDIA, _BOOKS),
  # The 160 GB of the base++ and large++ models (RoBERTa's: the above, CC-News, OpenWebText, Stories), of
  # which TFDS has stand-ins: news and web pages of C4 in the styles of those sets, a part of C4 for the rest.
  "web_160gb": (
    _WIKIPEDIA,
    _BOOKS,
    Corpus("c4/realnewslike:3.1.0", "text"),
    Corpus("c4/webtextlike:3.1.0", "text"),
    Corpus("c4/en:3.1.0", "text", keep=0.25),
  ),
}


def find_tfds(name: str, request: "Request") -> pathlib.Path:
  """Returns the directory of a prepared TFDS data set, without importing TFDS unless it has to be downloaded.

  Args:
    name: `dataset[/config][:version]`.
    request: for `tfds_directory` and `download`.

  Raises:
    DataError: the data set is not there, and may not be or could not be downloaded.
  """
  base = pathlib.Path(
    request.tfds_directory or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  ).expanduser()
  plain, _, version = name.partition(":")
  if not plain:
    raise errors.ConfigError("--source=tfds: names no data set; expected tfds:NAME[/CONFIG][:VERSION]")
  patterns = [f"{plain}/{version or '*'}/dataset_info.json"]
  if "/" not in plain:
    patterns.append(f"{plain}/*/{version or '*'}/dataset_info.json")
  for pattern in patterns:
    found = sorted(base.glob(pattern), key=lambda path: _version_key(path.parent.name))
    if found:
      return found[-1].parent
  if request.download:
    return _download(name, base)
  raise errors.DataError(
    f"TFDS data set {name!r} is not in {base}; add --download to fetch and prepare it there, name another "
    "place with --tfds_directory, or use a source that needs no download: --source=installed_docs"
  )


def _version_key(version: str) -> tuple[int, ...]:
  return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def _download(name: str, base: pathlib.Path) -> pathlib.Path:
  tfds = import_tfds()
  try:
    builder = tfds.builder(name, data_dir=str(base))
    builder.download_and_prepare()
  except Exception as error:  # of whatever kind: network, disk, an unknown name; TFDS has no common base
    reason = (str(error).strip().splitlines() or [""])[0]
    raise errors.DataError(
      f"TFDS could not download {name!r} to {base} ({type(error).__name__}: {reason[:200]}); check the name "
      "and the network, or prepare it elsewhere and give --tfds_directory"
    ) from error
  return pathlib.Path(str(builder.data_path))


def import_tfds():
  """Returns TFDS, with TensorFlow kept from the accelerator."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  # Reading text needs no accelerator, and TensorFlow would take all of its memory from the trainer.
  os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
  import tensorflow_datasets as tfds

  return tfds


def num_tfds_shards(directory: pathlib.Path, request: "Request") -> int:
  """Returns the shards of the training split of a prepared TFDS data set and checks the text feature.

  Raises:
    DataError: there is no such split or feature.
  """
  builder = import_tfds().builder_from_directory(str(directory))
  if SPLIT not in builder.info.splits:
    raise errors.DataError(
      f"{directory} has no split {SPLIT!r}; its splits are {', '.join(sorted(builder.info.splits))}"
    )
  if request.text_field not in builder.info.features:
    names = ", ".join(sorted(builder.info.features))
    raise errors.DataError(
      f"{directory} has no feature {request.text_field!r}; it has {names}; set --text_field"
    )
  return builder.info.splits[SPLIT].num_shards


def plan_seqio(name: str, request: "Request") -> list[tuple[str, int, float]]:
  """Returns (task, shards, fraction of its documents) for each Task of a registered Task or Mixture.

  A Mixture is read without repeating anything: the largest sample in which the Tasks keep its rates,
  counted in documents.

  Raises:
    DataError: nothing of that name is registered (the nearest names are given), it has no training split, or
      its TFDS data is not there.
    ConfigError: a rate of the Mixture is not positive, or the module cannot be imported.
  """
  seqio = _registry(request.module, request.tfds_directory)
  try:
    mixture_or_task = seqio.get_mixture_or_task(name)
  except ValueError as error:
    names = sorted([*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()])
    near = difflib.get_close_matches(name, names, n=3) or names[:8]
    raise errors.DataError(
      f"--source=seqio:{name}: no Task or Mixture of this name is registered; did you mean "
      f"{', '.join(near)}? --module=FILE imports a file that registers more"
    ) from error
  parts = seqio.get_subtasks(mixture_or_task)
  for task in parts:
    _find_data(task, request, seqio)
    if SPLIT not in task.splits:
      raise errors.DataError(
        f"seqio Task {task.name!r} has no split {SPLIT!r}; its splits are {', '.join(sorted(task.splits))}"
      )
  keeps = [1.0]
  if isinstance(mixture_or_task, seqio.Mixture):
    keeps = _keeps(
      name, [(task.name, mixture_or_task.get_rate(task), _num_documents(task)) for task in parts]
    )
  return [(task.name, len(task.source.list_shards(SPLIT)), keep) for task, keep in zip(parts, keeps)]


def _find_data(task, request: "Request", seqio) -> None:
  """Refuses, or downloads, a TFDS set of a Task that is not there: seqio itself would end in a KeyError."""
  if not isinstance(task.source, seqio.TfdsDataSource):
    return
  try:
    name, data_dir = task.source.tfds_dataset.get_split_params(SPLIT)
  except ValueError:  # several sets, none of them for training: there is no such split
    return
  if name and "://" not in (data_dir or ""):
    find_tfds(name, dataclasses.replace(request, tfds_directory=data_dir or request.tfds_directory))


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


def read(unit: "Unit", request: "Request") -> Iterator[str]:
  """Yields the texts of a unit of kind 'tfds' or 'seqio'.

  Raises:
    DataError: an example has no text under `text_field`.
  """
  if unit.kind == "tfds":
    tfds = import_tfds()
    dataset = tfds.builder_from_directory(unit.name).as_dataset(
      split=f"{SPLIT}[{unit.start}shard:{unit.stop}shard]", shuffle_files=False
    )
    field = request.text_field
  else:
    seqio = _registry(request.module, request.tfds_directory)
    task = seqio.get_mixture_or_task(unit.name)
    info = seqio.ShardInfo(unit.start, unit.stop) if unit.stop > 1 else None
    dataset = task.get_dataset(sequence_length=None, split=SPLIT, shuffle=False, seed=0, shard_info=info)
    field = text_feature(unit.name, dataset.element_spec, request.text_field)
  for example in dataset.as_numpy_iterator():
    value = example[field]
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    key = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    if key < unit.keep * 2**64:
      yield text


def text_feature(task: str, features, text_field: str) -> str:
  """Returns the feature that holds the text: `text_field`, its untokenised copy, or the only string there is.

  Raises:
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
  found = ", ".join(f"{name} ({spec.dtype.name})" for name, spec in features.items())
  raise errors.DataError(
    f"seqio Task {task!r} has no text feature {text_field!r}; it has {found}; set --text_field"
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
  import_tfds()
  import seqio
  import tensorflow as tf

  text = seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)
  for mixture, corpora in CORPORA.items():
    rates = []
    for corpus in corpora:
      name = corpus.tfds_name.partition(":")[0].replace("/", "_").replace(".", "_")
      if name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
          name,
          source=seqio.TfdsDataSource(tfds_name=corpus.tfds_name, splits=[SPLIT]),
          preprocessors=[functools.partial(_only_text, field=corpus.text_field)],
          output_features={"text": text},
        )
      rates.append((name, functools.partial(_rate, keep=corpus.keep)))
    seqio.MixtureRegistry.add(mixture, rates)
  return seqio


def _only_text(dataset, *, field: str):
  return dataset.map(lambda example: {"text": example[field]})


def _rate(task, *, keep: float) -> float:
  return keep * task.num_input_examples(SPLIT)
