"""Paragraphs of a small tree of packages as a classification task."""

import pathlib
import runpy

import pytest

from data import library_paragraphs
from data import rows as user_rows
from data.errors import DataError

WORDS = ["alpha", "beta", "gamma", "delta", "omega", "north", "south", "east", "west", "river", "stone"]


def _paragraph(start: int, *, words: int = 24, about: str = "") -> str:
  """Plain English of so many words; different for every start."""
  code = "".join(WORDS[int(digit)] for digit in str(start))
  return " ".join([about or "This", code, *(WORDS[(start + i) % len(WORDS)] for i in range(words - 2))]) + "."


def _write(root, package: str, modules: list[list[str]]) -> None:
  (root / package).mkdir(parents=True)
  for number, paragraphs in enumerate(modules):
    text = "\n\n".join(paragraphs)
    (root / package / f"m{number:02}.py").write_text(f'"""{text}\n"""\n')


@pytest.fixture
def root(tmp_path):
  """Three packages, the first with the most text; each with texts that must not come through."""
  start = 0
  for package, size in (("graphlib", 40), ("np", 30), ("small", 24)):
    modules = []
    for _ in range(size):
      about = ("Graphlib", "np.array", "SmallGraphLibTool")[start % 3]
      modules.append([_paragraph(start + i, about=about) for i in range(3)])
      modules[-1] += [_paragraph(start + 3, words=12), _paragraph(start + 3, words=130)]
      modules[-1].append(_paragraph(6_666 + size))  # the same in every module of the package
      start += 10
    modules[0].append(_paragraph(9_999, about="Shared"))
    modules[1].append(_paragraph(9_999, about="Shared"))
    _write(tmp_path, package, modules)
  _write(tmp_path, "tiny", [[_paragraph(5_555)]])
  copies = [[_paragraph(7_000 + i, words=60, about="Vendored")] for i in range(40)]
  _write(tmp_path / "graphlib" / "_vendor", "other", copies)
  return tmp_path


def _load(root, **changed):
  wanted = {"train_rows": 60, "dev_rows": 15, "test_rows": 30, "num_libraries": 3} | changed
  return library_paragraphs.load(root=str(root), **wanted)


def test_the_files_of_the_docs_page_hold_no_text_of_the_tables_that_are_not_trained_on(root, tmp_path):
  page = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "docs" / "own_task.py"))
  page["SPLITS"].update(train=60, dev=15, test=30)
  page["write"](tmp_path / "out", str(root))
  written = sorted(path.stem for path in (tmp_path / "out" / "text").iterdir())
  text = "".join(path.read_text() for path in (tmp_path / "out" / "text").iterdir())
  assert {"graphlib", "np", "small"} <= set(written)
  for name in ("train", "dev", "test"):
    found = [row.fields for row in user_rows.read(str(tmp_path / "out" / f"{name}.csv"))]
    assert {row["library"] for row in found} == set(written)
    unmasked = [row["text"].split(" ", 1)[1] for row in found]  # their first word names the library
    assert [shown in text for shown in unmasked] == [name == "train"] * len(found)
  assert page["spoken"]("Is x, y 1.5? Yes (np.sin) it is!") == {
    "words": ["is", "x", "y", "1.5", "yes", "np.sin", "it", "is"],
    "tags": ["none", "comma", "none", "end", "none", "none", "none", "end"],
  }
  assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
    "stops_train.jsonl",
    "stops_dev.jsonl",
  }


def test_classes_are_equal_and_the_libraries_with_the_most_text(root):
  found = _load(root)
  assert found.libraries == ("graphlib", "np", "small")
  assert {name: len(split) for name, split in found.splits.items()} == {"train": 60, "dev": 15, "test": 30}
  for split in found.splits.values():
    assert [list(split.labels).count(label) for label in range(3)] == [len(split) / 3] * 3
    owners = [found.libraries[label] for label in split.labels]
    assert owners == [path.split("/")[0] for path in split.ids]
  assert _load(root, num_libraries=2).libraries == ("graphlib", "np")


def test_no_module_and_no_text_is_in_two_splits(root):
  splits = _load(root).splits.values()
  modules = [set(split.ids) for split in splits]
  texts = [text for split in splits for text in split.first]
  assert len(set.union(*modules)) == sum(map(len, modules))
  assert len(set(texts)) == len(texts)


def test_short_long_shared_and_vendored_texts_stay_out(root):
  texts = [text for split in _load(root).splits.values() for text in split.first]
  assert all(20 <= len(text.split()) <= 100 for text in texts)
  assert not any(word in text for text in texts for word in ("Shared", "Vendored"))


def test_no_text_names_any_of_the_libraries(root):
  texts = [text.lower() for split in _load(root).splits.values() for text in split.first]
  starts = {text.split()[0] for text in texts}
  assert starts == {
    "library",
    "library.array",
    "this",
  }  # 'small' and 'graphlib' inside of a word, 'np' as a word


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("A scikit-learn estimator", "A library estimator"),
    ("A Scikit Learn estimator of sklearn.base", "A library estimator of library.base"),
    ("np.zeros and np_dtype of an input", "library.zeros and library_dtype of an input"),
    ("PyTorch tensors", "library tensors"),
  ],
)
def test_names_are_found_in_every_spelling(text, expected):
  names = {"sklearn": ["sklearn", "scikit-learn"], "numpy": ["numpy", "np"], "torch": ["torch"]}
  assert library_paragraphs._masker(names).sub(library_paragraphs.NAME, text) == expected


def test_a_distribution_names_the_packages_it_installs(root):
  place = root / "Graph_Tools-1.0.dist-info"
  place.mkdir()
  (place / "METADATA").write_text("Metadata-Version: 2.1\nName: Graph-Tools\nVersion: 1.0\n")
  (place / "RECORD").write_text("graphlib/m00.py,,\n")
  assert library_paragraphs._names_of(str(root), "graphlib") == ["graphlib", "Graph-Tools"]
  assert library_paragraphs._names_of(str(root), "small") == ["small"]


def test_the_seed_decides_and_nothing_else(root):
  texts = [_load(root, seed=seed).splits["train"].first for seed in (0, 0, 1)]
  assert texts[0] == texts[1] != texts[2]


def test_fewer_paragraphs_make_smaller_classes_and_say_so(root):
  found = _load(root, train_rows=600, dev_rows=150, test_rows=300)
  sizes = {name: len(split) for name, split in found.splits.items()}
  assert 100 < sum(sizes.values()) <= 3 * 73 and sizes["train"] > sizes["test"] > sizes["dev"] > 3
  assert found.lines[-1] == "wanted were 200, 50 and 100 of each"
  assert len(_load(root).lines) == 2


def test_a_few_rows_can_be_asked_for(root):
  found = _load(root, train_rows=6, dev_rows=3, test_rows=3)
  assert {name: len(split) for name, split in found.splits.items()} == {"train": 6, "dev": 3, "test": 3}


def test_too_little_documentation_is_one_line(tmp_path):
  _write(tmp_path, "tiny", [[_paragraph(1)]])
  with pytest.raises(DataError) as caught:
    _load(tmp_path)
  message = str(caught.value)
  assert "\n" not in message and message.startswith(str(tmp_path))
  assert "0 of 1 installed packages" in message and "install requirements.txt" in message


def test_a_package_of_one_module_is_no_class(tmp_path):
  for number, package in enumerate(("first", "second")):
    _write(tmp_path, package, [[_paragraph(1_000 * number + i) for i in range(60)]])
  with pytest.raises(DataError, match="0 of 2 installed packages"):
    _load(tmp_path)
