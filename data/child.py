"""Calls a function that loads TensorFlow in a child process and returns its values.

  python -m data.child MODULE FUNCTION OUTPUT ARGUMENTS

Arguments and yielded values travel as JSON.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from data import command, errors


def call(function: Callable[..., Iterable[Any]], *, relay: bool, **arguments: Any) -> list[Any]:
  """Calls a module's function in a child process; returns the values it yields, raises its UserErrors.

  With `relay` the child's stderr is shown as it is written.
  """
  with tempfile.TemporaryDirectory(prefix="values-") as folder:
    output = pathlib.Path(folder) / "values.jsonl"
    named = [function.__module__, function.__qualname__, str(output), json.dumps(arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-m", "data.child", *named]
    code, reason = command.run_child(program, relay=relay, env=environment, stdout=subprocess.DEVNULL)
    if code:
      raise errors.of_code(code, reason, otherwise=errors.DataError)
    with open(output, encoding="utf-8") as file:
      return [json.loads(line) for line in file]


def main(arguments: list[str]) -> int:
  """Runs the child process; returns its exit code."""
  module, name, output, options = arguments

  def write() -> None:
    function = getattr(importlib.import_module(module), name)
    with open(output, "w", encoding="utf-8") as file:
      for value in function(**json.loads(options)):
        file.write(json.dumps(value) + "\n")

  return command.run(write)


if __name__ == "__main__":
  raise SystemExit(main(sys.argv[1:]))
