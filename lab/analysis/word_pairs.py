"""How alike the token embeddings of words are that people find together, such as bank and money.

Source: TACO (Fu et al., ACL 2022) figure 3a; its list of words is not public.
"""

from collections.abc import Sequence

import numpy as np

from data import files
from data.errors import DataError
from data.vocabulary import Vocabulary
from lab.analysis.outcome import Curve, LeftOut, Needs, Outcome, Plot
from lab.analysis.request import Request
from pretrain.embed.vectors import unit

FILE = "word_pairs.tsv"  # two words a line, with a tab between them
_NEAR = 50  # ranks of frequency within which a word is replaced
_DRAWS = 20  # of random pairs, for each pair


def measure(request: Request) -> Outcome:
  """Mean cosines of the given pairs and of random ones of like frequency, at every saved step."""
  path = request.data / FILE if request.data else None
  if path is None or not path.is_file():
    raise Needs(f"{FILE} in --data: two words a line, with a tab between them")
  rows, curves, left_out = [], [], LeftOut()
  words = [tuple(line.split("\t")) for line in files.read_text(path).splitlines() if line.strip()]
  for number, pair in enumerate(words, 1):
    if len(pair) != 2:
      raise DataError(f"{path}: pair {number} has {len(pair)} words, expected 2 with a tab between them")
  for name, step, opened in request.every_step(left_out):
    with left_out.where_lacking(name):
      pairs = single_pieces(opened.vocabulary, words)
      if not len(pairs):
        raise Needs(f"a pair of words of one piece each; in {path} there is none for {name}")
      table = opened.params["encoder"]["embeddings"]["token"]["embedding"]
      given, matched = likeness(table, pairs, opened.heldout.unigram())
      row = {"checkpoint": name, "step": step, "count": len(pairs), "given": given, "like frequency": matched}
      rows.append(row)
  for name in dict.fromkeys(row["checkpoint"] for row in rows):
    own = [row for row in rows if row["checkpoint"] == name]
    steps = np.asarray([row["step"] for row in own])
    for kind in ("given", "like frequency"):
      values = np.asarray([row[kind] for row in own])
      curves.append(Curve(f"{name}, {kind}", steps, values, has_dots=True))
  notes = [
    f"Mean cosine of rows of the token table: of the pairs in {FILE} whose words are one piece each, and of "
    f"pairs in which the second word is replaced by one at most {_NEAR} ranks of frequency away."
  ]
  plot = Plot("word_pairs", "Token embeddings of pairs of words", "step", "mean cosine", curves)
  return Outcome(plot.title, rows, [plot], notes, left_out.sentences(rows))


def single_pieces(vocabulary: Vocabulary, words: Sequence[tuple[str, ...]]) -> np.ndarray:
  """[pairs, 2] ids of the pairs whose words are one known piece each, and not the same."""
  encoded = [[vocabulary.encode(word) for word in pair] for pair in words]
  unknown = vocabulary.special_ids.unk
  kept = [
    (one[0], other[0])
    for one, other in encoded
    if len(one) == len(other) == 1 and unknown not in (one[0], other[0]) and one != other
  ]
  return np.asarray(kept, np.int64).reshape(-1, 2)


def likeness(table: np.ndarray, pairs: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
  """Mean cosine of [pairs, 2] rows of a table [vocab, width], and of pairs of like frequency.

  `counts` [vocab] say how often an id stands in the training text; ids that never do are not drawn.
  """
  table = unit(np.asarray(table, np.float64))
  order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
  rank = np.full(len(table), len(order))
  rank[order] = np.arange(len(order))
  rng, drawn = np.random.default_rng(0), []
  for first, second in pairs.tolist():
    near = order[max(rank[second] - _NEAR, 0) : rank[second] + _NEAR + 1]
    near = near[(near != first) & (near != second)]
    if len(near):
      drawn.append(float(np.mean(table[rng.choice(near, _DRAWS)] @ table[first])))
  given = np.einsum("pw,pw->p", table[pairs[:, 0]], table[pairs[:, 1]])
  return float(given.mean()), float(np.mean(drawn)) if drawn else float("nan")
