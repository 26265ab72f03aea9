"""Finds the probes for which a folder has annotated data; reads the data before any model is opened."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from data import annotated, glue
from data.errors import ConfigError, DataError, unknown
from data.glue import tsv
from data.glue.tasks import GlueTask, Split
from lab.analysis import probes, spans
from lab.analysis.probes import Probe

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
  return (make(spans.task(name, files, (train[: folder.train_sentences], test))),)


def _tags(folder: Folder) -> Sequence[Probe]:
  return _treebank(folder, "part of speech", spans.tags, probes.part_of_speech)


def _dependencies(folder: Folder) -> Sequence[Probe]:
  return _treebank(folder, "dependency", spans.dependencies, probes.dependency)


def _relations(folder: Folder) -> Sequence[Probe]:
  files = annotated.relation_files(folder.path)
  if files is None:
    return ()
  train, test = ([spans.relation(marked) for marked in annotated.relations(path)] for path in files)
  return (probes.relation(spans.Task("relation", train, test)),)


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
