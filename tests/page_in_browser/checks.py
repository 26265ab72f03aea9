"""What a page must do in a browser: each check looks at an open page and yields what is wrong, in words."""

import io
import pathlib
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from pretrain.report.page import MOST_BYTES

SCRIPT = pathlib.Path(__file__).with_name("page.js").read_text(encoding="utf-8")
WIDTHS, HEIGHT, SCHEMES = (1280, 400), 900, ("light", "dark")
LEAST_CONTRAST = 4.5  # of text, WCAG 2 AA
LEAST_FOCUS_CONTRAST = 3.0  # between a pixel of a control with and without focus, WCAG 2.4.13
FEWEST_PRINTED = 20  # runs of text on paper; a page has hundreds
PAPER = 718  # pixels between the margins of A4
PATIENCE = 2.0  # seconds for what a key does to be done


class View:
  """A page opened at a width and in a colour scheme, with the messages of the browser's console."""

  def __init__(self, browser: Any, path: pathlib.Path, width: int, scheme: str) -> None:
    self.path, self.width, self.scheme = path, width, scheme
    self.messages: list[str] = []
    self.requests: list[str] = []
    size = {"width": width, "height": HEIGHT}
    self.page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
    self.page.on("console", self._hear)
    self.page.on("pageerror", lambda error: self.messages.append(f"uncaught {error}"))
    self.page.on("request", lambda request: self.requests.append(request.url))
    self.page.goto(path.absolute().as_uri())
    self.page.wait_for_timeout(200)  # for what a script may do late
    self.page.evaluate(SCRIPT)

  def _hear(self, message: Any) -> None:
    if message.type in ("error", "warning"):
      self.messages.append(f"{message.type} {message.text}")

  def ask(self, name: str, *arguments: Any) -> Any:
    """Calls a function of page.js in the page."""
    return self.page.evaluate(f"(all) => look.{name}(...all)", list(arguments))

  def print(self) -> bytes:
    """A PDF with the margins that a browser gives."""
    return self.page.pdf(format="A4", margin=dict.fromkeys(("top", "bottom", "left", "right"), "1cm"))

  def close(self) -> None:
    """Closes the page and its context."""
    self.page.context.close()


def console(view: View) -> Iterator[str]:
  """Errors, warnings and exceptions since the page was opened."""
  yield from (f"the console has: {message}" for message in view.messages)


def network(view: View) -> Iterator[str]:
  """Requests for anything but the file itself and what it holds."""
  own = view.path.absolute().as_uri()
  for address in view.requests:
    if address.partition("#")[0] != own and not address.startswith("data:"):
      yield f"the page asks for {address[:200]}"


def width(view: View) -> Iterator[str]:
  """Sideways scrolling of the page, and what sticks out of it; everything folded is unfolded."""
  view.ask("open")
  yield from view.ask("tooWide")


def contrast(view: View) -> Iterator[str]:
  """Text that is too faint for what is behind it, of every kind of element."""
  view.ask("open")
  ratios = view.ask("contrasts")
  if not ratios:
    yield "no text is shown"
  for kind, (ratio, text) in ratios.items():
    if ratio < LEAST_CONTRAST:
      yield f"text of {kind}, '{text}', has a contrast of {ratio:.2f}, expected {LEAST_CONTRAST}"


def keyboard(view: View) -> Iterator[str]:
  """What Tab does not reach in order, shows no focus, or does not do what its keys promise."""
  view.ask("open")
  view.page.wait_for_timeout(100)
  names = view.ask("controls")
  view.page.evaluate("scrollTo(0, 0)")
  for at, name in enumerate(names):
    view.page.keyboard.press("Tab")
    if view.ask("focused") != at:
      yield f"Tab reaches {view.ask('focusedName')} where {name} comes next"
      return  # all that follow are out of step
    yield from _focus(view, at, name)
    view.ask("focus", at)
    kind = view.ask("kind", at)
    operate = _OPERATE.get(kind)
    if operate is None:
      yield f"{name} is of a kind, {kind}, of which this program does not know what keys should do"
    elif trouble := operate(view, at):
      yield f"{name}: {trouble}"
    view.ask("focus", at)


