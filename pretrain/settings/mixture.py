"""A mixture of prepared corpora as a config writes it: directories, rates and stages. Imports no jax."""

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from pretrain.settings.feed import SEQIO
from pretrain.settings.field_types import Fields, show

_OF_TEXT = ("data.text_field", "data.clean", "data.module", "data.tfds_directory")
_RATE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", re.IGNORECASE)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_STAGE = re.compile(r"(?:^|;)\s*([+-]?\d+):\s*")
_FORM = "write 'DIR:RATE,DIR:RATE', or 'DIR,DIR' for rates by the number of records"


class Source(NamedTuple):
  """A directory of prepared records, and its rate in any scale; None: its number of records."""

  directory: str
  rate: Fraction | None


class Stage(NamedTuple):
  """Sources from a step on."""

  step: int
  sources: list[Source]


def is_asked(data: Mapping[str, Any]) -> bool:
  """Returns whether the fields of `config.data` name a mixture."""
  return bool(data["mixture"] or data["stages"])


def seqio_name(data: Mapping[str, Any]) -> str:
  """Returns the NAME of a seqio Mixture where `data.mixture` is 'seqio:NAME'; else ''."""
  name = data["mixture"].removeprefix(SEQIO)
  return name if name != data["mixture"] and not re.search("[:,]", name) else ""


def stages(data: Mapping[str, Any]) -> list[Stage]:
  """Returns the stages of a mixture of directories, in order.

  ValueError: what is wrong with the text of `data.mixture` or `data.stages`, in one line that names neither.
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
  """Returns the directories of `stages`, each once, in the order in which they first appear."""
  return list(dict.fromkeys(source.directory for stage in stages(data) for source in stage.sources))


def _sources(text: str) -> list[Source]:
  """Reads 'DIR:RATE,DIR:RATE' or 'DIR,DIR'; where rates are given, a directory may hold commas."""
  pieces = [piece.strip() for piece in text.split(",")]
  rates = [_rate_of(piece) for piece in pieces]
  sources = []
  if any(rate is not None for rate in rates):
    waiting: list[str] = []
    for piece, rate in zip(pieces, rates):
      waiting.append(piece)
      if rate is not None:
        sources.append(Source(",".join(waiting).rpartition(":")[0], rate))
        waiting = []
    if waiting:
      raise ValueError(f"{','.join(waiting)!r} has no rate; {_FORM}")
  else:
    sources = [Source(piece, None) for piece in pieces]
  places = [source.directory for source in sources]
  names = [place if "://" in place else os.path.abspath(place) for place in places]
  for source, name in zip(sources, names):
    if not source.directory:
      raise ValueError(f"a source without a directory; {_FORM}")
    if source.directory.startswith(SEQIO):
      raise ValueError(f"{source.directory!r} stands among others; a seqio Mixture is data.mixture alone")
    if names.count(name) > 1:
      raise ValueError(f"the source {source.directory!r} is named twice; give it one rate")
  return sources


def _rate_of(piece: str) -> Fraction | None:
  """Returns the rate at the end of a piece; None: it ends in none. ValueError: it is no rate to take."""
  directory, colon, rate = piece.rpartition(":")
  if colon and _NOT_FINITE.fullmatch(rate):
    raise ValueError(f"the rate of {directory!r} is {rate}; expected a finite number above 0")
  if not colon or not _RATE.fullmatch(rate):
    return None
  if Fraction(rate) <= 0:
    raise ValueError(f"the rate of {directory!r} is {rate}; expected a number above 0")
  return Fraction(rate)


def shown(found: Sequence[Sequence[Any]]) -> str:
  """Returns 'from step 0: wiki 0.7, books 0.3' of stages as `mixed.Found.digests` has them."""
  return "; ".join(
    f"from step {step:,}: " + ", ".join(f"{name} {float(Fraction(rate)):.4g}" for name, _, rate in rates)
    for step, rates in found
  )


def problems(config: Fields) -> Iterator[str]:
  """Yields what is wrong with the fields of a mixture: {dotted name: value} of a whole config."""
  data = {name: config[f"data.{name}"] for name in ("mixture", "stages")}
  if not is_asked(data):
    if config["data.temperature"]:
      yield f"{show(config, 'data.temperature')}: there are no rates; give data.mixture or data.stages"
    return
  both = ("data.mixture", "data.stages")
  if all(data.values()):
    yield f"{show(config, *both)}: give one of them; data.stages has the mixture of step 0 too"
    return
  if 0 < config["data.temperature"] < 0.1:
    yield f"{show(config, 'data.temperature')}: expected 0 (off), or a number in [0.1, 100]"
  if config["data.directory"]:
    yield f"{show(config, 'data.directory')}: data.mixture or data.stages names the records; leave it empty"
  name = both[bool(data["stages"])]
  if seqio_name(data):
    if not config["data.vocabulary"]:
      size = config["model.vocab_size"]
      yield (
        f"{show(config, name)}: its Tasks need one vocabulary; train one with `python -m data.vocabulary "
        f"train --source={data['mixture']} --module=FILE --output=words --size={size}` and give "
        "--config.data.vocabulary=words"
      )
    return
  for about_text in filter(config.get, _OF_TEXT):
    yield f"{show(config, about_text)}: a mixture names records, which are prepared already; leave it out"
  try:
    ordered = stages(data)
  except ValueError as error:
    yield f"{name}={data[name.removeprefix('data.')]}: {error}"
    return
  late = [stage.step for stage in ordered if stage.step >= config["train.total_steps"]]
  if late:
    yield f"data.stages: steps {', '.join(map(str, late))} never come; {show(config, 'train.total_steps')}"
