"""How alike blocks and their tokens are, at every saved step.

Of blocks the cosine of [CLS] with that of a crop of the same block and of other blocks (COCO-LM figure 7a, b,
for runs without the contrast too); of tokens the contextual score (TACO figures 3b and 6a).
"""

import numpy as np

from lab.analysis import figures
from lab.analysis.outcome import Curve, LeftOut, Needs, Outcome, Plot
from lab.analysis.request import Request

_COSINES = {"sequence_cosine_positive": "crop of the same block", "sequence_cosine_negative": "other blocks"}
_OF_HEAD = {
  "sequence_head_cosine_positive": "crop of the same block, head",
  "sequence_head_cosine_negative": "other blocks, head",
}
_SCORE = "contextual_score"
_SHOWN = (*_COSINES, "sequence_retrieval_top1", _SCORE, f"{_SCORE}_inside", *_OF_HEAD)


def measure(request: Request) -> Outcome:
  """The cosines and the score over steps."""
  rows, left_out = [], LeftOut()
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      batches = max(1, request.rows // request.batch_size)
      if len(opened.heldout) < request.batch_size:
        raise Needs(f"--batch_size held-out blocks, {request.batch_size}; there are {len(opened.heldout)}")
      unigram = opened.heldout.unigram()
      found = figures.measure(opened.run, opened.params, opened.heldout, unigram, batches=batches)
      shown = {figure: found[figure] for figure in _SHOWN if figure in found}
      rows.append({"checkpoint": name, "step": step, **shown})
  cosines, scores = [], []
  for name in dict.fromkeys(row["checkpoint"] for row in rows):
    own = [row for row in rows if row["checkpoint"] == name]
    steps = np.asarray([row["step"] for row in own])
    prefix = f"{name}, " if len(request.names) > 1 else ""
    for key, label in (_COSINES | _OF_HEAD).items():
      if key in own[0]:
        cosines.append(Curve(prefix + label, steps, np.asarray([row[key] for row in own]), has_dots=True))
    scores.append(Curve(name, steps, np.asarray([row[_SCORE] for row in own]), has_dots=True))
  notes = [
    "Vectors of the last layer, without dropout, of held-out blocks in groups of "
    f"{request.batch_size}; a block is corrupted as in the run's evaluation, its crop is "
    f"{figures.CROP_FRACTION:.0%} of its tokens. "
    "head: what the head of sequence contrast makes of [CLS], where a run has one; all else is without it. "
    "sequence_retrieval_top1: how often the own crop is the nearest of the group. contextual_score: mean "
    "cosine of a token with another of its block, less that with a token of another block."
  ]
  plots = [
    Plot("block_cosines", "Cosines of [CLS] with that of", "step", "mean cosine", cosines),
    Plot("contextual_score", "Contextual score of tokens", "step", "difference of mean cosines", scores),
  ]
  title = "Cosines of blocks, and the contextual score of tokens"
  return Outcome(title, rows, plots, notes, left_out.sentences(rows))
