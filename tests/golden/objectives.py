"""Golden kinds about single losses: c_clm, d_scl, f_taco, g_rtd, p_metro."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrain import losses
from pretrain.corruption.masking import TokenIds
from pretrain.models import heads
from pretrain.objectives.contrast import SequenceContrastLoss, alignment_loss_sum
from pretrain.objectives.tokens import CorrectiveLMLoss, ReplacedTokenDetectionLoss, rtd_metrics
from pretrain.objectives.views import Context, Corrupted, View
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab import vocab_logits, vocab_scores
from tests.golden.compare import Checks
from tests.golden.files import Golden
from tests.golden.slots import corrupted_of, from_slots, masking_at, plain_encoder, row_keys, to_slots

_PAD = 1  # of all files of these kinds
_DISC_WEIGHT = 50.0  # notes of g_rtd
_CHUNK = 2  # positions with logits at once: small, so that several chunks are run


_INPUTS = ("H", "E", "lm_bias", "w_copy", "b_copy")  # of c_clm and p_metro


def _tokens(vocab_size: int, mask: int = 4) -> TokenIds:
  return TokenIds(cls=0, pad=_PAD, sep=2, unk=3, mask=mask, vocab_size=vocab_size)


def _mask_id(golden: Golden, key: str) -> int:
  """[MASK] of a file whose JSON does not give it: what stands at the masked positions."""
  at_masked = golden[key][golden["masked"] > 0]
  return int(at_masked[0]) if at_masked.size else 4


def _logit_log_probs(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """log softmax(logits)[target] at each position, by the project's own vocabulary scores."""
  size = logits.shape[-1]
  table, bias = jnp.eye(size), jnp.zeros(size)
  return vocab_scores(logits, table, bias, targets[..., None], chunk=_CHUNK).log_probs[..., 0]


def _view_of(given: dict, corrupted: Corrupted) -> View:
  """The view of states, token table, LM head and copy head."""
  copy_head = {"kernel": given["w_copy"][:, None], "bias": given["b_copy"][None]}
  params = {"rtd": copy_head, "clm": {"bias": given["lm_bias"]}}
  return View(corrupted, given["H"], given["H"], None, given["E"], params)


def check_clm(golden: Golden, checks: Checks) -> None:
  """Copy and LM losses, posted and paper form, and their gradients."""
  table = golden["E"]
  tokens = _tokens(table.shape[0], _mask_id(golden, "src_masked"))
  context = Context(plain_encoder(*table.shape), tokens, _CHUNK)
  corrupted = corrupted_of(golden, tokens, input_key="corrupted", token_mask=golden["valid"])
  inputs = {name: jnp.asarray(golden[name]) for name in _INPUTS}
  weights = corrupted.masking.weights

  def view_of(given: dict) -> View:
    return _view_of(given, corrupted)

  def copy_mean(given: dict) -> jax.Array:
    objective = ReplacedTokenDetectionLoss(weight=1.0, head="linear")
    term = objective(view_of(given), context)["rtd_loss"]
    return term.loss / jnp.maximum(objective.totals(corrupted)["rtd_loss"], 1.0)

  def lm_sum(form: str, stop_gradient: bool):
    objective = CorrectiveLMLoss(weight=1.0, form=form, stop_gradient=stop_gradient, copy=True)
    return lambda given: objective(view_of(given), context)["clm_loss"].loss

  terms = {
    "posted/L_copy_mean": ("posted/grad_L_copy_mean/", copy_mean),
    "posted/L_LM_sum": ("posted/grad_L_LM_sum/", lm_sum("weighted", True)),
    "paper/L_LM_sum_sg": ("paper/L_LM_sum_sg_grad/", lm_sum("mixture", True)),
    "paper/L_LM_sum_nosg": ("paper/L_LM_sum_nosg_grad/", lm_sum("mixture", False)),
  }
  for key, (gradient_prefix, function) in terms.items():
    value, gradients = jax.jit(jax.value_and_grad(function))(inputs)
    checks.compare_present("losses", {key: value})
    checks.compare_all("gradients", gradient_prefix, gradients)

  def outputs(given: dict, auxiliary_logits: jax.Array) -> tuple[jax.Array, ...]:
    at = corrupted.masking.positions
    copy_logits = heads.apply_rtd_head(view_of(given).heads["rtd"], context.encoder, given["H"])
    # The weighted loss is linear in log q: its gradient there is minus the copy weight.
    copy_weights = -jax.grad(
      lambda q: losses.corrective_lm_loss(q, take_positions(copy_logits, at), q < 0, weights, form="weighted")
    )(jnp.zeros(weights.shape))
    auxiliary = _logit_log_probs(auxiliary_logits, take_positions(corrupted.ids, at))
    logits = vocab_logits(take_positions(given["H"], at), given["E"], given["lm_bias"])
    return losses.masked_lm_loss(auxiliary, weights), copy_logits, copy_weights, logits

  made = jax.jit(outputs)(inputs, to_slots(golden["aux_logits"], weights))
  auxiliary_loss, copy_logits, copy_weights, logits = made
  checks.compare_present("losses", {"posted/gen_sum": auxiliary_loss})
  of_masked = {"lm_logits": logits, "posted/copy_weights": copy_weights}
  checks.compare_present("logits", {key: from_slots(value, weights) for key, value in of_masked.items()})
  checks.compare_present("logits", {"allhead_logits/copy_logit": copy_logits})
  ours = {"posted/sample_size": np.sum(weights), "replaced": ~np.asarray(corrupted.is_original)}
  checks.compare_present("tokens", ours | {"src_masked": corrupted.masking.masked_ids})


