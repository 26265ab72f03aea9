"""Compares packings of one text: how full their rows are, and how long a recipe takes to train on all of it.

  python -m benchmarks.packing --recipe roberta_tiny --batch 32 prepared/segments prepared/complete_doc

Each directory has prepared records of the same text and length. Packing 'complete_doc' gives one document a
row. One JSON line for each: records, segments a record, the share of rows that is no padding, seconds of a
training step, tokens per second without padding, and seconds for all records. Directories take turns.
"""

import sys

import jax

from data import command, manifest, records
from lab.speed import cases
from pretrain.command import kept_memory
from pretrain.mesh import sharding


def step_on(directory: str, recipe: str, *, batch: int, changes: list[str]) -> cases.Step:
  """Returns a recipe's step, with changes 'field=value', on two batches of records and on one device."""
  made = manifest.read(directory)
  fields = [f"data.packing={made.packing}", f"model.vocab_size={made.vocabulary.size}", *changes]
  config = cases.make_config(recipe, batch=batch, length=made.length, changes=fields)
  source = records.PackedRecords(directory, length=made.length, seed=0, content=made)
  step = cases.Step(config, devices=jax.devices()[:1], special=made.vocabulary.special_ids)
  step.batches = [sharding.to_global(step.run.mesh, source.batch(at, batch)) for at in range(2)]
  return step


def line(directory: str, *, batch: int, taken: dict[str, float]) -> dict:
  """Returns the facts of a directory, with the times of a step of `batch` rows as `cases.timed` has them."""
  made = manifest.read(directory)
  train, cls = made.splits["train"], made.vocabulary.special_ids["cls"]
  seconds = taken["seconds"] * train.records / batch
  return {
    "packing": made.packing,
    "records": train.records,
    "segments_a_record": float(records.unigram(directory)[cls] / train.records),
    "full": train.tokens / train.records / made.length,
    **taken,
    "tokens_per_second": train.tokens / seconds,
    "seconds_for_all": seconds,
  }


def main() -> None:
  """Prints a line for each directory."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("directories", nargs="+", metavar="DIR", help="prepared records of one text")
  parser.add_argument("--recipe", default="roberta_tiny", help="name in configs/")
  parser.add_argument("--batch", type=int, default=32, help="rows of a step")
  parser.add_argument("--repeats", type=int, default=5, help="timed steps")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changed fields")
  asked = parser.parse_args()
  steps = {
    name: step_on(name, asked.recipe, batch=asked.batch, changes=asked.set) for name in asked.directories
  }
  for name, taken in cases.alternated(steps, repeats=asked.repeats).items():
    recipe = {"benchmark": "packing", "recipe": asked.recipe, "rows": asked.batch, "changes": asked.set}
    cases.report(recipe | line(name, batch=asked.batch, taken=taken))


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
