"""Rows of a TFDS data set or a seqio Task: `tfds:NAME[#SPLIT]`, `seqio:TASK[#SPLIT]`.

  python -m data.rows.datasets --task=TASK --split=train --module=tasks.py --output=examples.jsonl

TensorFlow stays in child processes; the command above is that of a Task. Labels of TFDS are names. Of a Task
a feature that it tokenises is its text, 'inputs' for 'inputs_pretokenized'.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from data import command, files, seqio_tasks, tfds_reader
from data.errors import DataError
from data.rows.row import Row

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_KINDS = ("tfds", "seqio")
_TEXT_OF = "_pretokenized"


def kind_of(path: str) -> str:
  """'tfds' or 'seqio', as the name begins; '' of the name of a file."""
  kind = path.partition(":")[0]
  return kind if kind in _KINDS and ":" in path else ""


def split_of(path: str, otherwise: str) -> tuple[str, str]:
  """The name behind 'tfds:' or 'seqio:', and the split behind '#', or `otherwise`."""
  name, _, split = path.partition(":")[2].partition("#")
  return name, split or otherwise


def check(path: str, *, directory: str, download: bool) -> None:
  """Raises DataError where a TFDS set is not there and may not be downloaded; loads no TensorFlow.

  ConfigError: TensorFlow is not installed.
  """
  name, _ = split_of(path, "")
  if not name:
    raise DataError(f"{path}: names nothing; expected tfds:NAME, or seqio:TASK, with #SPLIT behind it or not")
  tfds_reader.check_installed(path)
  if kind_of(path) == "tfds" and not download and tfds_reader.find(directory, name) is None:
    raise DataError(
      f"{path}: there is no such data set in {tfds_reader.place(directory)}; name the folder it is in with "
      "--config.data.directory=DIR, or add --download"
    )


def read(path: str, otherwise: str, *, directory: str, module: str, download: bool) -> list[Row]:
  """The examples of a split, in their order.

  Args:
    otherwise: the split, where the name has none.
    directory: data_dir of TFDS; '': its default.
    module: file or module that registers the Task.

  Raises:
    DataError: the set, the Task or the split is not there, or cannot be read.
  """
  name, split = split_of(path, otherwise)
  if kind_of(path) == "tfds":
    (examples,) = tfds_reader.read(directory, [(name, split)], download=download)
  else:
    examples = _of_task(name, split, directory=directory, module=module, download=download)
  return [Row(fields, number, path, "example") for number, fields in enumerate(examples, 1)]


def digest(rows: list[Row]) -> str:
  """sha256 of all values, as that of a file."""
  return files.digest_json([row.fields for row in rows])


def _of_task(name: str, split: str, *, directory: str, module: str, download: bool) -> list[dict[str, Any]]:
  with tempfile.TemporaryDirectory(prefix="seqio-") as folder:
    output = pathlib.Path(folder) / "examples.jsonl"
    flags = [f"--task={name}", f"--split={split}", f"--output={output}", f"--tfds_directory={directory}"]
    flags += [f"--module={_absolute(module)}", *["--download"] * download]
    program = [sys.executable, "-m", "data.rows.datasets", *flags]
    code, reason = command.run_child(program, relay=download, cwd=_ROOT, stdout=subprocess.DEVNULL)
    if code:
      raise DataError(reason)
    with open(output, encoding="utf-8") as file:
      return [json.loads(line) for line in file]


def _absolute(module: str) -> str:
  """A file by its whole path, since the child starts in another folder; a module by its name."""
  found = [path for path in (pathlib.Path(module), pathlib.Path(f"{module}.py")) if module and path.is_file()]
  return str(found[0].absolute()) if found else module


def _plain(example: dict[str, Any]) -> dict[str, Any]:
  """Texts and numbers, alone or in lists; ids of a text give way to the text."""
  texts = {name.removesuffix(_TEXT_OF): value for name, value in example.items() if name.endswith(_TEXT_OF)}
  chosen = {name: value for name, value in example.items() if not name.endswith(_TEXT_OF)} | texts
  return {
    name: tfds_reader.as_json(value.tolist() if hasattr(value, "tolist") else value)
    for name, value in chosen.items()
  }


def main(arguments: list[str] | None = None) -> int:
  """Runs the child's side; returns its exit code."""
  parser = command.Parser(prog="python -m data.rows.datasets", description="Writes a Task's examples.")
  parser.add_argument("--task", required=True, help="registered seqio Task")
  parser.add_argument("--split", required=True, help="one of its splits")
  parser.add_argument("--output", required=True, help="file of JSON lines")
  seqio_tasks.add_flags(parser)

  def dump() -> None:
    args = parser.parse_args(arguments)
    examples = seqio_tasks.examples(
      args.task,
      args.split,
      module=args.module,
      tfds_directory=args.tfds_directory,
      download=args.download,
    )
    with open(args.output, "w", encoding="utf-8") as file:
      for example in examples:
        file.write(json.dumps(_plain(example)) + "\n")

  return command.run(dump)


if __name__ == "__main__":
  raise SystemExit(main())
