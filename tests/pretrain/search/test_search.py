"""Index folders: built, killed and built again, searched exactly and by a graph, damaged, and refused."""

import json
import os
import pathlib
import random
import sys
import types

import numpy as np
import pytest

from pretrain.embed import texts as texts_of_files
from pretrain.embed.schema import EmbeddingSchema, unit
from pretrain.inference import stream
from pretrain.search import __main__ as search
from pretrain.search import build, index
from pretrain.search.index import SearchIndex
from tests.pretrain.export.refusals import failing_commands

# "q" and "p" are the prefixes of queries and passages: without one, or with the other, the order is another.
_WORDS = ("some", "words", "of", "the", "x", "longer", "end.", "q", "p")


class _Embedder:
  """Sums random vectors of words: a stub, because an encoder's vectors show no prefix and cost seconds."""

  def __init__(self, asked) -> None:
    self.schema = EmbeddingSchema(unit=True, query_prefix="q ", passage_prefix="p ")
    self.digest, self.width, self.cut = "a" * 64, asked.size or 16, 0
    self.table = {word: np.random.default_rng(at).normal(size=16) for at, word in enumerate(_WORDS)}

  def length(self, side: str) -> int:
    return {"query": 8, "passage": 32}[side]

  def inputs(self, texts, side="passage"):
    return [self.schema.prefix(side) + text for text in texts]

  def vectors(self, inputs):
    sums = [sum(self.table.get(word, np.full(16, 0.01)) for word in text.split()) for text in inputs]
    return unit(np.asarray(sums, np.float32)[:, : self.width])


_RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(_RANDOM.choice(_WORDS[:7], size)) for size in _RANDOM.integers(3, 12, 300)]
EMBEDDER = _Embedder(types.SimpleNamespace(size=0))
VECTORS = EMBEDDER.vectors(EMBEDDER.inputs(TEXTS))


@pytest.fixture(autouse=True)
def fast_embedder(monkeypatch):
  monkeypatch.setattr(texts_of_files, "open_embedder", _Embedder)


@pytest.fixture
def corpus(tmp_path) -> pathlib.Path:
  path = tmp_path / "in.csv"
  path.write_text(
    "id,review\n" + "".join(f"{at},{text}\n" for at, text in enumerate(TEXTS)), encoding="utf-8"
  )
  return path


def _run(tmp_path, *flags: str) -> int:
  return search.main(["--checkpoint=none", f"--index={tmp_path / 'i'}", "--batch_size=1", *flags])


def _build(tmp_path, *flags: str) -> int:
  return _run(tmp_path, f"--input={tmp_path / 'in.csv'}", "--column=review", *flags)


def _nearest(query: str, top: int) -> np.ndarray:
  return np.sort(VECTORS @ EMBEDDER.vectors([f"q {query}"])[0])[::-1][:top]


def test_an_index_answers_with_the_nearest_rows_and_their_columns(tmp_path, corpus, capsys):
  queries = tmp_path / "queries.txt"
  queries.write_text("the end.\n\nx x\n", encoding="utf-8")
  for flags in ((), ("--dtype=float16",), ("--kind=hnsw",), ("--kind=hnsw", "--dtype=float16")):
    capsys.readouterr()
    assert _build(tmp_path, *flags) == 0
    said, folder = capsys.readouterr().err, tmp_path / "i"
    assert "300 rows of 16 numbers" in said
    assert ("recall@10 of the graph 1.000" in said) == ("--kind=hnsw" in flags)
    assert np.load(folder / "vectors.npy").dtype == ("float16" if "--dtype=float16" in flags else "float32")
    bound = 1e-3 if "--dtype=float16" in flags else 1e-5
    assert _run(tmp_path, "--query=some longer words", "--top=3") == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "nearest to 'some longer words', by cosine:" and len(lines) == 3
    for line, cosine in zip(lines, _nearest("some longer words", 3), strict=True):
      row = int(line.split("row ")[1].partition(":")[0]) - 1
      assert abs(float(line.split()[0]) - cosine) < bound + 1e-4 and line.endswith(TEXTS[row])
    output = tmp_path / f"a{len(list(tmp_path.iterdir()))}.jsonl"
    assert _run(tmp_path, f"--queries={queries}", f"--output={output}", "--top=4") == 0
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    asked = [(query, rank) for query in ("the end.", "x x") for rank in (1, 2, 3, 4)]
    assert [(answer["query"], answer["rank"]) for answer in answers] == asked
    expected = np.concatenate([_nearest(query, 4) for query in ("the end.", "x x")])
    np.testing.assert_allclose([answer["score"] for answer in answers], expected, atol=bound)
    for answer in answers:
      at = answer["number"] - 1
      assert answer["row"] == {"id": str(at), "review": TEXTS[at]}
    folder.rename(tmp_path / f"i{len(list(tmp_path.iterdir()))}")