def _focus(view: View, at: int, name: str) -> Iterator[str]:
  """Compares the pixels around a control with and without focus: as many must differ as its edge has."""
  box = view.ask("box", at)
  if box["width"] <= 0 or box["height"] <= 0:
    yield f"{name} is out of view when it has focus"
    return
  light = []
  for _ in range(2):
    picture = Image.open(io.BytesIO(view.page.screenshot(clip=box))).convert("RGB")
    parts = np.asarray(picture, np.float64) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    light.append(linear @ np.asarray([0.2126, 0.7152, 0.0722]) + 0.05)
    view.ask("blur")
  ratios = np.maximum(light[0] / light[1], light[1] / light[0])
  clear = int((ratios >= LEAST_FOCUS_CONTRAST).sum())
  if clear < (least := int(box["width"])):
    yield f"{name} with focus differs in {clear} pixels by {LEAST_FOCUS_CONTRAST} to 1, expected {least}"


def _becomes(ask: Callable[[], bool]) -> bool:
  """Whether something is true within `PATIENCE`."""
  end = time.monotonic() + PATIENCE
  while not ask():
    if time.monotonic() > end:
      return False
    time.sleep(0.02)
  return True


def _anchor(view: View, at: int) -> str | None:
  view.page.keyboard.press("Enter")
  arrived = _becomes(lambda: view.ask("isAtTarget", at))
  return None if arrived else "Enter does not bring its target into view"


def _link(view: View, at: int) -> str | None:
  view.page.keyboard.press("Enter")
  return None if _becomes(lambda: view.ask("wasClicked", at)) else "Enter does nothing"


def _summary(view: View, at: int) -> str | None:
  for key in ("Enter", "Space"):
    before = view.ask("isOpen", at)
    view.page.keyboard.press(key)
    if not _becomes(lambda before=before: view.ask("isOpen", at) != before):
      return f"{key} does not open or close it"
  return None


def _scroller(view: View, at: int) -> str | None:
  view.page.keyboard.press("ArrowRight")
  moved = _becomes(lambda: view.ask("scrolled", at) > 0)
  view.ask("unscroll", at)
  return None if moved else "an arrow key does not scroll it"


_OPERATE: dict[str, Callable[[View, int], str | None]] = {
  "anchor": _anchor,
  "link": _link,
  "summary": _summary,
  "scroller": _scroller,
  "box": lambda view, at: None,  # nothing in it to scroll to
}


def paper(view: View) -> Iterator[str]:
  """Printing: a PDF with the text of the page, which contrasts on paper too and is not cut off by it."""
  view.page.emulate_media(media="print")
  if view.ask("contrasts"):  # none: the PDF says so
    yield from (f"printed, {line}" for line in contrast(view))
  view.page.set_viewport_size({"width": PAPER, "height": HEIGHT})
  yield from (f"printed, {line}" for line in view.ask("tooWide"))
  view.page.set_viewport_size({"width": view.width, "height": HEIGHT})
  view.page.emulate_media(media="null")  # the screen again, and paper when it is printed
  content = view.print()
  pages = len(re.findall(rb"/Type\s*/Page\b", content))
  printed = sum(len(re.findall(rb"\bT[jJ]\b", stream)) for stream in _streams(content))
  if not (content.startswith(b"%PDF") and pages and printed >= FEWEST_PRINTED):
    yield f"printed, it has {pages} pages with {printed} runs of text, expected {FEWEST_PRINTED} or more"


def _streams(content: bytes) -> Iterator[bytes]:
  for start in re.finditer(rb"stream\r?\n", content):
    try:
      yield zlib.decompressobj().decompress(content[start.end() :])
    except zlib.error:  # a font or a picture, packed otherwise
      continue


def size(view: View) -> Iterator[str]:
  """The file's size."""
  if (found := view.path.stat().st_size) >= MOST_BYTES:
    yield f"the file has {found:,} bytes, expected fewer than {MOST_BYTES:,}"


# What the first three do may make the page ask for something or complain, which the next two see.
AT_EVERY_WIDTH = (width, contrast, keyboard, console, network)
ALL = (*AT_EVERY_WIDTH, paper, size)
