"""Which library does a paragraph of documentation come from? A classification task that needs no download.

The text is that of `installed_docs`. The classes are the installed packages with the most documentation, all
of the same size. What names a library is replaced in every text, whichever library it is from, so the names
of others do not give a paragraph away either. A module's text is in one split only, no text is there twice.
"""

import collections
import importlib.metadata
import pathlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data import installed_docs
from data.errors import DataError
from data.glue.tasks import Split

MIN_WORDS, MAX_WORDS = 20, 100
MOST_OF_A_MODULE = 10  # paragraphs: no class is about one file
SPARE = 1.4  # as many paragraphs are gathered as are wanted: some are dropped, and modules stay whole
LEAST = 40  # paragraphs of a class; packages with less are no class
STEP = 0.95  # by which classes are made smaller until all packages fill them
VENDORED = "/_vendor/"
NAME = "library"  # stands where a name stood
MIN_INNER_NAME = 5  # characters; shorter names are replaced only where they are whole words

# What people write for a package besides the names it is installed and imported by.
ALIASES = {
  "google": ("gcp",),
  "jax": ("jnp",),
  "matplotlib": ("plt", "pyplot", "mpl"),
  "networkx": ("nx",),
  "numpy": ("np",),
  "pandas": ("pd",),
  "sklearn": ("skl",),
  "tensorflow": ("tf",),
  "tensorflow_datasets": ("tfds",),
  "tensorflow_probability": ("tfp",),
  "tf_keras": ("tf",),
  "transformers": ("hf", "huggingface", "hugging face"),
}


class LibraryParagraphs(NamedTuple):
  """The task."""

  libraries: tuple[str, ...]  # import names; the label of a row is its place in here
  splits: dict[str, Split]  # 'train', 'dev' and 'test': int32 labels, and the paths of the modules as ids
  lines: list[str]  # what was found, for people


class _Library(NamedTuple):
  name: str
  modules: dict[str, list[str]]  # path to paragraphs

  @property
  def count(self) -> int:
    return sum(map(len, self.modules.values()))