def test_a_graph_finds_what_an_exact_search_finds_and_long_vectors_win_nothing(tmp_path, corpus):
  lengths = np.random.default_rng(1).uniform(0.2, 5, (300, 1)).astype(np.float32)
  np.save(tmp_path / "v.npy", lengths * VECTORS)  # as of pretrain.embed without --unit
  flags = ("--kind=hnsw", "--hnsw_links=8", f"--vectors={tmp_path / 'v.npy'}")
  assert _build(tmp_path, *flags) == 0
  assert _build(tmp_path, *flags) == 0 and _build(tmp_path, "--kind=hnsw", "--hnsw_links=9") == 2
  opened = SearchIndex.read(tmp_path / "i")
  np.testing.assert_allclose(opened.vectors, VECTORS, atol=1e-6)
  assert opened.graph.hnsw.nb_neighbors(1) == 8 and opened.graph.hnsw.efConstruction == 100
  query = EMBEDDER.vectors(["q of the end."])
  for is_exact in (True, False):
    rows, cosines = opened.nearest(query, 25, ef_search=300, is_exact=is_exact)
    np.testing.assert_allclose(cosines[0], _nearest("of the end.", 25), atol=1e-6)
    np.testing.assert_allclose(VECTORS[rows[0]] @ query[0], cosines[0], atol=1e-6)
  assert opened.recall(sample=100, top=10, ef_search=300) > 0.99
  rows, cosines = opened.nearest(opened.vectors[:5], 500)  # more than there are
  assert rows.shape == (5, 300) and np.isneginf(cosines[rows < 0]).all()


def test_recall_is_the_fraction_of_exact_neighbours_that_the_graph_finds(tmp_path):
  """With a graph that finds known rows, which faiss's own does not promise."""
  angles = np.float32([0.0, 0.1, 0.3, 1.0, 1.5])
  vectors, asked = np.stack([np.cos(angles), np.sin(angles)], 1), []
  # Of rows 0, 2, 4: both neighbours, both, and none.
  found = {0: [0, 2, 1], 2: [2, 0, 1], 4: [4, 0, 1]}

  def answer(queries, top):
    asked.append((hnsw.efSearch, top))
    rows = [int(np.argmax(vectors @ query)) for query in queries]
    return None, np.asarray([found[row] for row in rows])

  hnsw = types.SimpleNamespace(efSearch=0)
  made = SearchIndex(
    tmp_path, {}, vectors, np.zeros(6, np.int64), types.SimpleNamespace(hnsw=hnsw, search=answer)
  )
  assert made.recall(sample=3, top=2, ef_search=7) == pytest.approx(4 / 6)
  assert asked == [(7, 3)]
  rows, cosines = made.nearest(vectors[:1], 2, ef_search=1)
  np.testing.assert_array_equal(rows[0], [0, 1, 2])  # ordered by cosine
  np.testing.assert_allclose(cosines[0], np.cos([0, 0.1, 0.3]), atol=1e-6)
  assert asked[-1] == (2, 2)  # at least as many candidates as answers
  one = SearchIndex(tmp_path, {}, vectors[:1], np.zeros(2, np.int64), made.graph)
  assert one.recall(sample=3, top=2, ef_search=7) == 1.0


