"""Measures a recipe on held-out blocks, with a trivial baseline for each metric.

Representations are measured for every run, whatever its objectives, so that a run can be compared with a twin
without an objective.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from data.records import HeldoutRecords
from pretrain.checkpoints.opened import contrast_head
from pretrain.corruption import cropping, generator, token_tables
from pretrain.embed.schema import unit
from pretrain.logs.heldout import collect, commonest_share, ranking_area, unigram_cross_entropy
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.ops.positions import segments_of, take_positions
from pretrain.ops.vocab.vocab_cross_entropy import vocab_scores
from pretrain.recipe import Recipe
from pretrain.run import Run

CROP_FRACTION = 0.9  # of the second view, also for runs without SCL


def measure(
  run: Run, params: dict, heldout: HeldoutRecords, unigram: np.ndarray, *, batches: int
) -> dict[str, float]:
  """Measures the metrics of `figures` on at most `batches` full batches of held-out records.

  At least one full batch is needed. Samples are those of the evaluation; parameters may be on mesh or host.
  """
  size = run.config.train.batch_size
  rows = size * min(batches, len(heldout) // size)
  arrays = collect(run, params, heldout, describe, rows=rows)
  if head := contrast_head(run, params):
    arrays |= {f"head_{name}": np.asarray(head(jnp.asarray(arrays[name]))) for name in ("cls", "crop_cls")}
  return figures(arrays, run, unigram)


def describe(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Returns the heads' outputs on corrupted blocks, and vectors of crops and of clean blocks.

  Inputs are ids, [batch, length] int32, and the number of the held-out batch, [] int32. Outputs:
  'ids', 'input_ids' [batch, length] int32; 'targets', 'inputs_at_slots' [batch, slots] int32 and
  'slot_weights' [batch, slots] float32 of the masked positions; 'cls', 'crop_cls' [batch, embed] and
  'clean_hidden' [batch, length, embed] float. If the recipe has the heads: 'probability_replaced'
  [batch, length], 'mlm_log_probs' [batch, slots], 'generator_log_probs' and 'mixture_weights'
  [batch, slots, heads] float32, 'clm_top_ids' [batch, slots] int32.
  """
  recipe = run.recipe
  view, draws = recipe.view(params, run.eval_batch_of(ids, index, jnp.float32(1.0)), train=False)
  corrupted, table = view.corrupted, view.token_table
  masking = corrupted.masking
  targets = take_positions(ids, masking.positions)
  arrays = {
    "ids": ids,
    "input_ids": corrupted.input_ids,
    "targets": targets,
    "slot_weights": masking.weights,
    "inputs_at_slots": take_positions(corrupted.input_ids, masking.positions),
    "cls": view.hidden[:, 0],
  }
  at_slots = take_positions(view.hidden, masking.positions)
  head = view.heads
  score = functools.partial(vocab_scores, table=table, chunk=recipe.chunk, targets=targets[..., None])
  if "mlm" in head:
    scores = score(heads.apply_transform(head["mlm"], recipe.encoder, at_slots), bias=head["mlm"]["bias"])
    arrays["mlm_log_probs"] = scores.log_probs[..., 0]
  if recipe.generator is not None:
    arrays |= _generator_arrays(recipe, params, corrupted, targets)
  if draws.mixture_weights is not None:
    arrays["mixture_weights"] = draws.mixture_weights
  if "rtd" in head:
    logits = heads.apply_rtd_head(head["rtd"], recipe.encoder, view.hidden)
    arrays["probability_replaced"] = jax.nn.sigmoid(-logits)
  if "clm" in head:
    arrays["clm_top_ids"] = score(at_slots, bias=head["clm"]["bias"]).top_ids
  alone = first_texts(recipe, ids)
  crop = cropping.crop(alone, corrupted.row_keys, recipe.tokens, fraction=CROP_FRACTION, add_cls=True)
  arrays["crop_cls"] = _encode(recipe, params, crop)[:, 0]
  arrays["clean_hidden"] = _encode(recipe, params, alone)
  return arrays


def first_texts(recipe: Recipe, ids: jax.Array) -> jax.Array:
  """Returns rows with only the first of several texts, as which a row is measured: [batch, length] int32."""
  if not recipe.has_segments:
    return ids
  return jnp.where(
    segments_of(ids, ids != recipe.tokens.pad, cls=recipe.tokens.cls) == 1, ids, recipe.tokens.pad
  )


def _generator_arrays(recipe, params, corrupted, targets) -> dict[str, jax.Array]:
  settings, shared = recipe.generator, params["encoder"]["embeddings"]
  output = generator.run(
    params["generator"],
    shared,
    settings,
    corrupted.masking,
    corrupted.token_mask,
    recipe.tokens,
    row_keys=None,
    segment_ids=corrupted.segment_ids,
  )
  table = generator.token_table(params["generator"], shared, settings)
  scores = generator.head_scores(output, table, targets, chunk=recipe.chunk)
  return {"generator_log_probs": jnp.stack([head.log_probs[..., 0] for head in scores], axis=-1)}


def _encode(recipe, params, ids):
  mask, encoder = ids != recipe.tokens.pad, token_tables.joined(params)["encoder"]
  _, hidden = encoder_model.encode(encoder, recipe.encoder, ids, mask, pad_id=recipe.tokens.pad)
  return hidden.last


