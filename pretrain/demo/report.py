"""The demo's summary as text: tables without lines, 98 columns, readable on a terminal and in a file."""

from collections.abc import Iterable

import rich.console
import rich.table
import rich.text

from pretrain.demo.figures import Row, Summary
from pretrain.demo.progress import WIDTH

NAME_WIDTH, ANSWER_WIDTH = 31, 17  # columns
# Standard output. Text of the corpus is never taken for markup.
console = rich.console.Console(width=WIDTH, highlight=False, markup=False, emoji=False)


def print_summary(summary: Summary) -> None:
  """Prints figures, mixture weights and examples."""
  heading("What was learned, on text held out from training")
  losses = [row for row in summary.rows if row.is_loss]
  console.print(_row_table("loss, nats: lower is better", losses))
  console.print()
  hits = [row for row in summary.rows if not row.is_loss]
  console.print(_row_table("right answers: higher is better", hits))
  for line in _notes(summary):
    paragraph(line)
  if summary.mixture:
    heading("Which generator layer makes the text: mean mixture weights")
    console.print(_mixture_table(summary.mixture))
  heading("Replaced tokens: the first one of each of the first held-out blocks")
  console.print(_example_table(summary))
  replaced, original = summary.probabilities
  paragraph(
    f"Over all blocks the encoder gives replaced tokens a probability of {replaced:.1%} of being replaced, "
    f"original tokens {original:.1%}; {summary.replace_rate:.1%} are. '-ing' continues a word."
  )


def heading(text: str) -> None:
  """Prints a title between two empty lines."""
  console.print()
  console.print(text, style="bold")
  console.print()


def paragraph(text: str) -> None:
  """Prints text under a table."""
  console.print()
  console.print(rich.text.Text(text), style="dim")


def _notes(summary: Summary) -> Iterable[str]:
  yield (
    f"Measured on {summary.masked:,} masked tokens of {summary.blocks:,} blocks, the same before and after. "
    f"'Token frequencies' answers every masked token with how often tokens stand in the training text; "
    f"knowing besides that every block begins with [CLS] would make it {summary.cls_gain:.2f} better."
  )
  worse = [row.name for row in summary.rows if row.is_loss and row.last >= row.trivial]
  if worse:
    yield (
      f"Not better than its trivial answer after {summary.step:,} steps: {'; '.join(worse)}. A few minutes "
      f"on two cores teach little; docs/results.md says what longer runs teach."
    )


def _table(*headers: tuple[str, str]) -> rich.table.Table:
  table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
  for name, side in headers:
    table.add_column(name, justify=side)  # type: ignore[arg-type]
  return table


def _row_table(name: str, rows: list[Row]) -> rich.table.Table:
  table = _table(
    (name, "left"), ("start", "right"), ("end", "right"), ("trivial", "right"), ("trivial answer", "left")
  )
  table.columns[0].min_width = NAME_WIDTH  # the two tables stand under one another
  table.columns[4].min_width = ANSWER_WIDTH
  table.add_column("end against trivial")
  for row in rows:
    shown = [_number(row, value) for value in (row.first, row.last, row.trivial)]
    table.add_row(row.name, *shown, row.answer, verdict(row))
  return table


def _number(row: Row, value: float | None) -> str:
  if value is None:
    return "-"
  return f"{value:.3f}" if row.is_loss else f"{value:.1%}"


def verdict(row: Row) -> str:
  """The end against the trivial answer, in the unit of the row: 'better by 0.412', 'worse by 3.1 points'."""
  gain = row.trivial - row.last if row.is_loss else row.last - row.trivial
  size = f"{abs(gain):.3f}" if row.is_loss else f"{100 * abs(gain):.1f} points"
  if not any(digit in size for digit in "123456789"):
    return "the same"
  return f"{'better' if gain > 0 else 'worse'} by {size}"


def _mixture_table(mixture: dict[str, tuple[float, float]]) -> rich.table.Table:
  table = _table(("head on", "left"), ("start", "right"), ("end", "right"), ("equal weights", "right"))
  for name, (first, last) in mixture.items():
    table.add_row(name, f"{first:.3f}", f"{last:.3f}", f"{1 / len(mixture):.3f}")
  return table


def _example_table(summary: Summary) -> rich.table.Table:
  table = _table(("text as the encoder read it", "left"), ("original", "left"), ("replacement", "left"))
  table.add_column("the encoder said")
  for example in summary.examples:
    is_found = example.probability > 0.5
    sure = example.probability if is_found else 1 - example.probability
    answer = f"{'replaced' if is_found else 'original'} ({sure:.0%})"
    cells = (example.text, example.original, example.replacement, answer)
    table.add_row(*(rich.text.Text(cell) for cell in cells))
  return table


def print_end(
  *, checkpoint: str, times: dict[str, float], peak_memory: int, commands: dict[str, str]
) -> None:
  """Prints where the result is, what it cost (seconds of each stage, bytes) and what to do next.

  `commands` are {what it does: command}.
  """
  heading("What it took")
  table = _table(("stage", "left"), ("seconds", "right"))
  for stage, seconds in times.items():
    table.add_row(stage, f"{seconds:,.1f}")
  console.print(table)
  paragraph(
    f"Peak memory: {peak_memory / 1e9:.2f} GB (resident sets of this process and its children added up)."
  )
  console.print(f"Checkpoint:  {checkpoint}")
  heading("Next")
  for purpose, command in commands.items():
    console.print(f"{purpose}:")
    console.print(f"  {command}", soft_wrap=True)
