"""The Tasks of a registered seqio Mixture and their rates: `python -m data.mixture_rates --mixture=NAME`.

The trainer runs it as a child process, so that TensorFlow stays there.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from data import command, errors, seqio_tasks


def read(name: str, *, module: str, tfds_directory: str, download: bool) -> list[tuple[str, float]]:
  """Returns the (Task, rate) pairs of `seqio_tasks.rates` from a child process; its errors are raised again.

  ConfigError, DataError: as there; the flags that a line names are those of this module.
  """
  with tempfile.TemporaryDirectory(prefix="seqio-") as folder:
    output = pathlib.Path(folder) / "rates.json"
    flags = [f"--mixture={name}", f"--output={output}", f"--tfds_directory={tfds_directory}"]
    flags += [f"--module={module}", *["--download"] * download]
    program = [sys.executable, "-m", "data.mixture_rates", *flags]
    code, reason = command.run_child(program, relay=download, stdout=subprocess.DEVNULL)
    if code:
      raise errors.of_code(code, reason, otherwise=errors.DataError)
    return [(task, rate) for task, rate in json.loads(output.read_text(encoding="utf-8"))]


def main(arguments: list[str] | None = None) -> int:
  """Runs the child's side; returns its exit code."""
  parser = command.Parser(prog="python -m data.mixture_rates", description="Writes the rates of a Mixture.")
  parser.add_argument("--mixture", required=True, help="registered seqio Mixture")
  parser.add_argument("--output", required=True, help="JSON file with a [task, rate] for each of its Tasks")
  seqio_tasks.add_flags(parser)

  def dump() -> None:
    args = parser.parse_args(arguments)
    found = seqio_tasks.rates(
      args.mixture, module=args.module, tfds_directory=args.tfds_directory, download=args.download
    )
    pathlib.Path(args.output).write_text(json.dumps(found), encoding="utf-8")

  return command.run(dump)


if __name__ == "__main__":
  raise SystemExit(main())
