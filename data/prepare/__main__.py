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
import sys
from collections.abc import Sequence

from data import command, errors, sources, vocabulary
from data.clean import steps
from data.prepare import engine, packing, preparation
from data.vocabulary import train


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: preparation.prepare(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags; ConfigError if one is unknown or has an invalid value."""
  parser = command.Parser(prog="python -m data.prepare", description=__doc__, epilog=steps.HELP)
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
  steps.parse(args.clean)
  engine.check(args, of_engine)
  args.units = _units(args) if args.units else None
  args.train_vocabulary_size = args.train_vocabulary_size or train.default_size(
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
  if compared := [step.label for step in steps.parse(args.clean) if step.sketch]:
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


if __name__ == "__main__":
  raise SystemExit(main())
