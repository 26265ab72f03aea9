"""What a table would take, counted before anything runs."""

from data.tables import Column, Report, text_column
from lab.studies.cells import Asked, run_config
from pretrain.plan.flops import training_flops_per_token


def report(asked: Asked, teraflops: float) -> Report:
  """A row for each arm: operations of its runs by formula, and hours at a speed of `teraflops` TFLOP/s.

  Probes, analyses and fine-tunings are not counted.
  """
  rows = []
  for name in asked.study.arms:
    config = run_config(asked, name).to_dict()
    train = config["train"]
    tokens = train["total_steps"] * train["batch_size"] * config["data"]["length"]
    each = training_flops_per_token(config)
    total = each * tokens * len(asked.seeds)
    row = {"row": name, "runs": len(asked.seeds), "steps": train["total_steps"], "tokens": tokens}
    rows.append(row | {"flops": each, "total": total, "hours": total / teraflops / 3.6e15})
  columns = [
    text_column("row", "row"),
    Column("runs", lambda row: str(row["runs"])),
    Column("steps", lambda row: f"{row['steps']:,}"),
    Column("M tokens a run", lambda row: f"{row['tokens'] / 1e6:,.1f}"),
    Column("MFLOP a token", lambda row: f"{row['flops'] / 1e6:,.1f}"),
    Column("PFLOP", lambda row: f"{row['total'] / 1e15:,.2f}"),
    Column("hours", lambda row: f"{row['hours']:.2f}"),
  ]
  hours = sum(row["hours"] for row in rows)
  note = (
    f"In all {hours:.2f} hours at {teraflops:g} TFLOP/s that are reached, one run after another; tokens "
    "count padding. Compilation, probes, analyses and fine-tunings come on top. The first cell runs:"
  )
  first = asked.cells[0]
  commands = [" ".join(["python -m", *asked.filled(words, first)]) for words in asked.commands(first)]
  return Report("cost", f"Cost of {asked.study.title}", columns, rows, [note, *commands])
