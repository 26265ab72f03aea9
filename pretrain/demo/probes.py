"""What the encoder knows without fine-tuning, by text alone: held-out sentences beside spoilt ones."""

import collections
import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from data.annotated import MinimalPair
from data.records import HeldoutRecords
from data.tables import Column, Report, percent, percent_column, text_column
from data.vocabulary import Vocabulary
from lab.analysis.probes import MinimalPairs
from lab.analysis.words import FrozenEncoder
from pretrain.checkpoints.opened import OpenedRun

NUM_PAIRS = 100  # of a kind
_WORDS = (8, 30)  # in a sentence that is asked about
_NEAR = 5  # places in the order of frequency between a word and the one in its stead
_VERBS = {"is": "are", "was": "were", "has": "have", "does": "do"}
_OTHER_FORM = _VERBS | {plural: singular for singular, plural in _VERBS.items()}

Words = Sequence[str]


def ask(opened: OpenedRun) -> Report:
  """How often held-out sentences are likelier than spoilt ones: at the start, at the end, without a model."""
  params = {"start": opened.run.init_state().params, "end": opened.params}
  encoders = {name: _frozen(opened, each) for name, each in params.items()}
  rows = []
  for kind, pairs in spoilt(opened.vocabulary, opened.heldout).items():
    if not pairs:
      continue
    probe = MinimalPairs(pairs, kind)
    row: dict = {"kind": kind, "sentences": len(pairs), "no model": probe.without_model()[0].value}
    for name, encoder in encoders.items():
      (figure,) = probe.measure(encoder)
      row |= {name: figure.value, f"{name}: standard error": figure.standard_error}
    rows.append(row)
  columns = [text_column("spoilt by", "kind"), Column("sentences", lambda row: str(row["sentences"]))]
  columns += [percent_column("no model", "no model"), percent_column("start", "start")]
  columns.append(Column("end", lambda row: f"{percent(row['end'])} ±{percent(row['end: standard error'])}"))
  return Report(
    "spoilt", "How often a sentence is likelier than the same one spoilt, percent", columns, rows, _NOTES
  )


def _frozen(opened: OpenedRun, params: dict) -> FrozenEncoder:
  config = dataclasses.replace(opened.run.recipe.encoder, remat="none")
  encoder = opened.encoder._replace(params=jax.device_get(params["encoder"]), config=config)
  return FrozenEncoder(encoder, jax.device_get(params["heads"]), batch_size=64)


_NOTES = (
  "Each token is masked in turn, and the sum of the log-probabilities of the originals decides; nothing was "
  "trained for it. No model: the form that is more often right in the other pairs, or a guess. Order: two "
  "neighbouring words are exchanged. Choice: another word of the same frequency. Number: 'is' for 'are' and "
  "the like.",
)


def spoilt(words: Vocabulary, heldout: HeldoutRecords) -> dict[str, list[MinimalPair]]:
  """{kind: at most `NUM_PAIRS` held-out sentences, each beside one that is spoilt in this way}."""
  rng, whole = random.Random(0), list(_sentences(words, heldout))
  counts = collections.Counter(word for sentence in whole for word in sentence if word.isalpha())
  order = sorted(counts, key=lambda word: (counts[word], word))
  rank = {word: at for at, word in enumerate(order)}
  made: dict[str, list[MinimalPair]] = {
    "order of two words": [],
    "choice of a word": [],
    "number of a verb": [],
  }
  for sentence in whole:
    spoilers = (_exchanged(sentence, rng), _replaced(sentence, order, rank, rng), _other_number(sentence))
    for pairs, bad in zip(made.values(), spoilers):
      if bad is not None and len(pairs) < NUM_PAIRS:
        pairs.append(MinimalPair(tuple(sentence), tuple(bad)))
  return made


def _sentences(words: Vocabulary, heldout: HeldoutRecords) -> Iterator[Words]:
  """The words of held-out sentences; the first and the last of a block may be cut and are left out."""
  separator = words.special_ids.sep
  for row in heldout.rows(0, len(heldout)):
    for first, last in itertools.pairwise(np.flatnonzero(row == separator)):
      sentence = words.decode(row[first + 1 : last]).split()
      if _WORDS[0] <= len(sentence) <= _WORDS[1]:
        yield sentence


def _exchanged(sentence: Words, rng: random.Random) -> Words | None:
  pairs = enumerate(itertools.pairwise(sentence))
  places = [at for at, (one, two) in pairs if one.isalpha() and two.isalpha() and one != two]
  if not places:
    return None
  at = rng.choice(places)
  return [*sentence[:at], sentence[at + 1], sentence[at], *sentence[at + 2 :]]


def _replaced(sentence: Words, order: Words, rank: dict[str, int], rng: random.Random) -> Words | None:
  places = [at for at, word in enumerate(sentence) if word.isalpha()]
  if not places:
    return None
  at = rng.choice(places)
  own = rank[sentence[at]]
  near = [other for other in range(own - _NEAR, own + _NEAR + 1) if 0 <= other < len(order) and other != own]
  return [*sentence[:at], order[rng.choice(near)], *sentence[at + 1 :]] if near else None


def _other_number(sentence: Words) -> Words | None:
  places = [at for at, word in enumerate(sentence) if word in _OTHER_FORM]
  if not places:
    return None
  at = places[0]
  return [*sentence[:at], _OTHER_FORM[sentence[at]], *sentence[at + 1 :]]