def test_a_build_that_was_killed_leaves_nothing_and_begins_again(tmp_path, corpus, monkeypatch, capsys):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 100)
  calls, vectors, add = [], _Embedder.vectors, build._line

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) == 2:
      raise KeyboardInterrupt
    return vectors(self, inputs)

  def killed_later(row):
    if row.number == 200:
      raise KeyboardInterrupt
    return add(row)

  monkeypatch.setattr(_Embedder, "vectors", killed)
  assert _build(tmp_path) == 130 and [path.name for path in tmp_path.iterdir()] == ["in.csv"]
  with monkeypatch.context() as patch:
    patch.setattr(build, "_line", killed_later)
    assert _build(tmp_path) == 130 and [path.name for path in tmp_path.iterdir()] == ["in.csv"]
  assert _build(tmp_path) == 0
  assert calls == [100, 100] + [100] * 3 + [100] * 3
  assert _build(tmp_path) == 0 and len(calls) == 8
  assert "is complete: 300 rows indexed before" in capsys.readouterr().err
  assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "in.csv"]


def test_vectors_of_an_earlier_command_are_not_computed_again(tmp_path, corpus, monkeypatch, capsys):
  from pretrain.embed import __main__ as embed

  calls, vectors = [], _Embedder.vectors
  for ending in ("npy", "parquet"):
    stored = tmp_path / f"v.{ending}"
    command = ["--checkpoint=none", f"--input={corpus}", "--column=review", f"--output={stored}"]
    assert embed.main([*command, "--dtype=float16"]) == 0
    with monkeypatch.context() as patch:
      patch.setattr(_Embedder, "vectors", lambda *given: calls.append(len(given[1])) or vectors(*given))
      assert _build(tmp_path, f"--vectors={stored}") == 0
    assert SearchIndex.read(tmp_path / "i").vectors.dtype == np.float32
    (tmp_path / "i").rename(tmp_path / f"of {ending}")
  assert calls == [16, 16]  # those that are compared
  text = corpus.read_text(encoding="utf-8")
  *same, _ = text.splitlines()
  infinite = VECTORS.copy()
  infinite[200] = np.inf  # between the rows that are compared
  np.save(tmp_path / "inf.npy", infinite)
  np.save(tmp_path / "near.npy", VECTORS + 0.05 * np.roll(VECTORS, 1, axis=1))

  def run(text, stored):
    corpus.write_text(text, encoding="utf-8")
    return _build(tmp_path, f"--vectors={tmp_path / stored}")

  rows = [
    (text + "300,the end.\n", "v.npy", 3, "300 vectors of 16 numbers; expected 301 of 16"),
    ("\n".join([*same, "299,longer"]) + "\n", "v.npy", 3, "the vector of row 300 differs by"),
    (text, "inf.npy", 3, "inf.npy: a vector is not finite"),
    (text, "near.npy", 3, "the vector of row 1 differs by"),
  ]
  assert not failing_commands(rows, run, capsys) and not (tmp_path / "i").exists()


def test_an_index_is_not_used_with_another_model_corpus_or_schema(tmp_path, corpus, monkeypatch, capsys):
  class Other(_Embedder):
    def __init__(self, asked) -> None:
      super().__init__(asked)
      vars(self).update(changed)

  changed: dict = {}
  assert _build(tmp_path) == 0
  again = f"  rm -r {tmp_path / 'i'}"
  query, rebuild = ("--query=x",), (f"--input={corpus}", "--column=review")
  schema = EmbeddingSchema(unit=True, query_prefix="Q: ", passage_prefix="p ")
  for fields, word in (
    ({"digest": "b" * 64}, 'model: "aaaaaaaaaaaa" -> "bbbbbbbbbbbb"'),
    ({"schema": schema}, 'query_prefix: "q " -> "Q: "'),
  ):
    changed.clear()
    changed.update(fields)
    with monkeypatch.context() as patch:
      patch.setattr(texts_of_files, "open_embedder", Other)
      rows = [(query, 3, word), (query, 3, again), (rebuild, 2, again)]
      assert not failing_commands(rows, lambda flags: _run(tmp_path, *flags), capsys)
  corpus.touch()  # with the same content
  assert _run(tmp_path, *query) == 0
  corpus.write_text("id,review\n1,x\n", encoding="utf-8")
  rows = [(query, 3, "in.csv was changed after"), (rebuild, 2, "(input: ")]
  rows.append(((*rebuild, "--kind=hnsw"), 2, again))
  assert not failing_commands(rows, lambda flags: _run(tmp_path, *flags), capsys)
  corpus.unlink()  # the index has all its rows
  assert _run(tmp_path, *query) == 0


