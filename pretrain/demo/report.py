"""The demo's summary as text: tables without lines, 98 columns, readable on a terminal and in a file."""

from collections.abc import Mapping

import rich.console

from data.tables import Column, Report, text_column
from pretrain.demo.progress import WIDTH

# Standard output. Text of the corpus is never taken for markup.
console = rich.console.Console(width=WIDTH, highlight=False, markup=False, emoji=False)


def print_end(
  *, checkpoint: str, page: str, times: Mapping[str, float], peak_memory: int, commands: Mapping[str, str]
) -> None:
  """Prints where the result is, what it cost (seconds of each stage, bytes) and what to do next.

  `commands` are {what it does: command}.
  """
  stages = [{"stage": stage, "seconds": seconds} for stage, seconds in times.items()]
  columns = [text_column("stage", "stage"), Column("seconds", lambda row: f"{row['seconds']:,.1f}")]
  Report("times", "What it took", columns, stages, []).print(console)
  console.print()
  console.print(
    f"Peak memory: {peak_memory / 1e9:.2f} GB (resident sets of this process and its children added up)."
  )
  console.print(f"Checkpoint:  {checkpoint}", soft_wrap=True)
  console.print(f"Page:        {page}", soft_wrap=True)
  console.print()
  console.print("Next", style="bold")
  console.print()
  for purpose, command in commands.items():
    console.print(f"{purpose}:")
    console.print(f"  {command}", soft_wrap=True)
