"""Names of the supported experiment trackers, and the parser of `train.trackers`. Imports no jax."""

NAMES = ("wandb",)  # also the names of their packages


def names(asked: str) -> list[str]:
  """Parses the comma-separated names in `train.trackers`; removes duplicates."""
  return list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
