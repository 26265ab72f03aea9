"""Converts text to packed records of token ids on disk.

  python -m data.prepare --source=installed_docs --output=DIR --length=128 --train_vocabulary_size=8192
  python -m data.prepare --source='corpus/*.txt.gz' --vocabulary=VOCABULARY_DIR --output=DIR

The output has ArrayRecord shards of unpadded ids in the order of the text (training shuffles them), the
vocabulary, `unigram.npy` (the count of each id in the training records) and, written last, `manifest.json`.
The same input and flags give the same bytes for any number of workers. After a kill, run the same command
again; it makes only the missing files.

On several machines, N commands with --units=0/N to --units=N-1/N pack the parts of the input at the same
time; then the same command without --units finishes the directory.
"""

import argparse
import collections
import dataclasses
import functools
import io
import itertools
import json
import logging
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import command, errors, files, manifest, records, sources, vocabulary
from data.clean import steps as clean
from data.prepare import (
  engine,
  output_directory,
  packing,
  pipeline,
  training_text,
)
from data.vocabulary import train as vocabulary_train

logger = logging.getLogger(__name__)

# Flags that, with the vocabulary and the input, determine every byte of the result.
SETTINGS = ("source", "text_field", "module", "limit", "length", "packing")
SETTINGS += ("seed", "heldout_fraction", "fraction", "clean")
MAX_DAMAGED_FILES = 100  # named in the manifest


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: prepare(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags; ConfigError if one is unknown or has an invalid value."""
  parser = command.Parser(prog="python -m data.prepare", description=__doc__, epilog=clean.HELP)
  sources.add_flags(parser)
  parser.add_argument("--output", required=True, help="directory to write")
  parser.add_argument("--length", type=int, default=512, help="most tokens in a record, [CLS] included")
  parser.add_argument(
    "--packing", choices=packing.MODES, default="complete", help="how text is cut into records"
  )
  parser.add_argument(
    "--vocabulary", default="", bucket=command.FETCHED, help="its directory; '': train one on the source"
  )
  parser.add_argument(
    "--train_vocabulary_kind", choices=vocabulary.KINDS, default="sentencepiece", help="if one is trained"
  )
  parser.add_argument("--train_vocabulary_size", type=int, default=0, help="pieces (0: as in the papers)")
  parser.add_argument("--train_vocabulary_cased", action="store_true", help="keep case")
  parser.add_argument("--seed", type=int, default=0, help="decides which documents are held out")
  parser.add_argument(
    "--heldout_fraction",
    type=float,
    default=0.02,
    help="fraction of documents for evaluation (of blocks, if that is less than one document)",
  )
  parser.add_argument("--fraction", type=float, default=1.0, help="fraction of documents to use")
  parser.add_argument("--clean", default="", metavar="STEPS", help="cleaning steps, see below; '' for none")
  parser.add_argument("--units", default="", metavar="I/N", help="pack only part I, from 0, of N; see above")
  engine.add_flag(parser)
  own, of_engine = engine.split(sys.argv[1:] if arguments is None else arguments)
  args = parser.parse_args(own)
  _check_flags(args)
  clean.parse(args.clean)
  engine.check(args, of_engine)
  args.units = _units(args) if args.units else None
  args.train_vocabulary_size = args.train_vocabulary_size or vocabulary_train.default_size(
    args.train_vocabulary_kind, cased=args.train_vocabulary_cased
  )
  return args


def _units(args: argparse.Namespace) -> tuple[int, int]:
  """Returns (I, N) of --units=I/N; ConfigError if a part cannot be packed without the others."""
  index, _, number = args.units.partition("/")
  if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
    raise errors.ConfigError(f"--units={args.units}: expected I/N with I from 0 to N - 1, such as 0/8")
  if args.engine != "pool":
    raise errors.ConfigError("--units needs --engine=pool, and an --output on a disk that all machines mount")
  if not args.vocabulary or args.source == "installed_docs":
    raise errors.ConfigError(
      "--units needs a vocabulary that is there before; train one, and name it with --vocabulary=DIR:\n"
      f"  python -m data.vocabulary train --source='{args.source}' --output=DIR"
    )
  if compared := [step.label for step in clean.parse(args.clean) if step.sketch]:
    raise errors.ConfigError(
      f"--clean={compared[0]} compares all documents, which --units separates; use one machine, or Beam"
    )
  return int(index), int(number)


def _check_flags(args: argparse.Namespace) -> None:
  wrong = []
  if args.length < 8:
    wrong.append(f"--length={args.length} is below 8 tokens")
  if args.workers < 0:
    wrong.append(f"--workers={args.workers} is negative; 0 is one per core")
  if args.limit < 0:
    wrong.append(f"--limit={args.limit} is negative; 0 is all")
  if not 0 <= args.seed < 2**63:
    wrong.append(f"--seed={args.seed} is outside [0, 2^63)")
  if not 0 <= args.heldout_fraction < 1:
    wrong.append(f"--heldout_fraction={args.heldout_fraction} is outside [0, 1)")
  if not 0 < args.fraction <= 1:
    wrong.append(f"--fraction={args.fraction} is outside (0, 1]")
  if args.train_vocabulary_size < 0:
    wrong.append(f"--train_vocabulary_size={args.train_vocabulary_size} is negative; 0 is the papers' size")
  if wrong:
    raise errors.ConfigError("; ".join(wrong))


def prepare(args: argparse.Namespace) -> None:
  """Makes, or finishes, the preparation that the flags of `data.prepare` describe."""
  begin = time.monotonic()
  output = pathlib.Path(args.output)
  settings = settings_of(args)
  if (output / manifest.NAME).is_file():
    made = manifest.read(output)
    output_directory.refuse_other_settings(output, made.settings, settings)
    advice = f"name another --output, or remove this one to prepare it again:\n  rm -r {output}"
    output_directory.refuse_changed_files(output, args.source, made.input_digest, advice=advice)
    shutil.rmtree(output / "work", ignore_errors=True)
    logger.info(f"{output} is finished already: nothing to do\n{output_directory.summary(made)}")
    return
  request = sources.request(args)
  sources.check(request)
  files.refuse_others(output, maker="preparation", mark="work")
  missing = output_directory.missing_directories(output)
  (output / "work").mkdir(parents=True, exist_ok=True)
  busy, advice = f"another data.prepare is active in {output}", "wait for it or name another --output"
  lock = functools.partial(files.locked, output / "work" / "lock", busy=busy, advice=advice)
  if args.units:
    with lock(is_shared=True), engine.opened(args) as pool:
      output_directory.start_or_continue(output, settings, is_alone=False)
      _pack_units(args, request, settings, pool)
    return
  with lock(), output_directory.removed_on_failure(output, missing), engine.opened(args) as pool:
    output_directory.start_or_continue(output, settings, is_alone=True)
    made = _make(args, request, settings, pool)
  manifest.write(output, made)
  shutil.rmtree(output / "work", ignore_errors=True)  # a worker of an earlier run may still write there
  logger.info(f"{output}: done in {time.monotonic() - begin:.1f} s\n{output_directory.summary(made)}")


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the settings that, with the input, determine every byte of the result."""
  settings = {name: getattr(args, name) for name in SETTINGS}
  if os.path.isfile(args.module):
    settings["module_code"] = files.sha256(args.module)[:12]
  if code := clean.code_digest(args.clean):
    settings["clean_code"] = code[:12]
  if args.vocabulary:
    settings["vocabulary"] = vocabulary.load(args.vocabulary).digest
  else:
    case = "cased" if args.train_vocabulary_cased else "uncased"
    settings["vocabulary"] = f"trained: {args.train_vocabulary_kind}, {case}, {args.train_vocabulary_size}"
  return settings


def _pack_units(
  args: argparse.Namespace, request: sources.Request, settings: dict[str, Any], pool: engine.Engine
) -> None:
  """Packs every N-th unit, as one of N commands that may run at the same time."""
  plan = sources.plan(request)  # without digests of content, for which each would read the whole input
  output_directory.refuse_other_input(pathlib.Path(args.output), plan.input_digest)
  job, units = _job(args, request, plan)
  _vocabulary(args, job, units, settings, pool)
  index, number = args.units
  own = range(index, len(units), number)
  pack = functools.partial(pipeline.pack_unit, job)
  pool.map(pack, own, [units[unit] for unit in own], name="tokenise and pack")
  logger.info(
    f"{args.output}: part {index} of {number} is packed, {len(own)} of {errors.counted(len(units), 'unit')}; "
    "when all parts are, the same command without --units finishes the directory"
  )


def _job(
  args: argparse.Namespace, request: sources.Request, plan: sources.Plan
) -> tuple[pipeline.Job, tuple[sources.Unit, ...]]:
  """Returns what every part of a preparation needs, and its units."""
  # --heldout_fraction=0 holds nothing out, a Task's own split neither.
  units = _checked(args, tuple(unit for unit in plan.units if args.heldout_fraction or not unit.is_heldout))
  work = pathlib.Path(args.output) / "work"
  cleaning = clean.Cleaning(args.clean, str(work / "clean"), clean.code_digest(args.clean))
  fields = (args.output, args.length, args.packing, args.seed, args.heldout_fraction, args.fraction)
  return pipeline.Job(request, *fields, cleaning), units


def _make(
  args: argparse.Namespace, request: sources.Request, settings: dict[str, Any], pool: engine.Engine
) -> manifest.Manifest:
  """Runs every step of a preparation whose result is missing; returns the manifest."""
  output = pathlib.Path(args.output)
  request = engine.gathered(request, output, args.workers)  # here: other machines have other packages
  plan = sources.plan(request, digests=lambda paths: pool.map(sources.content_digest, paths, name="read"))
  output_directory.refuse_other_input(output, plan.input_digest)
  job, units = _job(args, request, plan)
  parts = [part for unit in units for part in unit.parts]
  clean.find_duplicates(job.cleaning, functools.partial(pipeline.sampled_documents, job), parts, pool)
  words = _vocabulary(args, job, units, settings, pool)
  unit_counts = pool.map(
    functools.partial(pipeline.pack_unit, job), range(len(units)), units, name="tokenise and pack"
  )
  counts = _sum(unit_counts)
  work = job.work
  has_heldout = counts["heldout_records"] or not args.heldout_fraction
  if not has_heldout and counts["train_records"] > 1:  # one block for training, one for evaluation
    sizes = [count.get("train_records", 0) for count in unit_counts]
    blocks = pipeline.chosen_blocks(sizes, args.heldout_fraction)
    hold_out = functools.partial(pipeline.hold_out_blocks, job)
    counts = _sum(pool.map(hold_out, range(len(units)), blocks, name="hold out blocks"))
    work /= pipeline.BLOCKS
  damaged = _damaged_files(counts)
  counts[manifest.NO_DOCUMENTS] = sum(manifest.NO_DOCUMENTS in count for count in damaged.values())
  if not counts["train_records"]:
    clean.refuse_nothing_left(args.clean, counts)
    if dropped := counts["tokens_dropped"]:
      raise errors.DataError(
        f"--packing=concat drops a last record that is not full, and {dropped:,} tokens of --source="
        f"{args.source} fill none of --length={args.length}; give more text, a smaller --length, or:\n"
        "  --packing=complete"
      )
    raise errors.DataError(
      f"--source={args.source} has no usable text for training (documents with text: {counts['documents']}, "
      f"without: {counts['empty_documents']}; --heldout_fraction={args.heldout_fraction})"
    )
  unigram = np.zeros(words.size, np.int64)
  for number in range(len(units)):
    unigram += np.fromfile(pipeline.path(work, number, "unigram"), np.int64)
  buffer = io.BytesIO()
  np.save(buffer, unigram)
  files.write_atomically(output / records.UNIGRAM, buffer.getvalue())
  if args.clean:
    dropped = (pipeline.path(job.work, number, "dropped") for number in range(len(units)))
    clean.write_examples(output / clean.EXAMPLES, (json.loads(path.read_text()) for path in dropped))
  return manifest.Manifest(
    settings=settings,
    input_digest=plan.input_digest,
    vocabulary=manifest.VocabularyInfo(
      words.kind, words.cased, words.size, words.digest, dataclasses.asdict(words.special_ids)
    ),
    length=args.length,
    packing=args.packing,
    dtype=manifest.dtype_of(words.size),
    max_id=counts.pop("max_id"),
    splits=pipeline.finished_shards(work, output, len(units)),
    counts={name: counts[name] for name in sorted(counts) if counts[name]},
    damaged_files=dict(itertools.islice(damaged.items(), MAX_DAMAGED_FILES)),
    unigram=files.sha256(output / records.UNIGRAM),
  )


def _checked(args: argparse.Namespace, units: tuple[sources.Unit, ...]) -> tuple[sources.Unit, ...]:
  """Returns `units`; ConfigError if a seqio Task's ids or blocks do not match the command's flags."""
  for unit in units:
    if not (ids := unit.part and unit.part.tokenised):
      continue
    what = f"--source={args.source}: the Task {unit.name!r} gives"
    if args.clean:
      raise errors.ConfigError(f"{what} ids, but --clean={args.clean} needs text; clean the text of the Task")
    if not args.vocabulary:
      raise errors.ConfigError(f"{what} ids; add --vocabulary={ids.vocabulary}")
    if ids.digest != (asked := vocabulary.load(args.vocabulary).digest):
      raise errors.ConfigError(
        f"{what} ids of another vocabulary (sha256 {ids.digest[:12]}) than --vocabulary={args.vocabulary} "
        f"({asked[:12]}); use --vocabulary={ids.vocabulary}"
      )
    if ids.packing and (ids.packing != args.packing or ids.length > args.length):
      raise errors.ConfigError(
        f"{what} blocks of up to {ids.length} tokens packed as {ids.packing!r}; use --length={ids.length} "
        f"--packing={ids.packing}"
      )
  return units


def _vocabulary(
  args: argparse.Namespace,
  job: pipeline.Job,
  units: Sequence[sources.Unit],
  settings: dict[str, Any],
  pool: engine.Engine,
) -> vocabulary.Vocabulary:
  directory = pathlib.Path(job.vocabulary)
  if directory.is_dir():
    return vocabulary.load(directory)
  if args.vocabulary:
    try:
      with files.whole_directory(directory) as aside:
        for name in vocabulary.FILES:
          path = pathlib.Path(args.vocabulary) / name
          if path.is_file():
            shutil.copyfile(path, aside / name)
    except OSError:
      if not (args.units and directory.is_dir()):  # another part of the units was faster
        raise
    return vocabulary.load(directory)
  logger.info(f"train a vocabulary: {settings['vocabulary'].removeprefix('trained: ')} pieces")
  with training_text.sample([training_text.Source(job, units)], pool, job.work) as text:
    return vocabulary_train.train(
      text,
      directory,
      kind=args.train_vocabulary_kind,
      cased=args.train_vocabulary_cased,
      size=args.train_vocabulary_size,
      size_flag="--train_vocabulary_size",
    )


def _sum(unit_counts: list[dict[str, int]]) -> collections.Counter:
  """Returns the summed counts of all units; `max_id` and `MOST_SEGMENTS` are maxima instead."""
  total: collections.Counter = collections.Counter()
  for count in unit_counts:
    total.update(count)
  for name in ("max_id", manifest.MOST_SEGMENTS):
    total[name] = max((count.get(name, 0) for count in unit_counts), default=0)
  return total


def _damaged_files(counts: collections.Counter) -> dict[str, dict[str, int]]:
  """Takes the counts of single files out of `counts`; returns {input file: counts of repairs}, by name.

  NO_DOCUMENTS is 1 for files without text; files without repairs are left out.
  """
  damaged: dict[str, dict[str, int]] = {}
  for key in [name for name in counts if name.startswith(pipeline.OF_FILE)]:
    number = counts.pop(key)
    what, _, name = key.removeprefix(pipeline.OF_FILE).partition(" ")
    if what == "documents_found":
      what, number = manifest.NO_DOCUMENTS, int(not number)
    if number:
      damaged.setdefault(name, {})[what] = number
  return {name: dict(sorted(damaged[name].items())) for name in sorted(damaged)}


if __name__ == "__main__":
  raise SystemExit(main())
