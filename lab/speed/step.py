"""How fast a training step is on this machine, recipe by recipe.

  python -m benchmarks.step --recipes roberta_base coco_lm_base --shapes 4x128 1x512 --repeats 5
  python -m benchmarks.step --recipes amos_small --shapes 32x128 --set model.dtype=bfloat16

The whole step on random tokens: masks, corruption, gradient, clipping, Adam, the guard against non-finite
values. One JSON line for each case: seconds and CPU seconds of a step (medians), tokens per second, seconds
to compile, the compiled program's temporary bytes.
"""

import sys

from ml_collections import ConfigDict

from data import command
from lab.speed import cases
from pretrain.command import kept_memory


def measure(config: ConfigDict, *, repeats: int) -> dict:
  """Compiles a config's step, times it, and says what came out."""
  step = cases.Step(config)
  taken = cases.timed(step, repeats=repeats)
  return {
    "recipe": config.recipe,
    "shape": f"{config.train.batch_size}x{config.data.length}",
    **taken,
    **step.speed(taken["seconds"]),
    "seconds_to_compile": step.seconds_to_compile,
    "temporary_bytes": int(step.compiled.memory_analysis().temp_size_in_bytes),
    "loss": float(step.metrics["loss"][0]),
  }


def main() -> None:
  """Prints a line for each recipe and shape."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--recipes", nargs="+", default=cases.BASE_RECIPES, help="names in configs/, or files")
  parser.add_argument("--shapes", nargs="+", type=cases.shape, default=[(4, 128), (1, 512)])
  parser.add_argument("--repeats", type=int, default=5, help="timed steps")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
  asked = parser.parse_args()
  for recipe in asked.recipes:
    for batch, length in asked.shapes:
      config = cases.make_config(recipe, batch=batch, length=length, changes=asked.set)
      found = measure(config, repeats=asked.repeats)
      cases.report({"benchmark": "step", "changes": asked.set, **found})


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(command.run(main))
