"""What is kept of a docstring, and the corpus made of a small tree of packages."""

import pytest

from data import errors, installed_docs
from data.prepare import workers

DOCSTRING = """
Title of it
===========

Compute the mean of the values along an axis, see :func:`~numpy.mean` and ``axis`` for **more** details.

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
  "Compute the mean of the values along an axis, see numpy.mean and axis for more details.",
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
  code += f'if True:\n  async def g():\n    """inside {text}"""\nelse:\n  def h():\n    """short"""\n'
  found = [text.split()[0] for text in installed_docs.docstrings(code.encode())]
  assert found == ["module", "class", "method", "inside"]


@pytest.mark.parametrize("quotes", ['"""', "'''"])
@pytest.mark.parametrize("before", ["", 'x = \'a """ in quotes\'\n'])
def test_a_long_docstring_is_found_however_it_is_quoted(quotes, before):
  code = f"{before}def f():\n  {quotes}{'x' * 201}{quotes}\n"
  assert list(installed_docs.docstrings(code.encode())) == ["x" * 201]


@pytest.mark.parametrize(
  "code", [b"", b"x = ", b"\x00\xff" * 300, b'"""' + b"x" * 300, b"# coding: nonsense\n" + b'"""' * 200]
)
def test_files_that_are_no_python_are_skipped(code):
  assert list(installed_docs.docstrings(code)) == []


@pytest.fixture
def packages(tmp_path, monkeypatch):
  root = tmp_path / "site"
  filler = "This sentence is long enough to be kept by the rules of the cleaning. " * 3
  for name, first in (("b/one.py", "Words of the first module are here. "), ("a/two.py", "")):
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text(f'"""{first}{filler}\n\nA paragraph that stands in every one of the modules.\n"""\n')
  (root / "a" / "broken.py").write_text("def f(:\n" + '"""' + filler)
  (root / "a" / "tests").mkdir()
  (root / "a" / "tests" / "test_c.py").write_text(f'"""Words of a test. {filler}"""')
  (root / "a" / "__pycache__").mkdir()
  (root / "a" / "__pycache__" / "c.py").write_text(f'"""{filler}"""')
  monkeypatch.setattr(installed_docs, "default_root", lambda: str(root))
  return root


def test_the_corpus_is_sorted_and_has_no_repeated_paragraph(packages, tmp_path):
  with workers.pool(1) as pool:
    path = workers.gather_installed_docs(tmp_path / "source", pool)
  documents = path.read_text().strip("\n").split("\n\n")
  assert len(documents) == 2
  assert documents[0].split("\n")[1] == "A paragraph that stands in every one of the modules."
  assert documents[1].startswith("Words of the first module")
  assert "every one of the modules" not in documents[1]
  assert "Words of a test" not in path.read_text()


def test_a_gathered_corpus_is_reused(packages, tmp_path):
  (tmp_path / "source").mkdir()
  (tmp_path / "source" / "installed_docs.txt").write_text("kept\n")
  with workers.pool(1) as pool:
    assert workers.gather_installed_docs(tmp_path / "source", pool).read_text() == "kept\n"


def test_no_documentation_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(installed_docs, "default_root", lambda: str(tmp_path / "nothing"))
  with workers.pool(1) as pool, pytest.raises(errors.DataError, match="no documentation in"):
    workers.gather_installed_docs(tmp_path / "source", pool)
  assert not (tmp_path / "source").exists()
