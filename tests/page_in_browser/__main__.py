"""Pages of `pretrain.report` in Chromium: `make test-page`, or `python -m tests.page_in_browser [PAGE ...]`.

At 1,280 and 400 pixels, in light and dark: no error in the console, no request, nothing wider than the page,
text that contrasts, and every control reached and worked by keys; a print that is whole, a file below 5 MB.
Without a PAGE it makes its own of tiny runs. It leaves pictures to be looked at. Exit code 1 if something is
wrong, 3 if there is no browser.
"""

import argparse
import importlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from tests.page_in_browser import checks, pages
from tests.page_in_browser.checks import View
from tests.real_weights import CACHE

# What drives the browser; its wheel brings all it needs but a browser. Kept out of the product's environment.
PLAYWRIGHT = ("playwright==1.65.2", "pyee==13.0.1", "greenlet==3.5.6")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = "apt-get install --no-install-recommends chromium"


def driver() -> Any:
  """The module `playwright.sync_api`, fetched once; None with a line where it cannot be."""
  site = CACHE / "playwright"
  if not (site / "playwright").is_dir():
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    if subprocess.run([*command, *PLAYWRIGHT], check=False).returncode:
      shutil.rmtree(site, ignore_errors=True)
      print(f"not run: pip could not install {' '.join(PLAYWRIGHT)}, see above", file=sys.stderr)
      return None
  sys.path.append(str(site))
  return importlib.import_module("playwright.sync_api")


def check(browser: Any, path: pathlib.Path, folder: pathlib.Path) -> int:
  """Checks a page, leaves its pictures in a folder, and returns how much is wrong."""
  wrong = 0
  for width in checks.WIDTHS:
    for scheme in checks.SCHEMES:
      view = View(browser, path, width, scheme)
      name = f"{path.stem}_{width}_{scheme}"
      view.page.screenshot(path=folder / f"{name}.png", full_page=True)
      view.ask("open")
      view.page.screenshot(path=folder / f"{name}_unfolded.png", full_page=True)
      if width == checks.WIDTHS[0]:
        (folder / f"{name}.pdf").write_bytes(view.print())
      looks = checks.ALL if width == checks.WIDTHS[0] else checks.AT_EVERY_WIDTH
      troubles = [line for look in looks for line in look(view)]
      print(f"{path}, {width} pixels, {scheme}: {len(view.ask('controls'))} controls, ", end="")
      print(f"{len(view.ask('contrasts'))} kinds of text, {len(troubles)} wrong", flush=True)
      for line in troubles:
        print(f"  {line}", flush=True)
      wrong += len(troubles)
      view.close()
  return wrong


def main(arguments: Sequence[str]) -> int:
  """Checks pages; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m tests.page_in_browser", description=(__doc__ or "").split("\n")[0]
  )
  parser.add_argument("pages", nargs="*", type=pathlib.Path, help="default: of two tiny runs made here")
  parser.add_argument("--browser", help=f"its program; default: {', '.join(BROWSERS)}")
  parser.add_argument("--output", type=pathlib.Path, help="new folder of pictures; default: a temporary one")
  asked = parser.parse_args(arguments)
  if asked.output and asked.output.exists():
    parser.error(f"--output={asked.output} is there already; name a new folder")
  names = [asked.browser] if asked.browser else BROWSERS
  program = next(filter(None, map(shutil.which, names)), None)
  if program is None:
    print(f"not run: there is no {', '.join(names)}; `{INSTALL}`, or name one by --browser", file=sys.stderr)
    return 3
  missing = [str(path) for path in asked.pages if not path.is_file()]
  if missing:
    print(f"not run: no file {', '.join(missing)}", file=sys.stderr)
    return 3
  playwright = driver()
  if playwright is None:
    return 3
  folder = asked.output or pathlib.Path(tempfile.mkdtemp(prefix="page_in_browser_"))
  folder = folder.resolve()  # commands run elsewhere
  folder.mkdir(parents=True, exist_ok=True)
  ours = [] if asked.pages else pages.make(folder)
  with playwright.sync_playwright() as started:
    browser = started.chromium.launch(executable_path=program)
    print(f"{program} {browser.version}", flush=True)
    wrong = sum(check(browser, path, folder) for path in asked.pages or ours)
  print(f"{wrong} wrong; pictures and prints to look at: {folder}")
  return int(wrong > 0)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
