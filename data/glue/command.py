"""The command `python -m data.glue import`: converts official files to a TFDS directory for offline use."""

from data import command, tfds_reader
from data.glue import import_files

_DESCRIPTION = """Reads the official GLUE files below DIR (DIR/CoLA/train.tsv or .tsv.gz, ...), checks the
rows of every split against the official numbers, and builds a TFDS data_dir from them. Then
`tfds.load('glue/cola', data_dir=TFDS_DIR)` and --config.data.directory=TFDS_DIR work without a network.
Missing tasks are reported and skipped. A task that exists in TFDS_DIR is not changed."""


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  parser = command.Parser(prog="python -m data.glue", description="GLUE data.")
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  importer = commands.add_parser(
    "import",
    help="official files -> a TFDS data_dir",
    description=_DESCRIPTION,
  )
  text = "folder that contains CoLA, SST-2, MRPC, ..."
  importer.add_argument("directory", metavar="DIR", bucket=command.FETCHED, help=text)
  importer.add_argument(
    "--output",
    metavar="TFDS_DIR",
    default="",
    help="data_dir to add the tasks to; default: TFDS's own, where fine-tuning looks by default",
  )
  importer.add_argument(
    "--allow_differing_sizes",
    action="store_true",
    help="import splits with other than the official number of rows; their results are not GLUE scores",
  )

  def run() -> None:
    args = parser.parse_args(arguments)
    output = args.output or str(tfds_reader.place(""))
    import_files.import_files(args.directory, output, allow_differing_sizes=args.allow_differing_sizes)

  return command.run(run)
