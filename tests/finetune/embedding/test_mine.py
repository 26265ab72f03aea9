"""`python -m finetune.mine`: the negatives of a whole matrix, a killed run, a corpus, mistakes."""

import json
import pathlib

import numpy as np
import pytest

from finetune import mine
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed.dtypes import unit
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.inference import stream
from tests.finetune.glue.small_glue import WORDS


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> pathlib.Path:
  """Forty-one rows: some queries have two positives, some passages occur twice."""
  random, path = np.random.default_rng(5), tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
  texts = [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(60)]
  rows = [{"id": at, "query": texts[at % 30], "positive": texts[59 - at % 33]} for at in range(41)]
  path.write_text("\n".join(map(json.dumps, rows)))
  return path


def _mine(model, pairs, output, *flags: str) -> int:
  return mine.main([f"--model={model}", f"--data={pairs}", f"--output={output}", "--batch_size=4", *flags])


def _rows(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_negatives_are_the_nearest_passages_that_are_no_positives(model, pairs, tmp_path, capsys):
  output = tmp_path / "triplets.jsonl"
  flags = ("--negatives=3", "--depth=12", "--skip=1", "--relative_margin=0.999")
  assert _mine(model, pairs, output, *flags) == 0, capsys.readouterr().err
  opened = open_model(model).open_encoder("", flag="--vocabulary")
  embedder, rows = Embedder(opened, EmbeddingSchema.read(model), batch_size=4), _rows(pairs)
  passages = list(dict.fromkeys(row["positive"] for row in rows))
  queries = unit(embedder.vectors(embedder.inputs([row["query"] for row in rows], "query")))
  cosines = queries @ unit(embedder.vectors(embedder.inputs(passages))).T
  fewer = 0
  for row, near, mined in zip(rows, cosines, _rows(output), strict=True):
    own = {other["positive"] for other in rows if other["query"] == row["query"]}
    positive = near[passages.index(row["positive"])]
    nearest = [at for at in np.argsort(-near, kind="stable")[:12] if passages[at] not in own]
    chosen = [at for at in nearest if near[at] <= positive - 0.001 * abs(positive)][1:4]
    assert mined == row | {
      "negatives": [passages[at] for at in chosen],
      "positive_score": pytest.approx(positive, abs=2e-6),
      "negative_scores": pytest.approx([near[at] for at in chosen], abs=2e-6),
    }
    fewer += len(chosen) < 3
  assert 0 < fewer < 41
  assert f"rows with fewer than 3: {fewer} of 41; mean cosine of positives" in capsys.readouterr().err
  assert sorted(path.name for path in tmp_path.iterdir()) == ["triplets.jsonl", "triplets.jsonl.done"]


def test_a_killed_command_goes_on_and_gives_the_same_bytes(model, pairs, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  whole, output = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
  flags = ("--negatives=2", "--relative_margin=1", "--seed=3")
  assert _mine(model, pairs, whole, *flags) == 0
  vectors, calls = Embedder.vectors, []

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) in (3, 8):
      raise KeyboardInterrupt
    return vectors(self, inputs)

  monkeypatch.setattr(Embedder, "vectors", killed)
  assert [_mine(model, pairs, output, *flags) for _ in range(3)] == [130, 130, 0]
  assert output.read_bytes() == whole.read_bytes()
  assert len(calls) == 5 + 6 + 2  # parts of passages and of queries; two were lost
  assert not output.with_name("killed.jsonl.parts").exists()
  capsys.readouterr()
  assert _mine(model, pairs, output, *flags) == 0 and "mean cosine" in capsys.readouterr().err
  assert _mine(model, pairs, output, *flags[:2]) == 2
  assert "is there already, and not what this command would make" in capsys.readouterr().err


def test_negatives_of_a_corpus_need_no_positive_in_it(model, pairs, tmp_path, capsys):
  corpus, output = tmp_path / "corpus.txt", tmp_path / "triplets.jsonl"
  known = _rows(pairs)[0]["positive"]
  corpus.write_text("\n".join(["cat mat", "the cat", known, "cat mat"]))
  assert _mine(model, pairs, output, f"--corpus={corpus}", "--negatives=4", "--relative_margin=1") == 0
  rows = _rows(output)
  assert {text for row in rows for text in row["negatives"]} <= {"cat mat", "the cat", known}
  assert all(known not in row["negatives"] for row in rows if row["positive"] == known)
  assert all(np.diff(row["negative_scores"]).max(initial=-1) <= 0 for row in rows)
  assert all(score <= row["positive_score"] for row in rows for score in row["negative_scores"])


@pytest.mark.parametrize(
  ("flags", "content", "code", "message"),
  [
    (("--negatives=0",), "", 2, "--negatives=0: expected at least 1"),
    (("--margin=-1",), "", 2, "--margin=-1.0: expected at least 0"),
    (("--relative_margin=1.5",), "", 2, "--relative_margin=1.5: expected a number above 0 and at most 1"),
    (("--depth=3", "--skip=2", "--negatives=2"), "", 2, "--depth=3: fewer passages than --skip=2 and"),
    (("--corpus=-",), "", 2, "--data and --corpus are read several times"),
    (("--output=a.csv",), "", 2, "--output=a.csv: expected a name that ends in .jsonl"),
    ((), '{"query": "x", "positive": 3}', 3, "line 2: 'positive' is a int; expected text"),
    ((), '{"query": "x"}', 3, "line 2: no column 'positive', only query"),
  ],
)
def test_a_mistake_is_one_line(flags, content, code, message, tmp_path, capsys):
  source = tmp_path / "pairs.jsonl"
  source.write_text(f'{{"query": "x", "positive": "y"}}\n{content}\n')
  assert _mine(tmp_path / "none", source, tmp_path / "out.jsonl", *flags) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert message in error and all(way.startswith("  ") for way in ways)
  assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]
