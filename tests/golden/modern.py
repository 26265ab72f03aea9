"""Golden kinds about pre-norm encoders: l_modernbert and m_ultrabert, stock classes of transformers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.export import tensor_rows
from pretrain.export.stock import names
from pretrain.export.stock.config import encoder_fields
from pretrain.export.tensor_rows import Part
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.ops import rope
from pretrain.ops.positions import pool
from pretrain.ops.vocab import vocab_logits
from tests.golden.compare import Checks
from tests.golden.files import Golden

# {prefix of a head's tensors: the class that has it}; the masked-LM head lies beside the encoder.
_HEADS = {
  "classifier": "ForSequenceClassification",
  "tagger": "ForTokenClassification",
  "reader": "ForQuestionAnswering",
}


class _Model:
  """A stock model of a file, as ours."""

  def __init__(self, golden: Golden):
    fields = encoder_fields(golden.field("config"))
    if "config_old" in golden.info:
      assert encoder_fields(golden.field("config_old")) == fields
    self.golden, self.config = golden, EncoderConfig(**fields)
    self.layout = golden.field("config")["model_type"]
    self.ids, self.mask = jnp.asarray(golden["input_ids"]), jnp.asarray(golden["attention_mask"]) > 0
    self.segments = jnp.asarray(golden["segment_ids"]) if "segment_ids" in golden else None
    of_class = names.pre_norm_heads(self.layout, self.config)
    self.parts: list[Part] = [*names.pre_norm_parts(self.layout, self.config)]
    state = {name.removeprefix("model."): array for name, array in golden.under("param/").items()}
    if "decoder.bias" in state:
      self.parts.append(of_class["ForMaskedLM"])
    self.params = self._read(
      names.shifted(state, self.layout, self.config.num_layers, to_ours=True), self.parts
    )
    self.params.setdefault("heads", {})
    self.head_parts = {}
    for prefix, ending in _HEADS.items():
      if own := golden.under(f"{prefix}/"):
        self.head_parts[prefix] = of_class[ending]
        self.params["heads"] |= self._read(own, [of_class[ending]])["heads"]

  def _read(self, state: tensor_rows.State, parts: list[Part]) -> dict:
    sizes = {"D": self.config.hidden_size}
    found = tensor_rows.read(state, parts, num_heads=self.config.num_heads, sizes=sizes)
    if found.unmatched:
      raise ValueError(f"names the table does not know: {', '.join(found.unmatched)}")
    return found.params

  def encode(
    self, params: dict, *, segments: jax.Array | None = None
  ) -> tuple[jax.Array, encoder_model.Hidden]:
    """Embedded tokens and hidden states, 0 at padding."""
    options = {"pad_id": self.golden.field("special_ids")["pad"], "segment_ids": segments, "collect": "all"}
    embedded, hidden = encoder_model.encode(params["encoder"], self.config, self.ids, self.mask, **options)
    assert hidden.layers is not None  # they were asked for
    states = {"last": self.real(hidden.last), "layers": self.real(hidden.layers)}
    return self.real(embedded), hidden._replace(**states)

  def real(self, x: jax.Array) -> jax.Array:
    """x [..., batch, length, width], 0 at padding, where the class leaves what nothing may read."""
    return jnp.where(self.mask[..., None], x, 0.0)

  def gradients(self, loss: Callable, parts: list[Part]) -> dict[str, np.ndarray]:
    """{stock name: gradient of a loss of `params`}."""
    found = jax.device_get(jax.jit(jax.grad(loss))(self.params))
    state = tensor_rows.write(found, parts)
    state = names.shifted(state, self.layout, self.config.num_layers, to_ours=False)
    bare = ("head.", "decoder.", "classifier.")
    return {name if name.startswith(bare) else f"model.{name}": array for name, array in state.items()}


def check_pre_norm(golden: Golden, checks: Checks) -> None:
  """Hidden states, heads, losses and every gradient of a stock encoder with pre-norm layers."""
  model = _Model(golden)
  layers = model.config.num_layers
  embedded, hidden = jax.jit(lambda params: model.encode(params, segments=model.segments))(model.params)
  states = {"hidden_0": embedded, "last_hidden": hidden.last, f"hidden_{layers}": hidden.last}
  states |= {f"hidden_{number + 1}": hidden.layers[number] for number in range(layers - 1)}
  if "unsegmented/last_hidden" in golden:
    states["unsegmented/last_hidden"] = jax.jit(model.encode)(model.params)[1].last
  checks.compare_present("hidden", states)
  if "mlm" in model.params["heads"]:
    _check_masked_lm(model, golden, checks)
  if "classifier" in model.head_parts:
    _check_classification(model, golden, checks)
  if "tagger" in model.head_parts:
    _check_tagging(model, golden, checks)
  if "reader" in model.head_parts:
    _check_reading(model, golden, checks)
  kinds = {"full_attention": model.config.rope_theta, "sliding_attention": model.config.rope_theta_local}
  for kind, theta in kinds.items():
    if f"rope/{kind}/cos" in golden:
      tables = rope.tables(model.ids.shape[1], model.config.head_dim, theta)
      for name, table in zip(("cos", "sin"), tables, strict=True):  # the class has both halves of a head
        checks.compare("rope", f"rope/{kind}/{name}", np.concatenate([table, table], axis=1))


def mean_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Mean cross-entropy over labels >= 0; of a head with one output, as in the class, mean squared error."""
  if logits.shape[-1] == 1:
    return jnp.mean(jnp.square(logits[..., 0] - labels))
  picked = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
  return -jnp.sum(jnp.where(labels >= 0, picked, 0.0)) / jnp.sum(labels >= 0)


