"""Heads on hidden states. Output tables are the token table, so only the small parts are here."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from pretrain.models.layers import ACTIVATIONS, EncoderConfig, Norm, dense_init
from pretrain.ops import row_random
from pretrain.ops.dense import gelu
from pretrain.ops.positions import segment_bounds, take_positions
from pretrain.ops.row_random import Use

_ACTIVATIONS = {"tanh": jnp.tanh, "gelu": gelu, "relu": jax.nn.relu}


class TransformHead(nn.Module):
  """norm(act(W h + b)): the masked-LM transform, and COCO-LM's projection for sequence contrast.

  The dense layer has a bias where the norms have one, as in BERT's head; ModernBERT's has neither.
  """

  config: EncoderConfig
  output_size: int

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Maps [..., embed] to [..., output_size]."""
    config = self.config
    dense = nn.Dense(
      self.output_size,
      dtype=config.compute_dtype,
      use_bias=config.norm_bias,
      kernel_init=dense_init(config),
      name="dense",
    )
    return Norm(config, name="norm")(ACTIVATIONS[config.activation](dense(hidden)))


class BinaryHead(nn.Module):
  """One logit per token, positive for "original"; optionally after a dense layer with gelu.

  With `context` the dense layer reads the norm of a token's state plus that of its text's first token.
  Source: COCO-LM section 3, official model.py (linear); google-research/electra (dense, opposite sign);
  microsoft/DeBERTa at 4d7fe0b, replaced_token_detection_model.py (context, opposite sign).
  """

  config: EncoderConfig
  dense: bool
  context: bool = False

  @nn.compact
  def __call__(self, hidden: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
    """Maps [batch, length, embed] to [batch, length] float32 logits."""
    config = self.config
    init = dense_init(config)
    if self.context:
      first = hidden[:, :1]
      if segment_ids is not None:
        first = take_positions(hidden, segment_bounds(segment_ids)[0])
      hidden = Norm(config, name="norm")(hidden.astype(jnp.float32) + first)
    if self.dense or self.context:
      layer = nn.Dense(config.hidden_size, dtype=config.compute_dtype, kernel_init=init, name="dense")
      hidden = gelu(layer(hidden))
    kernel = self.param("kernel", init, (config.hidden_size, 1))
    bias = self.param("bias", nn.initializers.zeros, (1,))
    return (hidden.astype(jnp.float32) @ kernel + bias)[..., 0]


def _init(module: nn.Module, key: jax.Array, input_size: int) -> dict:
  return module.init(key, jnp.zeros((1, 1, input_size)))["params"]


def init_mlm_head(key: jax.Array, config: EncoderConfig, *, output_size: int) -> dict:
  """Returns {'dense', 'norm', 'bias' [vocab]}: a transform to `output_size`, the table's, and a bias of 0."""
  params = _init(TransformHead(config, output_size), key, config.hidden_size)
  return {**params, "bias": jnp.zeros((config.vocab_size,), jnp.float32)}


def apply_transform(params: dict, config: EncoderConfig, hidden: jax.Array) -> jax.Array:
  """Computes LN(gelu(W h + b)) of [..., embed]; an output `bias` in `params` is not used."""
  parts = {"dense": params["dense"], "norm": params["norm"]}
  output_size = params["dense"]["kernel"].shape[-1]
  return TransformHead(config, output_size).apply({"params": parts}, hidden)


def scored(
  params: dict, config: EncoderConfig, hidden: jax.Array, token_table: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns what the softmax of a head over the vocabulary is computed from: vectors, table, bias.

  `params` are those of a masked-LM or CLM head, `hidden` [..., embed]. The vectors [..., token size] have the
  width of the table [vocab, token size], `token_table` or the head's own; the bias is [vocab] float32.
  """
  if "dense" in params:
    hidden = apply_transform(params, config, hidden)
  elif "projection" in params:
    hidden = apply_projection(params["projection"], hidden)
  table = params["table"]["embedding"] if "table" in params else token_table
  return hidden, table, params["bias"] if "bias" in params else jnp.zeros(table.shape[0], jnp.float32)


def init_rtd_head(key: jax.Array, config: EncoderConfig, *, dense: bool, context: bool = False) -> dict:
  """Returns {'kernel' [embed, 1], 'bias' [1]}, with 'dense' if asked for; with `context` also 'norm'."""
  return _init(BinaryHead(config, dense, context), key, config.hidden_size)


def apply_rtd_head(
  params: dict, config: EncoderConfig, hidden: jax.Array, segment_ids: jax.Array | None = None
) -> jax.Array:
  """Returns logits of "this token is the original one", [batch, length] float32.

  `segment_ids` [batch, length] int32 are the texts of a row, whose first tokens a head with 'norm' reads;
  None: a row is one text.
  """
  module = BinaryHead(config, "dense" in params, "norm" in params)
  return module.apply({"params": params}, hidden, segment_ids)


def init_table_head(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns {'table': {'embedding' [vocab, embed]}}, and 'bias' [vocab] if MLPs have biases (EuroBERT)."""
  table = dense_init(config)(key, (config.vocab_size, config.hidden_size))
  bias = {"bias": jnp.zeros((config.vocab_size,), jnp.float32)} if config.mlp_bias else {}
  return {"table": {"embedding": table}} | bias


def init_clm_head(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns {'bias' [vocab]}: no transform (COCO-LM appendix D: training is more stable without).

  Where the token table has another width, a linear 'projection' to it.
  """
  head: dict = {"bias": jnp.zeros((config.vocab_size,), jnp.float32)}
  if config.token_size != config.hidden_size:
    head["projection"] = init_projection(key, config, output_size=config.token_size)
  return head


def init_contrast_head(key: jax.Array, config: EncoderConfig, *, projection_size: int) -> dict:
  """Returns {'dense', 'norm'}: the released models' projection of the vector at [CLS]."""
  return _init(TransformHead(config, projection_size), key, config.hidden_size)


def init_projection(key: jax.Array, config: EncoderConfig, *, output_size: int) -> dict:
  """Returns {'kernel' [embed, output_size], 'bias'}, from embeddings to a generator of another width."""
  kernel = config.init_stddev * jax.random.normal(key, (config.hidden_size, output_size), jnp.float32)
  return {"kernel": kernel, "bias": jnp.zeros((output_size,), jnp.float32)}


def apply_projection(params: dict, x: jax.Array) -> jax.Array:
  """Returns x @ kernel + bias in x's dtype."""
  return x @ params["kernel"].astype(x.dtype) + params["bias"].astype(x.dtype)


def init_mixture(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns {'kernel' [embed, 1]}: AMOS's vector v, without bias, shared by all heads."""
  return {"kernel": config.init_stddev * jax.random.normal(key, (config.hidden_size, 1), jnp.float32)}


def _linear(key: jax.Array, shape: tuple[int, int], init: str, stddev: float) -> dict:
  """Returns {'kernel' (inputs, outputs), 'bias'}: 'normal' N(0, stddev) and 0; 'torch' both uniform."""
  if init == "normal":
    kernel, bias = stddev * jax.random.normal(key, shape, jnp.float32), jnp.zeros(shape[1:], jnp.float32)
    return {"kernel": kernel, "bias": bias}
  if init != "torch":
    raise ValueError(f"init is {init!r}; expected 'normal' or 'torch'")
  bound = shape[0] ** -0.5
  keys = jax.random.split(key)
  return {
    "kernel": jax.random.uniform(keys[0], shape, jnp.float32, -bound, bound),
    "bias": jax.random.uniform(keys[1], shape[1:], jnp.float32, -bound, bound),
  }


def init_classification_head(
  key: jax.Array, config: EncoderConfig, *, num_outputs: int, init: str = "normal", num_vectors: int = 1
) -> dict:
  """Returns a new float32 head on a text's vector: {'dense' [embed, embed], 'output' [embed, outputs]}.

  `num_outputs` is the number of classes, 1 for regression. For `num_vectors` concatenated vectors 'dense' is
  [num_vectors * embed, embed]. `init` is 'normal' (Hugging Face: N(0, init_stddev), biases 0) or 'torch'
  (fairseq: PyTorch's default, kernel and bias of a layer uniform within inputs ** -0.5). On a pre-norm
  encoder the dense layer has no bias and is followed by 'norm', as in ModernBERT.
  """
  size, keys = config.hidden_size, jax.random.split(key)
  dense = _linear(keys[0], (num_vectors * size, size), init, config.init_stddev)
  output = _linear(keys[1], (size, num_outputs), init, config.init_stddev)
  if config.norm_placement == "post":
    return {"dense": dense, "output": output}
  transform = _init(TransformHead(config, size), keys[0], num_vectors * size)
  transform["dense"]["kernel"] = dense["kernel"]
  return {**transform, "output": output}


def apply_classification_head(
  params: dict,
  vectors: jax.Array,
  *,
  activation: str = "tanh",
  dropout: float = 0.0,
  input_dropout: float | None = None,
  row_keys: jax.Array | None = None,
  config: EncoderConfig | None = None,
) -> jax.Array:
  """Applies dropout, linear, activation, dropout, linear: [batch, outputs] float32 logits or predictions.

  A head with 'norm' computes norm(act(linear)) without the first dropout instead (ModernBERT); one without
  'dense' is linear (UltraBERT).

  Args:
    vectors: [batch, embed] float, a text's vector.
    activation: 'tanh' (official fairseq), 'gelu' (official Hugging Face, exact), or 'relu' (DistilBERT).
    dropout: rate of the dropouts (0.1 in the papers).
    input_dropout: rate of the first one; None: as `dropout`. BERT and TACO use 0.
    row_keys: [batch] keys; None: no dropout.
    config: of the encoder; needed by a head with 'norm'.

  Source: COCO-LM fairseq model.py (COCOLM_ClassificationHead), huggingface modeling_cocolm.py.
  """
  x = vectors.astype(jnp.float32)
  if "norm" in params:
    x = _transformed(params, config, x)
  elif "dense" in params:
    first = dropout if input_dropout is None else input_dropout
    x = row_random.dropout(x, row_keys, Use.HEAD_INPUT_DROPOUT, rate=first)
    x = _ACTIVATIONS[activation](apply_projection(params["dense"], x))
  x = row_random.dropout(x, row_keys, Use.HEAD_HIDDEN_DROPOUT, rate=dropout)
  return apply_projection(params["output"], x)


def _transformed(params: dict, config: EncoderConfig | None, x: jax.Array) -> jax.Array:
  """Applies the transform of a head that has one, in float32."""
  if "norm" not in params:
    return x
  assert config is not None, "a head with a norm needs the encoder's config"
  return apply_transform(params, dataclasses.replace(config, dtype="float32"), x)


def init_tagging_head(key: jax.Array, config: EncoderConfig, *, num_outputs: int) -> dict:
  """Returns {'kernel' [embed, outputs] N(0, init_stddev), 'bias' zeros} float32, for tags of tokens."""
  return _linear(key, (config.hidden_size, num_outputs), "normal", config.init_stddev)


def apply_tagging_head(
  params: dict,
  hidden: jax.Array,
  *,
  dropout: float = 0.0,
  row_keys: jax.Array | None = None,
  config: EncoderConfig | None = None,
) -> jax.Array:
  """Returns [batch, length, outputs] float32 logits from hidden states [batch, length, embed].

  Dropout is applied first, unless `row_keys` [batch] are None. A head with 'norm' (of an imported ModernBERT)
  begins with its transform, for which it needs the encoder's `config`.
  Source: Devlin et al. 2019, section 5.3; transformers 5.23, ModernBertForTokenClassification.
  """
  x = _transformed(params, config, hidden.astype(jnp.float32))
  x = row_random.dropout(x, row_keys, Use.HEAD_INPUT_DROPOUT, rate=dropout)
  return apply_projection(params, x)


def init_question_answering_head(key: jax.Array, config: EncoderConfig) -> dict:
  """Returns {'kernel' [embed, 2] N(0, init_stddev), 'bias' [2] zeros} float32, for start and end."""
  return _linear(key, (config.hidden_size, 2), "normal", config.init_stddev)


def apply_question_answering_head(
  params: dict, hidden: jax.Array, allowed: jax.Array | None = None, config: EncoderConfig | None = None
) -> tuple[jax.Array, jax.Array]:
  """Returns logits of an answer's start and end, [batch, length] float32 each; [CLS] means no answer.

  Logits are -inf outside `allowed`, [batch, length] bool for [CLS] and the document. None allows all of
  `hidden` [batch, length, embed], as in the official Hugging Face code, which does not apply its mask. A head
  with 'norm' begins with its transform, for which it needs the encoder's `config`.

  Source: COCO-LM fairseq/models/squad/squad_head.py: two linear layers to one logit, without dropout.
  """
  logits = apply_projection(params, _transformed(params, config, hidden.astype(jnp.float32)))
  if allowed is not None:
    logits = jnp.where(allowed[..., None], logits, -jnp.inf)
  return logits[..., 0], logits[..., 1]
