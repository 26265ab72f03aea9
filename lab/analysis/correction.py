"""Measures the accuracy of the copy head, the LM head and their mixture.

It covers all tokens of corrupted held-out blocks except padding, separately for replaced and original tokens,
at every saved step. Source: COCO-LM (Meng et al., 2021) figure 8.
"""

import jax
import jax.numpy as jnp

from data.page.plot import Plot
from lab.analysis.outcome import LeftOut, Needs, Outcome, over_steps
from lab.analysis.request import Request
from pretrain.logs.heldout import Arrays, collect
from pretrain.models import heads
from pretrain.objectives.clm import mixture_prediction
from pretrain.ops.vocab.vocab_cross_entropy import vocab_scores
from pretrain.run import Run

_ANSWERS = {"copy": "copy head", "mixture": "copy head and LM head", "lm": "LM head alone"}


def measure(request: Request) -> Outcome:
  """Returns the accuracy of every head over steps."""
  rows, left_out = [], LeftOut()
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      if missing := {"rtd", "clm"} - opened.params.get("heads", {}).keys():
        raise Needs(f"the heads of corrective LM, of which {name} lacks {' and '.join(sorted(missing))}")
      number = min(len(opened.heldout), request.rows)
      arrays = collect(opened.run, opened.params, opened.heldout, describe, rows=number)
      found = shares(arrays, opened.run.recipe.tokens.pad)
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


def describe(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Returns per token: original and input id, copy decision, and prediction of the mixture and the LM."""
  recipe = run.recipe
  view, _ = recipe.view(params, run.eval_batch_of(ids, index, jnp.float32(1.0)), train=False)
  inputs = view.corrupted.input_ids
  scores = vocab_scores(
    view.hidden,
    view.token_table,
    view.heads["clm"]["bias"],
    jnp.stack([ids, inputs], axis=-1),
    chunk=recipe.chunk,
  )
  logits = heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden)
  mixture = mixture_prediction(scores, logits, inputs)
  return {"ids": ids, "input_ids": inputs, "copy": logits >= 0, "mixture": mixture, "lm": scores.top_ids}


def shares(arrays: Arrays, pad_id: int) -> list[dict]:
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
