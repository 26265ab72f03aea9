"""A small BEIR folder of words that the small encoder knows."""

import gzip
import json
import pathlib

import numpy as np

from data import rows
from finetune.embedding import retrieval
from tests.finetune.glue.small_glue import WORDS


def write(
  folder: pathlib.Path, passages: int = 30, queries: int = 6, *, packed: bool = False
) -> pathlib.Path:
  """Query n is the text of passage n, which is relevant; query 0 has the id of passage 1."""
  random, files = np.random.default_rng(3), {}
  texts = [" ".join(random.choice(WORDS, random.integers(3, 12))) for _ in range(passages)]
  files["corpus.jsonl"] = [
    json.dumps({"_id": f"d{at}", "title": text.split()[0] if at % 2 else "", "text": text})
    for at, text in enumerate(texts)
  ]
  names = ["d1", *(f"q{at}" for at in range(1, queries + 1))]  # the last has no judgement
  files["queries.jsonl"] = [json.dumps({"_id": name, "text": text}) for name, text in zip(names, texts)]
  judged = [f"{name}\td{at}\t1" for at, name in enumerate(names[:-1])]
  files["qrels/test.tsv"] = [
    "query-id\tcorpus-id\tscore",
    *judged,
    f"{names[2]}\td9\t2",
    f"{names[3]}\td8\t0",
  ]
  (folder / "qrels").mkdir(parents=True)
  for name, lines in files.items():
    content = "".join(f"{line}\n" for line in lines).encode()
    path = folder / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
  return folder


def read(folder: pathlib.Path) -> retrieval.Beir:
  """The split 'test' of a folder."""
  return retrieval.read(str(folder), "test")


def passages(folder: pathlib.Path) -> list[str]:
  """The texts of the corpus, each with its title."""
  return [retrieval.passage(row) for row in rows.read(str(folder / "corpus.jsonl"))]
