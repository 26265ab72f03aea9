"""Analyses replaced tokens: `detection`, and over steps `correction` by copy and LM head.

Sources: AMOS (Meng et al., 2022) figure 1a for losses; COCO-LM (Meng et al., 2021) figure 8 for corrections.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.page import Curve, Plot
from lab.analysis.request import LeftOut, Needs, Outcome, Request, over_steps
from lab.analysis.space import densities
from pretrain.checkpoints.saved_model import OpenedRun
from pretrain.evaluate import Arrays, collect, describe_replaced, ranking_area
from pretrain.models import heads
from pretrain.objectives.clm import mixture_prediction
from pretrain.ops.vocab import vocab_scores
from pretrain.run import Run

BINS = 10  # of predicted probabilities
MOST_NATS = 10.0  # larger losses are clipped in the plot
_FEWEST = 5  # replacements by a token that is listed
_MOST = 15  # tokens that are listed
_ANSWERS = {"copy": "copy head", "mixture": "copy head and LM head", "lm": "LM head alone"}


def detection(request: Request) -> Outcome:
  """Returns calibration, losses at replaced tokens, and the replacements that are missed most."""
  rows, left_out = list[dict[str, Any]](), LeftOut()
  judged: dict[str, tuple[np.ndarray, np.ndarray]] = {}
  for name, opened in request.newest(left_out):
    with left_out.where_lacking(name):
      arrays, truth, probability = ask(name, opened, request.rows)
      judged[name] = truth, probability
      rows += [{"checkpoint": name, **row} for row in _rows(opened, arrays, truth, probability)]
  notes = [
    "Of held-out blocks with the draws of the run's evaluation, dropout off. right: answers at a probability "
    "of 0.5; precision: the share that is replaced, of the tokens called so at it. calibration: the mean "
    f"distance, over tokens, between probability and share in {BINS} bins of probability. area: how often a "
    "replaced token has the larger probability; a half is chance. Least suspected are tokens that were put "
    f"in {_FEWEST} times at least."
  ]
  title = "Replaced tokens: calibration and what fools the encoder"
  return Outcome(title, rows, _plots(judged), notes, left_out.sentences(rows))


def _rows(
  opened: OpenedRun, arrays: Arrays, truth: np.ndarray, probability: np.ndarray
) -> Iterator[dict[str, Any]]:
  """Yields table rows: metrics over all tokens, accuracy by kind of token, replacements missed most."""
  yield {"kind": "all tokens", "count": len(truth), **figures(truth, probability)}
  ids, chosen = arrays["ids"], arrays["selected"]
  replaced, is_token = ids != arrays["input_ids"], ids != opened.run.recipe.tokens.pad
  right = (arrays["probability_replaced"] > 0.5) == replaced
  groups = {
    "replaced": chosen & replaced,
    "chosen, but put back": chosen & ~replaced,
    "never chosen": ~chosen,
  }
  for kind, group in groups.items():
    group = group & is_token
    share = float(right[group].mean()) if group.any() else None
    yield {"kind": kind, "count": int(group.sum()), "right": share}
  for token, count, belief in fooling(arrays):
    piece = opened.encoder.vocabulary.shown_piece(token)
    yield {"kind": "put in, least suspected", "token": piece, "count": count, "mean probability": belief}


def _plots(found: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[Plot]:
  reliability, losses = [], []
  for name, (truth, probability) in found.items():
    filled = np.asarray([one[:2] for one in calibration(truth, probability) if one[2]])
    reliability.append(Curve(name, filled[:, 0], filled[:, 1], has_dots=True))
    nats = np.minimum(-np.log(np.maximum(probability[truth], 1e-30)), MOST_NATS)
    if len(nats):
      losses += densities(name, nats, (0.0, MOST_NATS))
  labels = ("probability of being replaced, by the encoder", "share that is replaced")
  plots = [Plot("calibration", "Is the encoder calibrated?", *labels, reliability, has_diagonal=True)]
  title, label = "Loss of the encoder at replaced tokens", f"nats, cut at {MOST_NATS:.0f}"
  return plots + ([Plot("replaced_loss", title, label, "density", losses)] if losses else [])


def ask(name: str, opened: OpenedRun, rows: int) -> tuple[Arrays, np.ndarray, np.ndarray]:
  """Runs a checkpoint's RTD head on at most `rows` held-out blocks, corrupted as in its evaluation.

  Returns the arrays of `describe_replaced`; and for each token except padding whether it is replaced and the
  probability that the head gives this, [tokens] each. Needs: the checkpoint `name` has no RTD head.
  """
  if "rtd" not in opened.params.get("heads", {}):
    raise Needs(f"a head that tells replaced tokens from original ones, which {name} lacks")
  number = min(len(opened.heldout), rows)
  arrays = collect(opened.run, opened.params, opened.heldout, describe_replaced, rows=number)
  is_token = arrays["ids"] != opened.run.recipe.tokens.pad
  replaced = arrays["ids"] != arrays["input_ids"]
  return arrays, replaced[is_token], arrays["probability_replaced"][is_token].astype(np.float64)


def calibration(truth: np.ndarray, probability: np.ndarray) -> list[tuple[float, float, int]]:
  """Bins tokens by predicted probability; returns (mean probability, true share, count), nan if empty."""
  place = np.minimum((probability * BINS).astype(int), BINS - 1)
  bins = []
  for number in range(BINS):
    inside = place == number
    has_any = bool(inside.any())
    means = (float(values[inside].mean()) if has_any else float("nan") for values in (probability, truth))
    bins.append((*means, int(inside.sum())))
  return bins


def figures(truth: np.ndarray, probability: np.ndarray) -> dict[str, float | None]:
  """Returns accuracy, precision, calibration error, ROC area and losses in nats; None if undefined.

  'precision' is the share of true cases among those with a probability above 0.5.
  """
  distance = sum(count * abs(mean - share) for mean, share, count in calibration(truth, probability) if count)
  area = ranking_area(truth, probability)
  nats = -np.log(np.maximum(np.where(truth, probability, 1 - probability), 1e-30))
  called = probability > 0.5
  return {
    "right": float((called == truth).mean()),
    "precision": float(truth[called].mean()) if called.any() else None,
    "calibration": distance / max(len(truth), 1),
    "area": None if np.isnan(area) else area,
    "loss": float(nats.mean()),
    "loss at replaced": float(nats[truth].mean()) if truth.any() else None,
  }


def fooling(arrays: Arrays) -> list[tuple[int, int, float]]:
  """Lists the inserted tokens that the RTD head suspects least: (id, count, mean probability of replaced)."""
  put_in = arrays["ids"] != arrays["input_ids"]
  tokens, belief = arrays["input_ids"][put_in], arrays["probability_replaced"][put_in]
  counts = np.bincount(tokens)
  means = np.bincount(tokens, weights=belief, minlength=len(counts)) / np.maximum(counts, 1)
  often = np.flatnonzero(counts >= _FEWEST)
  order = sorted(often.tolist(), key=lambda token: (means[token], token))
  return [(token, int(counts[token]), float(means[token])) for token in order[:_MOST]]


def correction(request: Request) -> Outcome:
  """Returns the accuracy of every head over steps."""
  rows, left_out = [], LeftOut()
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      if missing := {"rtd", "clm"} - opened.params.get("heads", {}).keys():
        raise Needs(f"the heads of corrective LM, of which {name} lacks {' and '.join(sorted(missing))}")
      number = min(len(opened.heldout), request.rows)
      arrays = collect(opened.run, opened.params, opened.heldout, describe_answers, rows=number)
      found = answer_shares(arrays, opened.run.recipe.tokens.pad)
      rows += [{"checkpoint": name, "step": step, **row} for row in found]
  curves = []
  for tokens in ("replaced", "original"):
    labels = {answer: f"{label}, {tokens}" for answer, label in _ANSWERS.items()}
    curves += over_steps([row for row in rows if row["tokens"] == tokens], labels)
  plot = Plot("correction", "Copying and correcting", "step", "share of right answers", curves)
  notes = [
    "Of every token but padding of held-out blocks, with the draws of the run's evaluation. copy: original "
    "at a probability of 0.5; mixture: the likeliest token by copy head and LM head together; lm: by the LM "
    "head alone."
  ]
  title = "Copying and correcting, by replaced and original tokens"
  return Outcome(title, rows, [plot], notes, left_out.sentences(rows))


def describe_answers(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Returns per token: original and input id, copy decision, and prediction of the mixture and the LM."""
  recipe = run.recipe
  view, _ = recipe.view(params, run.eval_batch_of(ids, index, jnp.float32(1.0)), train=False)
  inputs = view.corrupted.input_ids
  scores = vocab_scores(
    *heads.scored(view.heads["clm"], recipe.encoder, view.hidden, view.token_table),
    jnp.stack([ids, inputs], axis=-1),
    chunk=recipe.chunk,
  )
  logits = heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden)
  mixture = mixture_prediction(scores, logits, inputs)
  return {"ids": ids, "input_ids": inputs, "copy": logits >= 0, "mixture": mixture, "lm": scores.top_ids}


def answer_shares(arrays: Arrays, pad_id: int) -> list[dict]:
  """Returns the accuracy of copy head, mixture and LM head in two rows: replaced and original tokens."""
  ids, is_original = arrays["ids"], arrays["ids"] == arrays["input_ids"]
  right = {
    "copy": arrays["copy"] == is_original,
    "mixture": arrays["mixture"] == ids,
    "lm": arrays["lm"] == ids,
  }
  rows = []
  for tokens, group in (("replaced", ~is_original), ("original", is_original)):
    group = group & (ids != pad_id)
    means = {name: float(hits[group].mean()) if group.any() else None for name, hits in right.items()}
    rows.append({"tokens": tokens, "count": int(group.sum()), **means})
  return rows
