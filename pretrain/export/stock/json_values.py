"""Reads values of a `config.json` that transformers wrote; a value of another kind is a DataError."""

from collections.abc import Mapping
from typing import Any

from data.errors import DataError

# {our field: its name in every Hugging Face config.json, also the official port's}
SIZES = {
  "vocab_size": "vocab_size",
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "mlp_size": "intermediate_size",
}
# Key for values that the stock config has no field for; transformers keeps and ignores it.
SOURCE_KEY = "source_model"


def wrong(field: str, found: object, expected: str, advice: str) -> DataError:
  """Returns the error for a field with an unsupported value."""
  return DataError(f"config.json: {field} is {found!r}; expected {expected}; {advice}")


def refuse_others(fields: Mapping[str, Any], allowed: Mapping[str, tuple]) -> None:
  """Raises DataError for a field with another than its allowed values; without a value it has the first."""
  for name, values in allowed.items():
    if fields.get(name, values[0]) not in values:
      expected = ", ".join(map(repr, values))
      raise wrong(name, fields[name], expected, "other values are not supported")


def integer(fields: Mapping[str, Any], name: str, default: int | None = None, lowest: int = 1) -> int:
  """Returns an integer of at least `lowest`."""
  value = fields.get(name, default)
  if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
    raise wrong(name, value, f"an integer of at least {lowest}", "check the checkpoint")
  return value


def number(fields: Mapping[str, Any], name: str, default: float) -> float:
  """Returns a number from 0 to below 1."""
  value = fields.get(name, default)
  if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
    raise wrong(name, value, "a number from 0 to 1", "check the checkpoint")
  return float(value)


def sizes(fields: Mapping[str, Any]) -> dict[str, int]:
  """Returns the fields of `SIZES`; the width is divisible by the number of heads."""
  of_config = {field: integer(fields, name) for field, name in SIZES.items()}
  if of_config["hidden_size"] % of_config["num_heads"]:
    expected = f"a divisor of hidden_size {of_config['hidden_size']}"
    raise wrong("num_attention_heads", of_config["num_heads"], expected, "check the checkpoint")
  return of_config
