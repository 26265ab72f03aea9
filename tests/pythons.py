"""Other Pythons of this machine: `python -m tests.pythons [--all] TEST ...` runs tests with one of them.

Which one changes with the date; `--all` takes each. The Python that runs this is skipped, because `make test`
tests it. Each has an environment of its own with requirements-quick.txt in `.cache`, which stays until these
requirements change: it takes 1.2 GB.
"""

import datetime
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from tests import pins

FOLDER = pins.ROOT / ".cache" / "pythons"
MINORS = range(11, 15)  # of Python 3, as requires-python says
_PYENV = "~/.pyenv/versions"  # its names on the path run only for the versions that it is set to


def found() -> dict[str, str]:
  """Returns {'3.12': interpreter} of all supported Pythons that run here and can make environments."""
  interpreters = {}
  for minor in MINORS:
    pyenv = sorted(pathlib.Path(_PYENV).expanduser().glob(f"3.{minor}.*/bin/python"), key=_numbers)
    for path in filter(None, (shutil.which(f"python3.{minor}"), *map(str, reversed(pyenv)))):
      program = f"import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
      if subprocess.run([path, "-c", program], capture_output=True).returncode == 0:
        interpreters[f"3.{minor}"] = path
        break
  return interpreters


def _numbers(path: pathlib.Path) -> list[int]:
  """The numbers in a path, so that 3.12.10 comes after 3.12.9."""
  return [int(number) for number in re.findall(r"\d+", str(path))]


def environment(version: str, interpreter: str) -> str:
  """Returns the interpreter of an environment with requirements-quick.txt; makes it where it is missing."""
  files = pins.contents()
  needed = files[pins.BASE] + files[pins.file_name("quick")]
  folder = FOLDER / f"{version}-{hashlib.sha256(needed.encode()).hexdigest()[:12]}"
  python = folder / "bin" / "python"
  if not (folder / "complete").is_file():
    for older in FOLDER.glob(f"{version}-*"):
      shutil.rmtree(older)
    print(f"installing {pins.file_name('quick')} for Python {version}", flush=True)
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]
    subprocess.run([*install, "-r", str(pins.ROOT / pins.file_name("quick"))], check=True)
    (folder / "complete").touch()
  return str(python)


def chosen(others: Sequence[str], day: datetime.date, *, is_all: bool) -> list[str]:
  """Returns the versions to test on a day: all, or one in turn; [] if there are none."""
  return list(others) if is_all or not others else [others[day.toordinal() % len(others)]]


def main(arguments: list[str]) -> int:
  """Runs the tests, says how each Python ended; 1 where one failed."""
  is_all, tests = "--all" in arguments, [word for word in arguments if word != "--all"]
  others = {version: path for version, path in found().items() if version != f"3.{sys.version_info.minor}"}
  lines, failed = [], False
  for version in chosen(sorted(others), datetime.date.today(), is_all=is_all):
    start, workers = time.monotonic(), os.environ.get("WORKERS", "2")
    command = [
      "-m",
      "pytest",
      f"--numprocesses={workers}",
      "--dist=loadfile",
      "--no-loadscope-reorder",
      *tests,
    ]
    code = subprocess.run([environment(version, others[version]), *command], cwd=pins.ROOT).returncode
    failed |= code != 0
    seconds = time.monotonic() - start
    lines.append(f"Python {version}: {f'FAILED with code {code}' if code else 'passed'}, {seconds:.0f} s")
  print("\n".join(lines or ["no other supported Python is here"]))
  return int(failed)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
