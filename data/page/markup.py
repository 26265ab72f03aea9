"""HTML as a tree of text that is escaped in one place: here."""

import html
import pathlib
import re
from collections.abc import Iterable
from typing import Any

# What no page may hold: control characters, halves of surrogate pairs, and marks that turn the direction of
# the text around them.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")
_EMPTY = frozenset({"img", "input", "meta"})  # elements that hold nothing and have no end tag


class Markup(str):
  """Text that is HTML already. Only this module makes it of strings."""


def escaped(text: Any) -> Markup:
  """Any value as text of a page or of an attribute; what cannot be shown becomes U+FFFD."""
  if isinstance(text, Markup):
    return text
  return Markup(html.escape(_UNPRINTABLE.sub("\ufffd", str(text)), quote=True))


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
  """`<tag attributes>children</tag>`.

  Children are `Markup`, text, which is escaped, None, which is left out, or iterables of those. Of the
  attributes an underscore at the end goes and others become hyphens: class_, aria_label; None and False are
  left out, True has no value.
  """
  shown = []
  for name, value in attributes.items():
    if value is None or value is False:
      continue
    name = name.rstrip("_").replace("_", "-")
    shown.append(f" {name}" if value is True else f' {name}="{escaped(value)}"')
  start = f"<{tag}{''.join(shown)}>"
  return Markup(start if tag in _EMPTY else f"{start}{joined(children)}</{tag}>")


def joined(children: Iterable[Any]) -> Markup:
  """The children of an element one after another."""
  parts = []
  for child in children:
    if isinstance(child, str) or not isinstance(child, Iterable):
      parts.append("" if child is None else escaped(child))
    else:
      parts.append(joined(child))
  return Markup("".join(parts))


def link(address: str, text: str) -> Markup:
  """A link to a page of the web; the text alone where the address is of another kind, such as a script."""
  if not re.fullmatch(r"https?://[^\s\"'<>\\]+", address):
    return escaped(text)
  return element("a", text, href=address, rel="noreferrer noopener")


def table(header: Iterable[Any], rows: Iterable[Iterable[Any]], *, numbers: Iterable[int] = ()) -> Markup:
  """A table that scrolls sideways where it is too wide; the columns `numbers` are set at the right."""
  right = frozenset(numbers)

  def cells(tag: str, row: Iterable[Any], **attributes: Any) -> list[Markup]:
    return [
      element(tag, cell, class_="number" if at in right else None, **attributes)
      for at, cell in enumerate(row)
    ]

  body = [element("tr", cells("td", row)) for row in rows]
  head = element("thead", element("tr", cells("th", header, scope="col")))
  shown = element("table", head, element("tbody", body))
  # Reached by keys, so that those can scroll it.
  return element("div", shown, class_="scroll", tabindex="0", role="group", aria_label="table")


def document(title: str, *body: Any) -> str:
  """The whole page. It may load nothing and run nothing, which its policy says to the browser."""
  style = pathlib.Path(__file__).with_name("style.css").read_text(encoding="utf-8")
  policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
  head = element(
    "head",
    element("meta", charset="utf-8"),
    element("meta", http_equiv="Content-Security-Policy", content=policy),
    element("meta", name="viewport", content="width=device-width, initial-scale=1"),
    element("meta", name="color-scheme", content="light dark"),
    element("title", title),
    Markup(f"<style>{style}</style>"),
  )
  return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"