def load(
  *, train_rows: int, dev_rows: int, test_rows: int, num_libraries: int = 10, seed: int = 0, root: str = ""
) -> LibraryParagraphs:
  """Gathers the paragraphs; a function of the installed packages and the arguments alone.

  The libraries, `num_libraries` at most, share the rows of a split equally; there are fewer of either where
  there are not so many. `seed` decides which modules are in which split; `root` is the folder of installed
  packages, '': that of this program. DataError: fewer than two libraries have `LEAST` paragraphs.
  """
  root = root or installed_docs.default_root()
  wanted = {"test": test_rows, "dev": dev_rows, "train": train_rows}
  of_each = {name: -(-rows // num_libraries) for name, rows in wanted.items()}
  packages = _packages(root)
  libraries = _gather(root, packages, sum(of_each.values()), num_libraries, seed)
  if len(libraries) < 2:
    have = ", ".join(f"{library.name} {library.count}" for library in libraries) or "none"
    raise DataError(
      f"{root}: {len(libraries)} of {len(packages)} installed packages have {LEAST} paragraphs of "
      f"{MIN_WORDS} to {MAX_WORDS} words of documentation ({have}), expected at least 2; install "
      "requirements.txt there"
    )
  counts, filled = _equal_classes(libraries, of_each)
  splits = {name: _as_split(root, [rows[name] for rows in filled]) for name in ("train", "dev", "test")}
  names = tuple(library.name for library in libraries)
  return LibraryParagraphs(names, splits, _lines(names, len(packages), of_each, counts))


def _packages(root: str) -> dict[str, list[str]]:
  """{import name: its modules}, the most text in docstrings first."""
  modules, sizes = collections.defaultdict(list), collections.Counter()
  for name in installed_docs.module_files(root):
    if VENDORED in name:  # copies of other libraries
      continue
    package = name.split("/")[0].removesuffix(".py")
    modules[package].append(name)
    # What stands between triple quotes, at a hundredth of the time of parsing.
    code = (pathlib.Path(root) / name).read_bytes()
    sizes[package] += sum(map(len, code.split(b'"""')[1::2]))
  return {package: modules[package] for package in sorted(modules, key=lambda name: (-sizes[name], name))}


def _gather(
  root: str, packages: Mapping[str, Sequence[str]], wanted: int, num_libraries: int, seed: int
) -> list[_Library]:
  """The first packages with enough paragraphs; where too few have enough, those with the most."""
  enough = int(SPARE * max(wanted, LEAST))
  libraries: list[_Library] = []
  for package, names in packages.items():
    shuffled = list(names)
    random.Random(f"{seed} {package}").shuffle(shuffled)
    libraries.append(_read_library(root, package, shuffled, enough))
    if sum(library.count >= enough for library in libraries) == num_libraries:
      break
  # Sorting keeps the order of equals.
  largest = sorted(libraries, key=lambda library: -min(library.count, enough))[:num_libraries]
  largest = [library for library in largest if library.count >= LEAST]
  mask = _masker({library.name: _names_of(root, library.name) for library in largest})
  return [library for library in _without_repetitions(largest, mask) if library.count >= LEAST]


def _read_library(root: str, package: str, modules: Iterable[str], enough: int) -> _Library:
  """Paragraphs of modules in the order given, until there are enough."""
  library = _Library(package, {})
  for name in modules:
    texts = installed_docs.read_modules(root, [name])[0]
    fitting = [text for text in texts if MIN_WORDS <= len(text.split()) <= MAX_WORDS]
    if fitting:
      library.modules[name] = fitting[:MOST_OF_A_MODULE]
    if library.count >= enough:
      break
  return library


def _names_of(root: str, package: str) -> list[str]:
  """What a package is called: its import name, the distribution that installs it, what people write."""
  names = [package, *ALIASES.get(package, ())]
  for distribution in importlib.metadata.distributions(path=[root]):
    files = distribution.read_text("RECORD") or ""
    if files.startswith(f"{package}/") or f"\n{package}/" in files or f"\n{package}.py," in files:
      names.append(distribution.metadata["Name"])
  return names


def _masker(names: Mapping[str, Sequence[str]]) -> re.Pattern[str]:
  """Finds every word that contains a long name, and every short name that is a word."""
  patterns = set()
  for name in {alias.lower() for aliases in names.values() for alias in aliases}:
    words = [re.escape(word) for word in re.split(r"[-_. ]+", name) if word]
    pattern = "[-_. ]?".join(words)
    is_long = len("".join(words)) >= MIN_INNER_NAME
    patterns.add(rf"\w*{pattern}\w*" if is_long else rf"(?<![^\W_]){pattern}(?![^\W_])")
  return re.compile("|".join(sorted(patterns, key=lambda pattern: (-len(pattern), pattern))), re.IGNORECASE)


def _without_repetitions(libraries: Sequence[_Library], mask: re.Pattern[str]) -> list[_Library]:
  """Masks names; a text that two libraries have goes from both, a repeated one stays where it was first."""
  owners: dict[str, set[str]] = collections.defaultdict(set)
  masked = [
    (
      library.name,
      {path: [mask.sub(NAME, text) for text in texts] for path, texts in library.modules.items()},
    )
    for library in libraries
  ]
  for name, modules in masked:
    for texts in modules.values():
      for text in texts:
        owners[_key(text)].add(name)
  seen: set[str] = set()
  kept = []
  for name, modules in masked:
    left: dict[str, list[str]] = {}
    for path, texts in modules.items():
      for text in texts:
        if len(owners[_key(text)]) == 1 and _key(text) not in seen:
          seen.add(_key(text))
          left.setdefault(path, []).append(text)
    kept.append(_Library(name, left))
  return kept


def _key(text: str) -> str:
  """Texts that differ in case, digits, signs or spaces alone are the same."""
  return "".join(re.findall(r"[^\W\d_]+", text.lower()))


def _equal_classes(
  libraries: Sequence[_Library], of_each: Mapping[str, int]
) -> tuple[dict[str, int], list[dict[str, list]]]:
  """The largest sizes of splits that every library fills, and for each library {split: (text, path) rows}."""
  share = 1.0
  while True:  # it ends: `LEAST` paragraphs are from four modules or more, and three fill splits of one row
    counts = {name: max(1, int(share * count)) for name, count in of_each.items()}
    filled = [_fill(library, counts) for library in libraries]
    complete = [rows for rows in filled if rows is not None]
    if len(complete) == len(libraries):
      return counts, complete
    share *= STEP


def _fill(library: _Library, counts: Mapping[str, int]) -> dict[str, list] | None:
  """Whole modules to one split after another; what a split does not need of its last module is left out."""
  modules = iter(library.modules.items())
  rows: dict[str, list] = {}
  for name, count in counts.items():
    rows[name] = []
    while len(rows[name]) < count:
      path, texts = next(modules, ("", []))
      if not texts:
        return None
      rows[name] += [(text, path) for text in texts]
    del rows[name][count:]
  return rows


def _as_split(root: str, rows: Sequence[Sequence[tuple[str, str]]]) -> Split:
  """The rows of every library, in the order of the labels."""
  labels = np.repeat(np.arange(len(rows), dtype=np.int32), [len(of_library) for of_library in rows])
  flat = [row for of_library in rows for row in of_library]
  return Split([text for text, _ in flat], None, labels, [path for _, path in flat], 0, root, False)


def _lines(
  names: Sequence[str], num_packages: int, of_each: Mapping[str, int], counts: Mapping[str, int]
) -> list[str]:
  """What was found, for people: the libraries and the rows of each."""
  lines = [
    f"{len(names)} libraries, those of {num_packages:,} installed packages with the most documentation: "
    f"{', '.join(names)}",
    f"of each, {counts['train']} paragraphs to train on, {counts['dev']} to choose by, {counts['test']} to "
    f"test ({MIN_WORDS} to {MAX_WORDS} words, no module in two of these, names of the libraries replaced by "
    f"{NAME!r})",
  ]
  if counts != of_each:
    lines.append(f"wanted were {of_each['train']}, {of_each['dev']} and {of_each['test']} of each")
  return lines
