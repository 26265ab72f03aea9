"""Rules about the text that a run reads: a seqio feed, or a mixture of prepared corpora. Imports no jax."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ml_collections import ConfigDict

SEQIO = "seqio:"  # prefix of the name of a Task or Mixture
_OF_RECORDS = ("clean", "directory", "mixture", "stages")  # fields that a feed cannot use, beside fraction


def is_fed(data: Mapping[str, Any]) -> bool:
  """Returns whether a run with these fields of `config.data` reads seqio directly, not prepared records."""
  return data["feed"] == "seqio"


_OF_TEXT = ("text_field", "clean", "module", "tfds_directory")
_RATE = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?[% ]*|nan|inf|infinity)", re.IGNORECASE)
_STAGE = re.compile(r"(?:^|;)\s*([+-]?\d+):\s*")
_FORM = "expected 'DIR:RATE,DIR:RATE', or 'DIR,DIR' for rates in proportion to their records"


class Source(NamedTuple):
  """A directory of prepared records and its rate in any scale; rate None means its number of records."""

  directory: str
  rate: Fraction | None


class Stage(NamedTuple):
  """The sources that a mixture uses from training step `step` until its next stage."""

  step: int
  sources: list[Source]


def is_asked(data: Mapping[str, Any]) -> bool:
  """Returns whether the fields of `config.data` name a mixture."""
  return bool(data["mixture"] or data["stages"])


def seqio_name(data: Mapping[str, Any]) -> str:
  """Returns the NAME of a seqio Mixture if `data.mixture` is 'seqio:NAME', otherwise ''."""
  name = data["mixture"].removeprefix(SEQIO)
  return name if name != data["mixture"] and not re.search("[:,]", name) else ""


def stages(data: Mapping[str, Any]) -> list[Stage]:
  """Parses `data.mixture` or `data.stages` and returns the stages of the mixture, in order.

  ValueError: the text is wrong. The message is one line without the field's name, which the caller adds.
  """
  if not data["stages"]:
    return [Stage(0, _sources(data["mixture"]))]
  before, *parts = _STAGE.split(data["stages"])
  if before.strip() or not parts:
    raise ValueError("expected 'STEP: DIR:RATE,DIR:RATE; STEP: ...', beginning with '0: '")
  ordered = [Stage(int(step), _sources(text)) for step, text in zip(parts[::2], parts[1::2])]
  steps = [stage.step for stage in ordered]
  if steps[0] != 0:
    raise ValueError(f"the first stage is at step {steps[0]}; expected step 0")
  for one, other in itertools.pairwise(steps):
    if other <= one:
      raise ValueError(f"step {other} comes after step {one}; expected ascending steps")
  return ordered


def directories(data: Mapping[str, Any]) -> list[str]:
  """Returns the directories of all stages of a mixture without repetition, in order of appearance."""
  return list(dict.fromkeys(source.directory for stage in stages(data) for source in stage.sources))


def _sources(text: str) -> list[Source]:
  """Parses 'DIR:RATE,DIR:RATE' or 'DIR,DIR'; with rates, a directory may contain commas."""
  pieces = [piece.strip() for piece in text.strip().removesuffix(";").split(",")]
  rates = [_rate_of(piece) for piece in pieces]
  sources, waiting = [], []
  for piece, rate in zip(pieces, rates):
    waiting.append(piece)
    if rate is not None:
      sources.append(Source(",".join(waiting).rpartition(":")[0], rate))
      waiting = []
  if sources and waiting:
    raise ValueError(f"{','.join(waiting)!r} has no rate; {_FORM}")
  sources = sources or [Source(piece, None) for piece in pieces]
  places = [source.directory for source in sources]
  names = [place if "://" in place else os.path.abspath(place) for place in places]
  for source, name in zip(sources, names):
    if not source.directory:
      raise ValueError(f"a source has no directory; {_FORM}")
    if source.directory.startswith(SEQIO):
      raise ValueError(f"{source.directory!r}: a seqio Mixture must be alone in data.mixture, without stages")
    if names.count(name) > 1:
      raise ValueError(f"the source {source.directory!r} is named twice; name it once")
  return sources


def _rate_of(piece: str) -> Fraction | None:
  """Returns the rate at the end of 'DIR:RATE'; None without one. ValueError: not above 0, or with %."""
  directory, colon, rate = piece.rpartition(":")
  if not colon or not _RATE.fullmatch(rate):
    return None
  with contextlib.suppress(ValueError):  # nan, inf, 70%
    if Fraction(rate) > 0:
      return Fraction(rate)
  raise ValueError(f"the rate of {directory!r} is {rate}; expected a number above 0, finite and without %")


def shown(found: Sequence[Sequence[Any]]) -> str:
  """Formats stages, as `mixed.Found.digests` returns them, as 'from step 0: wiki 0.7, books 0.3'."""
  return "; ".join(
    f"from step {step:,}: " + ", ".join(f"{name} {float(Fraction(rate)):.4g}" for name, _, rate in rates)
    for step, rates in found
  )


def rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about a feed or a mixture; see `fields.Schema.check`."""
  data = config.data
  if is_fed(data):
    if not data.source.startswith(SEQIO) or data.source == SEQIO:
      ways = "--config.data.source=seqio:NAME\n  --config.data.feed=records"
      yield f"data.feed data.source: expected the name of a Task or Mixture, or prepared records:\n  {ways}"
    used = [*filter(data.get, _OF_RECORDS), *(["fraction"] if data.fraction != 1 else [])]
    for name in used:
      yield f"data.feed data.{name}: needs prepared records; remove it, or use\n  --config.data.feed=records"
  if not is_asked(data):
    if data.temperature:
      yield "data.temperature data.mixture data.stages: it needs rates; set one of the other two"
    return
  if data.mixture and data.stages:
    yield "data.mixture data.stages: set only one of them; data.stages includes the mixture of step 0"
  if 0 < data.temperature < 0.1:
    yield "data.temperature: expected 0 (off), or a number in [0.1, 100]"
  if data.directory:
    yield "data.directory data.mixture data.stages: a mixture names the records already; remove the directory"
  name = "stages" if data.stages else "mixture"
  if seqio_name(data):
    if not data.vocabulary:
      yield (
        "data.mixture data.vocabulary: its Tasks need one vocabulary; train one, then name it:\n"
        f"  python -m data.vocabulary train --source={data.mixture} --module=FILE --output=words "
        f"--size={config.model.vocab_size}\n  --config.data.vocabulary=words"
      )
    return
  for about_text in filter(data.get, _OF_TEXT):
    yield f"data.{about_text}: a mixture reads records that are prepared already; remove it"
  try:
    late = [stage.step for stage in stages(data) if stage.step >= config.train.total_steps]
  except ValueError as error:
    yield f"data.{name}: {error}"
    return
  if late:
    yield f"data.stages train.total_steps: steps {', '.join(map(str, late))} are too late"
