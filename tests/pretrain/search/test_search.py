"""Index folders: built, killed and built again, searched exactly and by a graph, and refused."""

import io
import json
import pathlib

import numpy as np
import pytest

from pretrain.embed import dtypes
from pretrain.embed import texts as texts_of_files
from pretrain.embed.schema import EmbeddingSchema
from pretrain.inference import stream
from pretrain.search import __main__ as search
from pretrain.search import build
from pretrain.search.index import SearchIndex

_WORDS = ("some", "words", "of", "the", "x", "longer", "end.")


class _Embedder:
  """Sums random vectors of words: what an encoder is to `pretrain.search`, without one."""

  def __init__(self, asked) -> None:
    self.schema = EmbeddingSchema(unit=True, query_prefix="q ", passage_prefix="")
    self.digest, self.width, self.cut = "a" * 64, asked.size or 16, 0
    self.table = {word: np.random.default_rng(at).normal(size=16) for at, word in enumerate(_WORDS)}

  def length(self, side: str) -> int:
    return {"query": 8, "passage": 32}[side]

  def inputs(self, texts, side="passage"):
    return [self.schema.prefix(side) + text for text in texts]

  def vectors(self, inputs):
    sums = [sum(self.table.get(word, np.full(16, 0.01)) for word in text.split()) for text in inputs]
    return dtypes.unit(np.asarray(sums, np.float32)[:, : self.width])


@pytest.fixture(autouse=True)
def fast_embedder(monkeypatch):
  monkeypatch.setattr(texts_of_files, "open_embedder", _Embedder)


@pytest.fixture
def texts() -> list[str]:
  random = np.random.default_rng(0)
  return [" ".join(random.choice(_WORDS, size)) for size in random.integers(3, 12, 300)]


@pytest.fixture
def corpus(tmp_path, texts) -> pathlib.Path:
  path = tmp_path / "in.csv"
  path.write_text(
    "id,review\n" + "".join(f"{at},{text}\n" for at, text in enumerate(texts)), encoding="utf-8"
  )
  return path


def _run(tmp_path, *flags: str) -> int:
  return search.main(["--checkpoint=none", f"--index={tmp_path / 'i'}", "--batch_size=1", *flags])


def _build(tmp_path, *flags: str) -> int:
  return _run(tmp_path, f"--input={tmp_path / 'in.csv'}", "--column=review", *flags)


def _nearest(texts: list[str], query: str, top: int) -> tuple[list[int], np.ndarray]:
  embedder = _Embedder(search.parser().parse_args(["--checkpoint=none", "--index=i"]))
  cosines = embedder.vectors(texts) @ embedder.vectors([f"q {query}"])[0]
  order = np.argsort(-cosines, kind="stable")[:top]
  return order.tolist(), cosines[order]


@pytest.mark.parametrize(
  "flags", [(), ("--dtype=float16",), ("--dtype=int8",), ("--kind=hnsw",), ("--kind=hnsw", "--dtype=float16")]
)
def test_an_index_answers_with_the_nearest_rows_and_their_columns(flags, tmp_path, corpus, texts, capsys):
  assert _build(tmp_path, *flags) == 0
  said = capsys.readouterr().err
  assert "300 rows of 16 numbers" in said
  assert ("recall@10 of the graph" in said) == ("--kind=hnsw" in flags)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "in.csv"]
  assert _run(tmp_path, "--query=some longer words", "--top=3") == 0
  first, *lines = capsys.readouterr().out.splitlines()
  rows, cosines = _nearest(texts, "some longer words", 3)
  assert first == "nearest to 'some longer words', by cosine:"
  for line, row, cosine in zip(lines, rows, cosines, strict=True):
    assert abs(float(line.split()[0]) - cosine) < 0.02 and texts[row].split()[0] in line
  queries = tmp_path / "queries.txt"
  queries.write_text("the end.\n\nx x\n", encoding="utf-8")
  assert _run(tmp_path, f"--queries={queries}", f"--output={tmp_path / 'a.jsonl'}", "--top=4") == 0
  answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
  assert [(answer["query"], answer["rank"]) for answer in answers] == [
    (query, rank) for query in ("the end.", "x x") for rank in (1, 2, 3, 4)
  ]
  for start, query in ((0, "the end."), (4, "x x")):
    _, cosines = _nearest(texts, query, 4)
    np.testing.assert_allclose([answer["score"] for answer in answers[start : start + 4]], cosines, atol=0.02)
  for answer in answers:
    assert answer["row"] == {"id": str(answer["number"] - 1), "review": texts[answer["number"] - 1]}


