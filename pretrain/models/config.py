"""The settings of one Transformer encoder, and an estimate of the memory that it takes."""

from pretrain.settings.model import EncoderConfig

__all__ = ["EncoderConfig", "activation_bytes"]


def activation_bytes(
  encoder: EncoderConfig, *, tokens: int, length: int, depth: int = 0, has_plain_attention: bool = True
) -> float:
  """An estimate of what layers keep of one batch for the backward pass, in bytes.

  About 34 numbers per token and width, and where attention is plain its probabilities; where a part is
  recomputed one layer's, and what is kept of all.

  Args:
    tokens: of the batch, in rows of `length`.
    depth: layers that the batch goes through; 0: those of the encoder.
  """
  depth = depth or encoder.num_layers
  width = encoder.compute_dtype.itemsize
  per_token = 34 * encoder.hidden_size * width // 2
  if has_plain_attention:
    per_token += 2 * encoder.num_heads * length * width
  layer, layer_input = tokens * per_token, tokens * encoder.hidden_size * width
  # Input, query, key, value, attended, output and down, and the wider up.
  products = layer_input * (7 + encoder.mlp_size / encoder.hidden_size)
  kept_of_each = {"cheap": products, "full": layer_input}
  return depth * layer if encoder.remat == "none" else layer + depth * kept_of_each[encoder.remat]
