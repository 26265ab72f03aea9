"""Rows a second of `finetune.predict` against transformers' pipeline on the exported model, on CPU.

  python -m pretrain.export --checkpoint=runs/own/model --output=exported/own
  python -m benchmarks.predict --model=runs/own/model --exported=exported/own --input=test.csv --rows=512

One JSON line for texts as they are, and one for texts cut to one length, where batches have no padding. Both
programs get the same texts in the same order, the same batch size and the same longest length, give the
probability of every label, and take turns; compiling is not counted. The ratio is ours over the pipeline's:
above 1 ours is faster. `difference` is the largest between the probabilities of both.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator

import numpy as np

from data import command, rows
from data.errors import DataError
from data.rows import Row
from finetune.inference.model import Model, open_answering
from finetune.own.chances import PROBABILITY
from lab.speed import cases
from pretrain.checkpoints.saved_model import open_model

WAYS = ("ours", "pipeline")


def ours(model: Model, texts: list[str]) -> np.ndarray:
  """[texts, labels] probabilities, a part of 32 batches at a time as the command does."""
  given = [Row({model.schema.text[0]: text}, at, "") for at, text in enumerate(texts)]
  found = [model.answers(part, model.kind.inputs(part)) for part in _parts(given)]
  return np.asarray(
    [[row[f"{PROBABILITY} {label}"] for label in model.schema.labels] for part in found for row in part]
  )


def _parts(given: list[Row], size: int = 1024) -> Iterator[list[Row]]:
  return (given[at : at + size] for at in range(0, len(given), size))


def pipeline(folder: str, labels: tuple[str, ...], *, batch_size: int, longest: int) -> Callable:
  """Texts to [texts, labels] probabilities through transformers."""
  import torch
  import transformers

  answer = transformers.pipeline("text-classification", model=folder, device="cpu")

  def run(texts: list[str]) -> np.ndarray:
    with torch.inference_mode():
      options = {"batch_size": batch_size, "truncation": True, "max_length": longest}
      found = answer(texts, top_k=None, padding=True, **options)
    scores = [{each["label"]: each["score"] for each in row} for row in found]
    return np.asarray([[row[label] for label in labels] for row in scores])

  return run


def measured(asked: argparse.Namespace) -> Iterator[dict]:
  """A line for texts as they are and one for texts of one length."""
  model = open_answering(asked.model, step=None, vocabulary="", batch_size=asked.batch_size)
  _, words = open_model(asked.model).load_vocabulary("", flag="--model")
  schema = model.schema
  column = schema.text[0]
  texts = [row.value(column) for row in itertools.islice(rows.read(asked.input), asked.rows)]
  if len(schema.text) > 1 or not schema.labels or not texts:
    raise DataError(f"{asked.model}, {asked.input}: expected a model of labels of one text, and texts")
  theirs = pipeline(asked.exported, schema.labels, batch_size=asked.batch_size, longest=schema.max_length)
  joined = words.encode(" ".join(texts))
  for name, inputs in {
    "as they are": texts,
    f"{asked.length} tokens": [
      words.decode(joined[at : at + asked.length - 4])
      for at in range(0, len(joined) - asked.length, asked.length)
    ][: asked.rows],
  }.items():
    sizes = [
      len(words.with_special_ids(ids, max_length=schema.max_length)) for ids in words.encode_batch(inputs)
    ]
    both = {WAYS[0]: lambda inputs=inputs: ours(model, inputs), WAYS[1]: lambda inputs=inputs: theirs(inputs)}
    difference = float(np.abs(both[WAYS[0]]() - both[WAYS[1]]()).max())
    taken = cases.alternated(both, repeats=asked.repeats, warmup=0)
    of_ours, of_theirs = (taken[way] for way in WAYS)
    yield {
      "benchmark": "predict",
      "texts": name,
      "rows": len(inputs),
      "batch_size": asked.batch_size,
      "tokens": {"mean": float(np.mean(sizes)), "longest": max(sizes)},
      "rows_per_second": len(inputs) / of_ours["seconds"],
      "rows_per_second_of_pipeline": len(inputs) / of_theirs["seconds"],
      "ratio": of_theirs["seconds"] / of_ours["seconds"],
      "ratio_of_cpu_time": of_theirs["cpu_seconds"] / of_ours["cpu_seconds"],
      "difference": difference,
      "programs": sorted(map(list, model.shapes)),
    }


def main() -> None:
  """Prints the lines."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--model", required=True, help="folder of a fine-tuned model of labels")
  parser.add_argument("--exported", required=True, help="what pretrain.export made of it")
  parser.add_argument("--input", required=True, help="file with the column that the model reads")
  parser.add_argument("--rows", type=int, default=512, help="texts")
  parser.add_argument("--batch_size", type=int, default=32)
  parser.add_argument("--length", type=int, default=64, help="tokens of the texts of one length")
  parser.add_argument("--repeats", type=int, default=3, help="timed rounds of each")
  for line in measured(parser.parse_args()):
    cases.report(line)


if __name__ == "__main__":
  sys.exit(command.run(main))
