"""tokenizer.json against our vocabulary on every line of text files.

  python -m tests.tokenizer_lines [PATH ...]

A part of `make test-real`. Prints lines and differences of each file; exit code 1 if a line gets other ids, 3
if there is no text. Text that spells a special piece is read as text, as with `split_special_tokens=True`.
"""

import argparse
import gzip
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from data import vocabulary
from data.vocabulary import train as vocabulary_train
from pretrain.export.tokenizer import convert

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATASETS = ROOT.parent / "shared" / "datasets"
SIZE = 4_096  # pieces of the vocabulary that is trained if none is given
TRAINING_LINES = 20_000  # the first ones that its training reads
BATCH = 2_000  # lines


def find(paths: list[pathlib.Path]) -> list[pathlib.Path]:
  """The files named and those in the folders named, in order."""
  found = [sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths]
  return [path for path in itertools.chain(*found) if path.is_file()]


def lines_of(path: pathlib.Path) -> Iterator[str]:
  """Lines of a file, gzip or not, without their newlines; what is not UTF-8 becomes U+FFFD."""
  open_text = gzip.open if path.suffix == ".gz" else open
  with open_text(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
    for line in file:
      yield line.removesuffix("\n")


def compare(directory: pathlib.Path, paths: list[pathlib.Path]) -> tuple[int, int]:
  """Prints a line per file and the first differences of each; returns lines and differences in all."""
  words = vocabulary.load(directory)
  tokenizer = convert.build_tokenizer(directory, words)
  total = different = 0
  for path in paths:
    number, wrong = 0, []
    lines = lines_of(path)
    while batch := list(itertools.islice(lines, BATCH)):
      number += len(batch)
      wrong += convert.differences(words, tokenizer, batch)
    print(f"{path}: {number:,} lines, {len(wrong):,} differences", flush=True)
    for text, ours, theirs in wrong[:3]:
      print(f"  {text[:60]!r}: {theirs[:8]}, expected {ours[:8]}", flush=True)
    total, different = total + number, different + len(wrong)
  return total, different


def _train(paths: list[pathlib.Path], directory: pathlib.Path) -> None:
  lines = itertools.chain.from_iterable(map(lines_of, paths))
  sentences = itertools.islice(filter(str.strip, lines), TRAINING_LINES)
  vocabulary_train.train(sentences, directory, kind="sentencepiece", cased=False, size=SIZE)


def main(arguments: list[str]) -> int:
  """Compares; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m tests.tokenizer_lines", description=(__doc__ or "").split("\n")[0]
  )
  parser.add_argument(
    "paths",
    nargs="*",
    type=pathlib.Path,
    default=[DATASETS],
    help=f"files, folders; default: {DATASETS.name}",
  )
  parser.add_argument(
    "--vocabulary", type=pathlib.Path, help="directory; default: sentencepiece, trained on the first lines"
  )
  given = parser.parse_args(arguments)
  empty = [str(path) for path in given.paths if not find([path])]
  if empty:
    print(f"not run: no files in {', '.join(empty)}", file=sys.stderr)
    return 3
  paths = find(given.paths)
  with tempfile.TemporaryDirectory() as scratch:
    directory = given.vocabulary or pathlib.Path(scratch) / "vocabulary"
    if not given.vocabulary:
      _train(paths, directory)
    lines, different = compare(directory, paths)
  print(f"{lines:,} lines of {len(paths)} files: {different:,} differences")
  return 1 if different else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