def test_an_exact_index_has_the_vectors_themselves(tmp_path, corpus, texts):
  assert _build(tmp_path) == 0
  opened = SearchIndex.read(tmp_path / "i")
  rows, cosines = _nearest(texts, "of the end.", 25)
  embedder = _Embedder(search.parser().parse_args(["--checkpoint=none", "--index=i"]))
  answered, found = opened.nearest(embedder.vectors(["q of the end."]), 25)
  np.testing.assert_allclose(found[0], cosines, atol=1e-6)
  assert {texts[row] for row in answered[0]} == {texts[row] for row in rows}


def test_a_graph_finds_what_an_exact_search_finds(tmp_path, corpus):
  assert _build(tmp_path, "--kind=hnsw", "--hnsw_links=8") == 0
  opened = SearchIndex.read(tmp_path / "i")
  assert opened.graph.hnsw.nb_neighbors(1) == 8
  assert opened.recall(sample=100, top=10, ef_search=300) > 0.99
  narrow = opened.recall(sample=100, top=1, ef_search=1)
  assert narrow <= opened.recall(sample=100, top=1, ef_search=300)
  queries = dtypes.restored(opened.vectors[:5])
  rows, cosines = opened.nearest(queries, 500)  # more than there are
  assert rows.shape == (5, 300) and np.isneginf(cosines[rows < 0]).all()


def test_a_build_that_was_killed_goes_on_and_ends_with_the_same_files(tmp_path, corpus, monkeypatch, capsys):
  assert _build(tmp_path, "--dtype=float16") == 0
  expected = {path.name: path.read_bytes() for path in (tmp_path / "i").iterdir()}
  (tmp_path / "i").rename(tmp_path / "whole")
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 100)
  calls, vectors = [], _Embedder.vectors

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) == 2:
      raise KeyboardInterrupt
    return vectors(self, inputs)

  monkeypatch.setattr(_Embedder, "vectors", killed)
  assert _build(tmp_path, "--dtype=float16") == 130 and not (tmp_path / "i").exists()
  add = build._line

  def killed_later(row):
    if row.number == 200:
      raise KeyboardInterrupt
    return add(row)

  with monkeypatch.context() as patch:
    patch.setattr(build, "_line", killed_later)
    assert _build(tmp_path, "--dtype=float16") == 130 and not (tmp_path / "i").exists()
  assert _build(tmp_path, "--dtype=float16") == 0
  # Each part once, and a first vector for each comparison with the stored ones.
  assert calls == [100, 100, 100, 100, 16, 16]
  assert {path.name: path.read_bytes() for path in (tmp_path / "i").iterdir()} == expected
  capsys.readouterr()
  assert _build(tmp_path, "--dtype=float16") == 0
  assert "is complete: 300 rows indexed before" in capsys.readouterr().err
  assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "in.csv", "whole"]


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_vectors_of_an_earlier_command_are_not_computed_again(ending, tmp_path, corpus, monkeypatch, capsys):
  from pretrain.embed import __main__ as embed

  stored = tmp_path / f"v.{ending}"
  command = ["--checkpoint=none", f"--input={corpus}", "--column=review", f"--output={stored}"]
  assert embed.main([*command, "--dtype=float16"]) == 0
  calls, vectors = [], _Embedder.vectors
  monkeypatch.setattr(_Embedder, "vectors", lambda self, inputs: calls.append(1) or vectors(self, inputs))
  assert _build(tmp_path, f"--vectors={stored}") == 0 and len(calls) == 1
  assert SearchIndex.read(tmp_path / "i").vectors.dtype == np.float32
  (tmp_path / "i").rename(tmp_path / "first")
  with open(corpus, "a", encoding="utf-8") as file:
    file.write("300,the end.\n")
  capsys.readouterr()
  assert _build(tmp_path, f"--vectors={stored}") == 3
  assert "300 vectors of 16 numbers; expected 301 of 16" in capsys.readouterr().err
  *same, _ = corpus.read_text(encoding="utf-8").splitlines()[:301]
  corpus.write_text("\n".join([*same, "299,longer"]) + "\n", encoding="utf-8")
  assert _build(tmp_path, f"--vectors={stored}") == 3
  assert "the vector of row 300 differs by" in capsys.readouterr().err
  assert not (tmp_path / "i").exists()


