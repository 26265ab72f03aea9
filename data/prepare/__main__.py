"""Text to packed, shuffled token records on disk.

  python -m data.prepare --source=installed_docs --output=DIR --length=128 --train_vocabulary_size=8192
  python -m data.prepare --source='corpus/*.txt.gz' --vocabulary=VOCABULARY_DIR --output=DIR

The output holds ArrayRecord shards of unpadded ids, the vocabulary, `unigram.npy` (how often each id stands
in the training records) and, written last, `manifest.json`. The same input and flags give the same bytes
for any number of workers; the same command run again after a kill finishes what is missing.
"""

import argparse
import collections
import dataclasses
import functools
import io
import pathlib
import shutil
import time
from typing import Any

import numpy as np

from data import command, errors, files, manifest, progress, sources, vocabulary
from data.prepare import heldout_blocks, output_directory, packing, pipeline, workers
from data.vocabulary import train as vocabulary_train

# Flags that, with the vocabulary and the input, decide every byte of the result.
SETTINGS = ("source", "text_field", "module", "limit", "length", "packing")
SETTINGS += ("seed", "heldout_fraction", "fraction")
MAX_DAMAGED_FILES = 100  # named in the manifest


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: prepare(parse(arguments)))


def parse(arguments: list[str] | None) -> argparse.Namespace:
  """Reads the flags.

  Raises:
    ConfigError: a flag is unknown or its value makes no sense.
  """
  parser = command.Parser(
    prog="python -m data.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  sources.add_flags(parser)
  parser.add_argument("--output", required=True, help="directory to write")
  parser.add_argument("--length", type=int, default=512, help="most tokens in a record, [CLS] included")
  parser.add_argument(
    "--packing", choices=packing.MODES, default="complete", help="how text is cut into records"
  )
  parser.add_argument("--vocabulary", default="", help="its directory; '': train one from the source")
  parser.add_argument("--train_vocabulary_kind", choices=vocabulary.KINDS, default="sentencepiece")
  parser.add_argument("--train_vocabulary_size", type=int, default=0, help="pieces (0: as the papers)")
  parser.add_argument("--train_vocabulary_cased", action="store_true", help="keep case")
  parser.add_argument(
    "--seed", type=int, default=0, help="of the order of records and of the held-out documents"
  )
  parser.add_argument(
    "--heldout_fraction",
    type=float,
    default=0.02,
    help="of documents, kept for evaluation (of blocks, if that is no document)",
  )
  parser.add_argument("--fraction", type=float, default=1.0, help="of documents that are used")
  args = parser.parse_args(arguments)
  _check_flags(args)
  return args


def _check_flags(args: argparse.Namespace) -> None:
  wrong = []
  if args.length < 8:
    wrong.append(f"--length={args.length} is below 8 tokens")
  if args.workers < 0:
    wrong.append(f"--workers={args.workers} is negative; use 0 for one per core")
  if args.limit < 0:
    wrong.append(f"--limit={args.limit} is negative; use 0 for all")
  if not 0 <= args.seed < 2**63:
    wrong.append(f"--seed={args.seed} is outside [0, 2^63)")
  if not 0 <= args.heldout_fraction < 1:
    wrong.append(f"--heldout_fraction={args.heldout_fraction} is outside [0, 1)")
  if not 0 < args.fraction <= 1:
    wrong.append(f"--fraction={args.fraction} is outside (0, 1]")
  if args.train_vocabulary_size < 0:
    wrong.append(
      f"--train_vocabulary_size={args.train_vocabulary_size} is negative; use 0 for the papers' size"
    )
  if wrong:
    raise errors.ConfigError("; ".join(wrong))


def _settings(args: argparse.Namespace) -> dict[str, Any]:
  """Returns what decides the result: two runs that agree in it and in the input give the same bytes."""
  settings = {name: getattr(args, name) for name in SETTINGS}
  if args.vocabulary:
    settings["vocabulary"] = vocabulary.load(args.vocabulary).digest
  else:
    kind, cased = args.train_vocabulary_kind, args.train_vocabulary_cased
    size = args.train_vocabulary_size or vocabulary_train.default_size(kind, cased=cased)
    settings["vocabulary"] = f"trained: {kind}, {'cased' if cased else 'uncased'}, {size}"
  return settings


def prepare(args: argparse.Namespace) -> None:
  """Makes, or finishes, the preparation that the flags ask for.

  Raises:
    UserError: the flags, the source or the output directory do not allow it.
  """
  begin = time.monotonic()
  output = pathlib.Path(args.output)
  settings = _settings(args)
  if (output / manifest.NAME).is_file():
    made = manifest.read(output)
    output_directory.refuse_other_settings(output, made.settings, settings)
    output_directory.refuse_changed_files(output, made.input_digest, sources.digest_of_files(args.source))
    shutil.rmtree(output / "work", ignore_errors=True)
    progress.say(f"{output} is finished already: nothing to do\n{manifest.summary(made)}")
    return
  request = sources.request(args)
  sources.check(request)
  output_directory.refuse_foreign_directory(output)
  missing = output_directory.missing_directories(output)
  (output / "work").mkdir(parents=True, exist_ok=True)
  with open(output / "work" / "lock", "w") as lock, workers.pool(args.workers) as pool:
    output_directory.lock(lock, output)
    with output_directory.removed_on_failure(output, missing):
      output_directory.start_or_continue(output, settings)
      made = _prepare(args, request, settings, pool)
  manifest.write(output, made)
  shutil.rmtree(output / "work")
  progress.say(f"{output}: done in {time.monotonic() - begin:.1f} s\n{manifest.summary(made)}")


def _prepare(
  args: argparse.Namespace, request: sources.Request, settings: dict[str, Any], pool: workers.Pool
) -> manifest.Manifest:
  output = pathlib.Path(args.output)
  if request.source == "installed_docs":
    path = workers.gather_installed_docs(output / "source", pool)
    request = dataclasses.replace(request, source=str(path))
  plan = sources.plan(request)
  output_directory.refuse_other_input(output, plan.input_digest)
  job = pipeline.Job(
    request, args.output, args.length, args.packing, args.seed, args.heldout_fraction, args.fraction
  )
  words = _vocabulary(args, job, plan, settings)
  unit_counts = pool.map(
    functools.partial(pipeline.pack_unit, job), range(len(plan.units)), plan.units, name="tokenise and pack"
  )
  counts: collections.Counter = collections.Counter()
  for count in unit_counts:
    max_id = max(counts["max_id"], count.get("max_id", 0))
    counts.update(count)
    counts["max_id"] = max_id
  if not counts["train_records"]:
    raise errors.DataError(
      f"--source={args.source} has no usable text for training ({counts['documents']} documents with text, "
      f"{counts['empty_documents']} without, --heldout_fraction={args.heldout_fraction})"
    )
  border, unigram = 0, pipeline.sum_unigrams(job, len(plan.units), words.size)
  is_short = args.heldout_fraction and not counts["heldout_records"]
  if is_short and counts["train_records"] >= heldout_blocks.MIN_RECORDS:
    blocks = heldout_blocks.choose(job, len(plan.units), words.size)
    border, unigram = blocks.border, blocks.unigram
    counts.update(heldout_blocks=blocks.records, heldout_records=blocks.records, heldout_tokens=blocks.tokens)
    counts["train_records"] -= blocks.records
    counts["train_tokens"] -= blocks.tokens
  splits = {
    split: _write_split(job, split, counts, len(plan.units), words.size, border, pool)
    for split in pipeline.SPLITS
  }
  buffer = io.BytesIO()
  np.save(buffer, unigram)
  files.write_atomically(output / "unigram.npy", buffer.getvalue())
  return manifest.Manifest(
    settings=settings,
    input_digest=plan.input_digest,
    vocabulary=manifest.VocabularyInfo(
      words.kind, words.cased, words.size, words.digest, dataclasses.asdict(words.special_ids)
    ),
    length=args.length,
    packing=args.packing,
    dtype=pipeline.id_dtype(words.size).name,
    max_id=counts.pop("max_id"),
    splits=splits,
    counts={name: counts[name] for name in sorted(counts) if counts[name]},
    damaged_files=_damaged_files(plan, unit_counts),
  )


def _vocabulary(
  args: argparse.Namespace, job: pipeline.Job, plan: sources.Plan, settings: dict[str, Any]
) -> vocabulary.Vocabulary:
  """Returns the vocabulary in `output/vocabulary`, copied or trained there if it is not there yet."""
  directory = pathlib.Path(job.vocabulary)
  if directory.is_dir():
    return vocabulary.load(directory)
  if args.vocabulary:
    aside = job.work / "vocabulary"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name in (vocabulary.NAME, "sp.model", "dict.txt", "vocab.txt"):
      path = pathlib.Path(args.vocabulary) / name
      if path.is_file():
        shutil.copyfile(path, aside / name)
    aside.replace(directory)
    return vocabulary.load(directory)
  progress.say(f"train a vocabulary: {settings['vocabulary'].removeprefix('trained: ')} pieces")
  kind, cased = args.train_vocabulary_kind, args.train_vocabulary_cased
  return vocabulary_train.train(
    pipeline.training_sentences(job, plan.units),
    directory,
    kind=kind,
    cased=cased,
    size=args.train_vocabulary_size or vocabulary_train.default_size(kind, cased=cased),
    size_flag="--train_vocabulary_size",
  )


def _write_split(
  job: pipeline.Job,
  split: str,
  counts: collections.Counter,
  num_units: int,
  vocab_size: int,
  border: int,
  pool: workers.Pool,
) -> manifest.Split:
  tokens = counts[f"{split}_tokens"]
  number = pipeline.num_shards(tokens, vocab_size)
  write = functools.partial(
    pipeline.write_shard,
    job,
    split,
    shards=number,
    num_units=num_units,
    vocab_size=vocab_size,
    border=border,
  )
  shards = pool.map(write, range(number), name=f"write {split} records")
  return manifest.Split(counts[f"{split}_records"], tokens, tuple(shards))


def _damaged_files(plan: sources.Plan, unit_counts: list[dict[str, int]]) -> dict[str, dict[str, int]]:
  damaged: dict[str, collections.Counter] = {}
  for unit, count in zip(plan.units, unit_counts):
    repairs = {name: count[name] for name in manifest.REPAIRS if count.get(name)}
    if repairs and (unit.name in damaged or len(damaged) < MAX_DAMAGED_FILES):
      damaged.setdefault(unit.name, collections.Counter()).update(repairs)
  return {name: dict(count) for name, count in damaged.items()}


if __name__ == "__main__":
  raise SystemExit(main())
