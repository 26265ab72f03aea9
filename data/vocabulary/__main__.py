"""The command `python -m data.vocabulary`: trains, imports, extends or trims a vocabulary."""

import argparse
import functools
import logging
import math
import pathlib
import subprocess
import sys
import tempfile

from data import command, errors, fertility, files, sources, vocabulary
from data.clean import steps as clean
from data.prepare import engine, pipeline, training_text
from data.vocabulary import train as vocabulary_train
from data.vocabulary import trim as vocabulary_trim

logger = logging.getLogger(__name__)

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def _parser() -> argparse.ArgumentParser:
  parser = command.Parser(prog="python -m data.vocabulary", description="Make a vocabulary.")
  commands = parser.add_subparsers(dest="command", required=True, parser_class=command.Parser)
  trainer = commands.add_parser("train", help="train one on a sample of one or several sources")
  sources.add_flags(trainer, several=True)
  trainer.add_argument(
    "--rate",
    type=float,
    action="append",
    default=[],
    help="share of a source in the text, in any scale: one --rate for each --source, in their order "
    "(default: all equal)",
  )
  trainer.add_argument(
    "--heldout_fraction",
    type=float,
    default=0.02,
    help="fraction of documents to exclude: those that data.prepare holds out with the same seed",
  )
  trainer.add_argument("--seed", type=int, default=0, help="decides the sample and the held-out documents")
  trainer.add_argument("--output", required=True, help="directory to write")
  trainer.add_argument("--clean", default="", metavar="STEPS", help="cleaning steps, as for data.prepare")
  trainer.add_argument("--kind", choices=vocabulary.KINDS, default="sentencepiece", help="of its pieces")
  trainer.add_argument("--cased", action="store_true", help="keep case")
  trainer.add_argument(
    "--size", type=int, default=0, help="pieces (0: 32,768 uncased BPE, 64,000 cased BPE, 30,522 WordPiece)"
  )
  importer = commands.add_parser("import", help="convert existing files")
  importer.add_argument(
    "--vocab_txt", default="", bucket=command.FETCHED, help="WordPiece vocabulary, one piece per line"
  )
  importer.add_argument(
    "--tokenizer_json",
    default="",
    bucket=command.FETCHED,
    help="tokenizer.json with a BPE, WordPiece or Unigram model, carried as it is; files beside it name "
    "its special pieces",
  )
  importer.add_argument("--sp_model", default="", bucket=command.FETCHED, help="sentencepiece model")
  importer.add_argument(
    "--dict", default="", bucket=command.FETCHED, help="fairseq dict.txt of the sentencepiece model"
  )
  importer.add_argument(
    "--cased", action="store_true", help="keep case (for --vocab_txt; other files decide themselves)"
  )
  importer.add_argument(
    "--pretokenization",
    choices=vocabulary.PRETOKENIZATIONS,
    default="none",
    help="official: split words as in the COCO-LM and AMOS code, before sentencepiece",
  )
  importer.add_argument("--output", required=True, help="directory to write")
  extender = commands.add_parser("extend", help="add the words of a source that take most pieces")
  extender.add_argument(
    "--from", dest="old", required=True, bucket=command.FETCHED, help="vocabulary directory; its ids are kept"
  )
  sources.add_flags(extender)
  extender.add_argument("--words", type=int, required=True, help="most new words")
  extender.add_argument("--output", required=True, help="directory to write")
  trimmer = commands.add_parser("trim", help="leave out the pieces that a source does not use")
  trimmer.add_argument(
    "--vocabulary", required=True, bucket=command.FETCHED, help="vocabulary directory, IMPORT/vocabulary"
  )
  sources.add_flags(trimmer)
  trimmer.add_argument("--min_count", type=int, default=1, help="least uses of a piece that stays")
  trimmer.add_argument("--keep_at_least", type=int, default=0, help="pieces that stay in any case")
  trimmer.add_argument("--output", required=True, help="directory to write")
  return parser


def _extend(args: argparse.Namespace) -> vocabulary.Vocabulary:
  if args.words < 1:
    raise errors.ConfigError(f"--words={args.words}: expected at least 1")
  if min(args.workers, args.limit) < 0:
    raise errors.ConfigError("--workers and --limit must not be negative")
  files.refuse_others(args.output)
  vocabulary_train.check_extendable(pathlib.Path(args.old))
  request = sources.request(args)

  def counted(directory: str) -> fertility.Counts:
    words = vocabulary.load(directory)
    return fertility.of_text(words, request, most=0, num_workers=args.workers).counts

  before = counted(args.old)
  made = vocabulary_train.extend(
    pathlib.Path(args.old), before.most_cut(), pathlib.Path(args.output), most=args.words
  )
  fertility.by_script({args.old: before, args.output: counted(args.output)}).print()
  assert made.extends
  appended, rows = made.size - made.extends.size, vocabulary.table_rows(made.size)
  in_slots = len(made.extends.pieces) - appended
  logger.info(
    f"new words: {in_slots:,} in spare slots, {appended:,} behind the {made.extends.size:,} ids; a model of "
    f"{args.old} continues with the rows that it has, or with at least\n  --config.model.vocab_size={rows}"
  )
  return made


