"""Which probes a folder of annotated data allows; everything is read before a model is."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from data import annotated, glue
from data.errors import ConfigError, DataError, unknown
from data.glue import tsv
from data.glue.tasks import GlueTask, Split
from lab.analysis import probes
from lab.analysis.probes import Probe

# {cases: most rows of the training set}: more change a linear probe little, and one in a hundred.
_SENTIMENT_ROWS = {"SST-2 dev": 5_000, "SST-2 dev from 673": 673}
# Of SemEval-2014 task 1, whose file of test sentences has its scores, from 1 to 5, and is no .tsv by name.
_SICK = GlueTask("SICK", (), ("sentence_A", "sentence_B"), "relatedness_score", (), {"test": (4_927,)})


@dataclasses.dataclass(frozen=True)
class Folder:
  """Annotated data, and how much of it is asked about."""

  path: pathlib.Path
  train_sentences: int  # of the treebank, from its beginning
  pairs: int  # most minimal pairs of a file


class _Set(NamedTuple):
  needs: str  # files, for a message
  make: Callable[[Folder], Sequence[Probe]]  # none, if they are not there


def _treebank(make: Callable[..., Probe]) -> Callable[[Folder], Sequence[Probe]]:
  def read(folder: Folder) -> Sequence[Probe]:
    train, test = (annotated.treebank(folder.path, split) for split in ("train", "test"))
    if train is None or test is None:
      return ()
    parts = annotated.sentences(train)[: folder.train_sentences], annotated.sentences(test)
    for path, part in zip((train, test), parts):
      if make is probes.Dependencies and not any(head >= 0 for text in part for head in text.heads):
        raise DataError(
          f"{path}: no word of its first {len(part):,} sentences depends on another; mend the 7th column"
        )
    return (make(*parts),)

  return read


def _relations(folder: Folder) -> Sequence[Probe]:
  files = annotated.relation_files(folder.path)
  return () if files is None else (probes.Relations(*map(annotated.relations, files)),)


def _glue(folder: Folder, task: str, splits: Sequence[str]) -> list[Split]:
  place = annotated.glue_folder(folder.path, task, splits)
  read = [] if place is None else glue.read_all(str(place), [(task, split) for split in splits])
  return [_with_words(split) for split in read]


def _with_words(split: Split) -> Split:
  """The split; DataError: all its texts are empty."""
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
      return [*made, probes.Similarity("SICK test", _with_words(tsv.read_file(path, _SICK, "test")))]
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
  "pos": _Set(_TREEBANK, _treebank(probes.PartOfSpeech)),
  "dependency": _Set(_TREEBANK, _treebank(probes.Dependencies)),
  "relation": _Set("SemEval2010_task8/TRAIN_FILE.TXT and TEST_FILE_FULL.TXT", _relations),
  "sentiment": _Set("glue/SST-2/train.tsv and dev.tsv", _sentiment),
  "similarity": _Set("glue/STS-B/dev.tsv or SICK/SICK_test_annotated.txt", _similarity),
  "pairs": _Set("blimp/*.jsonl or UD_English-EWT/*-ud-test*.conllu", _pairs),
}


def find(folder: Folder, names: Sequence[str]) -> tuple[list[Probe], list[str]]:
  """The probes of these names, and a sentence for each that is skipped because its data are not there.

  Without names all are wanted.

  Raises:
    ConfigError: a name is of no probe.
    DataError: data are damaged, those of a probe that is wanted by name are not there, or none are.
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
      raise DataError(f"{folder.path}: {name} needs {SETS[name].needs}, plain or .gz, and they are not there")
    if not made:
      skipped.append(f"Skipped, because its data are not there: {name} ({SETS[name].needs}).")
  if not available:
    needs = ", ".join(dict.fromkeys(one.needs for one in SETS.values()))
    raise DataError(f"{folder.path}: nothing to ask about; give a folder with any of {needs}")
  return available, skipped
