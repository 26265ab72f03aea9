"""Golden kinds of MAE-LM: n_maelm (encoder, decoder, loss) and n_removal (which tokens are left out)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import base
from pretrain.build import build
from pretrain.corruption import masking
from pretrain.corruption.masking import MaskingSettings, TokenIds
from pretrain.export import official as names
from pretrain.export import tensor_rows
from pretrain.export.tensor_rows import Part, State
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.ops import row_random
from pretrain.ops.vocab import vocab_logits
from pretrain.recipe import Batch
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.slots import from_slots, row_keys

_ENCODER, _DECODER = "encoder.sentence_encoder.", "gen_decoder.sentence_encoder."
_CHUNK = 2  # positions with logits at once: small, so that several chunks are run
_ROWS = 1_000  # of draws: a count of probability 0.05 is never seen with a chance of e^-51
_MASK_RULE = MaskingSettings("mask", "count", 0.15, "all", 1.0, 0.0, "non_special")


def _joined(state: State) -> State:
  """Query, key and value of a layer in one tensor, as in the tables of official names."""
  state = dict(state)
  for query in [name for name in state if ".q_proj." in name]:
    parts = [state.pop(query.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
    state[query.replace("q_proj", "in_proj")] = np.concatenate(parts)
  return state


def _parts(*, has_own_positions: bool) -> list[Part]:
  """The tensors of encoder, decoder and head."""
  positions = names.POSITIONS if has_own_positions else names.POSITIONS[1:]
  return [
    Part(names.TOKENS, "encoder/embeddings/", _ENCODER),
    Part(names.POSITIONS, "encoder/embeddings/", _ENCODER),
    Part(names.LAYERS, "encoder/", _ENCODER),
    Part(names.RELATIVE, "encoder/", _ENCODER),
    Part(positions, "heads/mae/embeddings/", _DECODER),
    Part(names.LAYERS, "heads/mae/", _DECODER),
    Part(names.RELATIVE, "heads/mae/", _DECODER),
    Part(names.MLM_HEAD, "heads/mae/", "gen_decoder.lm_head."),
  ]


def _config(golden: Golden) -> ConfigDict:
  args, config = golden.field("args"), base.get_config()
  assert args["decoder_embed_dim"] == args["encoder_embed_dim"] and args["no_return_mask"]
  config.model.update(
    {
      "vocab_size": golden["param/" + _ENCODER + "embed_tokens.weight"].shape[0],
      "hidden_size": args["encoder_embed_dim"],
      "num_layers": args["encoder_layers"],
      "num_heads": args["encoder_attention_heads"],
      "mlp_size": args["encoder_ffn_embed_dim"],
      "max_length": args["max_positions"],
      "relative_position": "official" if args["rel_pos"] else "none",
      "relative_buckets": args["rel_pos_bins"],
      "relative_max_distance": args["max_rel_pos"],
      "dropout": args["dropout"],
      "attention_dropout": args["attention_dropout"],
      "layer_norm_eps": golden.field("layer_norm_eps"),
      "dtype": "float32",
      "vocab_chunk_rows": _CHUNK,
    }
  )
  config.corruption.mask_rate = 1.0  # room for every position; which are masked is given
  config.objectives.mae.update(
    {
      "weight": 1.0,
      "decoder_layers": args["gen_decoder_layers"],
      "decoder_positions": "shared" if args["share_pos_emb"] else "own",
      "decoder_relative_position": bool(args["decoder_rel_pos"]),
    }
  )
  return config


def check_autoencoder(golden: Golden, checks: Checks) -> None:
  """Hidden states of every layer, logits, loss and every gradient, through `build` and `Recipe.loss_fn`."""
  config, state = _config(golden), _joined(golden.under("param/"))
  ids = {name: golden.field(f"{name}_id") for name in ("pad", "mask", "cls", "sep")}
  tokens = TokenIds(**ids, unk=3, vocab_size=config.model.vocab_size)
  recipe, parts = (
    build(config, tokens),
    _parts(has_own_positions=f"{_DECODER}embed_positions.weight" in state),
  )
  imported = tensor_rows.read(state, parts, num_heads=config.model.num_heads)
  assert not imported.unmatched, imported.unmatched
  params = jax.tree.map(jnp.asarray, imported.params)
  expected = jax.eval_shape(recipe.init, jax.random.key(0))
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, expected)
  rows, chosen = jnp.asarray(golden["original"]), golden["chosen"] > 0
  batch = Batch(rows, row_keys(len(rows)), jnp.zeros(len(rows)), {"selected": jnp.asarray(chosen)})
  masked, objective = recipe.mask(batch), recipe.objectives["mae"]
  kept = np.asarray(rows != tokens.pad) & ~chosen
  places = np.minimum(golden["kept_positions"], kept.shape[1] - 1)
  is_row = np.arange(places.shape[1]) < kept.sum(axis=1, keepdims=True)  # the compact rows end in padding

  def compact(key: str, states: jax.Array) -> np.ndarray:
    ours = np.take_along_axis(np.asarray(states), places[..., None], axis=1)
    return np.where(is_row[..., None], ours, golden[key])

  @jax.jit
  def run(params: dict) -> tuple:
    view, _ = recipe.view(params, masked, train=False)
    encoder, mask = params["encoder"], jnp.asarray(kept)
    states = encoder_model.run_trunk(
      encoder["trunk"], recipe.encoder, view.embedded, mask, None, collect="all"
    )
    decoded = objective.decode(view, recipe.context, collect="all")
    at_masked = objective.decode(view, recipe.context, read=masked.corrupted.masking.positions).last
    head = view.heads["mae"]["mlm_head"]
    transformed = heads.apply_transform(head, recipe.encoder, at_masked)
    logits = vocab_logits(transformed, view.token_table, head["bias"])

    def of_states(hidden: jax.Array) -> jax.Array:
      return objective(view._replace(hidden=hidden), recipe.context)["mae_loss"].loss

    return view, [view.embedded, *states.layers], decoded.layers, logits, jax.grad(of_states)(view.hidden)

  view, encoded, decoded, logits, of_states = run(params)
  np.testing.assert_array_equal(np.asarray(view.hidden)[kept], np.asarray(encoded[-1])[kept])
  for number, states in enumerate(encoded):
    key = f"hidden_encoder/{number}"
    checks.compare("hidden", key, compact(key, states))
  for number, states in enumerate(decoded, 1):  # 0 is the embedding block, which the layers contain
    in_text = np.asarray(rows != tokens.pad)[..., None]
    key = f"hidden_decoder/{number}"
    checks.compare("hidden", key, np.where(in_text, states, golden[key]))
  checks.compare("logits", "logits", from_slots(logits, masked.corrupted.masking.weights))
  checks.compare("gradients", "grad_encoder_output", compact("grad_encoder_output", of_states))

  @jax.jit
  def loss(params: dict) -> jax.Array:  # with the divisor 1, the sum
    return recipe.loss_fn(params, masked, {"mae_loss": jnp.ones(())}, train=True)[0]

  checks.compare("losses", "loss_sum", loss(params))
  checks.compare("tokens", "sample_size", recipe.totals(masked)["mae_loss"])
  ours = tensor_rows.write(jax.device_get(jax.grad(loss)(params)), parts)
  checks.compare_all("gradients", "grad/", _apart(ours))


def _apart(state: State) -> State:
  """Inverts `_joined`."""
  state = dict(state)
  for joined in [name for name in state if ".in_proj." in name]:
    parts = np.split(state.pop(joined), 3)
    state |= {joined.replace("in_proj", f"{letter}_proj"): part for letter, part in zip("qkv", parts)}
  return state


def check_removal(golden: Golden, checks: Checks) -> None:
  """Numbers of tokens that are left out; any token may be, [CLS] and [SEP] included."""
  tokens = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=1_000_000)
  select = jax.jit(lambda keys, ids: masking.select_and_mask(_MASK_RULE, keys, ids, tokens).selected)
  for match in golden.groups(r"r\d+/"):
    prefix = match.group()
    theirs, ids = golden[f"{prefix}chosen"] > 0, golden[f"{prefix}original"]
    keys = row_random.step_row_keys(0, 0, jnp.arange(_ROWS))
    ours = np.asarray(select(keys, jnp.broadcast_to(jnp.asarray(ids), (_ROWS, len(ids)))))
    numbers = set(ours.sum(axis=1).tolist())
    is_right = {*golden[f"{prefix}counts"].tolist()} <= numbers <= _whole(0.15 * len(ids))
    checks.hold("mask", f"{prefix}counts", condition=is_right, found=f"{sorted(numbers)} tokens")
    # The file repeats one draw in all its epochs: what it says is which tokens may be chosen, and how many.
    limit = 5.0 * math.sqrt(0.15 * 0.85 / _ROWS)
    apart = float(np.max(np.abs(ours.mean(axis=0) - 0.15)))
    is_right = apart <= limit and np.array_equal(theirs.sum(axis=1), golden[f"{prefix}counts"])
    found = f"a position is left out {apart:.3f} more or less often than 0.15, expected at most {limit:.3f}"
    checks.hold("mask", f"{prefix}chosen", condition=is_right, found=found)


def _whole(number: float) -> set[int]:
  return {math.floor(number), math.ceil(number)}
