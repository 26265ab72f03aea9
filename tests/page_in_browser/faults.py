"""Faults planted in copies of a page: a check that does not notice its own is worth nothing."""

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pretrain.report.page import MOST_BYTES
from tests.page_in_browser import checks
from tests.page_in_browser.checks import View


class Fault(NamedTuple):
  """What is put at the end of a page, and what the check then says."""

  what: str
  check: Callable[[View], Iterator[str]]
  says: str
  html: str
  scheme: str = "light"


FAULTS = (
  Fault("an exception", checks.console, "uncaught planted", "<script>throw new Error('planted')</script>"),
  Fault("a warning", checks.console, "warning planted", "<script>console.warn('planted')</script>"),
  Fault(
    "a picture from the network", checks.network, "asks for https", '<img src="https://x.invalid/x.png">'
  ),
  Fault("a wide element", checks.width, "the page is", '<div style="width: 900px">planted</div>'),
  Fault(
    "a wide element cut off",
    checks.width,
    "'planted' reaches from",
    '<style>html, body { overflow-x: hidden }</style><div style="width: 900px">planted</div>',
  ),
  Fault("faint text", checks.contrast, "has a contrast of", "<style>.note { color: #888 }</style>"),
  Fault("faint text", checks.contrast, "has a contrast of", "<style>.note { color: #666 }</style>", "dark"),
  Fault(
    "focus that does not show",
    checks.keyboard,
    "with focus differs in",
    "<style>:focus-visible { outline: none }</style>",
  ),
  Fault(
    "faint focus",
    checks.keyboard,
    "with focus differs in",
    "<style>:focus-visible { outline-color: #ddd }</style>",
    "light",
  ),
  Fault("a control that Tab passes", checks.keyboard, "comes next", '<span onclick="">planted</span>'),
  Fault(
    "a control out of order", checks.keyboard, "comes next", '<a href="#config" tabindex="1">planted</a>'
  ),
  Fault("a link to nowhere", checks.keyboard, "does not bring its target", '<a href="#nowhere">planted</a>'),
  Fault(
    "a key that does nothing",
    checks.keyboard,
    "Space does not open or close it",
    "<script>onkeydown = (key) => { if (key.key === ' ' && key.target.localName === 'summary') "
    "key.preventDefault(); }</script>",
  ),
  Fault(
    "a table that keys do not scroll",
    checks.keyboard,
    "does not scroll it",
    "<script>onkeydown = (key) => { if (key.key === 'ArrowRight' && key.target.localName === 'div') "
    "key.preventDefault(); }</script>",
  ),
  Fault(
    "the dark scheme on paper",
    checks.paper,
    "printed, text of code",
    "<style>@media (prefers-color-scheme: dark) { td code { background: #222 } }</style>",
    "dark",
  ),
  Fault(
    "a print cut off",
    checks.paper,
    "printed, div 'planted' reaches",
    '<div style="width: 900px">planted</div>',
  ),
  Fault(
    "an empty print", checks.paper, "it has 1 pages", "<style>@media print { body { display: none } }</style>"
  ),
  Fault("too large a file", checks.size, "the file has", f"<!--{'x' * MOST_BYTES}-->"),
)


def unnoticed(browser: Any, path: pathlib.Path, folder: pathlib.Path) -> list[str]:
  """Plants each fault, of which a browser must say what is expected; what it said of those not noticed."""
  # Without the page's policy, which would stop some of them before the check has anything to see.
  plain = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text(encoding="utf-8"))
  missed = []
  for number, fault in enumerate(FAULTS):
    copy = folder / f"fault_{number}.html"
    copy.write_text(plain.replace("</body>", f"{fault.html}</body>"), encoding="utf-8")
    view = View(browser, copy, checks.WIDTHS[-1], fault.scheme)
    said = list(fault.check(view))
    view.close()
    is_noticed = any(fault.says in line for line in said)
    print(
      f"planted {fault.what}: {next((line for line in said if fault.says in line), 'NOT NOTICED')}",
      flush=True,
    )
    if not is_noticed:
      missed.append(f"planted {fault.what}: the check said {said}, expected '{fault.says}'")
  return missed
