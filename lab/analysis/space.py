"""Measures the geometry of vectors: `cosines` of sentences, and `blocks`, with their crops and tokens.

Every run is measured, whatever its objectives, so that it can be compared with a twin without an objective.
Sources: COCO-LM (Meng et al., 2021) figures 1, 5 and 7; TACO figures 3b and 6a; Wang and Isola (2020) for
alignment and uniformity.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from data import glue
from data.glue import tsv
from data.glue.tasks import known_task
from data.page import Curve, Plot
from data.records import HeldoutRecords
from lab.analysis.request import LeftOut, Needs, Outcome, Request, first_texts, over_steps
from pretrain.checkpoints.saved_model import contrast_head
from pretrain.corruption import cropping, generator
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
from pretrain.evaluate import collect, ranking_area
from pretrain.models import encoder as encoder_model
from pretrain.run import Run

PAIRS = 10_000  # random pairs
LONGEST = 128  # tokens of a block
SIMILAR = 5.0  # STS-B's score of sentences with the same meaning
_BINS = 50
CROP_FRACTION = 0.9  # of the second view, also for runs without SCL
_COSINES = {"sequence_cosine_positive": "crop of the same block", "sequence_cosine_negative": "other blocks"}
_OF_HEAD = {
  "sequence_head_cosine_positive": "crop of the same block, head",
  "sequence_head_cosine_negative": "other blocks, head",
}
_SCORE = "contextual_score"
_SHOWN = (*_COSINES, "sequence_retrieval_top1", _SCORE, f"{_SCORE}_inside", *_OF_HEAD)


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


def blocks(request: Request) -> Outcome:
  """Measures the cosines of blocks and TACO's contextual score at every saved step."""
  rows, left_out = [], LeftOut()
  if request.batch_size < 2:
    raise Needs("groups of two blocks at least; --batch_size is 1")
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      batches = max(1, request.rows // request.batch_size)
      if len(opened.heldout) < request.batch_size:
        raise Needs(f"--batch_size held-out blocks, {request.batch_size}; there are {len(opened.heldout)}")
      found = figures_of_blocks(opened.run, opened.params, opened.heldout, batches=batches)
      shown = {figure: found[figure] for figure in _SHOWN if figure in found}
      rows.append({"checkpoint": name, "step": step, **shown})
  notes = [
    "Vectors of the last layer, without dropout, of held-out blocks in groups of "
    f"{request.batch_size}; a block is corrupted as in the run's evaluation, its crop is "
    f"{CROP_FRACTION:.0%} of its tokens. "
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


def figures_of_blocks(run: Run, params: dict, heldout: HeldoutRecords, *, batches: int) -> dict[str, float]:
  """Returns {name: figure} of blocks and tokens, on at most `batches` full batches of held-out records.

  At least one full batch is needed. Samples are those of the evaluation; parameters may be on mesh or host.
  """
  size = run.config.train.batch_size
  rows = size * min(batches, len(heldout) // size)
  arrays = collect(run, params, heldout, describe, rows=rows)
  result = _sequence_figures(arrays, run) | _contextual_figures(arrays, run)
  if head := contrast_head(run, params):
    arrays = {name: np.asarray(head(jnp.asarray(arrays[name]))) for name in ("cls", "crop_cls")}
    result |= _sequence_figures(arrays, run, of="head_")
  return result


def describe(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Returns vectors of corrupted blocks, of their crops and of clean blocks.

  Inputs are ids, [batch, length] int32, and the number of the held-out batch, [] int32. Outputs: 'ids' as
  given; 'cls', 'crop_cls' [batch, embed] and 'clean_hidden' [batch, length, embed] float.
  """
  recipe = run.recipe
  view, _ = recipe.view(params, run.eval_batch_of(ids, index, jnp.float32(1.0)), train=False)
  alone, encoder = first_texts(recipe, ids), generator.joined_tables(params)["encoder"]
  crop = cropping.crop(alone, view.corrupted.row_keys, recipe.tokens, fraction=CROP_FRACTION, add_cls=True)

  def encode(ids: jax.Array) -> jax.Array:
    mask, pad_id = ids != recipe.tokens.pad, recipe.tokens.pad
    return encoder_model.encode(encoder, recipe.encoder, ids, mask, pad_id=pad_id)[1].last

  return {"ids": ids, "cls": view.hidden[:, 0], "crop_cls": encode(crop)[:, 0], "clean_hidden": encode(alone)}


def _sequence_figures(arrays: dict[str, np.ndarray], run: Run, of: str = "") -> dict[str, float]:
  """Returns cosines of [CLS] of corrupted blocks and crops, and the accuracy of retrieving the own crop.

  `of` follows 'sequence_' in the names of the results.
  """
  size = run.config.train.batch_size
  first, second = (
    unit(arrays[name].astype(np.float64)).reshape(-1, size, arrays[name].shape[-1])
    for name in ("cls", "crop_cls")
  )
  cosines = np.einsum("gid,gjd->gij", first, second)
  diagonal = np.eye(size, dtype=bool)
  retrieved = (cosines.argmax(axis=-1) == np.arange(size)).mean()
  positive, negative = cosines[:, diagonal].mean(), cosines[:, ~diagonal].mean()
  return {
    f"sequence_{of}cosine_positive": float(positive),
    f"sequence_{of}cosine_negative": float(negative),
    f"sequence_{of}retrieval_top1": float(retrieved),
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
