"""Renders the tables as one HTML page with charts of distributions."""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from data.inspect.beside import label
from data.inspect.look import Look
from data.page import template
from data.page.plot import Curve, Plot
from data.tables import Report

_MOST_BARS = 64
_MOST_POINTS = 200  # of a curve

_Points = tuple[np.ndarray, np.ndarray, str]  # x, y, a note for the legend


def make(looks: Sequence[Look], made: Sequence[Report]) -> str:
  """Returns the HTML page with the tables of `reports.make` and, after the first one, the charts."""
  kinds = ("Prepared records", "Two directories of prepared records")
  if not looks[0].records:
    kinds = ("A vocabulary", "Two vocabularies")
  return template.render(
    pathlib.Path(__file__).with_name("inspect.html"),
    title=" and ".join(label(look, looks) for look in looks),
    sections=[(report.title, f"part-{at}") for at, report in enumerate(made)],
    lead=f"{kinds[len(looks) - 1]}: {' and '.join(look.name for look in looks)}.",
    reports=made,
    plots=_plots(looks),
  )


def _plots(looks: Sequence[Look]) -> list[Plot]:
  def plot(title: str, x_label: str, y_label: str, points: Callable[[Look], _Points]) -> Plot:
    curves = []
    for look in looks:
      x, y, note = points(look)
      curves.append(Curve(label(look, looks), x, y, note=note))
    return Plot("look", title, x_label, y_label, curves)

  if looks[0].records:
    return [
      plot("Tokens in a training record", "tokens", "share of records", _lengths),
      plot("Tokens covered by the most frequent pieces", "pieces", "share of tokens", _coverage),
    ]
  return [plot("Characters in a piece", "characters", "share of pieces", _sizes)]


def _lengths(look: Look) -> _Points:
  assert look.records
  lengths = look.records.lengths
  return *_bars(lengths, look.records.made.length), f"mean {lengths.mean():,.1f}"


def _sizes(look: Look) -> _Points:
  sizes = look.pieces.sizes[look.pieces.sizes > 0]
  return *_bars(sizes, int(sizes.max())), f"mean {sizes.mean():.2f}"


def _bars(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns x and y of the outline of a histogram (in shares) of integers from 1 to `most`."""
  width = -(-most // _MOST_BARS)  # the same for all bars
  edges = np.arange(0, most + width, width)
  shares = np.histogram(values, edges + 0.5)[0] / values.size
  return np.repeat(edges, 2), np.concatenate([[0.0], np.repeat(shares, 2), [0.0]])


def _coverage(look: Look) -> _Points:
  """Returns x (numbers of the most frequent pieces), y (their share of the tokens) and a legend note."""
  assert look.records
  sums = np.cumsum(np.sort(look.records.unigram)[::-1])
  shares = sums / sums[-1]
  numbers = np.unique(np.geomspace(1, shares.size, _MOST_POINTS).round().astype(np.int64))
  return numbers, shares[numbers - 1], f"half by {int(np.searchsorted(shares, 0.5)) + 1:,} pieces"