def check_scl(golden: Golden, checks: Checks) -> None:
  """Sequence contrast of given embeddings, sizes and temperatures in the keys."""
  for match in golden.groups(r"N\d+_D\d+_t([\d.]+)/"):
    prefix, temperature = match.group(), float(match.group(1))
    first, second = (jnp.asarray(golden[prefix + name]) for name in ("z_mlm", "z_crop"))
    batch, size = first.shape
    objective = SequenceContrastLoss(
      weight=1.0,
      crop_fraction=0.9,
      crop_add_cls=True,
      temperature=temperature,
      head="cls",
      projection_size=0,
      group_size=0,
    )
    ids = np.full((batch, 1), 5)
    masking_ = masking_at(ids < 0, ids, _tokens(8))
    corrupted = Corrupted(jnp.asarray(ids), jnp.ones((batch, 1), bool), masking_, ids, row_keys(batch))
    context = Context(plain_encoder(8, size), _tokens(8), _CHUNK)

    def mean_loss(both, corrupted=corrupted, objective=objective, context=context):
      view = View(corrupted, both[0][:, None], both[0][:, None], both[1], None, {})
      return objective(view, context)["scl_loss"].loss / objective.totals(corrupted)["scl_loss"]

    loss, gradients = jax.jit(jax.value_and_grad(mean_loss))((first, second))
    cosines = jax.jit(lambda *both: losses.sequence_cosines(*both, group_size=both[0].shape[0]))(
      first, second
    )[0]
    checks.compare_present("losses", {prefix + "loss": loss})
    checks.compare_present("cosines", {prefix + "cos": cosines})
    ours = {prefix + "grad_z_mlm": gradients[0], prefix + "grad_z_crop": gradients[1]}
    checks.compare_present("gradients", ours)


def check_taco(golden: Golden, checks: Checks) -> None:
  """Token alignment with given pairs, three choices of anchors, next to a masked-LM loss."""
  temperature, weight = float(golden.field("tau")), float(golden.info.get("weight", 1.0))
  labels, rows = golden["labels"], golden["neg_row"]
  is_own_row = golden["pos_row"] == np.arange(labels.shape[0])[:, None]
  if not is_own_row.all():
    raise ValueError("a positive lies in another row; positives are of the anchor's own row")
  positives, columns = jnp.asarray(golden["pos_col"]), jnp.asarray(golden["neg_col"])
  is_masked = labels >= 0
  anchors = {"all": np.ones_like(is_masked), "masked": is_masked, "except_mlm": ~is_masked}
  inputs = tuple(jnp.asarray(golden[name]) for name in ("h", "e", "mlm_logits"))
  targets = jnp.asarray(np.where(is_masked, labels, 0))

  def total(given, chosen):
    hidden, embedded, logits = given
    contextual = losses.unit_vectors(hidden - embedded)
    alignment = alignment_loss_sum(
      contextual,
      contextual,
      positives,
      jnp.asarray(rows),
      columns,
      is_valid=jnp.ones(rows.shape, bool),
      weights=chosen,
      temperature=temperature,
    )
    alignment = alignment / jnp.maximum(jnp.sum(chosen), 1.0)
    mlm_weights = jnp.asarray(is_masked, jnp.float32)
    mlm = losses.masked_lm_loss(_logit_log_probs(logits, targets), mlm_weights)
    mlm = mlm / jnp.maximum(jnp.sum(mlm_weights), 1.0)
    return mlm + weight * alignment, (mlm, alignment)

  run = jax.jit(jax.value_and_grad(total, has_aux=True))
  for mode, chosen in anchors.items():
    (loss, (mlm, alignment)), gradients = run(inputs, jnp.asarray(chosen, jnp.float32))
    ours = {f"{mode}/total": loss, f"{mode}/mlm": mlm, f"{mode}/tc": alignment}
    checks.compare_present("losses", ours)
    names = ("grad_h", "grad_e", "grad_mlm_logits")
    checks.compare_present("gradients", {f"{mode}/{name}": g for name, g in zip(names, gradients)})


