"""The evaluations of a search over its steps, as a picture."""

import io
from collections.abc import Sequence
from pathlib import Path

from data import errors, files
from finetune.search.summary import Record

FILE = "curves.png"
_MOST_NAMED = 10  # lines of a legend


def draw(records: Sequence[Record], path: Path) -> None:
  """Draws the metric of every run's evaluations, a colour for each cell, whole or not at all.

  Raises:
    StorageError: the file cannot be written.
  """
  # Here: a second, which only a finished search waits for. Without pyplot, which keeps every figure.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 4), dpi=100, layout="constrained")
  axis = FigureCanvasAgg(figure).figure.subplots()
  for number, record in enumerate(records):
    for at, evaluations in enumerate(record.seeds.values()):
      points = [(one.step, one.metrics[record.metric]) for one in evaluations]
      name = record.cell.name if at == 0 and number < _MOST_NAMED else None
      axis.plot(*zip(*points), marker=".", color=f"C{number % 10}", label=name)
  axis.set_title(records[0].task)
  axis.set_xlabel("updates")
  axis.set_ylabel(f"{records[0].metric}, development set")
  axis.grid(alpha=0.3)
  axis.legend(fontsize=8)
  content = io.BytesIO()
  figure.savefig(content, format="png")
  with errors.writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)  # all runs may be stored, and nothing written here yet
    files.write_atomically(path, content.getvalue())
