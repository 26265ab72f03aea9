"""Finds the sources of a config's mixture, compares them, and opens them at their rates."""

import dataclasses
import decimal
import os
import pathlib
import re
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any

from data import fetched, files, manifest, vocabulary
from data.errors import ConfigError, DataError
from data.files import short_names
from data.records import MixedRecords, Mixture, PackedRecords, source_seed
from pretrain.settings import mixture
from pretrain.settings.run import ReadingSettings

_DIGITS = 20  # precision of a rate with a temperature


@dataclasses.dataclass(frozen=True)
class Source:
  """One directory of prepared records in a mixture."""

  name: str  # unique; letters, digits and '_'
  written: str  # the directory as written in the config
  directory: str  # where its files are; for an address the local copy
  content: manifest.Manifest
  rates: list[Fraction]  # in each stage; the rates of a stage add up to 1
  share: Fraction  # of the rows of the whole run


@dataclasses.dataclass(frozen=True)
class Found:
  """The sources of a mixture, all with the same vocabulary, length and packing."""

  steps: list[int]  # where each stage begins
  sources: list[Source]  # in the order in which they first appear

  @property
  def directory(self) -> str:
    """The first source's directory; all sources have its vocabulary."""
    return self.sources[0].directory

  @property
  def manifest(self) -> manifest.Manifest:
    """The first source's manifest; all sources have its vocabulary, length and packing."""
    return self.sources[0].content

  @property
  def digests(self) -> dict[str, Any]:
    """Identifies vocabulary and sources, as JSON values for checkpoints, to compare them at a resume.

    'mixture' has a [step, [[name, sha256 of the records, rate as 'a/b'], ...]] for each stage.
    """
    stages = []
    for at, step in enumerate(self.steps):
      taken = [source for source in self.sources if source.rates[at]]
      stages.append([step, [[source.name, _digest(source), str(source.rates[at])] for source in taken]])
    return {"vocabulary_digest": self.manifest.vocabulary.digest, "mixture": stages}

  def describe(self) -> dict[str, Any]:
    """Describes the mixture's text: totals as of a single directory, and 'sources' with those of each."""
    sources = [
      {
        "name": source.name,
        "source": source.content.settings.get("source", ""),
        "digest": _digest(source),
        "rate": float(source.share),
        "documents": source.content.counts.get("documents", 0),
        "tokens": source.content.splits["train"].tokens,
        "records": source.content.splits["train"].records,
      }
      for source in self.sources
    ]
    sums = {name: sum(part[name] for part in sources) for name in ("documents", "tokens", "records")}
    same = {"packing": self.manifest.packing, "length": self.manifest.length}
    most = manifest.most_segments([source.content for source in self.sources])
    return {"source": "", **same, **sums, **most, "sources": sources}

  def train(self, settings: ReadingSettings) -> MixedRecords:
    """Opens the training records: each source in its own order, each stage from its step on."""
    firsts = [settings.sizes.rows_before(step) for step in self.steps]
    rates = [[source.rates[at] for source in self.sources] for at in range(len(firsts))]
    return self._open(settings, "train", Mixture(list(zip(firsts, rates))), fraction=settings.data.fraction)

  def heldout(self, settings: ReadingSettings) -> MixedRecords:
    """Opens the held-out records of all sources, weighted by their share of the whole run's rows."""
    return self._open(settings, "heldout", Mixture([(0, [source.share for source in self.sources])]))

  def _open(
    self, settings: ReadingSettings, split: str, order: Mixture, *, fraction: float = 1.0
  ) -> MixedRecords:
    opened = {
      source.name: PackedRecords(
        source.directory,
        split=split,
        length=settings.data.length,
        # From the content, because directories may be renamed; so two sources never share an order.
        seed=source_seed(settings.seed, _digest(source)),
        fraction=fraction,
        content=source.content,
      )
      for source in self.sources
    }
    return MixedRecords(opened, order, shares=[source.share for source in self.sources])