def check_rtd(golden: Golden, checks: Checks) -> None:
  """The joint loss of MC-BERT's ELECTRA from given logits of both networks."""
  tokens = _tokens(golden["gen_logits"].shape[-1], _mask_id(golden, "src_tokens"))
  token_mask = golden["targets"] != _PAD
  corrupted = corrupted_of(golden, tokens, input_key="corrupted", token_mask=token_mask)
  masked = np.asarray(corrupted.masking.selected)
  num_masked = masked.sum()
  # Without any masked token MC-BERT runs its generator on all tokens, and the other term counts 0 times.
  predicted = masked if num_masked else np.ones_like(masked)
  slots = masking_at(predicted, golden["targets"], tokens)
  targets = take_positions(corrupted.ids, slots.positions)
  generator_weights = slots.weights * take_positions(corrupted.weights, slots.positions)
  num_tokens = jnp.maximum(jnp.sum(corrupted.weights), 1.0)

  def total(given):
    generator = losses.masked_lm_loss(_logit_log_probs(given[0], targets), generator_weights)
    detection = losses.replaced_token_detection_loss(given[1], corrupted.is_original, corrupted.weights)
    loss = generator + _DISC_WEIGHT * detection * num_masked / num_tokens
    return loss, (generator, detection, _detection_counts(given[1], corrupted))

  logits = (to_slots(golden["gen_logits"], slots.weights), jnp.asarray(golden["disc_logits"]))
  (loss, (generator, detection, decisions)), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(
    logits
  )
  ours = {"total": loss, "gen_loss_sum": generator, "disc_loss_sum": detection}
  checks.compare_present("losses", ours)
  ours = {"grad_gen_logits": from_slots(gradients[0], slots.weights), "grad_disc_logits": gradients[1]}
  checks.compare_present("gradients", ours)
  counts = {"sample_size": num_masked, "disc_sample_size": np.sum(corrupted.weights)}
  counts |= {"src_tokens": corrupted.masking.masked_ids}
  checks.compare_present("counts", counts | decisions)


def check_metro(golden: Golden, checks: Checks) -> None:
  """METRO-T0's criterion as COCO-LM's terms: RTD, and CLM without copying or in its weighted form."""
  tokens = _tokens(golden["E"].shape[0], golden.field("mask_id"))
  context = Context(plain_encoder(*golden["E"].shape), tokens, _CHUNK)
  options = {"token_mask": golden["targets"] != _PAD, "input_key": "corrupted", "chosen_key": "chosen"}
  corrupted = corrupted_of(golden, tokens, **options)
  masking, inputs = corrupted.masking, {name: jnp.asarray(golden[name]) for name in _INPUTS}
  detection = ReplacedTokenDetectionLoss(weight=_DISC_WEIGHT, head="linear")

  def rtd_sum(given: dict) -> jax.Array:
    return detection(_view_of(given, corrupted), context)["rtd_loss"].loss

  def lm_sum(given: dict, *, copy: bool, is_mean: bool = False) -> jax.Array:
    objective = CorrectiveLMLoss(weight=1.0, form="weighted", stop_gradient=True, copy=copy)
    summed = objective(_view_of(given, corrupted), context)["clm_loss"].loss
    if not is_mean:
      return summed
    # `divide_by_mean_weight`, which none of the official configs sets and the project does not have.
    logits = heads.apply_rtd_head(_view_of(given, corrupted).heads["rtd"], context.encoder, given["H"])
    generates = jax.nn.sigmoid(-take_positions(logits, masking.positions))
    mean = jnp.sum(generates * masking.weights) / jnp.sum(masking.weights)
    return summed / jax.lax.stop_gradient(mean)

  logits = to_slots(golden["gen_logits"], masking.weights)
  targets = take_positions(corrupted.ids, masking.positions)
  generator = losses.masked_lm_loss(_logit_log_probs(logits, targets), masking.weights)
  detected, gradients = jax.jit(jax.value_and_grad(rtd_sum))(inputs)
  number = jnp.sum(masking.weights)
  checks.compare_all("gradients", "grad/rtd/", gradients)
  checks.compare("counts", "sample_size", number)
  checks.compare_present("losses", {"rtd_loss_sum": detected, "generator_loss_sum": generator})
  forms = {
    "plain": {"copy": False},
    "weighted": {"copy": True},
    "mean_weighted": {"copy": True, "is_mean": True},
  }
  for name, form in forms.items():
    summed, gradients = jax.jit(jax.value_and_grad(functools.partial(lm_sum, **form)))(inputs)
    checks.compare_all("gradients", f"grad/lm_{name}/", gradients)
    # One mean over chosen tokens for each of these, and over all tokens for detection, as in a recipe.
    mean = generator / number + summed / number
    mean += detection.weight * detected / detection.totals(corrupted)["rtd_loss"]
    checks.compare_present("losses", {f"lm_loss_sum/{name}": summed, f"total/{name}": mean * number})


def _detection_counts(logits: jax.Array, corrupted: Corrupted) -> dict:
  """Right and wrong decisions; positive is "original"."""
  metrics = rtd_metrics(logits, corrupted)
  original_hits, originals = metrics["rtd_accuracy_original"]
  replaced_hits, replaced = metrics["rtd_accuracy_replaced"]
  return {
    "tp": original_hits,
    "fn": originals - original_hits,
    "tn": replaced_hits,
    "fp": replaced - replaced_hits,
  }
