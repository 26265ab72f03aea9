"""The folder that docs/tutorials/embeddings.py writes, from a small tree of packages, and its page."""

import csv
import json
import pathlib
import runpy

import pytest

from data import installed_docs
from finetune.embedding import retrieval
from tests.test_own_task import WORDS

PAGE = runpy.run_path(
  str(pathlib.Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "embeddings.py")
)
_TEXT = "Returns the {} of all numbers that a user gives to the {} in a file."


@pytest.fixture
def root(tmp_path, monkeypatch):
  """80 modules with a class, a function, a private function and one without words of its own."""
  monkeypatch.setattr(installed_docs, "PACKAGES", ("small",))
  folder = tmp_path / "packages" / "small"
  folder.mkdir(parents=True)
  for at in range(80):
    first, second = WORDS[at % 11], WORDS[at // 11 % 11]
    text = _TEXT.format(first, second)
    filler = (
      "This sentence makes the docstring long enough for the reader of documentation to keep it at all. " * 2
    )
    lines = [f'class {first.title()}Of{second.title()}:\n  """{text}\n\n  {filler}\n  """\n']
    lines += [
      f'def _hidden_{first}():\n  """{text} Hidden."""\n',
      f'def {second}():\n  """{text} One word."""\n',
    ]
    (folder / f"m{at:02}.py").write_text("\n".join(lines))
  return tmp_path / "packages"


def test_names_become_queries_and_no_tested_module_is_in_training(root, tmp_path, capsys):
  PAGE["write"](tmp_path / "out", str(root))
  train = [json.loads(line) for line in (tmp_path / "out" / "pairs.jsonl").read_text().splitlines()]
  corpus = [json.loads(line) for line in (tmp_path / "out/beir/corpus.jsonl").read_text().splitlines()]
  assert len(train) == 72 and len(corpus) == 8 and "72 pairs to train on" in capsys.readouterr().out
  assert not {row["positive"] for row in train} & {row["text"] for row in corpus}
  assert all(row["query"].split()[1] == "of" and row["positive"].startswith("Returns the") for row in train)
  text = (tmp_path / "out" / "text" / "docs.txt").read_text()
  assert train[0]["positive"] in text and corpus[0]["text"] not in text
  assert len(retrieval.read(str(tmp_path / "out" / "beir"), "test").queries) == 8


def test_the_page_has_percent_the_curve_and_the_answers(tmp_path):
  (tmp_path / "scores").mkdir()
  with open(tmp_path / "scores" / "results.csv", "w", newline="") as file:
    csv.writer(file).writerows([("model", "size", "nDCG@10"), ("model", 128, 0.23071)])
  folder = tmp_path / "embedding" / "embedding"
  folder.mkdir(parents=True)
  (folder / "curves.svg").write_bytes(b"<svg/>")
  hit = {"query": "a <b>", "score": 0.5, "row": {"text": "x & y"}}
  (tmp_path / "answers.jsonl").write_text(json.dumps(hit) + "\n")
  output = tmp_path / "page.html"
  PAGE["page"](output, tmp_path / "scores", tmp_path / "answers.jsonl", tmp_path / "embedding")
  text = output.read_text()
  assert "23.1" in text and ">128<" in text and "a &lt;b&gt;" in text and "x &amp; y" in text
