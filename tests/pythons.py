"""Every supported Python of this machine: `python -m tests.pythons TEST ...` runs tests with each.

Each has an environment of its own with requirements-quick.txt, which is removed after its tests: it takes
3.3 GB, and a machine of continuous integration has little room. The Python that runs this is skipped, because
`make test` tests it.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from tests import pins

FOLDER = pins.ROOT / ".cache"  # the disk of the checkout, because /tmp is often small
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


def environment(folder: pathlib.Path, interpreter: str) -> str:
  """Makes an environment with requirements-quick.txt in the folder; returns its interpreter."""
  subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
  python = str(folder / "bin" / "python")
  install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]
  subprocess.run([*install, "-r", str(pins.ROOT / pins.file_name("quick"))], check=True)
  return python


def main(tests: list[str]) -> int:
  """Runs the tests with every other Python, says how each ended; 1 where one failed."""
  ours, lines, failed = f"3.{sys.version_info.minor}", [], False
  others = {version: path for version, path in found().items() if version != ours}
  for version, interpreter in others.items():
    start = time.monotonic()
    workers = os.environ.get("WORKERS", "2")
    command = [
      "-m",
      "pytest",
      f"--numprocesses={workers}",
      "--dist=loadfile",
      "--no-loadscope-reorder",
      *tests,
    ]
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
      print(f"installing {pins.file_name('quick')} for Python {version}", flush=True)
      python = environment(pathlib.Path(folder), interpreter)
      code = subprocess.run([python, *command], cwd=pins.ROOT).returncode
    failed |= code != 0
    seconds = time.monotonic() - start
    lines.append(f"Python {version}: {f'FAILED with code {code}' if code else 'passed'}, {seconds:.0f} s")
  missing = [f"3.{minor}" for minor in MINORS if f"3.{minor}" not in others and f"3.{minor}" != ours]
  print("\n".join([*lines, f"not here: Python {', '.join(missing)}"][: len(lines) + bool(missing)]))
  return int(failed)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
