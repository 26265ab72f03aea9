"""Analyses replaced token detection: calibration, losses, tokens that are missed most, accuracy over steps.

Source: AMOS (Meng et al., 2022) figure 1a for the losses at replaced tokens, 5b for the answers over steps.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from data.page.plot import Curve, Plot
from lab.analysis.outcome import LeftOut, Needs, Outcome, over_steps
from lab.analysis.request import Request
from lab.analysis.space import densities
from pretrain.checkpoints.opened import OpenedRun
from pretrain.logs.heldout import Arrays, collect, describe_replaced, ranking_area

BINS = 10  # of predicted probabilities
MOST_NATS = 10.0  # larger losses are clipped in the plot
_FEWEST = 5  # replacements by a token that is listed
_MOST = 15  # tokens that are listed


def measure(request: Request) -> Outcome:
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


def curricula(request: Request) -> Outcome:
  """Returns each run's accuracy over steps on the replacements of its own generator.

  Runs with different generators have different curricula on the same text.
  """
  rows, masks, left_out = list[dict[str, Any]](), [], LeftOut()
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      arrays, truth, probability = ask(name, opened, request.rows)
      masks.append((arrays["ids"], arrays["selected"]))
      rows.append({"checkpoint": name, "step": step, **shares(truth, probability)})
  is_same = all(np.array_equal(one, other) for pair in masks for one, other in zip(pair, masks[0]))
  plots = []
  for kind in ("replaced", "original"):
    title = f"What encoders make of {kind} tokens"
    curves = over_steps(rows, {kind: ""})
    plots.append(Plot(f"curricula_{kind}", title, "step", "share of right answers", curves))
  draws = (
    "All were asked about the same blocks with the same masks."
    if is_same
    else "Blocks or masks of these checkpoints differ, so their figures are of other questions."
  )
  notes = [
    "Of every token but padding of held-out blocks, corrupted by the run's own generator with the draws of "
    "its evaluation, dropout off. replaced: share of replaced tokens at a probability above 0.5; original: "
    "share of original tokens at one of at most 0.5; rate: share of tokens that are replaced; "
    f"area: how often a replaced token has the larger probability. {draws}"
  ]
  return Outcome("Replaced tokens under several curricula", rows, plots, notes, left_out.sentences(rows))


def shares(truth: np.ndarray, probability: np.ndarray) -> dict[str, float | None]:
  """Returns replacement rate, accuracy on 'replaced' and 'original' tokens, and ROC area; inputs [tokens]."""
  right = (probability > 0.5) == truth
  groups = {"replaced": truth, "original": ~truth}
  means = {kind: float(right[group].mean()) if group.any() else None for kind, group in groups.items()}
  area = ranking_area(truth, probability)
  return {"rate": float(truth.mean()), **means, "area": None if np.isnan(area) else area}


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
