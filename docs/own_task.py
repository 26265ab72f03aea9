"""A folder of text and tables with labels for two tasks, for the commands of docs/own_task.md.

  python docs/own_task.py --output=runs/own_task

Run it in the repository's root. The text is the documentation of ten installed packages, and the task is
which of them a paragraph is from; nothing is downloaded. The second task has few rows: where do commas and
ends of sentences go in a paragraph that has lost them?
"""

import argparse
import csv
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from data import installed_docs, library_paragraphs  # noqa: E402

SPLITS = {"train": 2_000, "dev": 500, "test": 1_000}
STOPS = {"train": 100, "dev": 200}
WORD_OR_SIGN = re.compile(r"[\w'’]+(?:[-/.][\w'’]+)*|[^\s\w]")


def write(folder: pathlib.Path, root: str = "") -> None:
  """Writes `text/LIBRARY.txt` and `{train,dev,test}.csv`; no module of dev or test is in the text."""
  sizes = {f"{name}_rows": rows for name, rows in SPLITS.items()}
  root = root or installed_docs.default_root()
  task = library_paragraphs.load(**sizes, root=root)
  held_out = {path for name in ("dev", "test") for path in task.splits[name].ids}
  (folder / "text").mkdir(parents=True, exist_ok=True)
  for library in task.libraries:
    modules = [
      name
      for name in installed_docs.module_files(root)
      if name.split("/")[0].removesuffix(".py") == library and name not in held_out
    ]
    documents = ["\n".join(texts) for texts in installed_docs.read_modules(root, modules) if texts]
    (folder / "text" / f"{library}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
  for name, split in task.splits.items():
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
      rows = [(text, task.libraries[label]) for text, label in zip(split.first, split.labels)]
      csv.writer(file).writerows([("text", "library"), *rows])
  for name, count in STOPS.items():
    texts = installed_docs.read_modules(root, list(dict.fromkeys(task.splits[name].ids)))
    found = [spoken(text) for text in dict.fromkeys(text for of_module in texts for text in of_module)]
    rows = [row for row in found if 15 <= len(row["words"]) <= 50 and row["tags"].count("end") > 1]
    random.Random(0).shuffle(rows)
    lines = [json.dumps(row) + "\n" for row in rows[:count]]
    (folder / f"stops_{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def spoken(text: str) -> dict[str, list[str]]:
  """The words of a paragraph, small and without signs, and what stood behind each: 'comma', 'end', 'none'."""
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
  write(parser.parse_args().output)