def test_a_damaged_index_is_told_with_the_way_to_build_it_again(tmp_path, corpus, capsys):
  assert _build(tmp_path, "--kind=hnsw") == 0
  folder = tmp_path / "i"
  whole = {path.name: path.read_bytes() for path in folder.iterdir()}

  def run(name, content):
    for other, kept in whole.items():
      (folder / other).write_bytes(kept)
    (folder / name).write_bytes(bytes(len(whole[name])) if content == "zeros" else content)
    return _run(tmp_path, "--query=x")

  rows = [  # file, content, exit code, a word
    ("index.json", b"{", 3, "JSONDecodeError"),
    ("index.json", b'{"version": 9}', 3, "version 9, expected 2"),
    ("rows.jsonl", b"{}", 3, "rows.jsonl has 2 bytes"),
    ("vectors.npy", "zeros", 3, "damaged (ValueError"),
    ("hnsw.faiss", "zeros", 3, "another sha256"),
  ]
  assert not failing_commands(rows, run, capsys)
  assert not failing_commands([(*row[:3], f"  --index={folder} --input=") for row in rows], run, capsys)


REFUSED = [  # flags, exit code, a word
  ((), 2, "  --queries=FILE"),
  (("--input=-",), 2, "--input=-"),
  (("--query=x", "--vectors=v.npy"), 2, "  --input=FILE"),
  (("--query=x", "--top=0"), 2, "--top=0"),
  (("--input=in.csv", "--index=."), 2, "  --index=NAME"),
  (("--input=in.csv", "--hnsw_links=1"), 2, "--hnsw_links=1"),
  (("--input=in.csv", "--column=c"), 3, "no column 'c'; its columns are id, review"),
  (("--query=x",), 3, "not an index"),
]


