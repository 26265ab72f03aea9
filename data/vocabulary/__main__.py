"""`python -m data.vocabulary`: train and import."""

import argparse
import collections
import dataclasses
import functools
import pathlib
import subprocess
import sys
import tempfile

from data import command, errors, progress, sources, vocabulary
from data.clean import apply as clean
from data.clean import steps as cleaning_steps
from data.prepare import pipeline, workers
from data.vocabulary import train as vocabulary_train

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def _parser() -> argparse.ArgumentParser:
  parser = command.Parser(prog="python -m data.vocabulary", description="Train or import a vocabulary.")
  commands = parser.add_subparsers(dest="command", required=True, parser_class=command.Parser)
  trainer = commands.add_parser("train", help="train one on a source")
  sources.add_flags(trainer)
  trainer.add_argument("--output", required=True, bucket=command.SENT, help="directory to write")
  trainer.add_argument("--clean", default="", metavar="STEPS", help="cleaning steps, as of data.prepare")
  trainer.add_argument("--kind", choices=vocabulary.KINDS, default="sentencepiece")
  trainer.add_argument("--cased", action="store_true", help="keep case")
  trainer.add_argument(
    "--size", type=int, default=0, help="pieces (0: 32,768 uncased BPE, 64,000 cased BPE, 30,522 WordPiece)"
  )
  importer = commands.add_parser("import", help="take over existing files")
  importer.add_argument(
    "--vocab_txt", default="", bucket=command.FETCHED, help="WordPiece vocabulary, one piece per line"
  )
  importer.add_argument("--sp_model", default="", bucket=command.FETCHED, help="sentencepiece model")
  importer.add_argument(
    "--dict", default="", bucket=command.FETCHED, help="fairseq dict.txt of the sentencepiece model"
  )
  importer.add_argument(
    "--cased", action="store_true", help="keep case (BERT's rules; sentencepiece knows itself)"
  )
  importer.add_argument(
    "--pretokenization",
    choices=vocabulary.PRETOKENIZATIONS,
    default="none",
    help="official: split words as the COCO-LM and AMOS code does, before sentencepiece",
  )
  importer.add_argument("--output", required=True, bucket=command.SENT, help="directory to write")
  return parser


def _train(args: argparse.Namespace) -> vocabulary.Vocabulary:
  if args.size < 0 or args.workers < 0 or args.limit < 0:
    raise errors.ConfigError("--size, --workers and --limit must not be negative")
  cleaning_steps.parse(args.clean)
  request = sources.request(args)
  sources.check(request)
  output = pathlib.Path(args.output)
  with workers.pool(args.workers) as pool, tempfile.TemporaryDirectory(prefix="vocabulary-") as temporary:
    if request.source == "installed_docs":
      path = workers.gather_installed_docs(pathlib.Path(temporary) / "source", pool)
      request = dataclasses.replace(request, source=str(path))
    cleaning = clean.Cleaning(args.clean, temporary)
    job = pipeline.Job(request, str(output), 512, "complete", 0, 0.0, 1.0, cleaning)
    size = args.size or vocabulary_train.default_size(args.kind, cased=args.cased)
    units = sources.plan(request).units
    clean.find_duplicates(cleaning, functools.partial(pipeline.sampled_documents, job), units, pool)
    counts: collections.Counter = collections.Counter()
    text = pipeline.training_sentences(job, units, counts)
    with clean.explained(args.clean, counts):
      return vocabulary_train.train(text, output, kind=args.kind, cased=args.cased, size=size)


def _run(args: argparse.Namespace) -> None:
  if args.command == "import":
    made = vocabulary_train.import_files(
      args.output,
      vocab_txt=args.vocab_txt,
      sp_model=args.sp_model,
      dictionary=args.dict,
      cased=args.cased,
      pretokenization=args.pretokenization,
    )
  else:
    made = _train(args)
  progress.say(f"vocabulary {args.output}: {made.kind}, {made.size} pieces, sha256 {made.digest[:12]}")
  if args.command == "import":  # those that are trained here can be exported
    program = [sys.executable, "-m", "pretrain.export.tokenizer", str(pathlib.Path(args.output).absolute())]
    found = subprocess.run(program, cwd=_ROOT, capture_output=True, text=True, check=False)
    if found.stdout:
      progress.say(found.stdout)


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run_with_output(_parser().parse_args, _run, arguments)


if __name__ == "__main__":
  raise SystemExit(main())