def figures(arrays: dict[str, np.ndarray], run: Run, unigram: np.ndarray) -> dict[str, float]:
  """Returns {name: value} of the learning report, with '<name>_baseline' if a trivial answer exists.

  The arrays are those of `describe` over all rows and, with a head of sequence contrast, its outputs for
  [CLS], 'head_cls' and 'head_crop_cls' [rows, size]. `unigram` [vocab] counts training tokens. Losses are in
  nats per masked token, rates and areas in [0, 1].
  """
  used = arrays["slot_weights"] > 0
  result = {"unigram_cross_entropy": unigram_cross_entropy(arrays["targets"][used], unigram)}
  if "mlm_log_probs" in arrays:
    result["masked_lm_loss"] = float(-arrays["mlm_log_probs"][used].mean())
  if "generator_log_probs" in arrays:
    means = -arrays["generator_log_probs"][used].mean(axis=0)
    result |= {f"generator_loss_head_{k}": float(mean) for k, mean in enumerate(means)}
  if "mixture_weights" in arrays and arrays["mixture_weights"].shape[-1] > 1:
    means = arrays["mixture_weights"][used].mean(axis=0)
    result |= {f"mixture_weight_head_{k}": float(mean) for k, mean in enumerate(means)}
  if "probability_replaced" in arrays:
    result |= _rtd_figures(arrays, run)
  if "clm_top_ids" in arrays:
    replaced = used & (arrays["inputs_at_slots"] != arrays["targets"])
    originals = arrays["targets"][replaced]
    result["clm_top1_replaced"] = float((arrays["clm_top_ids"][replaced] == originals).mean())
    result["clm_top1_replaced_baseline"] = commonest_share(originals)
  if "head_cls" in arrays:
    result |= _sequence_figures(arrays, run, of="head_")
  return result | _sequence_figures(arrays, run) | _contextual_figures(arrays, run)


def _rtd_figures(arrays: dict[str, np.ndarray], run: Run) -> dict[str, float]:
  ids, tokens = arrays["ids"], run.recipe.tokens
  is_word = ~np.isin(ids, tokens.special)
  replaced = ids != arrays["input_ids"]
  # The prior threshold: predict "replaced" if its probability is above the rate of replacement.
  truth, probability = replaced[is_word], arrays["probability_replaced"][is_word]
  at_prior = (probability > truth.mean()) == truth
  at_half = (probability > 0.5) == truth
  return {
    "replace_rate": float(replaced[ids != tokens.pad].mean()),
    "rtd_auc": ranking_area(truth, probability),
    "rtd_auc_baseline": 0.5,
    "rtd_balanced_accuracy_at_prior": float((at_prior[truth].mean() + at_prior[~truth].mean()) / 2),
    "rtd_balanced_accuracy_at_prior_baseline": 0.5,
    "rtd_accuracy_replaced_at_half": float(at_half[truth].mean()),
    "rtd_accuracy_original_at_half": float(at_half[~truth].mean()),
  }


def _sequence_figures(arrays: dict[str, np.ndarray], run: Run, of: str = "") -> dict[str, float]:
  """Returns cosines of [CLS] of corrupted blocks and crops, and the accuracy of retrieving the own crop.

  `of` is the prefix of the arrays' names, and follows 'sequence_' in the names of the results.
  """
  size = run.config.train.batch_size
  first, second = (
    unit(arrays[name].astype(np.float64)).reshape(-1, size, arrays[name].shape[-1])
    for name in (f"{of}cls", f"{of}crop_cls")
  )
  cosines = np.einsum("gid,gjd->gij", first, second)
  diagonal = np.eye(size, dtype=bool)
  retrieved = (cosines.argmax(axis=-1) == np.arange(size)).mean()
  positive, negative = cosines[:, diagonal].mean(), cosines[:, ~diagonal].mean()
  return {
    f"sequence_{of}cosine_positive": float(positive),
    f"sequence_{of}cosine_negative": float(negative),
    f"sequence_{of}cosine_gap": float(positive - negative),
    f"sequence_{of}retrieval_top1": float(retrieved),
    f"sequence_{of}retrieval_top1_baseline": 1.0 / size,
  }


def _contextual_figures(arrays: dict[str, np.ndarray], run: Run) -> dict[str, float]:
  """Returns TACO's contextual score: mean cosine with a token of the same minus of another sequence."""
  rng = np.random.default_rng(0)
  hidden = unit(arrays["clean_hidden"].astype(np.float64))
  mask = np.asarray(first_texts(run.recipe, jnp.asarray(arrays["ids"]))) != run.recipe.tokens.pad
  lengths = mask.sum(axis=-1)
  rows, columns = np.nonzero(mask & (lengths > 1)[:, None])
  shift = rng.integers(1, lengths[rows])
  inside = (hidden[rows, columns] * hidden[rows, (columns + shift) % lengths[rows]]).sum(-1).mean()
  others = (rows + rng.integers(1, len(hidden), len(rows))) % len(hidden)
  other_columns = rng.integers(0, lengths[others])
  across = (hidden[rows, columns] * hidden[others, other_columns]).sum(-1).mean()
  return {"contextual_score": float(inside - across), "contextual_score_inside": float(inside)}
