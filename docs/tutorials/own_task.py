"""A folder of text and tables with labels for two tasks, for the commands of docs/tutorials/own_task.md.

  python docs/tutorials/own_task.py --output=runs/own_task

Run it in the repository's root. The text is the documentation of nine installed packages, and the task is
which of them a paragraph is from; nothing is downloaded. Names of packages are replaced in every text. The
second task has few rows: where do commas and ends of sentences go in a paragraph that has lost them?
"""

import argparse
import collections
import csv
import importlib.metadata
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from data import installed_docs, progress  # noqa: E402

LIBRARIES = 9
SPLITS = {"test": 900, "dev": 450, "train": 1_800}
STOPS = {"train": 100, "dev": 200}
MOST_OF_A_MODULE = 10  # paragraphs: no class is about one file
WORD_OR_SIGN = re.compile(r"[\w'’]+(?:[-/.][\w'’]+)*|[^\s\w]")
# What people write for a package besides the names it is installed and imported by.
ALIASES = {
  "jax": ("jnp",),
  "matplotlib": ("plt", "pyplot", "mpl"),
  "numpy": ("np",),
  "sklearn": ("skl",),
  "huggingface_hub": ("hf", "huggingface", "hugging face"),
}


def write(folder: pathlib.Path, root: str = "") -> None:
  """Writes `text/LIBRARY.txt` and `{train,dev,test}.csv`; no module of dev or test is in the text."""
  root = root or installed_docs.default_root()
  modules, splits = libraries(root)
  (folder / "text").mkdir(parents=True, exist_ok=True)
  held_out = {module for name in ("dev", "test") for _, _, module in splits[name]}
  for library, names in progress.track(modules.items(), name="reading their text", total=len(modules)):
    documents = installed_docs.read_modules(root, [name for name in names if name not in held_out])
    text = "\n\n".join("\n".join(texts) for texts in documents if texts)
    (folder / "text" / f"{library}.txt").write_text(text + "\n", encoding="utf-8")
  megabytes = sum(path.stat().st_size for path in (folder / "text").iterdir()) / 1e6
  print(f"{folder}/text: documentation of {', '.join(sorted(modules))}, {megabytes:.1f} MB")
  for name, rows in splits.items():
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
      csv.writer(file).writerows([("text", "library"), *(row[:2] for row in rows)])
    print(f"{folder}/{name}.csv: {len(rows):,} paragraphs and their libraries")
  for name, count in STOPS.items():
    texts = installed_docs.read_modules(root, list(dict.fromkeys(module for _, _, module in splits[name])))
    found = [spoken(text) for text in dict.fromkeys(text for of_module in texts for text in of_module)]
    rows = [row for row in found if 15 <= len(row["words"]) <= 50 and row["tags"].count("end") > 1]
    random.Random(0).shuffle(rows)
    lines = [json.dumps(row) + "\n" for row in rows[:count]]
    (folder / f"stops_{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{folder}/stops_{name}.jsonl: {len(lines)} paragraphs without commas and ends of sentences")


def libraries(root: str) -> tuple[dict[str, list[str]], dict[str, list[tuple[str, str, str]]]]:
  """Returns {library: its modules} and {split: (paragraph, library, module) rows}.

  The libraries are the packages with the most documentation that fill their share of every split. A module
  is in one split only, and no paragraph occurs twice.
  """
  packages, sizes = collections.defaultdict(list), collections.Counter()
  for name in installed_docs.module_files(root):
    if "/_vendor/" not in name:
      package = name.split("/")[0].removesuffix(".py")
      packages[package].append(name)
      # Text between triple quotes, at a hundredth of the time of parsing.
      sizes[package] += sum(map(len, (pathlib.Path(root) / name).read_bytes().split(b'"""')[1::2]))
  largest = [package for package, _ in sizes.most_common(2 * LIBRARIES)]
  mask, seen = name_pattern(root, largest), set()
  modules, splits = {}, {split: [] for split in SPLITS}
  shown = progress.Progress(LIBRARIES, unit="package", name="choosing paragraphs")
  for package in largest:
    shuffled = random.Random(f"0 {package}").sample(packages[package], len(packages[package]))
    left = iter(shuffled)
    filled = {split: [] for split in SPLITS}
    for split, count in SPLITS.items():
      while len(filled[split]) < count // LIBRARIES and (module := next(left, "")):
        texts = installed_docs.read_modules(root, [module])[0]
        fitting = [mask.sub("library", text) for text in texts if 20 <= len(text.split()) <= 100]
        # Texts that differ in case, digits or signs alone are the same.
        new = {"".join(re.findall(r"[^\W\d_]+", text.lower())): text for text in fitting[:MOST_OF_A_MODULE]}
        filled[split] += [(text, package, module) for key, text in new.items() if key not in seen]
        seen |= new.keys()
      filled[split] = filled[split][: count // LIBRARIES]
    if all(len(filled[split]) == count // LIBRARIES for split, count in SPLITS.items()):
      modules[package] = packages[package]
      for split in SPLITS:
        splits[split] += filled[split]
      shown.update(len(modules))
    if len(modules) == LIBRARIES:
      shown.close(LIBRARIES)
      return modules, splits
  sys.exit(
    f"{root}: {len(modules)} packages have enough documentation, expected {LIBRARIES}; "
    "install requirements-base.txt"
  )


def name_pattern(root: str, packages: list[str]) -> re.Pattern[str]:
  """Returns a pattern of every word that contains a long name of a package, or is a short one."""
  names = {alias for package in packages for alias in (package, *ALIASES.get(package, ()))}
  for distribution in importlib.metadata.distributions(path=[root]):
    files = distribution.read_text("RECORD") or ""
    if any(f"\n{package}/" in f"\n{files}" for package in packages):
      names.add(distribution.metadata["Name"])
  patterns = set()
  for name in names:
    words = [re.escape(word) for word in re.split(r"[-_. ]+", name.lower()) if word]
    pattern = "[-_. ]?".join(words)
    is_long = len("".join(words)) >= 5
    patterns.add(rf"\w*{pattern}\w*" if is_long else rf"(?<![^\W_]){pattern}(?![^\W_])")
  return re.compile("|".join(sorted(patterns, key=lambda pattern: (-len(pattern), pattern))), re.IGNORECASE)


def spoken(text: str) -> dict[str, list[str]]:
  """Returns the words of a paragraph, in small letters, and the sign behind each: 'comma', 'end', 'none'."""
  words, tags = [], []
  for part in WORD_OR_SIGN.findall(text):
    if part[0].isalnum() or part[0] in "_'’":
      words.append(part.lower())
      tags.append("none")
    elif tags and part in ",.!?":
      tags[-1] = "comma" if part == "," else "end"
  return {"words": words, "tags": tags}


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--output", default="runs/own_task", type=pathlib.Path)
  output = parser.parse_args().output
  with progress.shown():
    write(output)
