"""The source `installed_docs`: English text without a download, from docstrings of installed packages.

One document per module, one paragraph per line, sorted by the path of the module, without repeated
paragraphs. Only packages of the base installation are read, so that extras do not change the text. The
cleaning keeps English sentences and drops code, doctests, directives, titles and tables of types.
"""

import ast
import hashlib
import inspect
import os
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

PACKAGES = (
  *("absl", "flax", "fontTools", "fsspec", "grain", "huggingface_hub", "jax", "jinja2", "matplotlib"),
  *("ml_collections", "numpy", "optax", "orbax", "pyarrow", "rich", "scipy", "sklearn", "tqdm"),
)
MIN_DOCSTRING_CHARACTERS = 200  # shorter ones mostly repeat names
MIN_WORDS = 5
MIN_PLAIN_WORDS = 0.7  # fraction

# Parsing tests takes a fifth of the time and yields almost no English.
_TEST_FILE = re.compile(r"(^|/)(tests?|testing|_tests?)/|(^|/)(test_|conftest)[^/]*$|_test\.py$")
_RULE = re.compile(r"^[^\w\s]{3,}$|^[-=~+| ]{5,}$")
_FENCE = re.compile(r"^(```|~~~)")
_DIRECTIVE = re.compile(r"^\.\. ")
_CODE_DIRECTIVE = re.compile(
  r"^\.\. (code|math|plot|doctest|testcode|testoutput|parsed|image|figure|csv|list)"
)
_BULLET = re.compile(r"^([-*+•]|\d+[.)])\s+")
_NAME_COLON = re.compile(r"^:?[\w`*.\[\], ]{1,40}(\([^()]*\))?\s?:\s+(?=\S)")
_HEADING = re.compile(r"^[\w ]{1,30}:$")
_NUMPYDOC_FIELD = re.compile(r"^[*\w, ]{1,60} : ")  # `name : type`; its description follows, indented
_ROLE = re.compile(r":[\w:+-]+:(?=`)")
_MARKUP = re.compile(r"(`+)~?([^`]*)\1")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|\s*<https?:[^>]*>`?_*")
_STRONG = re.compile(r"\*\*([^*]+)\*\*|(?<!\w)\*([^*]+)\*(?!\w)")
_PLAIN_WORD = re.compile(r"^[(\"']?[A-Za-z][a-z]*(?:[-'’][a-z]+)*[.,;:!?)\"']*$")
_SPACES = re.compile(r"\s+")


def module_files(root: str) -> list[str]:
  """Returns the Python files of `PACKAGES` in a folder except tests, sorted, relative to the folder."""
  names = []
  for package in PACKAGES:
    for folder, folders, files in os.walk(os.path.join(root, package)):
      folders[:] = sorted(name for name in folders if name != "__pycache__")
      place = pathlib.Path(folder).relative_to(root)
      names += [(place / name).as_posix() for name in files if name.endswith(".py")]
  return sorted(name for name in names if not _TEST_FILE.search(name))


def default_root() -> str:
  """Returns the folder that holds the installed packages."""
  return sysconfig.get_paths()["purelib"]


def docstrings(code: bytes) -> Iterator[str]:
  """Yields the docstrings of a module, its classes and functions in order; none if it cannot be parsed."""
  if not _might_have_docstring(code):
    return
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      tree = ast.parse(code)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return
  nodes: list[ast.AST] = [tree]
  while nodes:
    node = nodes.pop()
    body = getattr(node, "body", None)
    if not isinstance(body, list):
      continue
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
      text = ast.get_docstring(node, clean=False)
      if text and len(text) > MIN_DOCSTRING_CHARACTERS:
        yield text
    nodes += reversed(body + getattr(node, "orelse", []))


def _might_have_docstring(code: bytes) -> bool:
  """Returns whether code may have a long docstring, in a hundredth of the time of parsing it."""
  parts = code.split(b'"""')
  is_odd = len(parts) % 2 == 0  # an unpaired triple quote: inside and outside cannot be told apart
  return is_odd or b"'''" in code or any(len(part) > MIN_DOCSTRING_CHARACTERS for part in parts[1::2])


def paragraphs(docstring: str) -> list[str]:
  """Returns the English paragraphs of a docstring, one line each."""
  english = []
  for lines in _blocks(_prose_lines(inspect.cleandoc(docstring).split("\n"))):
    text = _tidy(" ".join(lines))
    if _is_english(text):
      english.append(text)
  return english


def _prose_lines(lines: list[str]) -> Iterator[str]:
  """Yields the lines that are not code; each omitted line becomes an empty one."""
  in_fence = in_doctest = False
  literal_indent = -1  # of the line that opened a literal block; -1: not in one
  for number, line in enumerate(lines):
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    if not text:
      in_doctest = False
      yield ""
      continue
    if literal_indent >= 0 and indent > literal_indent:
      continue
    literal_indent = -1
    following = lines[number + 1].strip() if number + 1 < len(lines) else ""
    if _FENCE.match(text):
      in_fence = not in_fence
    elif text.startswith((">>>", "... ")):
      in_doctest = True
    elif in_fence or in_doctest or _RULE.match(text) or _is_title(text, following):
      yield ""
    elif _DIRECTIVE.match(text):
      if _CODE_DIRECTIVE.match(text):
        literal_indent = indent
      yield ""
    else:
      if text.endswith("::"):
        literal_indent = indent
        line = line.rstrip()[:-1]
      yield line


def _is_title(text: str, following: str) -> bool:
  return len(following) >= 3 and len(text) <= 80 and len(set(following)) == 1 and following[0] in "=-~^*#\"'+"


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
  """Groups lines into paragraphs: at empty lines, items, `name: text`, headings and changed indents."""
  block: list[str] = []
  previous_indent = 0
  for line in lines:
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    is_item = bool(_BULLET.match(text) or _NAME_COLON.match(text))
    is_heading = bool(_HEADING.match(text) or _NUMPYDOC_FIELD.match(text))
    if block and (not text or is_item or is_heading or indent < previous_indent):
      yield block
      block = []
    previous_indent = indent
    if is_item:
      text = _NAME_COLON.sub("", _BULLET.sub("", text))
    if text and not is_heading:
      block.append(text)
  if block:
    yield block


def _tidy(text: str) -> str:
  text = _LINK.sub(lambda match: match[1] or "", text)
  text = _MARKUP.sub(lambda match: match[2], _ROLE.sub("", text))
  text = _STRONG.sub(lambda match: match[1] or match[2], text)
  return _SPACES.sub(" ", text).strip()


def _is_english(text: str) -> bool:
  words = text.split()
  if len(words) < MIN_WORDS:
    return False
  return sum(bool(_PLAIN_WORD.match(word)) for word in words) >= MIN_PLAIN_WORDS * len(words)


def read_modules(root: str, names: list[str]) -> list[list[str]]:
  """Returns a list of paragraphs for each file, in order; a pure function, for a process pool."""
  documents = []
  for name in names:
    try:
      code = (pathlib.Path(root) / name).read_bytes()
    except OSError:
      code = b""
    documents.append([text for docstring in docstrings(code) for text in paragraphs(docstring)])
  return documents


class Deduplicator:
  """Removes repeated paragraphs from documents; it remembers 12 bytes per paragraph."""

  def __init__(self):
    self._seen: set[bytes] = set()

  def __call__(self, document: list[str]) -> list[str]:
    """Returns the paragraphs of `document` that did not occur before."""
    new = []
    for text in document:
      key = hashlib.blake2b(text.lower().encode("utf-8", "replace"), digest_size=12).digest()
      if key not in self._seen:
        self._seen.add(key)
        new.append(text)
    return new
