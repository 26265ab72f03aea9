"""A folder of names and descriptions for the commands of docs/tutorials/embeddings.md, and a page of results.

  python docs/tutorials/embeddings.py --output=runs/names  # pairs.jsonl, text/, beir/
  python docs/tutorials/embeddings.py --output=runs/names --page=runs/names/page.html  # a page of results

Run it in the repository's root. The text is the documentation of installed packages; nothing is downloaded. A
pair is the name of a class or function, split into words, and the first paragraph of its docstring. Names of
some modules are held out: their pairs are in beir/, a search of a description by its name.
"""

import argparse
import ast
import csv
import json
import pathlib
import random
import re
import sys
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from data import installed_docs, progress  # noqa: E402
from data.page import render  # noqa: E402

TESTED = 0.1  # share of the modules that are held out
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def definitions(code: bytes) -> list[tuple[str, str]]:
  """Returns (name, docstring) of the public classes and functions of a module."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      tree = ast.parse(code)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return []
  named = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef))
  found = [(node.name, ast.get_docstring(node, clean=False) or "") for node in named]
  return [(name, text) for name, text in found if not name.startswith("_") and text]


def pairs(root: str, modules: list[str]) -> dict[str, list[tuple[str, str]]]:
  """Returns {module: (name in words, first paragraph)} of modules in a folder; no text occurs twice."""
  texts, by_module = set(), {}
  for module in progress.track(modules, name="reading names and descriptions", total=len(modules)):
    kept = []
    for name, docstring in definitions((pathlib.Path(root) / module).read_bytes()):
      words = " ".join(WORDS.findall(name)).lower()
      text = next(iter(installed_docs.paragraphs(docstring)), "")
      if len(words.split()) >= 2 and 6 <= len(text.split()) <= 60 and text not in texts:
        texts.add(text)
        kept.append((words, text))
    if kept:
      by_module[module] = kept
  return by_module


def write(folder: pathlib.Path, root: str = "") -> None:
  """Writes `pairs.jsonl`, `text/docs.txt` for pretraining, and the BEIR folder `beir`."""
  root = root or installed_docs.default_root()
  modules = installed_docs.module_files(root)
  by_module = pairs(root, modules)
  tested = set(random.Random(0).sample(sorted(by_module), int(TESTED * len(by_module))))
  for name in ("text", "beir/qrels"):
    (folder / name).mkdir(parents=True, exist_ok=True)
  rows = [pair for module in sorted(by_module) if module not in tested for pair in by_module[module]]
  lines = [json.dumps({"query": name, "positive": text}) + "\n" for name, text in rows]
  (folder / "pairs.jsonl").write_text("".join(lines), encoding="utf-8")
  kept = [module for module in modules if module not in tested]
  tracked = progress.track(kept, name="reading text", total=len(kept))
  documents = [installed_docs.read_modules(root, [module])[0] for module in tracked]
  text = "\n\n".join("\n".join(texts) for texts in documents if texts)
  (folder / "text" / "docs.txt").write_text(text + "\n", encoding="utf-8")
  held_out = [pair for module in sorted(tested) for pair in by_module[module]]
  queries = sorted({name for name, _ in held_out})
  number = {name: f"q{at}" for at, name in enumerate(queries)}
  beir = folder / "beir"
  corpus = [json.dumps({"_id": f"d{at}", "title": "", "text": text}) for at, (_, text) in enumerate(held_out)]
  (beir / "corpus.jsonl").write_text("\n".join(corpus) + "\n", encoding="utf-8")
  asked = [json.dumps({"_id": number[name], "text": name}) for name in queries]
  (beir / "queries.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
  judged = [f"{number[name]}\td{at}\t1" for at, (name, _) in enumerate(held_out)]
  header = "query-id\tcorpus-id\tscore"
  (beir / "qrels" / "test.tsv").write_text("\n".join([header, *judged]) + "\n", encoding="utf-8")
  print(f"{folder}/text/docs.txt: documentation of {len(kept):,} modules, {len(text.encode()) / 1e6:.1f} MB")
  print(f"{folder}/pairs.jsonl: {len(rows):,} pairs to train on")
  print(f"{beir}: {len(queries):,} queries and {len(held_out):,} passages to test")


def page(output: pathlib.Path, folder: pathlib.Path, answers: pathlib.Path, stage: pathlib.Path) -> None:
  """Writes a page: the figures in `folder`, the curve of the run `stage`, the texts nearest to queries."""
  with open(folder / "results.csv", encoding="utf-8", newline="") as file:
    header, *rows = ([_rounded(cell) for cell in row] for row in csv.reader(file))
  hits: dict[str, list[list[str]]] = {}
  for line in answers.read_text(encoding="utf-8").splitlines():
    hit = json.loads(line)
    hits.setdefault(hit["query"], []).append([f"{hit['score']:.3f}", hit["row"]["text"]])
  names = ("Figures", "Curve", "Nearest texts")
  values = {"title": "Names and descriptions: search before and after the embedding stage", "hits": hits}
  values |= {"sections": [(name, name.split()[0].lower()) for name in names], "header": header, "rows": rows}
  source, curve = pathlib.Path(__file__).with_name("embeddings.html"), stage / "embedding" / "curves.svg"
  output.write_text(render(source, curve=curve.read_bytes(), **values), encoding="utf-8")
  print(f"wrote {output}")


def _rounded(cell: str) -> str:
  """Returns a fraction of a table in percent, with one decimal; other cells unchanged."""
  return f"{100 * float(cell):.1f}" if re.fullmatch(r"-?\d\.\d+(e-\d+)?", cell) else cell


def main() -> None:
  """Writes the folder, or with --page the page of results."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--output", default="runs/names", type=pathlib.Path)
  parser.add_argument("--page", default="", help="page to write from what the commands of the tutorial wrote")
  asked = parser.parse_args()
  if asked.page:
    folder = asked.output
    page(pathlib.Path(asked.page), folder / "scores", folder / "answers.jsonl", folder / "embedding")
  else:
    with progress.shown():
      write(asked.output)


if __name__ == "__main__":
  main()
