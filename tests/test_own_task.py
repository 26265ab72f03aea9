"""The folder and the tables that docs/tutorials/own_task.py writes, from small trees of packages."""

import pathlib
import runpy

import pytest

from data import installed_docs
from data import rows as user_rows

PAGE = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "own_task.py"))
WORDS = ["alpha", "beta", "gamma", "delta", "omega", "north", "south", "east", "west", "river", "stone"]


def _paragraph(start: int, *, words: int = 24, about: str = "This") -> str:
  """Returns plain English of so many words; different for every start."""
  code = "".join(WORDS[int(digit)] for digit in str(start))
  return " ".join([about, code, *(WORDS[(start + i) % len(WORDS)] for i in range(words - 2))]) + "."


def _write(root, package: str, modules: list[list[str]]) -> None:
  (root / package).mkdir(parents=True)
  for number, paragraphs in enumerate(modules):
    text = "\n\n".join(paragraphs)
    (root / package / f"m{number:02}.py").write_text(f'"""{text}\n"""\n')


@pytest.fixture
def root(tmp_path, monkeypatch):
  """Two packages that fill the splits, with texts that no table may have, and one that is too small."""
  monkeypatch.setattr(installed_docs, "PACKAGES", ("graphlib", "np", "tiny"))
  monkeypatch.setitem(PAGE["libraries"].__globals__, "LIBRARIES", 2)
  monkeypatch.setitem(PAGE["libraries"].__globals__, "SPLITS", {"test": 20, "dev": 10, "train": 40})
  start = 0
  for package, size in (("graphlib", 24), ("np", 20)):
    modules = []
    for _ in range(size):
      about = ("Graphlib", "np.array", "SmallGraphLibTool")[start % 3]
      modules.append([_paragraph(start + i, about=about) for i in range(3)])
      modules[-1] += [_paragraph(start + 3, words=12), _paragraph(start + 3, words=130)]
      modules[-1].append(_paragraph(6_666))  # the same in every module
      start += 10
    _write(tmp_path / "packages", package, modules)
  _write(tmp_path / "packages", "tiny", [[_paragraph(5_555)]])
  copies = [[_paragraph(7_000 + i, words=60, about="Vendored")] for i in range(40)]
  _write(tmp_path / "packages" / "graphlib" / "_vendor", "other", copies)
  return tmp_path / "packages"


def test_tables_have_equal_classes_without_names_and_the_folder_no_text_of_dev_and_test(root, tmp_path):
  PAGE["write"](tmp_path / "out", str(root))
  folder = {path.stem: path.read_text() for path in (tmp_path / "out" / "text").iterdir()}
  assert {*folder} == {"graphlib", "np"}
  seen, starts = [], set()
  for name, count in (("train", 40), ("dev", 10), ("test", 20)):
    found = [row.fields for row in user_rows.read(str(tmp_path / "out" / f"{name}.csv"))]
    labels = [row["library"] for row in found]
    assert sorted(labels) == ["graphlib"] * (count // 2) + ["np"] * (count // 2)
    for text in (row["text"] for row in found):
      first, rest = text.split(" ", 1)  # the first word names a library
      starts.add(first)
      seen.append(text)
      assert 20 <= len(text.split()) <= 100 and "Vendored" not in text
      assert text.startswith("This") or (rest in "".join(folder.values())) == (name == "train")
  assert starts == {"library", "library.array", "This"} and len(seen) == len(set(seen))
  assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
    "stops_train.jsonl",
    "stops_dev.jsonl",
  }


def test_too_little_documentation_is_one_line(root, tmp_path):
  _write(tmp_path / "few", "tiny", [[_paragraph(1)]])
  with pytest.raises(SystemExit, match="0 packages have enough documentation"):
    PAGE["write"](tmp_path / "out", str(tmp_path / "few"))


def test_names_are_found_in_every_spelling(root):
  place = root / "Graph_Tools-1.0.dist-info"
  place.mkdir()
  (place / "METADATA").write_text("Metadata-Version: 2.1\nName: Graph-Tools\nVersion: 1.0\n")
  (place / "RECORD").write_text("graphlib/m00.py,,\n")
  pattern = PAGE["name_pattern"](str(root), ["graphlib", "numpy"])
  text = "Graph Tools of graphlib.x, np.zeros and np_dtype of an input"
  assert pattern.sub("library", text) == "library of library.x, library.zeros and library_dtype of an input"


def test_signs_become_tags_of_the_words_before_them():
  assert PAGE["spoken"]("Is x, y 1.5? Yes (np.sin) it is!") == {
    "words": ["is", "x", "y", "1.5", "yes", "np.sin", "it", "is"],
    "tags": ["none", "comma", "none", "end", "none", "none", "none", "end"],
  }