def find(settings: ReadingSettings, *, only: Collection[str] = ()) -> Found:
  """Finds the sources of a config's mixture; sources at addresses are downloaded first.

  With `only`, just these files of an address are downloaded.

  Raises:
    ConfigError: the text of the mixture is malformed.
    DataError: a source is missing or empty, has other ids or blocks than the first, or equals another.
  """
  try:
    stages = mixture.stages(vars(settings.data))
  except ValueError as error:
    raise ConfigError(
      f"data.stages={settings.data.stages}, data.mixture={settings.data.mixture}: {error}"
    ) from error
  written = list(dict.fromkeys(source.directory for stage in stages for source in stage.sources))
  places = [_fetched(directory, only) for directory in written]
  contents = dict(zip(written, map(manifest.read, places)))
  _refuse_unlike(contents, settings.data.vocabulary)
  rates = {directory: [Fraction(0)] * len(stages) for directory in written}
  for at, stage in enumerate(stages):
    sizes = [
      _tempered(
        Fraction(contents[source.directory].splits["train"].records) if source.rate is None else source.rate,
        settings.data.temperature,
      )
      for source in stage.sources
    ]
    for source, size in zip(stage.sources, sizes):
      rates[source.directory][at] = size / sum(sizes)
  steps = [stage.step for stage in stages]
  total = max(settings.total_steps, steps[-1] + 1)
  rows = settings.sizes.rows_before
  lengths = [rows(end) - rows(step) for step, end in zip(steps, [*steps[1:], total])]
  sources = [
    Source(
      name=name,
      written=directory,
      directory=path,
      content=contents[directory],
      rates=rates[directory],
      share=sum((rate * of for rate, of in zip(rates[directory], lengths)), Fraction(0)) / rows(total),
    )
    for name, directory, path in zip(_names(contents), written, places)
  ]
  return Found(steps, sources)


def _digest(source: Source) -> str:
  return manifest.records_digest(source.content)


def _fetched(directory: str, only: Collection[str]) -> str:
  if not files.is_address(directory):
    return directory
  return str(fetched.records(directory, flag="data.mixture", only=only))


def _names(contents: dict[str, manifest.Manifest]) -> list[str]:
  """Names each directory for metrics: letters, digits and '_' of its seqio Task or short path."""
  names: list[str] = []
  for end, made in zip(short_names([*map(pathlib.Path, contents)]), contents.values()):
    source = str(made.settings.get("source", ""))
    called = source.removeprefix(mixture.SEQIO) if source.startswith(mixture.SEQIO) else end
    name = re.sub(r"\W+", "_", called).strip("_") or "source"
    while name in names:
      name += f"_{len(names) + 1}"
    names.append(name)
  return names


def _tempered(rate: Fraction, temperature: float) -> Fraction:
  """Returns rate**(1 / temperature), computed with `Decimal` because floats may differ by machine."""
  if not temperature or temperature == 1:
    return rate
  with decimal.localcontext(prec=_DIGITS):
    return Fraction((Decimal(rate.numerator) / rate.denominator) ** (1 / Decimal(str(temperature))))


def _refuse_unlike(contents: dict[str, manifest.Manifest], named: str) -> None:
  """Raises DataError for sources that cannot share batches, are empty, or are equal."""
  (first, expected), *_ = contents.items()
  owners: dict[str, str] = {}
  asked = files.read_json(os.path.join(named, vocabulary.NAME)).get("digest") if named else None
  if asked and asked != expected.vocabulary.digest:
    raise DataError(
      f"{first} was prepared with another vocabulary than data.vocabulary={named}; leave that field empty\n"
      "  --config.data.vocabulary="
    )
  for directory, made in contents.items():
    if not made.splits["train"].records:
      raise DataError(
        f"{directory} has no training records; prepare it again from more text, or leave it out"
      )
    facts = (
      ("vocabulary", made.vocabulary.digest, expected.vocabulary.digest),
      ("length", made.length, expected.length),
      ("packing", made.packing, expected.packing),
    )
    for flag, found, of_first in facts:
      if found != of_first:
        value = os.path.join(first, "vocabulary") if flag == "vocabulary" else of_first
        values = f"{str(found)[:12]}, {str(of_first)[:12]}"
        raise DataError(
          f"{directory} was prepared with another {flag} than {first} ({values}); "
          f"prepare it again with\n  --{flag}={value}"
        )
    same = owners.setdefault(manifest.records_digest(made), directory)
    if same != directory:
      raise DataError(f"{directory} and {same} have the same records; use one of them")
