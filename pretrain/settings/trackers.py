"""The trackers that a run may send its metrics to: `train.trackers`, names by commas. Imports no jax."""

NAMES = ("wandb", "mlflow", "trackio")  # also those of their packages


def names(asked: str) -> list[str]:
  """The names in `train.trackers`, each once."""
  return list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
