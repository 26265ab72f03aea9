"""Similar pairs in a plane: t-SNE of both sentences, and UMAP where that package is installed.

Source: COCO-LM (Meng et al., 2021) figure 6.
"""

import importlib

import numpy as np

from lab.analysis import space
from lab.analysis.outcome import Curve, LeftOut, Needs, Outcome, Plot
from lab.analysis.request import Request

PERPLEXITY = 30.0
MARKED = 10  # pairs whose sentences are joined by a line
SEED = 0


def measure(request: Request) -> Outcome:
  """A plot for each checkpoint, and how often the partner is the nearest sentence."""
  similar = space.similar_pairs(request)
  if similar is None or len(similar[0]) < MARKED:
    raise Needs(f"{MARKED} similar pairs at least, of glue/STS-B/train.tsv or dev.tsv in --data")
  rows, plots, left_out = [], [], LeftOut()
  for number, (name, model, _) in enumerate(request.encoders(), 1):
    with left_out.where_lacking(name):
      first, second = space.sentence_vectors(space.sentence_embedder(name, model, request), similar)
      row = {"checkpoint": name, "pairs": len(first), "mean cosine": float((first * second).sum(-1).mean())}
      row["nearest in space"] = nearest(first, second)
      for method, points in planes(np.concatenate([first, second])).items():
        left, right = np.split(points, 2)
        rows.append(row | {"plane": method, "nearest in the plane": nearest(left, right)})
        stem = f"plane_{method.lower().replace('-', '')}_{number}"
        sides = ("first", left), ("second", right)
        curves = [Curve(label, *side.T, is_cloud=True) for label, side in sides]
        chosen = np.random.default_rng(SEED).choice(len(left), MARKED, replace=False)
        for pair in chosen:
          curves.append(Curve("some pairs", *np.stack([left[pair], right[pair]]).T, has_dots=True))
        plots.append(Plot(stem, f"Similar sentences, {method}: {name}", "no unit", "no unit", curves))
  notes = [
    "Both sentences of STS-B's pairs with score 5, as unit vectors of the last layer, without "
    f"dropout{space.or_head(request)}. nearest: share of sentences whose partner is the nearest of the other "
    f"side. t-SNE has perplexity {PERPLEXITY:.0f} (less for few pairs) and seed {SEED}; {MARKED} pairs, "
    "drawn once, are joined by lines."
  ]
  return Outcome("Similar sentences in a plane", rows, plots, notes, left_out.sentences(rows))


def planes(vectors: np.ndarray) -> dict[str, np.ndarray]:
  """{method: [n, 2]} of vectors [n, width], the same every time on one machine. Needs: all are the same."""
  from sklearn.manifold import TSNE  # here: a second

  if np.ptp(vectors, axis=0).max() < 1e-6:  # t-SNE would end the process
    raise Needs("similar pairs with vectors that are not all the same")
  perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
  points = {"t-SNE": TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(vectors)}
  try:
    umap = importlib.import_module("umap")
  except ImportError:
    return points
  return points | {"UMAP": umap.UMAP(random_state=SEED).fit_transform(vectors)}


def nearest(first: np.ndarray, second: np.ndarray) -> float:
  """How often the partner is the nearest of the other side, both ways; [n, width] each."""
  distances = np.linalg.norm(first[:, None] - second[None], axis=-1)
  own = np.arange(len(first))
  return float(np.mean([distances.argmin(0) == own, distances.argmin(1) == own]))
