"""The fields of a run that is fed straight from a seqio Task: which of them make no sense. Imports no jax."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretrain.settings.field_types import Fields, show

SEQIO = "seqio:"  # begins the name of a Task or Mixture
# Fields about prepared records, with the value that says nothing.
_OF_RECORDS = {
  "data.clean": "",
  "data.directory": "",
  "data.mixture": "",
  "data.stages": "",
  "data.fraction": 1.0,
}


def is_fed(data: Mapping[str, Any]) -> bool:
  """Returns whether the fields of `config.data` ask for a seqio Task or Mixture without records."""
  return data["feed"] == "seqio"


def problems(config: Fields) -> Iterator[str]:
  """Yields what is wrong with the fields of a feed: {dotted name: value} of a whole config."""
  if not is_fed({"feed": config["data.feed"]}):
    return
  source = config["data.source"]
  if not source.startswith(SEQIO) or source == SEQIO:
    yield (
      f"{show(config, 'data.feed', 'data.source')}: expected a Task or Mixture, "
      "--config.data.source=seqio:NAME; other text is prepared first (--config.data.feed=records)"
    )
  for name, nothing in _OF_RECORDS.items():
    if config[name] != nothing:
      yield (
        f"{show(config, 'data.feed', name)}: there are no prepared records; leave that out, or use "
        "--config.data.feed=records"
      )
