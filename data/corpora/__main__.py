"""Prints the table of the papers' texts, or the commands that train a model on one of them.

  python -m data.corpora
  python -m data.corpora web_160gb --root=/data
  python -m data.corpora wikipedia_books --tfds_directory=~/tensorflow_datasets

Without a name it prints the sources of each text, their sizes and their addresses. With a name it checks that
all sources exist, and prints the commands for the vocabulary, the records and the training.
"""

import argparse
import dataclasses
import os
import shlex
from collections.abc import Sequence

from data import command, errors, sources, tables, tfds_reader
from data.corpora import CORPORA, Corpus, Source


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(_parse(arguments)))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  parser = command.Parser(prog="python -m data.corpora", description=__doc__)
  parser.add_argument("name", nargs="?", default="", help=f"a text of the papers: {', '.join(CORPORA)}")
  parser.add_argument("--root", default="", help="directory with the files of all its sources")
  parser.add_argument("--tfds_directory", default="", help="data_dir of TFDS with its data sets")
  parser.add_argument("--output", default="", help="directory for records (default: prepared/NAME)")
  args = parser.parse_args(arguments)
  places = [flag for flag in ("root", "tfds_directory", "output") if getattr(args, flag)]
  if not args.name:
    if places:
      raise errors.ConfigError(f"--{places[0]} is for one text; name it: {', '.join(CORPORA)}")
  elif args.name not in CORPORA:
    raise errors.ConfigError(errors.unknown("text of the papers", args.name, CORPORA))
  elif bool(args.root) == bool(args.tfds_directory):
    raise errors.ConfigError(
      f"{args.name}: give either --root=DIR with its files, or --tfds_directory=DIR with its TFDS data sets; "
      "to list where to get them:\n  python -m data.corpora"
    )
  args.output = args.output or os.path.join("prepared", args.name)
  return args


def _run(args: argparse.Namespace) -> None:
  if not args.name:
    report().print()
    return
  corpus = CORPORA[args.name]
  if args.root:
    flag = f"--root={args.root}"
    missing = [
      f"{part.source.files} (from {part.source.address})"
      for part in corpus.files
      if not _has(args.root, part.source)
    ]
  else:
    flag = f"--tfds_directory={args.tfds_directory}"
    missing = [
      f"{part.source.tfds_name} (to build it needs: {part.source.tfds_needs})"
      for part in corpus.tfds
      if not tfds_reader.find(args.tfds_directory, part.source.tfds_name)
    ]
  if missing:
    number = len(corpus.files if args.root else corpus.tfds)
    raise errors.DataError(
      f"{flag} lacks {len(missing)} of the {number} sources of {args.name}: {'; '.join(missing)}"
    )
  print("\n".join(commands(corpus, root=args.root, tfds_directory=args.tfds_directory, output=args.output)))


def _has(root: str, source: Source) -> bool:
  try:
    return bool(sources.expand(os.path.join(root, source.files)))
  except errors.DataError:
    return False


def commands(corpus: Corpus, *, root: str, tfds_directory: str, output: str) -> list[str]:
  """Returns the shell commands that make a vocabulary, the records of each source, and a model.

  They read files below `root` or, if that is '', the TFDS data sets in `tfds_directory`.
  """
  parts = corpus.files if root else corpus.tfds
  vocabulary = os.path.join(output, "vocabulary")
  train = ["data.vocabulary", "train", f"--kind={corpus.vocabulary_kind}", f"--size={corpus.vocabulary_size}"]
  train += ["--cased"] * corpus.cased
  prepare, mixture = [], []
  for part in parts:
    directory = os.path.join(output, part.source.name)
    if root:
      text = [f"--source={os.path.join(root, part.source.files)}"]
    else:
      text = [f"--source=tfds:{part.source.tfds_name}", f"--text_field={part.source.text_field}"]
    train += [*text, f"--rate={part.gigabytes:g}"]
    fraction = [f"--fraction={part.keep}"] * (part.keep < 1)
    settings = [f"--length={corpus.length}", f"--packing={corpus.packing}", f"--vocabulary={vocabulary}"]
    prepare.append(["data.prepare", *text, *fraction, *settings, f"--output={directory}"])
    mixture.append(f"{directory}:{part.gigabytes:g}")
  train.append(f"--output={vocabulary}")
  place = [] if root else [f"--tfds_directory={tfds_directory}"]
  made = [[*words, *place] for words in (train, *prepare)]
  run = ["pretrain.main", f"--config={corpus.config}", f"--config.data.mixture={','.join(mixture)}"]
  return [shlex.join(["python", "-m", *words]) for words in (*made, run)]


def report() -> tables.Report:
  """Returns the report of all texts: sizes by source, then licences, files and TFDS names of sources."""
  rows = []
  for name, corpus in CORPORA.items():
    forms = [{part.source.name: part for part in parts} for parts in (corpus.files, corpus.tfds)]
    for source in dict.fromkeys(source for form in forms for source in form):
      found = [form.get(source) for form in forms]
      replaces = next(part.replaces or "nothing" for part in found if part)
      sizes = [part.gigabytes if part else None for part in found]
      rows.append(_row(name, source, replaces, sizes))
    sizes = [sum(part.gigabytes for part in form.values()) for form in forms]
    papers = f"{corpus.papers}: {corpus.papers_gigabytes} GB in the papers"
    rows.append(_row(name, "in all", papers, [round(size, 2) for size in sizes]))
  known = {part.source: None for corpus in CORPORA.values() for part in (*corpus.files, *corpus.tfds)}
  about = [dataclasses.asdict(source) for source in known]
  details = [
    _table(about, ("name", "what", "licence", "size_from")),
    _table([row for row in about if row["files"]], ("name", "files", "address")),
    _table([row for row in about if row["tfds_name"]], ("name", "tfds_name", "tfds_needs")),
  ]
  columns = [tables.text_column(header, header) for header in rows[0]]
  notes = [
    "Sizes are of uncompressed text (1 GB is 10^9 bytes) and are the rates of the mixture. The globs under "
    "'files' are relative to --root=DIR."
  ]
  return tables.Report("corpora", "The papers' texts", columns, rows, notes, details)


def _row(text: str, source: str, replaces: str, sizes: Sequence[float | None]) -> dict[str, str]:
  files, tfds = ("-" if size is None else f"{size:g}" for size in sizes)
  return {"text": text, "source": source, "GB as files": files, "GB in TFDS": tfds, "replaces": replaces}


def _table(rows: Sequence[tables.Row], names: Sequence[str]) -> tables.Table:
  return tables.Table([tables.text_column(name.replace("_", " "), name) for name in names], rows)


if __name__ == "__main__":
  raise SystemExit(main())
