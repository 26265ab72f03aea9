"""HTML pages in one style: `render` fills templates that extend `page.html`; `plot` draws their charts."""

import base64
import pathlib
import re
from typing import Any

# Characters that would damage a page or picture: controls, lone surrogates, noncharacters, and marks that
# change the direction of the surrounding text.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
  """Replaces each character that cannot be shown with U+FFFD."""
  return _UNPRINTABLE.sub("\ufffd", text)


def render(path: pathlib.Path, **values: Any) -> str:
  """Returns the page of a Jinja2 template, which may extend `page.html` or import `parts.html`.

  Every value is escaped.
  """
  import jinja2  # imported here, because charts need only `printable`

  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([path.parent, pathlib.Path(__file__).parent]),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
  return printable(environment.get_template(path.name).render(values))
