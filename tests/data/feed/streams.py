"""Reads Tasks as the child of a feed does: `python streams.py DIRECTORY` writes `results.json` there.

One process for all of `test_streams.py`, because TensorFlow and seqio take seconds to load.
"""

import collections
import itertools
import json
import pathlib
import sys

import numpy as np

from data import records, tfds_reader, vocabulary

tfds_reader.import_tfds()

from data.feed import __main__ as child  # noqa: E402
from data.feed import stream  # noqa: E402
from tests.data.conftest import refused  # noqa: E402

LENGTH = 32
DIRECTORY = pathlib.Path(sys.argv[1])
stream.CHUNK_CHARACTERS, stream.CHUNK_IDS, stream.CHUNK_BLOCKS = 2_000, 600, 8
WORDS = vocabulary.load(DIRECTORY / "words")


def opened(name: str, *, seed: int = 0, packing: str = "eos", words: bool = True) -> stream.Stream:
  flags = [f"--source=seqio:{name}", f"--module={DIRECTORY}/user_tasks.py", f"--packing={packing}"]
  flags += [f"--vocabulary={DIRECTORY}/words"] * words
  return stream.Stream(
    child.parse([*flags, f"--length={LENGTH}", f"--seed={seed}", "--batch_size=8", "--heldout=5"])
  )


def blocks(name: str, number: int, **options) -> np.ndarray:
  """Returns the first training blocks of a Task."""
  _, chunks = opened(name, **options).chunks()
  return np.concatenate([*stream._first(chunks, number)])


def chunk(name: str, *, seed: int) -> list[list[int]]:
  """Returns the blocks of the first texts of a Task, sorted: they are shuffled once more."""
  _, chunks = opened(name, seed=seed).chunks()
  return sorted(next(chunks).tolist())


def expected(name: str, split: str) -> list[list[int]]:
  """Returns the block of each line of a file, worked out without TensorFlow."""
  found, ids = [], WORDS.special_ids
  for line in (DIRECTORY / f"{name}_{split}.txt").read_text().lower().splitlines():
    block = [ids.cls, *WORDS.encode(line), ids.sep]
    found.append(block + [ids.pad] * (LENGTH - len(block)))
  return found


def segments(rows: np.ndarray) -> np.ndarray:
  """Returns the texts of rows, each begun by [CLS], in rows of their own."""
  flat = rows[rows != WORDS.special_ids.pad]
  texts = np.split(flat, np.flatnonzero(flat == WORDS.special_ids.cls)[1:])
  return np.stack(
    [np.pad(text, (0, LENGTH - len(text)), constant_values=WORDS.special_ids.pad) for text in texts]
  )


def share(rows: np.ndarray, name: str) -> float:
  """Returns the fraction of rows that are lines of a file."""
  there = set(map(tuple, expected(name, "train")))
  return sum(tuple(row) in there for row in rows.tolist()) / len(rows)


def counted(rows: np.ndarray) -> list[int]:
  """Returns how often each row is there, sorted."""
  return sorted(collections.Counter(map(tuple, rows.tolist())).values())


def same_rows(rows: np.ndarray, lines: list[list[int]]) -> bool:
  return set(map(tuple, rows.tolist())) == set(map(tuple, lines))


def messages(name: str, first: int) -> list:
  """Returns the first five batches that a feed sends, as lists, with what it says of them."""
  _, chunks = opened(name).chunks(first * 8)
  child.MEASURED_SECONDS = 0.0
  sent = itertools.islice(child.batches(chunks, 8, 0, first), 6)
  return [[content, rows.tolist()] for content, rows in sent if rows is not None]


def of_prepared() -> list[bool]:
  """Returns whether the batches from step 3 on are the trainer's own, and whether facts name the records."""
  options = {"packing": "complete"}
  number, chunks = opened("prepared", **options).chunks(24)
  rows = np.concatenate([*stream._first(chunks, 80)])
  own = records.PackedRecords(DIRECTORY / "records", length=LENGTH, seed=0)
  batches = np.concatenate([own.batch(step, 8) for step in range(3, 13)])
  facts = opened("prepared", **options).facts()
  return [number == 24, np.array_equal(rows, batches), len(facts["records"]) == 64]


def main() -> None:
  one = blocks("one", 400)
  both = blocks("both", 2_000)
  results = {
    "lines": [same_rows(one, expected("one", "train")), counted(one)],
    "segments": [
      same_rows(segments(rows := blocks("one", 200, packing="segments")), expected("one", "train")),
      len(segments(rows)),
    ],
    "again": np.array_equal(one, blocks("one", 400)),
    "other seed": chunk("one", seed=0) == chunk("one", seed=1),
    "heldout": opened("one").heldout(5).tolist() == expected("one", "validation")[:5],
    "few": len(opened("one").heldout(500)) == len(expected("one", "validation")),
    "none": [opened("untested").described()["heldout"], len(opened("untested").heldout(5))],
    "both": [share(both, "one"), share(both, "two")],
    "ids": [same_rows(blocks("ids", 400, words=False), expected("one", "train"))],
    "default": [
      same_rows(blocks("titled", 400), expected("one", "train")),
      opened("with_ids")._ids is None,
    ],
    "packed": sorted(map(tuple, blocks("packed", 50, packing="complete").tolist()))[0][0],
    "prepared": of_prepared(),
    "facts": opened("one").facts(),
    "messages": [messages("one", 0), messages("one", 3)],
    "no vocabulary": refused(lambda: opened("one", words=False)),
    "unknown": refused(lambda: opened("onn")),
    "packing": refused(lambda: opened("packed", packing="none")),
    "short": refused(lambda: blocks("short", 10)),
    "broken": refused(lambda: blocks("broken", 10)),
    "bytes": refused(lambda: blocks("bytes", 10)),
  }
  (DIRECTORY / "results.json").write_text(json.dumps(results))


main()