def test_stored_vectors_have_any_finite_length(tmp_path, corpus, texts, capsys):
  embedder = _Embedder(search.parser().parse_args(["--checkpoint=none", "--index=i"]))
  vectors = 3 * embedder.vectors(texts)
  np.save(tmp_path / "v.npy", vectors)
  assert _build(tmp_path, f"--vectors={tmp_path / 'v.npy'}") == 0
  (tmp_path / "i").rename(tmp_path / "first")
  vectors[200] = np.inf  # between the rows that are compared
  np.save(tmp_path / "v.npy", vectors)
  assert _build(tmp_path, f"--vectors={tmp_path / 'v.npy'}") == 3
  assert "v.npy: a vector is not finite" in capsys.readouterr().err and not (tmp_path / "i").exists()


def test_queries_of_a_pipe_are_answered_in_json_lines(tmp_path, corpus, monkeypatch, capfdbinary):
  class Pipe:
    buffer = io.BufferedReader(io.BytesIO(b"the end.\nx\n"))

  assert _build(tmp_path) == 0
  monkeypatch.setattr("sys.stdin", Pipe)
  assert _run(tmp_path, "--queries=-", "--top=1") == 0
  assert [json.loads(line)["query"] for line in capfdbinary.readouterr().out.splitlines()] == [
    "the end.",
    "x",
  ]


def test_an_index_is_not_used_with_another_model_corpus_or_schema(tmp_path, corpus, monkeypatch, capsys):
  def refused(what: str) -> None:
    error, *ways = capsys.readouterr().err.splitlines()
    assert what in error and len(error.replace(str(tmp_path), "")) <= 160, error
    assert ways and all(way.startswith("  ") for way in ways)

  assert _build(tmp_path) == 0
  capsys.readouterr()
  for name, value, what in (
    ("digest", "b" * 64, 'was built with another model (model: "aaaaaaaaaaaa" -> "bbbbbbbbbbbb")'),
    (
      "schema",
      EmbeddingSchema(unit=True, query_prefix="Q: "),
      'was built with another model (query_prefix: "q " -> "Q: ")',
    ),
  ):

    class Other(_Embedder):
      def __init__(self, asked, name=name, value=value) -> None:
        super().__init__(asked)
        setattr(self, name, value)

    with monkeypatch.context() as patch:
      patch.setattr(texts_of_files, "open_embedder", Other)
      assert _run(tmp_path, "--query=x") == 3
      refused(what)
      assert _build(tmp_path) == 2
      refused("was built otherwise (")
  assert _build(tmp_path, "--kind=hnsw") == 2
  refused("was built otherwise (")
  corpus.touch()  # with the same content
  assert _run(tmp_path, "--query=x") == 0
  capsys.readouterr()
  corpus.write_text("id,review\n1,x\n", encoding="utf-8")
  assert _run(tmp_path, "--query=x") == 3
  refused("in.csv was changed after")
  assert _build(tmp_path) == 2
  refused("was built otherwise (input: ")
  corpus.unlink()  # the index has all its rows
  assert _run(tmp_path, "--query=x") == 0


