"""Golden kinds about pre-norm encoders: l_modernbert and m_ultrabert, stock classes of transformers."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.export import tensor_rows
from pretrain.export.stock import pre_norm
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.config import EncoderConfig
from pretrain.ops import rope
from pretrain.ops.vocab.vocab_cross_entropy import vocab_logits
from tests.golden.compare import Checks
from tests.golden.files import Golden


def check_pre_norm(golden: Golden, checks: Checks) -> None:
  """Hidden states, masked LM and every gradient of a stock encoder with pre-norm layers."""
  fields = pre_norm.encoder_fields(golden.field("config"))
  if "config_old" in golden.info:
    assert pre_norm.encoder_fields(golden.field("config_old")) == fields
  config = EncoderConfig(**fields)
  layout = golden.field("config")["model_type"]
  parts = (*pre_norm.encoder_parts(layout, config), pre_norm.mlm_part(config))
  state = {name.removeprefix("model."): array for name, array in golden.under("param/").items()}
  state = pre_norm.shifted(state, layout, config.num_layers, to_ours=True)
  found = tensor_rows.read(state, parts, num_heads=config.num_heads)
  if found.unmatched:
    raise ValueError(f"names the table does not know: {', '.join(found.unmatched)}")
  ids, mask = jnp.asarray(golden["input_ids"]), jnp.asarray(golden["attention_mask"]) > 0
  segments = jnp.asarray(golden["segment_ids"]) if "segment_ids" in golden else None
  pad = golden.field("special_ids")["pad"]
  labels = jnp.asarray(golden["labels"]) if "labels" in golden and golden["labels"].ndim == 2 else None

  def outputs(params: dict) -> tuple[jax.Array, tuple[dict, dict]]:
    options = {"pad_id": pad, "segment_ids": segments}
    embedded, hidden = encoder_model.encode(params["encoder"], config, ids, mask, collect="all", **options)
    states = {"hidden_0": embedded, "last_hidden": hidden.last}
    states |= {f"hidden_{i + 1}": hidden.layers[i] for i in range(config.num_layers - 1)}
    states[f"hidden_{config.num_layers}"] = hidden.last
    states = {name: jnp.where(mask[..., None], state, 0.0) for name, state in states.items()}
    values, loss = {}, jnp.zeros(())
    if "mlm" in params.get("heads", {}):
      head, table = params["heads"]["mlm"], params["encoder"]["embeddings"]["token"]["embedding"]
      logits = vocab_logits(heads.apply_transform(head, config, hidden.last), table, head["bias"])
      values["mlm_logits"] = jnp.where(mask[..., None], logits, 0.0)
      if labels is not None:
        scores = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        is_label = labels >= 0
        loss = -jnp.sum(jnp.where(is_label, picked, 0.0)) / jnp.sum(is_label)
        values["mlm_loss"] = loss
    return loss, (states, values)

  (_, (states, values)), gradients = jax.jit(jax.value_and_grad(outputs, has_aux=True))(found.params)
  checks.compare_present("hidden", states)
  checks.compare_present("logits", {name: value for name, value in values.items() if "logits" in name})
  checks.compare_present("losses", {name: value for name, value in values.items() if "loss" in name})
  if "mlm_loss" in golden:
    theirs = tensor_rows.write(jax.tree.map(np.asarray, gradients), parts)
    theirs = pre_norm.shifted(theirs, layout, config.num_layers, to_ours=False)
    bare = ("head.", "decoder.")
    theirs = {name if name.startswith(bare) else f"model.{name}": array for name, array in theirs.items()}
    checks.compare_all("gradients", "grad/", theirs)
  for kind, theta in (("full_attention", config.rope_theta), ("sliding_attention", config.rope_theta_local)):
    if f"rope/{kind}/cos" in golden:
      cosines, sines = rope.tables(ids.shape[1], config.head_dim, theta)
      checks.compare("rope", f"rope/{kind}/cos", cosines)
      checks.compare("rope", f"rope/{kind}/sin", sines)
