"""What is kept of a docstring, and the corpus made of a small tree of packages."""

import pytest

from data import errors, installed_docs
from data.prepare import engine

DOCSTRING = """
Title of it
===========

Compute the mean of the values along an axis, see :func:`~numpy.mean` and ``axis`` for **more** details.
The second part <https://a.b/c> is *as long* as [the first part](https://a.b/d) of the manual.

.. deprecated:: 1.2
   Use the other function instead, because this one will be removed from the library.

Args:
  values: The numbers that are averaged over the axis
    that was given by the caller of the function.
  axis: An int.

Parameters
----------
a : array_like
    Array that holds the numbers whose mean is wanted by the caller.

Example::

    the code = that must go away because it is code

>>> mean([1, 2, 3]) and the rest of this line is here
the output of a doctest is a line of words that must go

```
this line of words is inside of a fence and must go
```

- The first of the items is a sentence that stays.

+-------+-----+
| table | row |
+-------+-----+

x = 1; y = f(x) % 3 == 0 and (z[4] or w["k"] // 2)
"""

EXPECTED = [
  "Compute the mean of the values along an axis, see numpy.mean and axis for more details. The second part "
  "is as long as the first part of the manual.",
  "Use the other function instead, because this one will be removed from the library.",
  "The numbers that are averaged over the axis that was given by the caller of the function.",
  "Array that holds the numbers whose mean is wanted by the caller.",
  "The first of the items is a sentence that stays.",
]


def test_english_stays_and_code_goes():
  assert installed_docs.paragraphs(DOCSTRING) == EXPECTED


def test_docstrings_of_modules_classes_and_functions_are_found_in_order():
  text = "x" * 201
  code = f'"""module {text}"""\nclass A:\n  """class {text}"""\n  def f(self):\n    """method {text}"""\n'
  code += f'if True:\n  async def g():\n    """inside {text}"""\nelse:\n  def h():\n    """{text[1:]}"""\n'
  found = [text.split()[0] for text in installed_docs.docstrings(code.encode())]
  assert found == ["module", "class", "method", "inside"]


def test_a_long_docstring_is_found_however_it_is_quoted_and_files_that_are_no_python_are_skipped():
  for quotes in ('"""', "'''"):
    for before in ("", 'x = \'a """ in quotes\'\n'):
      code = f"{before}def f():\n  {quotes}{'x' * 201}{quotes}\n"
      assert list(installed_docs.docstrings(code.encode())) == ["x" * 201], code
  for code in (b"", b"x = ", b"\x00\xff" * 300, b'"""' + b"x" * 300, b"# coding: nonsense\n" + b'"""' * 200):
    assert list(installed_docs.docstrings(code)) == [], code


def test_the_corpus_is_sorted_without_repeated_paragraphs_and_gathered_once(tmp_path, monkeypatch):
  root = tmp_path / "site"
  filler = "This sentence is long enough to be kept by the rules of the cleaning. " * 3
  for name, first in (
    ("b/one.py", "Words of the first module are here. "),
    ("a/two.py", ""),
    ("a/tests/test_c.py", "Words of a test. "),
    ("a/__pycache__/c.py", "Words of a cache. "),
    ("other/one.py", "Words of a package that the base lacks. "),
  ):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    text = f'"""{first}{filler}\n\nEvery module of this small package has this paragraph.\n"""\n'
    (root / name).write_text(text)
  (root / "a" / "broken.py").write_text("def f(:\n" + '"""' + filler)
  monkeypatch.setattr(installed_docs, "PACKAGES", ("b", "a"))
  monkeypatch.setattr(installed_docs, "default_root", lambda: str(root))  # else this environment is read
  with engine.pool(1) as pool:
    path = engine.gather_installed_docs(tmp_path / "source", pool)
    one, other = path.read_text().strip("\n").split("\n\n")
    assert one.split("\n")[1] == "Every module of this small package has this paragraph."
    assert other.startswith("Words of the first module") and "Every module" not in other
    path.write_text("kept\n")
    assert engine.gather_installed_docs(tmp_path / "source", pool).read_text() == "kept\n"
    monkeypatch.setattr(installed_docs, "default_root", lambda: str(tmp_path / "nothing"))
    with pytest.raises(errors.DataError, match="nothing"):
      engine.gather_installed_docs(tmp_path / "new", pool)
  assert not (tmp_path / "new").exists()
