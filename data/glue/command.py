"""The command `python -m data.glue import`: official files become a TFDS directory that works offline."""

from data import command, tfds_reader
from data.glue import import_files

_DESCRIPTION = """Reads the official GLUE files below DIR (DIR/CoLA/train.tsv or .tsv.gz, ...), checks the
rows of every split against the official numbers, and builds a TFDS data_dir from them. Then
`tfds.load('glue/cola', data_dir=TFDS_DIR)` and --config.data.directory=TFDS_DIR work without a network.
Tasks that are not there are reported and left out. A task that is in TFDS_DIR already is left alone."""


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  parser = command.Parser(prog="python -m data.glue", description="GLUE data.")
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  importer = commands.add_parser(
    "import",
    help="official files -> a TFDS data_dir",
    description=_DESCRIPTION,
  )
  text = "folder with CoLA, SST-2, MRPC, ... in it"
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
    help="import splits whose number of rows is not the official one; their results are no GLUE scores",
  )

  def run() -> None:
    args = parser.parse_args(arguments)
    output = args.output or str(tfds_reader.place(""))
    import_files.import_files(args.directory, output, allow_differing_sizes=args.allow_differing_sizes)

  return command.run(run)
