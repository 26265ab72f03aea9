"""Measures the similarity of blocks, and of tokens within and between blocks, at every saved step.

For blocks: cosines of [CLS] with a crop of the same block and with other blocks (COCO-LM figure 7a, b, also
for runs without contrast). For tokens: the contextual score (TACO figures 3b and 6a).
"""

from data.page.plot import Plot
from lab.analysis import figures
from lab.analysis.outcome import LeftOut, Needs, Outcome, over_steps
from lab.analysis.request import Request

_COSINES = {"sequence_cosine_positive": "crop of the same block", "sequence_cosine_negative": "other blocks"}
_OF_HEAD = {
  "sequence_head_cosine_positive": "crop of the same block, head",
  "sequence_head_cosine_negative": "other blocks, head",
}
_SCORE = "contextual_score"
_SHOWN = (*_COSINES, "sequence_retrieval_top1", _SCORE, f"{_SCORE}_inside", *_OF_HEAD)


def measure(request: Request) -> Outcome:
  """Measures the cosines of blocks and TACO's contextual score at every saved step."""
  rows, left_out = [], LeftOut()
  if request.batch_size < 2:
    raise Needs("groups of two blocks at least; --batch_size is 1")
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      batches = max(1, request.rows // request.batch_size)
      if len(opened.heldout) < request.batch_size:
        raise Needs(f"--batch_size held-out blocks, {request.batch_size}; there are {len(opened.heldout)}")
      unigram = opened.heldout.unigram()
      found = figures.measure(opened.run, opened.params, opened.heldout, unigram, batches=batches)
      shown = {figure: found[figure] for figure in _SHOWN if figure in found}
      rows.append({"checkpoint": name, "step": step, **shown})
  notes = [
    "Vectors of the last layer, without dropout, of held-out blocks in groups of "
    f"{request.batch_size}; a block is corrupted as in the run's evaluation, its crop is "
    f"{figures.CROP_FRACTION:.0%} of its tokens. "
    "head: what the head of sequence contrast makes of [CLS], where a run has one; all else is without it. "
    "sequence_retrieval_top1: how often the own crop is the nearest of the group. contextual_score: mean "
    "cosine of a token with another of its block, less that with a token of another block."
  ]
  cosines, scores = over_steps(rows, _COSINES | _OF_HEAD), over_steps(rows, {_SCORE: ""})
  plots = [
    Plot("block_cosines", "Cosines of [CLS] with that of", "step", "mean cosine", cosines),
    Plot("contextual_score", "Contextual score of tokens", "step", "difference of mean cosines", scores),
  ]
  title = "Cosines of blocks, and the contextual score of tokens"
  return Outcome(title, rows, plots, notes, left_out.sentences(rows))
