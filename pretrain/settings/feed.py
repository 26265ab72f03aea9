"""Rules about the fields of a run that reads a seqio Task or Mixture during training. Imports no jax."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretrain.settings.field_types import Fields, show

SEQIO = "seqio:"  # prefix of the name of a Task or Mixture
# {field about prepared records: its default, the only value that a feed allows}.
_OF_RECORDS = {
  "data.clean": "",
  "data.directory": "",
  "data.mixture": "",
  "data.stages": "",
  "data.fraction": 1.0,
}


def is_fed(data: Mapping[str, Any]) -> bool:
  """Returns whether a run with these fields of `config.data` reads seqio directly, not prepared records."""
  return data["feed"] == "seqio"


def problems(config: Fields) -> Iterator[str]:
  """Yields an error for each field that a seqio feed cannot use: `config` is {dotted name: value}."""
  if not is_fed({"feed": config["data.feed"]}):
    return
  source = config["data.source"]
  if not source.startswith(SEQIO) or source == SEQIO:
    yield (
      f"{show(config, 'data.feed', 'data.source')}: expected the name of a Task or Mixture, or prepared "
      "records:\n  --config.data.source=seqio:NAME\n  --config.data.feed=records"
    )
  for name, nothing in _OF_RECORDS.items():
    if config[name] != nothing:
      yield (
        f"{show(config, 'data.feed', name)}: {name} needs prepared records; remove it, or use\n  "
        "--config.data.feed=records"
      )