def test_a_mistake_leaves_nothing_and_folders_of_others_alone(tmp_path, corpus, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert not failing_commands(REFUSED, lambda flags: _run(tmp_path, *flags), capsys)
  with monkeypatch.context() as patch:
    patch.setitem(sys.modules, "faiss", None)
    rows = [("--kind=hnsw", 2, "  pip install -r requirements-embeddings.txt")]
    assert not failing_commands(rows, lambda flag: _build(tmp_path, flag), capsys)
  assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
  line = build._line

  def changing(row):
    with open(corpus, "a", encoding="utf-8") as file:
      file.write("9,x\n")
    return line(row)

  with monkeypatch.context() as patch:
    patch.setattr(build, "_line", changing)
    assert _build(tmp_path) == 3 and not (tmp_path / "i").exists()  # the file changed while it was read
  (tmp_path / "i").mkdir()
  (tmp_path / "i" / "mine").touch()
  assert _build(tmp_path) == 2 and [path.name for path in (tmp_path / "i").iterdir()] == ["mine"]


def _answers(tmp_path, capsys) -> tuple[int, str]:
  capsys.readouterr()
  code = _run(tmp_path, "--query=the end.", "--top=3")
  captured = capsys.readouterr()
  return code, captured.out if not code else captured.err


def test_no_damage_of_a_file_changes_an_answer_silently(tmp_path, corpus, capsys):
  assert _build(tmp_path, "--kind=hnsw") == 0
  folder, rng, failures = tmp_path / "i", random.Random(0), []
  assert (
    _run(tmp_path, f"--input={corpus}", "--column=review", "--kind=flat", f"--index={tmp_path / 'other'}")
    == 0
  )
  sound = _answers(tmp_path, capsys)
  assert sound[0] == 0 and sound[1].count("row ") == 3
  for path in sorted(folder.iterdir()):
    whole = path.read_bytes()
    flips = [bytearray(whole) for _ in range(6)]
    for flipped in flips:
      flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    other = tmp_path / "other" / path.name
    damages = [*map(bytes, flips), whole[: len(whole) // 2], whole[:-1] + b"\xff", b""]
    damages += [other.read_bytes()[::-1]] if other.is_file() else []
    for number, damage in enumerate(damages):
      path.write_bytes(damage)
      code, said = _answers(tmp_path, capsys)
      if damage != whole and (
        code != 3 or said.splitlines()[0].count(str(folder)) == 0 or "Traceback" in said
      ):
        failures.append(f"{path.name}, damage {number}: code {code}, {said[:200]}")
    path.write_bytes(whole)
  assert not failures, "\n".join(failures)
  assert _answers(tmp_path, capsys) == sound


def test_what_somebody_else_wrote_into_an_index_is_refused_or_not_opened(tmp_path, corpus, capsys):
  assert _build(tmp_path) == 0
  path = tmp_path / "i" / "index.json"
  whole = json.loads(path.read_text())
  os.mkfifo(tmp_path / "pipe")
  source, failures = whole["input"], []
  cases = [  # value of a field, exit code: a pipe or a device is no file that could have changed
    ({"input": {**source, "path": "/dev/zero"}}, 0),
    ({"input": {**source, "path": str(tmp_path / "pipe")}}, 0),
    ({"input": {**source, "path": "a\0b"}}, 3),
    ({"input": {**source, "path": 7}}, 3),
    ({"schema": None}, 3),
    ({"size": "4"}, 3),
    ({"size": 8}, 3),
    ({"rows": 3}, 3),
    ({"column": "no such column"}, 3),
    ({"kind": "hnsw"}, 3),
    ({"files": {**whole["files"], "../in.csv": [1, "a"]}}, 3),
    ({"files": []}, 3),
  ]
  for changed, expected in cases:
    meta = whole | changed
    path.write_text(json.dumps({**meta, "sha256": index.digest(meta)}))
    code, said = _answers(tmp_path, capsys)
    if code != expected or "Traceback" in said:
      failures.append(f"{changed}: code {code}, expected {expected}: {said[:200]}")
  assert not failures, "\n".join(failures)


def test_the_nearest_rows_of_all_blocks_come_first(monkeypatch):
  monkeypatch.setattr(index, "_FEWEST", 64)
  monkeypatch.setattr(index, "_SCORES", 1)
  random = np.random.default_rng(0)
  for dtype in ("float32", "float16"):
    for rows, top in ((300, 7), (300, 64), (3, 10), (64, 64)):
      stored = unit(random.normal(size=(rows, 16))).astype(dtype)
      queries = unit(random.normal(size=(5, 16)).astype(np.float32))
      products = queries @ stored.astype(np.float32).T
      expected = np.argsort(-products, axis=1, kind="stable")[:, :top]
      found, scores = index.exact_nearest(stored, queries, top)
      np.testing.assert_allclose(scores, np.take_along_axis(products, expected, axis=1), atol=1e-6)
      np.testing.assert_array_equal(found, expected)


def test_equal_rows_are_each_found_once(monkeypatch):
  monkeypatch.setattr(index, "_FEWEST", 4)
  monkeypatch.setattr(index, "_SCORES", 1)
  stored = np.ones((20, 2), np.float32)
  stored[11] = 2
  rows, products = index.exact_nearest(stored, stored[:1], 5)
  assert rows[0, 0] == 11 and len(set(rows[0])) == 5 and products.tolist() == [[4, 2, 2, 2, 2]]