@pytest.mark.parametrize(
  ("damage", "what"),
  [
    (lambda folder: (folder / "index.json").unlink(), "not an index, it has no index.json"),
    (lambda folder: (folder / "index.json").write_text("{"), "damaged (JSONDecodeError"),
    (lambda folder: (folder / "index.json").write_text('{"version": 9}'), "version 9, expected 1"),
    (lambda folder: (folder / "rows.jsonl").write_text("{}"), "damaged (ValueError: rows.jsonl has 2 bytes"),
    (lambda folder: (folder / "vectors.npy").unlink(), "damaged (FileNotFoundError"),
    (lambda folder: _overwrite(folder / "vectors.npy"), "damaged (ValueError"),
    (lambda folder: _overwrite(folder / "hnsw.faiss"), "damaged (RuntimeError"),
  ],
)
def test_a_damaged_index_is_one_line(damage, what, tmp_path, corpus, capsys):
  assert _build(tmp_path, "--kind=hnsw") == 0
  capsys.readouterr()
  damage(tmp_path / "i")
  assert _run(tmp_path, "--query=x") == 3
  error, *ways = capsys.readouterr().err.splitlines()
  assert what in error and ways and all(way.startswith("  ") for way in ways)


def _overwrite(path: pathlib.Path) -> None:
  path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
  ("flags", "code", "what"),
  [
    ((), 2, "expected one of --input, which builds an index, --query and --queries"),
    (("--query=x", "--input=in.csv"), 2, "expected one of --input"),
    (("--input=-",), 2, "--input=-: an index is built from a file that can be read twice"),
    (("--query=x", "--vectors=v.npy"), 2, "--vectors builds an index and needs the texts"),
    (("--query=x", "--output=a.jsonl"), 2, "--output is for the answers of --queries"),
    (("--query=x", "--top=0"), 2, "--top=0: expected at least 1"),
    (("--input=in.csv", "--index=."), 2, "--index=. is the current folder"),
    (("--input=in.csv", "--hnsw_links=1"), 2, "--hnsw_links=1: expected at least 2"),
    (("--input=in.csv", "--kind=hnsw", "--dtype=int8"), 2, "--dtype=int8 would save nothing"),
    (("--input=in.csv", "--column=c"), 3, "no column 'c'; its columns are id, review"),
    (("--query=x",), 3, "not an index"),
  ],
)
def test_a_mistake_is_one_line(flags, code, what, tmp_path, corpus, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert _run(tmp_path, *flags) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert what in error and all(way.startswith("  ") for way in ways)
  assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path, corpus, capsys):
  (tmp_path / "i").mkdir()
  (tmp_path / "i" / "mine").touch()
  assert _build(tmp_path) == 2
  assert "i holds files already; name a new or empty directory" in capsys.readouterr().err


def test_a_file_that_changes_while_it_is_indexed_gives_no_index(tmp_path, corpus, monkeypatch, capsys):
  line = build._line

  def changing(row):
    with open(corpus, "a", encoding="utf-8") as file:
      file.write("9,x\n")
    return line(row)

  monkeypatch.setattr(build, "_line", changing)
  assert _build(tmp_path) == 3
  assert "changed while it was read" in capsys.readouterr().err and not (tmp_path / "i").exists()


def test_hnsw_without_faiss_says_how_to_install_it(tmp_path, corpus, monkeypatch, capsys):
  monkeypatch.setitem(__import__("sys").modules, "faiss", None)
  assert _build(tmp_path, "--kind=hnsw") == 2
  assert "--kind=hnsw needs faiss, which is not installed" in capsys.readouterr().err
  assert _build(tmp_path) == 0  # exact search needs none
