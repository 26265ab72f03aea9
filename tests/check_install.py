"""Resolves what people install, on a plain package index: `python -m tests.check_install [SET ...]`.

A set is 'base' or extras joined by '+', by their requirements files; 'wheel', by its ranges; 'all', the wheel
with every extra; or 'beside:' and packages, the wheel beside their newest versions. The default is every set
of `SETS`. Each is resolved with every supported Python of this machine, and nothing is installed. pip's own
settings (local wheels, constraints, other indexes) are not used, because they hide what fails elsewhere.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import venv

from tests import pins, pythons

PIP = "pip==26.3"  # reads a wheel's requirements without the wheel; an older one downloads 3 GB of them
FOLDER = pins.ROOT / ".cache" / "check_install"
ALL, WHEEL, BESIDE = "all", "wheel", "beside:"
SETS = (
  "base",
  *pins.project()["optional-dependencies"],
  "export+gpu",
  "export+tpu",
  "buckets+gpu+trackers",
  ALL,
  WHEEL,
  f"{BESIDE}sentence-transformers+mteb",
  f"{BESIDE}numpy",
)
_LIMIT = 900  # seconds of one resolution


def plain_settings() -> dict[str, str]:
  """Returns this process's environment with pip's own defaults: no settings files, no PIP_ variables.

  Only PIP_CERT stays, without which some networks reach no index.
  """
  variables = {
    name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name == "PIP_CERT"
  }
  return variables | {"PIP_CONFIG_FILE": os.devnull}


def packages(wanted: str) -> list[str]:
  """Returns the packages that a set has the wheel beside."""
  return wanted.removeprefix(BESIDE).split("+")


def arguments(wanted: str, wheel: pathlib.Path) -> list[str]:
  """Returns what `pip install` is given for a set; of 'beside:' for the packages alone."""
  if wanted == WHEEL:
    return [str(wheel)]
  if wanted.startswith(BESIDE):
    return packages(wanted)
  if wanted == ALL:
    return [f"{wheel}[{','.join(pins.project()['optional-dependencies'])}]"]
  names = [pins.file_name("" if extra == "base" else extra) for extra in wanted.split("+")]
  return [word for name in names for word in ("--requirement", str(pins.ROOT / name))]


def _pip() -> str:
  """Returns the interpreter of an environment with `PIP`; makes it where it is missing."""
  python, stamp = FOLDER / "bin" / "python", FOLDER / "installed.txt"
  if not stamp.is_file() or stamp.read_text() != PIP:
    venv.create(FOLDER, clear=True, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PIP]
    subprocess.run(install, check=True, env=plain_settings())
    stamp.write_text(PIP)
  return str(python)


def _build(python: str, folder: str) -> pathlib.Path:
  """Builds the project's wheel into a folder.

  It is built from a copy, because setuptools packs what an older build left in build/.
  """
  copy = pathlib.Path(folder) / "copy"
  copy.mkdir()
  for name in ("pyproject.toml", "README.md"):
    shutil.copy(pins.ROOT / name, copy)
  for part in pins.packages():
    shutil.copytree(pins.ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
  build = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", str(copy)]
  subprocess.run(build, check=True, env=plain_settings())
  (wheel,) = pathlib.Path(folder).glob("*.whl")
  return wheel


def versions(report: pathlib.Path) -> dict[str, str]:
  """Returns {package: version} of a resolution."""
  installs = json.loads(report.read_text(encoding="utf-8"))["install"]
  return {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in installs}


def resolve(python: str, interpreter: str, given: list[str], report: pathlib.Path) -> str:
  """Resolves without installing; returns '' or why it fails."""
  command = [python, "-m", "pip", f"--python={interpreter}", "install", "--dry-run", "--ignore-installed"]
  command += ["--quiet", "--no-input", "--use-feature=fast-deps", f"--report={report}", *given]
  try:
    done = subprocess.run(command, capture_output=True, text=True, env=plain_settings(), timeout=_LIMIT)
  except subprocess.TimeoutExpired:
    return f"not resolved within {_LIMIT} s"
  if done.returncode == 0:
    return ""
  lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
  return " ".join(line for line in lines if not line.startswith("WARNING"))[:600] or f"code {done.returncode}"


def main(wanted: list[str]) -> int:
  """Resolves the sets with each Python, two at a time; 1 where one fails."""
  with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    python = _pip()
    wheel = _build(python, folder)
    print(f"wheel: {wheel.name}, {wheel.stat().st_size // 1024} kB", flush=True)

    def line(version: str, interpreter: str, name: str) -> tuple[bool, str]:
      start, report = time.monotonic(), pathlib.Path(folder) / f"{version}-{name}.json"
      problem = resolve(python, interpreter, arguments(name, wheel), report)
      if name.startswith(BESIDE) and not problem:  # these were the packages alone
        newest = [f"{each}=={versions(report)[each]}" for each in packages(name)]
        problem = resolve(python, interpreter, [str(wheel), *newest], report)
      number = 0 if problem else len(versions(report))
      said = f"FAILS: {problem}" if problem else f"{number} packages, {time.monotonic() - start:.0f} s"
      return not problem, f"Python {version}  {name:22} {said}"

    cases = [(*found, name) for found in pythons.found().items() for name in wanted or SETS]
    results = []
    for passed, said in pool.map(lambda case: line(*case), cases):
      results.append(passed)
      print(said, flush=True)
  return int(not all(results) or not results)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