def _check_masked_lm(model: _Model, golden: Golden, checks: Checks) -> None:
  def logits(params: dict) -> jax.Array:
    head, table = params["heads"]["mlm"], params["encoder"]["embeddings"]["token"]["embedding"]
    hidden = model.encode(params, segments=model.segments)[1].last
    return vocab_logits(heads.apply_transform(head, model.config, hidden), table, head["bias"])

  checks.compare_present(
    "logits", {"mlm_logits": jax.jit(lambda params: model.real(logits(params)))(model.params)}
  )
  if "mlm_loss" in golden:
    labels = jnp.asarray(golden["labels"])

    def loss(params: dict) -> jax.Array:
      return mean_loss(logits(params), labels)

    checks.compare("losses", "mlm_loss", jax.jit(loss)(model.params))
    checks.compare_all("gradients", "grad/", model.gradients(loss, model.parts))


def _check_classification(model: _Model, golden: Golden, checks: Checks) -> None:
  for pooling in ("cls", "mean"):

    def logits(params: dict, pooling: str = pooling) -> jax.Array:
      vectors = pool(model.encode(params)[1].last, model.mask, pooling)
      return heads.apply_classification_head(params["heads"]["classification"], vectors, config=model.config)

    checks.compare("logits", f"{pooling}_logits", jax.jit(logits)(model.params))
    if f"{pooling}_loss" not in golden:
      continue
    labels = jnp.asarray(golden["labels"])

    def loss(params: dict, logits: Callable = logits, labels: jax.Array = labels) -> jax.Array:
      return mean_loss(logits(params), labels)

    checks.compare("losses", f"{pooling}_loss", jax.jit(loss)(model.params))
    found = model.gradients(loss, [*model.parts, model.head_parts["classifier"]])
    checks.compare_all("gradients", f"grad/{pooling}/", found)


def _check_tagging(model: _Model, golden: Golden, checks: Checks) -> None:
  def logits(params: dict) -> jax.Array:
    hidden = model.encode(params)[1].last
    return model.real(heads.apply_tagging_head(params["heads"]["tagging"], hidden, config=model.config))

  def loss(params: dict) -> jax.Array:
    return mean_loss(logits(params), jnp.asarray(golden["tags"]))

  checks.compare("logits", "tag_logits", jax.jit(logits)(model.params))
  checks.compare("losses", "tag_loss", jax.jit(loss)(model.params))
  if model.layout != "modernbert":
    found = model.gradients(loss, [*model.parts, model.head_parts["tagger"]])
    checks.compare_all("gradients", "grad/", found)


def _check_reading(model: _Model, golden: Golden, checks: Checks) -> None:
  def logits(params: dict) -> tuple[jax.Array, jax.Array]:
    head = params["heads"]["question_answering"]
    hidden = model.encode(params)[1].last
    return heads.apply_question_answering_head(head, hidden, config=model.config)

  start, end = jax.jit(logits)(model.params)
  checks.compare("logits", "qa_start_logits", jnp.where(model.mask, start, 0.0))
  checks.compare("logits", "qa_end_logits", jnp.where(model.mask, end, 0.0))
  answers = (jnp.asarray(golden[f"qa_{name}"])[0] for name in ("start", "end"))
  losses = [-jax.nn.log_softmax(of[0])[at] for of, at in zip((start, end), answers, strict=True)]
  checks.compare("losses", "qa_loss", sum(losses) / 2)
