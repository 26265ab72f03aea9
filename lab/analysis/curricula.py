"""How well encoders tell replaced tokens from original ones at every saved step, a curve for each curriculum.

A run's own generator replaces the tokens, so runs of other generators are other curricula for the same text.
Source: AMOS (Meng et al., 2022) figure 5b.
"""

import numpy as np

from lab.analysis import detection
from lab.analysis.outcome import Curve, LeftOut, Outcome, Plot
from lab.analysis.request import Request
from pretrain.logs.heldout import ranking_area

_KINDS = ("replaced", "original")


def measure(request: Request) -> Outcome:
  """Shares of right answers over steps, of every run on what its own generator put in."""
  rows, masks, left_out = [], [], LeftOut()
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      arrays, truth, probability = detection.ask(name, opened, request.rows)
      masks.append((arrays["ids"], arrays["selected"]))
      rows.append({"checkpoint": name, "step": step, **shares(truth, probability)})
  is_same = all(np.array_equal(one, other) for pair in masks for one, other in zip(pair, masks[0]))
  plots = []
  for kind in _KINDS:
    curves = []
    for name in dict.fromkeys(row["checkpoint"] for row in rows):
      own = [row for row in rows if row["checkpoint"] == name and row[kind] is not None]
      points = (np.asarray([row[key] for row in own]) for key in ("step", kind))
      curves.append(Curve(name, *points, has_dots=True))
    title = f"What encoders make of {kind} tokens"
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
  """{'rate', 'replaced', 'original', 'area'} of [tokens] that are replaced or not, by their probabilities."""
  right = (probability > 0.5) == truth
  groups = {"replaced": truth, "original": ~truth}
  means = {kind: float(right[group].mean()) if group.any() else None for kind, group in groups.items()}
  area = ranking_area(truth, probability)
  return {"rate": float(truth.mean()), **means, "area": None if np.isnan(area) else area}
