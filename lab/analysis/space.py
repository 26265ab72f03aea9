"""How sentences lie in space: cosines of random and of similar pairs, alignment and uniformity.

Source: COCO-LM (Meng et al., 2021) figures 1 and 5; Wang and Isola (2020) for the two measures.
"""

from collections.abc import Sequence

import numpy as np

from data import glue
from data.glue import tsv
from data.glue.tasks import known_task
from lab.analysis.outcome import Curve, LeftOut, Needs, Outcome, Plot
from lab.analysis.request import EncoderAndHead, Request
from pretrain.embed.vectors import Embedder, unit
from pretrain.logs.heldout import ranking_area

PAIRS = 10_000  # random ones
LONGEST = 128  # tokens of a block
SIMILAR = 5.0  # STS-B's score of sentences that mean the same
_BINS = 50


def measure(request: Request) -> Outcome:
  """Histograms and densities of cosines in the last layer, without a head, and what they amount to."""
  rows, curves, left_out = [], [], LeftOut()
  similar = similar_pairs(request)
  for name, model, blocks in request.encoders():
    with left_out.where_lacking(name):
      taken = blocks if request.random_pairs == "blocks" else None
      sides = pairs_of(sentence_embedder(name, model, request), taken, similar)
      cosines = {kind: np.einsum("nw,nw->n", *pair) for kind, pair in sides.items()}
      area = area_between(cosines["similar"], cosines["random"]) if "similar" in cosines else None
      for kind, pair in sides.items():
        row = {"checkpoint": name, "pairs": kind, "count": len(cosines[kind]), **summary(cosines[kind])}
        measured = {"uniformity": uniformity(*pair)} if kind == "random" else {"alignment": alignment(*pair)}
        rows.append(row | measured | ({"area": area} if kind == "similar" else {}))
        curves += densities(f"{name}, {kind}", cosines[kind])
  read = {"cls": "[CLS]", "mean": "means over tokens", "head": "what a head makes of [CLS]"}[request.pooling]
  kind = f"held-out blocks of at most {LONGEST} tokens (of an import: of sentences of STS-B)"
  kind = kind if request.random_pairs == "blocks" else "first sentences of the similar pairs"
  notes = [
    f"Vectors are {read} of the last layer, without dropout{or_head(request)}. "
    f"Random pairs are {PAIRS:,} pairs of different {kind}, similar "
    "ones the sentences of STS-B with score 5. Uniformity is the log of the mean of exp(-2 |x - y|^2) over "
    "random pairs, alignment the mean of |x - y|^2 over similar ones, both of unit vectors: lower is better. "
    "area: how often a similar pair has the larger cosine; a half is chance.",
  ]
  if similar is None:
    notes.append("No similar pairs: --data has no glue/STS-B/train.tsv or dev.tsv.")
  elif not similar[0]:
    notes.append(f"No similar pairs: glue/STS-B in --data has none of score {SIMILAR:g}.")
  plot = Plot("cosines", f"Cosines of pairs of {read}", "cosine", "density", curves)
  return Outcome("Cosines of random and similar pairs", rows, [plot], notes, left_out.sentences(rows))


def or_head(request: Request) -> str:
  """What follows 'without dropout' in a note."""
  return ", with the head of sequence contrast" if request.pooling == "head" else " or head"


def sentence_embedder(name: str, model: EncoderAndHead, request: Request) -> Embedder:
  """Vectors of the last layer of texts of at most `LONGEST` tokens; Needs where a head is lacking."""
  sizes = {"max_length": min(LONGEST, model.encoder.config.max_length), "batch_size": request.batch_size}
  if request.pooling != "head":
    return Embedder(model.encoder, pooling=request.pooling, **sizes)
  if model.head is None:
    raise Needs(f"a head of sequence contrast, which {name} lacks")
  return Embedder(model.encoder, pooling="cls", head=model.head, **sizes)


def pairs_of(
  embedder: Embedder, blocks: np.ndarray | None, similar: tuple[Sequence[str], Sequence[str]] | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """{'random', 'similar': two [pairs, width] unit vectors}; random ones of [blocks, length] ids.

  Without blocks they are of the first sentences of similar pairs. Raises Needs: there are not two of either.
  """
  sides = {"similar": sentence_vectors(embedder, similar)} if similar and similar[0] else {}
  if blocks is not None:
    pad_id = embedder.vocabulary.special_ids.pad
    inputs = [{"ids": row[row != pad_id]} for row in blocks[:, : embedder.max_length]]
    vectors = unit(embedder.vectors(inputs).astype(np.float64)) if inputs else np.zeros((0, 1))
  else:
    vectors = sides["similar"][0] if sides else np.zeros((0, 1))
  if len(vectors) < 2:
    raise Needs(
      "two held-out blocks at least, of an import and for --random_pairs=sentences two pairs of glue/STS-B, "
      "to make random pairs of"
    )
  first, second = random_pairs(len(vectors))
  return {"random": (vectors[first], vectors[second])} | sides


def sentence_vectors(
  embedder: Embedder, pairs: tuple[Sequence[str], Sequence[str]]
) -> tuple[np.ndarray, np.ndarray]:
  """[pairs, width] float64 unit vectors of both sides."""
  one, other = (unit(embedder.vectors(embedder.inputs(side)).astype(np.float64)) for side in pairs)
  return one, other


def random_pairs(number: int, pairs: int = PAIRS) -> tuple[np.ndarray, np.ndarray]:
  """[pairs] places of two different ones of `number` things; always the same draw."""
  rng = np.random.default_rng(0)
  first = rng.integers(0, number, pairs)
  return first, (first + rng.integers(1, number, pairs)) % number


def uniformity(first: np.ndarray, second: np.ndarray) -> float:
  """Log of the mean of exp(-2 |x - y|^2) over pairs of unit vectors [pairs, width]; 0 if all are the same."""
  squared = np.sum((first - second) ** 2, axis=-1)
  return float(np.log(np.mean(np.exp(-2 * squared))))


def alignment(first: np.ndarray, second: np.ndarray) -> float:
  """Mean of |x - y|^2 over pairs of unit vectors [pairs, width]."""
  return float(np.mean(np.sum((first - second) ** 2, axis=-1)))


def area_between(higher: np.ndarray, lower: np.ndarray) -> float:
  """How often one of `higher` [n] is above one of `lower` [m]."""
  is_higher = np.concatenate([np.ones(len(higher), bool), np.zeros(len(lower), bool)])
  return ranking_area(is_higher, np.concatenate([higher, lower]))


def summary(values: np.ndarray) -> dict[str, float]:
  """Mean, median and standard deviation."""
  return {"mean": float(values.mean()), "median": float(np.median(values)), "deviation": float(values.std())}


def densities(name: str, values: np.ndarray, between: tuple[float, float] = (-1.0, 1.0)) -> list[Curve]:
  """A histogram of 50 bins over a range, and a Gaussian estimate of the density where values differ.

  Its width is at least half a bin: that of a collapsed space would hide all other curves.
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
  """Both sides of STS-B's pairs of score 5, of training and development set; None without a file."""
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
