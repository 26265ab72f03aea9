"""DeBERTa's encoder and the masked-LM step of transformers' class: states, logits and every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.export import tensor_rows
from pretrain.export.stock import names
from pretrain.models import encoder, heads
from pretrain.models.layers import EncoderConfig
from pretrain.ops.vocab import vocab_logits

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

CONFIG = EncoderConfig(
  vocab_size=50,
  hidden_size=24,
  num_layers=2,
  num_heads=3,
  mlp_size=20,
  max_length=512,
  relative_position="disentangled",
  relative_buckets=512,
  relative_max_distance=512,
  position="none",
  layer_norm_eps=1e-7,
  dropout=0.0,
  attention_dropout=0.0,
)
PREFIX = "deberta."


@pytest.fixture(scope="module")
def model():
  """DebertaV2ForMaskedLM in v3's form, with random weights of which none is an initial 0 or 1."""
  torch.manual_seed(0)
  made = transformers.DebertaV2ForMaskedLM(
    transformers.DebertaV2Config(
      vocab_size=50,
      hidden_size=24,
      num_hidden_layers=2,
      num_attention_heads=3,
      intermediate_size=20,
      relative_attention=True,
      position_buckets=256,
      norm_rel_ebd="layer_norm",
      share_att_key=True,
      pos_att_type="p2c|c2p",
      position_biased_input=False,
      hidden_dropout_prob=0.0,
      attention_probs_dropout_prob=0.0,
    )
  )
  with torch.no_grad():
    for parameter in made.parameters():
      parameter.normal_(std=0.5)
  return made


PARTS = (
  *names.encoder_parts("deberta-v2", CONFIG, offset=0),
  names.TENSORS["deberta-v2"].heads["ForMaskedLM"],
)


def _named(tensors) -> dict[str, np.ndarray]:
  return {name.removeprefix(PREFIX): tensor.detach().numpy() for name, tensor in tensors}


def _batch(length: int) -> tuple[np.ndarray, np.ndarray]:
  """Three rows, of which one is half padding."""
  ids = np.random.default_rng(length).integers(1, 50, (3, length))
  mask = np.arange(length) < np.asarray([[length], [-(-length // 2)], [length]])
  return np.where(mask, ids, 0), mask


def _run(params: dict, ids: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
  _, hidden = encoder.encode(params["encoder"], CONFIG, ids, mask, pad_id=0)
  table = params["encoder"]["embeddings"]["token"]["embedding"]
  return hidden.last, vocab_logits(*heads.scored(params["heads"]["mlm"], CONFIG, hidden.last, table))


def test_states_and_logits_are_those_of_transformers_at_any_length(model):
  params = tensor_rows.read(
    _named(model.state_dict().items()), PARTS, num_heads=3, ties=names.ties("deberta-v2")
  )
  run = jax.jit(_run)
  for length in (1, 2, 17, 256, 257, 512):
    ids, mask = _batch(length)
    with torch.no_grad():
      expected = model(torch.tensor(ids), attention_mask=torch.tensor(mask).long(), output_hidden_states=True)
    hidden, logits = run(params.params, ids, mask)
    states = expected.hidden_states[-1].numpy()
    np.testing.assert_allclose(hidden[mask], states[mask], atol=1e-5, rtol=0, err_msg=str(length))
    scale = float(expected.logits.abs().max())
    np.testing.assert_allclose(logits[mask], expected.logits.numpy()[mask], atol=1e-5 * scale, rtol=0)


def test_gradients_of_a_masked_lm_step_are_those_of_pytorch(model):
  ids, mask = _batch(150)  # two blocks of queries
  chosen = mask & (np.random.default_rng(0).random(ids.shape) < 0.3)
  inputs = np.where(chosen, 4, ids)
  loss = model(
    torch.tensor(inputs),
    attention_mask=torch.tensor(mask).long(),
    labels=torch.tensor(np.where(chosen, ids, -100)),
  ).loss
  loss.backward()
  params = tensor_rows.read(
    _named(model.state_dict().items()), PARTS, num_heads=3, ties=names.ties("deberta-v2")
  )

  def ours(params):
    logits = _run(params, inputs, mask)[1]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(chosen, log_probs, 0.0)) / chosen.sum()

  found, gradients = jax.jit(jax.value_and_grad(ours))(params.params)
  np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
  written = tensor_rows.write(jax.device_get(gradients), PARTS)
  expected = _named((name, each.grad) for name, each in model.named_parameters())
  assert written.keys() == expected.keys()
  for name, gradient in expected.items():
    atol = 1e-4 * np.abs(gradient).max()
    np.testing.assert_allclose(written[name], gradient, atol=atol, rtol=0, err_msg=name)
