"""Samples the text for training a vocabulary: documents of several sources at the sources' rates.

Whether a document is in the sample depends only on its text and the seed, so the sample is the same for any
number of processes. All units are read twice: to count characters, and to take the documents. Held-out
documents are excluded.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from data import errors, files, sources
from data.clean import steps as clean
from data.prepare import engine, packing, pipeline
from data.vocabulary import train

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Source:
  """A source of text for training a vocabulary: its input units, and its rate in the sample."""

  job: pipeline.Job
  units: Sequence[sources.Unit]
  rate: float = 1.0  # its share of the characters, in any scale


@contextlib.contextmanager
def sample(
  taken: Sequence[Source], pool: engine.Engine, directory: str | os.PathLike | None = None
) -> Iterator[Iterator[str]]:
  """Opens the largest sample in which the sources' shares follow their rates, as an iterator over sentences.

  The sample has at most `train.MAX_TRAINING_CHARACTERS`; a single source with fewer is used completely, in
  its order. The sentences are in temporary files in `directory` until the block ends. DataError: one of
  several sources has no text to train on.
  """
  characters = [_characters(source, pool) for source in taken]
  for source, number in zip(taken, characters):
    if len(taken) > 1 and not number:
      raise errors.DataError(
        f"--source={source.job.request.source} has no usable text to train a vocabulary on"
      )
  for left in pathlib.Path(directory or os.devnull).glob("sample-*"):  # left by a killed command
    shutil.rmtree(left, ignore_errors=True)
  keeps = fractions(characters, [source.rate for source in taken], most=train.MAX_TRAINING_CHARACTERS)
  with tempfile.TemporaryDirectory(prefix="sample-", dir=directory, ignore_cleanup_errors=True) as temporary:
    paths = []
    for source, keep, number in zip(taken, keeps, characters):
      if len(taken) > 1 or keep < 1:
        logger.info(
          f"{source.job.request.source}: a vocabulary is trained on {keep:.2%} of {number:,} characters"
        )
      places = [os.path.join(temporary, str(len(paths) + unit)) for unit in range(len(source.units))]
      take = functools.partial(write, source.job, keep)
      written = pool.map(take, source.units, places, name="take text for the vocabulary")
      if len(taken) > 1 and not any(written):
        raise errors.DataError(
          f"--source={source.job.request.source}: none of its documents is in a sample of {keep:.2%}, it has "
          "too few; split them (blank lines end a document of a text file), or raise its --rate"
        )
      paths += places
    yield _sentences(paths)


def fractions(characters: Sequence[int], rates: Sequence[float], *, most: int) -> list[float]:
  """Returns the fraction of each source's documents in the largest sample that has these rates.

  The sample has at most `most` characters and no repetition, so one source or the limit decides its size.
  """
  rest = [number / rate for number, rate in zip(characters, rates)]
  size = min(most / sum(rates), *rest)
  return [size / whole if whole else 1.0 for whole in rest]


def _characters(source: Source, pool: engine.Engine) -> int:
  """Returns the characters of a source's training documents; DataError: cleaning dropped all of them."""
  counts: collections.Counter = collections.Counter()
  for of_unit in pool.map(functools.partial(count, source.job), source.units, name="count characters"):
    counts.update(of_unit)
  clean.refuse_nothing_left(source.job.cleaning.listed, counts)
  return counts["characters"]


def count(job: pipeline.Job, unit: sources.Unit) -> dict[str, int]:
  """Returns the number of 'characters' in a unit's training documents, and the counts of cleaning."""
  counts: collections.Counter = collections.Counter()
  counts["characters"] = sum(len(part) for document in _documents(job, unit, counts) for part in document)
  return dict(counts)


def write(job: pipeline.Job, keep: float, unit: sources.Unit, path: str) -> int:
  """Writes the sentences of a unit's sampled training documents to `path`, one per line.

  Returns the number of these documents.
  """
  number = 0
  with files.whole_file(path) as aside, open(aside, "w", encoding="utf-8", newline="\n") as file:
    for document in _documents(job, unit, collections.Counter()):
      if pipeline.document_fraction(document, "vocabulary", job.seed) < keep:
        number += 1
        for paragraph in document:
          file.writelines(f"{line}\n" for line in packing.split_sentences(paragraph, collections.Counter()))
  return number


def _documents(job: pipeline.Job, unit: sources.Unit, counts: collections.Counter) -> Iterator[list[str]]:
  found = pipeline.documents(job, unit, counts)
  return (document for split, document in found if split == "train")


def _sentences(paths: Sequence[str]) -> Iterator[str]:
  for path in paths:
    with pathlib.Path(path).open(encoding="utf-8", newline="\n") as file:
      yield from (line.removesuffix("\n") for line in file)