def _trim(args: argparse.Namespace) -> vocabulary.Vocabulary:
  if min(args.min_count, args.keep_at_least, args.workers, args.limit) < 0:
    raise errors.ConfigError("--min_count, --keep_at_least, --workers and --limit must not be negative")
  files.refuse_others(args.output)
  old, request = vocabulary.load(args.vocabulary), sources.request(args)

  def counted(words: vocabulary.Vocabulary) -> fertility.Counts:
    return fertility.of_text(words, request, most=0, num_workers=args.workers).counts

  before = counted(old)
  made = vocabulary_trim.trim(
    pathlib.Path(args.vocabulary),
    pathlib.Path(args.output),
    before.used,
    min_count=args.min_count,
    keep_at_least=args.keep_at_least,
  )
  after = counted(made)
  fertility.by_script({args.vocabulary: before, args.output: after}).print()
  assert made.extends
  is_same = all(after.used[new] == before.used[kept] for new, (kept,) in made.extends.pieces.items())
  rows, was = vocabulary.table_rows(made.size), vocabulary.table_rows(old.size)
  logger.info(
    f"{made.size:,} of {old.size:,} pieces stay ({made.size / old.size:.0%}); a token table of width 768 has "
    f"{768 * rows / 1e6:.1f} M parameters instead of {768 * was / 1e6:.1f} M. The text is cut "
    f"{'as before' if is_same else 'into other pieces'}. A model of {args.vocabulary} continues with\n"
    f"  --config.data.vocabulary={args.output} --config.model.vocab_size={rows}"
  )
  return made


def _train(args: argparse.Namespace) -> vocabulary.Vocabulary:
  requests = _requests(args)
  for request in requests:
    sources.check(request)
  output = pathlib.Path(args.output)
  files.refuse_others(output)
  # Next to the output, because lists of near duplicates may be too large for the disk of /tmp.
  beside = next(path for path in output.absolute().parents if path.is_dir())
  aside = tempfile.TemporaryDirectory(prefix=".vocabulary-", dir=beside, ignore_cleanup_errors=True)
  with engine.pool(args.workers) as pool, aside as temporary:
    taken = []
    for number, (request, rate) in enumerate(zip(requests, args.rate or [1.0] * len(requests), strict=True)):
      request = engine.gathered(request, pathlib.Path(temporary), args.workers)
      code = clean.code_digest(args.clean)
      cleaning = clean.Cleaning(args.clean, f"{temporary}/clean-{number}", code)
      # The sample depends on neither length nor packing.
      job = pipeline.Job(
        request, str(output), 512, "complete", args.seed, args.heldout_fraction, 1.0, cleaning
      )
      units = sources.plan(request).units
      parts = [part for unit in units for part in unit.parts]
      clean.find_duplicates(cleaning, functools.partial(pipeline.sampled_documents, job), parts, pool)
      taken.append(training_text.Source(job, units, rate))
    size = args.size or vocabulary_train.default_size(args.kind, cased=args.cased)
    with training_text.sample(taken, pool, temporary) as text:
      return vocabulary_train.train(text, output, kind=args.kind, cased=args.cased, size=size)


def _requests(args: argparse.Namespace) -> list[sources.Request]:
  """Returns a request for each --source; ConfigError if flags have invalid values or numbers."""
  if args.size < 0 or args.workers < 0 or args.limit < 0:
    raise errors.ConfigError("--size, --workers and --limit must not be negative")
  if not 0 <= args.heldout_fraction < 1:
    raise errors.ConfigError(f"--heldout_fraction={args.heldout_fraction} is outside [0, 1)")
  if not 0 <= args.seed < 2**63:
    raise errors.ConfigError(f"--seed={args.seed} is outside [0, 2^63)")
  clean.parse(args.clean)
  number = len(args.source)
  for flag, times, allowed in (
    ("rate", len(args.rate), (0, number)),
    ("text_field", len(args.text_field), (0, 1, number)),
  ):
    if times not in allowed:
      raise errors.ConfigError(
        f"--{flag} is given {times} times and --source {number} times; give one for each source, in their "
        f"order, or {'none' if flag == 'rate' else 'one for all'}"
      )
  for source, rate in zip(args.source, args.rate):
    if not (0 < rate < math.inf):
      raise errors.ConfigError(f"--rate={rate:g} of --source={source}: expected a number above 0")
  fields = args.text_field or ["text"]
  fields = fields * number if len(fields) == 1 else fields
  return [
    sources.request(argparse.Namespace(**vars(args) | {"source": source, "text_field": field}))
    for source, field in zip(args.source, fields, strict=True)
  ]


def _run(args: argparse.Namespace) -> None:
  if args.command == "import":
    made = vocabulary_train.import_files(
      args.output,
      vocab_txt=args.vocab_txt,
      sp_model=args.sp_model,
      dictionary=args.dict,
      tokenizer=args.tokenizer_json,
      cased=args.cased,
      pretokenization=args.pretokenization,
    )
  else:
    made = {"train": _train, "extend": _extend, "trim": _trim}[args.command](args)
  logger.info(f"vocabulary {args.output}: {made.kind}, {made.size} pieces, sha256 {made.digest[:12]}")
  if args.command == "import":  # a vocabulary trained here can always be exported
    directory = str(pathlib.Path(args.output).absolute())
    program = [sys.executable, "-m", "pretrain.export.tokenizer.convert", directory]
    found = subprocess.run(program, cwd=_ROOT, capture_output=True, text=True, check=False)
    if found.stdout:
      logger.warning(found.stdout)


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(_parser().parse_args(arguments)))


if __name__ == "__main__":
  raise SystemExit(main())
