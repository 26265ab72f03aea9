"""Finds the probes for which a folder has annotated data, and runs them during training.

Data are read before any model is opened. `Probing` gives the same figures as `python -m pretrain.probe`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from data import annotated, glue, vocabulary
from data.errors import ConfigError, DataError, unknown
from data.glue import tsv
from data.glue.tasks import GlueTask, Split
from lab.analysis import probes
from lab.analysis.probes import Figure, Probe

# Defaults of the command's flags.
TRAIN_SENTENCES = 3_000  # of the treebank, from its beginning
PAIRS = 200  # most minimal pairs per file
BATCH_SIZE = 32  # sentences per batch
# {cases: most training rows}: more rows hardly change a linear probe; the second set is one in a hundred.
_SENTIMENT_ROWS = {"SST-2 dev": 5_000, "SST-2 dev from 673": 673}
# SemEval-2014 task 1: a TSV file of test sentences with scores from 1 to 5, named .txt.
_SICK = GlueTask("SICK", (), ("sentence_A", "sentence_B"), "relatedness_score", (), {"test": (4_927,)})


@dataclasses.dataclass(frozen=True)
class Folder:
  """A folder of annotated data for probes, and how many sentences and pairs of it are used."""

  path: pathlib.Path
  train_sentences: int  # of the treebank, from its beginning
  pairs: int  # most minimal pairs per file


class _Set(NamedTuple):
  needs: str  # files, for a message
  make: Callable[[Folder], Sequence[Probe]]  # returns no probe if the files are missing


def _treebank(folder: Folder, name: str, targets: Callable, make: Callable[..., Probe]) -> Sequence[Probe]:
  files = [path for split in ("train", "test") if (path := annotated.treebank(folder.path, split))]
  if len(files) < 2:
    return ()
  train, test = ([targets(sentence) for sentence in annotated.sentences(path)] for path in files)
  return (make(probes.task(name, files, (train[: folder.train_sentences], test))),)


def _tags(folder: Folder) -> Sequence[Probe]:
  return _treebank(folder, "part of speech", probes.tags, probes.part_of_speech)


def _dependencies(folder: Folder) -> Sequence[Probe]:
  return _treebank(folder, "dependency", probes.dependencies, probes.dependency)


def _relations(folder: Folder) -> Sequence[Probe]:
  files = annotated.relation_files(folder.path)
  if files is None:
    return ()
  train, test = ([probes.marked_spans(marked) for marked in annotated.relations(path)] for path in files)
  return (probes.relation(probes.Task("relation", train, test)),)


def _glue(folder: Folder, task: str, splits: Sequence[str]) -> list[Split]:
  place = annotated.glue_folder(folder.path, task, splits)
  read = [] if place is None else glue.read_all(str(place), [(task, split) for split in splits])
  return [_with_words(split) for split in read]


def _with_words(split: Split) -> Split:
  """Returns `split` unchanged; DataError if all its texts are empty."""
  if not any(text.strip() for text in (*split.first, *(split.second or ()))):
    raise DataError(f"{split.source}: all of its {len(split):,} rows have empty texts; copy the file again")
  return split


def _sentiment(folder: Folder) -> Sequence[Probe]:
  splits = _glue(folder, "sst2", ("train", "dev"))
  if not splits:
    return ()
  train, dev = splits
  taken = {cases: train.take(range(min(rows, len(train)))) for cases, rows in _SENTIMENT_ROWS.items()}
  return [probes.Sentiment(cases, rows, dev) for cases, rows in taken.items()]


def _similarity(folder: Folder) -> Sequence[Probe]:
  made = [probes.Similarity("STS-B dev", split) for split in _glue(folder, "stsb", ("dev",))]
  for place in (folder.path / "SICK", folder.path):
    if path := tsv.existing(place / "SICK_test_annotated.txt"):
      return [*made, probes.Similarity("SICK test", _with_words(tsv.read(path, _SICK, "test")))]
  return made


def _pairs(folder: Folder) -> Sequence[Probe]:
  sets = annotated.minimal_pairs(folder.path)
  treebank = annotated.treebank(folder.path, "test")
  if treebank is not None:
    name = "agreement of the treebank" if "agreement" in sets else "agreement"  # a file may have that name
    sets[name] = list(annotated.agreement_pairs(annotated.sentences(treebank)))
  return [probes.MinimalPairs(pairs[: folder.pairs], name) for name, pairs in sets.items() if pairs]


_TREEBANK = "UD_English-EWT/*-ud-train*.conllu and *-ud-test*.conllu"
SETS = {
  "pos": _Set(_TREEBANK, _tags),
  "dependency": _Set(_TREEBANK, _dependencies),
  "relation": _Set("SemEval2010_task8/TRAIN_FILE.TXT and TEST_FILE_FULL.TXT", _relations),
  "sentiment": _Set("glue/SST-2/train.tsv and dev.tsv", _sentiment),
  "similarity": _Set("glue/STS-B/dev.tsv or SICK/SICK_test_annotated.txt", _similarity),
  "pairs": _Set("blimp/*.jsonl or UD_English-EWT/*-ud-test*.conllu", _pairs),
}


def find(folder: Folder, names: Sequence[str]) -> tuple[list[Probe], list[str]]:
  """Returns the probes with these names, and a sentence for each that is skipped for missing data.

  Without names, all available probes are returned.

  Raises:
    ConfigError: a name is unknown.
    DataError: data are damaged, data of a named probe are missing, or there are no data at all.
  """
  for name in names:
    if name not in SETS:
      raise ConfigError(unknown("probe", name, SETS))
  available: list[Probe] = []
  skipped = []
  for name in names or SETS:
    made = SETS[name].make(folder)
    available += made
    if not made and names:
      raise DataError(f"{folder.path}: {name} needs {SETS[name].needs}, plain or .gz; they are missing")
    if not made:
      skipped.append(f"Skipped, because its data are missing: {name} ({SETS[name].needs}).")
  if not available:
    needs = ", ".join(dict.fromkeys(one.needs for one in SETS.values()))
    raise DataError(f"{folder.path}: no data for any probe; name a folder with any of {needs}")
  return available, skipped


def during_training(folder: str) -> list[Probe]:
  """Returns the probes for which a folder has data; DataError if there are none or data are damaged."""
  try:
    found, _ = find(Folder(pathlib.Path(folder), TRAIN_SENTENCES, PAIRS), [])
  except DataError as error:
    raise DataError(f"train.probe_data={folder}: {error}") from error
  return found


def metric_name(figure: Figure) -> str:
  """Returns the name under which a score is logged, such as 'probe/part_of_speech/ambiguous/last'."""
  parts = (figure.probe, figure.cases, figure.read)
  return "/".join(["probe", *(part.replace(" ", "_") for part in parts)])


class Probing:
  """Runs probes on a run's encoder during training, without changing the encoder."""

  def __init__(self, config: ConfigDict, words_of: str) -> None:
    """Reads `train.probe_data`, and the run's vocabulary in the directory `words_of`.

    DataError: there are no data for any probe, or they are damaged.
    """
    from pretrain.checkpoints.saved_model import frozen_config

    self._probes = during_training(config.train.probe_data)
    self._directory = pathlib.Path(words_of)
    self._vocabulary = vocabulary.load(self._directory)
    self._config = frozen_config(config.model.to_dict())

  def measure(self, params: dict, *, is_stopping: Callable[[], bool]) -> dict[str, float] | None:
    """Returns {metric: value} of a run's host parameters; None if `is_stopping()` before some probe."""
    import jax

    from lab.analysis.frozen_encoder import FrozenEncoder
    from pretrain.checkpoints.saved_model import OpenedEncoder

    opened = OpenedEncoder(params["encoder"], self._config, self._vocabulary, self._directory)
    encoder = FrozenEncoder(opened, params.get("heads", {}), batch_size=BATCH_SIZE)
    metrics: dict[str, float] = {}
    # The run's mesh is set during training; the frozen encoder needs its own.
    with jax.set_mesh(jax.sharding.Mesh(np.asarray(jax.local_devices()), ("rows",))):
      for probe in self._probes:
        if is_stopping():
          return None
        metrics |= {metric_name(figure): figure.value for figure in probe.measure(encoder)}
    return metrics
