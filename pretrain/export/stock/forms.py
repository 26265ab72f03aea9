"""Rewrites parameters into the slots of stock transformers classes, without changing what they compute.

Each form has its inverse, which returns None (or its argument) for tensors that do not have that form. All
arrays are float32 numpy.

Source: transformers 5.23, modeling_electra.py (ElectraDiscriminatorPredictions), modeling_layoutlmv3.py
(LayoutLMv3ClassificationHead, LayoutLMv3Encoder); the forms are ours.
"""

import numpy as np

from data.errors import ConfigError
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import official_buckets_of, t5_buckets_of

# Below this bound float32 tanh(y) equals y: the next term, y^3 / 3, is below half a unit in the last place.
TANH_IS_LINEAR_BELOW = 2.0**-13


def binary_head_as_dense(head: dict) -> dict:
  """Rewrites a one-layer RTD head with a dense layer: gelu(x) - gelu(-x) = x, by two opposite rows.

  {'kernel' [D, 1], 'bias' [1]}, D at least 2, becomes {'dense': {'kernel' [D, D], 'bias' [D]}, 'kernel'
  [D, 1], 'bias' [1]} with the same logits; a head with 'dense' is returned unchanged.
  """
  if "dense" in head:
    return head
  kernel = np.asarray(head["kernel"], np.float32)
  dense, output = np.zeros((len(kernel), len(kernel)), np.float32), np.zeros_like(kernel)
  dense[:, 0], dense[:, 1] = kernel[:, 0], -kernel[:, 0]
  output[0], output[1] = 1, -1
  return {
    "dense": {"kernel": dense, "bias": np.zeros(len(kernel), np.float32)},
    "kernel": output,
    "bias": head["bias"],
  }


def binary_head_from_dense(head: dict) -> dict:
  """Inverts `binary_head_as_dense`; a head with a real dense layer is returned unchanged."""
  linear = {"kernel": head["dense"]["kernel"][:, :1], "bias": head["bias"]}
  return linear if same(binary_head_as_dense(linear), head) else head


def linear_head_as_tanh(head: dict, norm: dict) -> dict:
  """Rewrites a linear head on tokens as dense, tanh, dense, scaled into the range where tanh(y) = y.

  The scale is a power of two, so that only exponents change: logits are equal in float32 and bfloat16.
  float16 has too few exponents.

  Args:
    head: {'kernel' [D, n], 'bias' [n]}: start and end of an answer, or the labels of a token, n <= D.
    norm: {'scale' [D], 'bias' [D]} of the last LayerNorm, which bounds the head's input.

  Returns:
    {'dense': {'kernel' [D, D], 'bias' [D]}, 'output': {'kernel' [D, n], 'bias' [n]}}.

  Raises:
    ConfigError: more labels than D.
  """
  kernel, bias = (np.asarray(head[name], np.float32) for name in ("kernel", "bias"))
  if kernel.shape[1] > len(kernel):
    raise ConfigError(
      f"export: {kernel.shape[1]} labels for a token, but LayoutLMv3's class has room for {len(kernel)}; "
      "use\n  --to=torch"
    )
  # A normalised vector has length sqrt(D) at most. float64, because float32 values may overflow here.
  scale, shift, wide = (np.asarray(a, np.float64) for a in (norm["scale"], norm["bias"], kernel))
  longest = np.sqrt(len(kernel)) * np.abs(scale).max() + np.linalg.norm(shift)
  bound = float((np.linalg.norm(wide, axis=0) * longest + np.abs(bias)).max())
  halvings = max(0, int(np.ceil(np.log2(max(bound, 1e-30) / TANH_IS_LINEAR_BELOW))))
  return _scaled_linear_head(kernel, bias, 2.0**-halvings)


def _scaled_linear_head(kernel: np.ndarray, bias: np.ndarray, scale: float) -> dict:
  size, count = kernel.shape
  dense = {"kernel": np.zeros((size, size), np.float32), "bias": np.zeros(size, np.float32)}
  dense["kernel"][:, :count], dense["bias"][:count] = kernel * np.float32(scale), bias * np.float32(scale)
  output = np.eye(size, count, dtype=np.float32) / np.float32(scale)
  return {"dense": dense, "output": {"kernel": output, "bias": np.zeros(count, np.float32)}}


def linear_head_from_tanh(head: dict) -> dict | None:
  """Inverts `linear_head_as_tanh`; None for any other head of that shape."""
  factor = float(head["output"]["kernel"][0, 0])
  if not 1 <= factor < np.inf:  # also false for NaN
    return None
  count = head["output"]["bias"].shape[0]
  linear = {name: head["dense"][name][..., :count] * np.float32(factor) for name in ("kernel", "bias")}
  return linear if same(_scaled_linear_head(linear["kernel"], linear["bias"], 1 / factor), head) else None


def distance_bins(max_length: int) -> int:
  """Returns the `rel_pos_bins` that gives every distance below `max_length` its own row in LayoutLMv3.

  Half of the bins are for keys to the right, and half of each half are single distances.
  """
  return 4 * max_length


def distance_rows(table: np.ndarray, config: EncoderConfig) -> np.ndarray:
  """Expands our bucketed table to LayoutLMv3's weight of relative positions, a row for each distance.

  Args:
    table: [buckets, heads] float32.
    config: of the encoder; relative_position 't5' or 'official'.

  Returns:
    [heads, distance_bins(max_length)] float32, multiplied by sqrt(head_dim), because the class divides by it.
    Unused columns are 0.
  """
  delta = np.arange(-(config.max_length - 1), config.max_length)
  sizes = {"num_buckets": config.relative_buckets, "max_distance": config.relative_max_distance}
  if config.relative_position == "t5":
    buckets = t5_buckets_of(delta, **sizes)
  else:
    buckets = official_buckets_of(delta, max_length=config.max_length, **sizes)
  bins = distance_bins(config.max_length)
  rows = np.zeros((bins, table.shape[1]), np.float32)
  rows[np.where(delta > 0, bins // 2, 0) + np.abs(delta)] = table[buckets] * np.sqrt(config.head_dim)
  return np.ascontiguousarray(rows.T)


def spatial_sizes(hidden_size: int) -> tuple[int, int]:
  """Returns (coordinate_size, shape_size); 4 and 2 times these sum to `hidden_size`, if it is even."""
  coordinate = hidden_size // 6
  return coordinate, hidden_size // 2 - 2 * coordinate


def blank_pooler(hidden_size: int) -> dict[str, np.ndarray]:
  """Returns an identity pooler for BertModel and MPNetModel, which have one that is not trained here.

  Zeros would make its output constant, and random numbers would differ between exports.
  """
  return {
    "pooler.dense.weight": np.eye(hidden_size, dtype=np.float32),
    "pooler.dense.bias": np.zeros(hidden_size, np.float32),
  }


def same(first: dict, second: dict) -> bool:
  """Whether two trees have the same names and bits."""
  if first.keys() != second.keys():
    return False
  return all(
    same(first[name], second[name])
    if isinstance(first[name], dict)
    else np.array_equal(first[name], second[name])
    for name in first
  )
