"""Measures the cost of each cleaning step, the documents it drops, and the planted near duplicates it finds.

  python -m benchmarks.cleaning --source='corpus/*.txt'

One JSON line for each step: megabytes of text for a CPU second in one process, reading not counted, and the
documents it drops. For `exact` and `near` the time is that of the signatures; what follows is 1 % of it. Then
one line for each threshold of `near`: each document's first 2,000 words are planted again, with up to
an eighth of its words exchanged. Similarities are counted over all runs of five words, not estimated.
"""

import collections
import json
import pathlib
import random
import tempfile
import time
from collections.abc import Callable, Iterable

import numpy as np

from data import command, sources
from data.clean import duplicates, steps
from data.prepare import workers

STEPS = ("exact", "near:0.8", "language:en", "length:200", "words", "repetition", "symbols", "stop_words")
PLANTED_WORDS = 2_000
MOST_EXCHANGED = 0.125


def speed(step: steps.Step, documents: list[list[str]]) -> dict:
  """Returns the line of a step; `dropped` is left out where documents are compared."""
  size = sum(
    len(paragraph.encode("utf-8", "replace")) + 1 for document in documents for paragraph in document
  )
  started = time.process_time()
  if step.sketch:
    for document in documents:
      signed = duplicates.signature(document, step.sketch)
      assert signed is not None
      duplicates.band_keys(signed, step.sketch)
    dropped = {}
  else:
    assert step.rule is not None
    dropped = {"dropped": sum(isinstance(step.rule(document), str) for document in documents)}
  rate = size / 1e6 / (time.process_time() - started)
  return {
    "step": step.label,
    "megabytes_per_cpu_second": round(rate, 1),
    "documents": len(documents),
  } | dropped


def planted(documents: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
  """Returns the beginnings of the documents and copies of them, in each of which some words are exchanged."""
  originals, copies = [], []
  for number, document in enumerate(documents):
    words = " ".join(document).split()[:PLANTED_WORDS]
    if len(words) < 100:
      continue
    rng = random.Random(number)
    originals.append([" ".join(words)])
    for place in rng.sample(range(len(words)), round(rng.uniform(0, MOST_EXCHANGED) * len(words))):
      words[place] = rng.choice(words)
    copies.append([" ".join(words)])
  return originals, copies


def similarity(one: list[str], other: list[str]) -> float:
  """Returns the part of their runs of five words that two documents share."""
  words = [document[0].lower().split() for document in (one, other)]
  runs = [{tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in words]
  return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def found(
  threshold: float, originals: list[list[str]], copies: list[list[str]], documents_of: Callable
) -> dict:
  """Returns the line of a threshold: which copies are dropped, above it and below it."""
  units = [sources.Unit("file", "originals"), sources.Unit("file", "copies")]
  with tempfile.TemporaryDirectory() as folder:
    lists = pathlib.Path(folder) / "lists"
    duplicates.find(duplicates.near(threshold), documents_of, lists, units, workers.Pool(None), name="near")
    others, dropped = (np.load(duplicates.list_of(lists, unit), allow_pickle=False) for unit in units)
  is_found = np.isin(np.arange(len(copies)), dropped["index"])
  similar = np.asarray([similarity(*pair) for pair in zip(originals, copies)])
  near = 0.05  # about a standard error of the estimate
  return {
    "threshold": threshold,
    "planted": len(copies),
    "above": int((similar >= threshold).sum()),
    "found_above": int(is_found[similar >= threshold].sum()),
    "clearly_above": int((similar >= threshold + near).sum()),
    "found_clearly_above": int(is_found[similar >= threshold + near].sum()),
    "below": int((similar < threshold).sum()),
    "found_below": int(is_found[similar < threshold].sum()),
    "found_clearly_below": int(is_found[similar < threshold - near].sum()),
    "originals_dropped": len(others),
  }


def main() -> None:
  """Prints the lines."""
  parser = command.Parser(description=__doc__)
  sources.add_flags(parser)
  request = sources.request(parser.parse_args())
  documents = [
    document
    for unit in sources.plan(request).units
    for document in sources.read_documents(unit, request, collections.Counter())
    if document
  ]
  for step in steps.parse(",".join(STEPS)):
    print(json.dumps(speed(step, documents)), flush=True)
  originals, copies = planted(documents)

  def documents_of(unit: sources.Unit) -> Iterable[tuple[int, list[str]]]:
    return enumerate(originals if unit.name == "originals" else copies)

  for threshold in (0.5, 0.7, 0.8, 0.9):
    print(json.dumps(found(threshold, originals, copies, documents_of)), flush=True)


if __name__ == "__main__":
  main()
