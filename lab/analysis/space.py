"""Measures the geometry of sentence vectors: `cosines` of random and similar pairs.

Every run is measured, whatever its objectives, so that it can be compared with a twin without an objective.
Sources: COCO-LM (Meng et al., 2021) figures 1 and 5; Wang and Isola (2020) for alignment and uniformity.
"""

from collections.abc import Sequence

import numpy as np

from data import glue
from data.glue import tsv
from data.glue.tasks import known_task
from data.page import Curve, Plot
from lab.analysis.request import LeftOut, Needs, Outcome, Request
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
from pretrain.evaluate import ranking_area

PAIRS = 10_000  # random pairs
LONGEST = 128  # tokens of a block
SIMILAR = 5.0  # STS-B's score of sentences with the same meaning
_BINS = 50


def cosines(request: Request) -> Outcome:
  """Returns histograms and densities of cosines in the last layer, without a head, and summary statistics."""
  rows, curves, left_out = [], [], LeftOut()
  similar = similar_pairs(request)
  for name, encoder, blocks in request.encoders():
    with left_out.where_lacking(name):
      schema = EmbeddingSchema(request.pooling, passage_length=LONGEST)
      embedder = Embedder(encoder, schema, batch_size=request.batch_size)
      sides = pairs_of(embedder, blocks, similar)
      of_kind = {kind: np.einsum("nw,nw->n", *pair) for kind, pair in sides.items()}
      area = area_between(of_kind["similar"], of_kind["random"]) if "similar" in of_kind else None
      for kind, pair in sides.items():
        row = {"checkpoint": name, "pairs": kind, "count": len(of_kind[kind]), **summary(of_kind[kind])}
        measured = {"uniformity": uniformity(*pair)} if kind == "random" else {"alignment": alignment(*pair)}
        rows.append(row | measured | ({"area": area} if kind == "similar" else {}))
        curves += densities(f"{name}, {kind}", of_kind[kind])
  read = {"cls": "[CLS]", "mean": "means over tokens"}[request.pooling]
  notes = [
    f"Vectors are {read} of the last layer, without dropout or head. Random pairs are {PAIRS:,} pairs of "
    f"different held-out blocks of at most {LONGEST} tokens (of an import: of sentences of STS-B), similar "
    "ones the sentences of STS-B with score 5. Uniformity is the log of the mean of exp(-2 |x - y|^2) over "
    "random pairs, alignment the mean of |x - y|^2 over similar ones, both of unit vectors: lower is better. "
    "area: how often a similar pair has the larger cosine; a half is chance."
  ]
  if similar is None:
    notes.append("No similar pairs: --data has no glue/STS-B/train.tsv or dev.tsv.")
  elif not similar[0]:
    notes.append(f"No similar pairs: glue/STS-B in --data has none of score {SIMILAR:g}.")
  plot = Plot("cosines", f"Cosines of pairs of {read}", "cosine", "density", curves)
  return Outcome("Cosines of random and similar pairs", rows, [plot], notes, left_out.sentences(rows))


def pairs_of(
  embedder: Embedder, blocks: np.ndarray | None, similar: tuple[Sequence[str], Sequence[str]] | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Computes unit vectors of random and of similar pairs: {'random' or 'similar': (first, second)}.

  Vectors are [pairs, width]. Random pairs are of `blocks`, ids [blocks, length], or without blocks of the
  first sentences of similar pairs. Needs: there are fewer than two blocks or sentences.
  """
  sides = {"similar": sentence_vectors(embedder, similar)} if similar and similar[0] else {}
  if blocks is not None:
    pad_id = embedder.vocabulary.special_ids.pad
    inputs = [{"ids": row[row != pad_id]} for row in blocks[:, :LONGEST]]
    vectors = unit(embedder.vectors(inputs).astype(np.float64)) if inputs else np.zeros((0, 1))
  else:
    vectors = sides["similar"][0] if sides else np.zeros((0, 1))
  if len(vectors) < 2:
    raise Needs("two held-out blocks at least, of an import two pairs of glue/STS-B, to make random pairs of")
  first, second = random_pairs(len(vectors))
  return {"random": (vectors[first], vectors[second])} | sides


def sentence_vectors(
  embedder: Embedder, pairs: tuple[Sequence[str], Sequence[str]]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the unit vectors of both sides of pairs, [pairs, width] float64."""
  one, other = (unit(embedder.vectors(embedder.inputs(side)).astype(np.float64)) for side in pairs)
  return one, other


def random_pairs(number: int, pairs: int = PAIRS) -> tuple[np.ndarray, np.ndarray]:
  """Returns the indices of random pairs of different items, [pairs] each; always the same."""
  rng = np.random.default_rng(0)
  first = rng.integers(0, number, pairs)
  return first, (first + rng.integers(1, number, pairs)) % number


def uniformity(first: np.ndarray, second: np.ndarray) -> float:
  """Returns log mean exp(-2 |x - y|^2) over pairs of unit vectors [pairs, width]; 0 if all are equal."""
  squared = np.sum((first - second) ** 2, axis=-1)
  return float(np.log(np.mean(np.exp(-2 * squared))))


def alignment(first: np.ndarray, second: np.ndarray) -> float:
  """Returns the mean of |x - y|^2 over pairs of unit vectors [pairs, width]."""
  return float(np.mean(np.sum((first - second) ** 2, axis=-1)))


def area_between(higher: np.ndarray, lower: np.ndarray) -> float:
  """Returns the probability that a value of `higher` [n] exceeds a value of `lower` [m]."""
  is_higher = np.concatenate([np.ones(len(higher), bool), np.zeros(len(lower), bool)])
  return ranking_area(is_higher, np.concatenate([higher, lower]))


def summary(values: np.ndarray) -> dict[str, float]:
  """Returns mean, median and standard deviation."""
  return {"mean": float(values.mean()), "median": float(np.median(values)), "deviation": float(values.std())}


def densities(name: str, values: np.ndarray, between: tuple[float, float] = (-1.0, 1.0)) -> list[Curve]:
  """Returns a histogram of 50 bins over a range and, if values differ, a Gaussian density estimate.

  The kernel is at least half a bin wide, because the curve of a collapsed space would hide all others.
  """
  from scipy.stats import gaussian_kde  # here: a second

  heights, edges = np.histogram(np.clip(values, *between), bins=_BINS, range=between, density=True)
  curves = [Curve(name, edges, np.append(heights, heights[-1]), is_step=True)]
  if np.ptp(values) > 1e-6:
    at = np.linspace(*between, 201)
    least = (edges[1] - edges[0]) / 2 / np.std(values, ddof=1)
    estimate = gaussian_kde(values, lambda kde: max(kde.scotts_factor(), least))
    curves.append(Curve(name, at, estimate(at)))
  return curves


def similar_pairs(request: Request) -> tuple[list[str], list[str]] | None:
  """Returns both sides of STS-B's pairs with score 5 (training and development set); None without files."""
  for place in map(str, (request.data / "glue", request.data) if request.data else ()):
    splits = [split for split in ("train", "dev") if tsv.find(place, known_task("stsb"), split)]
    first, second = [], []
    for read in (glue.read(place, "stsb", split) for split in splits):
      same = np.flatnonzero(np.asarray(read.labels) >= SIMILAR)
      first += [read.first[row] for row in same]
      second += [(read.second or [])[row] for row in same]
    if splits:
      return first, second
  return None
