"""Probabilities of labels from what a model gives, and the columns that answers have. Imports no jax."""

import numpy as np

from finetune.own.schema import TaskSchema

PREDICTED, PROBABILITY = "predicted", "probability"  # columns of answers


def probabilities(schema: TaskSchema, outputs: np.ndarray) -> np.ndarray:
  """[..., labels] float64 from [rows, labels] logits: of one label each, or of every label by itself."""
  logits = outputs.astype(np.float64)
  if schema.kind == "multilabel":
    return np.exp(-np.logaddexp(0.0, -logits))
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)
