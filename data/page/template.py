"""Renders pages from Jinja2 templates; every value is escaped."""

import base64
import pathlib
from typing import Any

import jinja2

from data.page import printable

_HERE = pathlib.Path(__file__).parent


def render(path: pathlib.Path, **values: Any) -> str:
  """Returns the page of a template, which may extend `page.html` or import `parts.html`."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([path.parent, _HERE]),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
  return printable(environment.get_template(path.name).render(values))
