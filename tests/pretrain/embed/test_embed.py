"""Vectors of texts: what they are, their schema and forms, neighbours, mistakes, and a killed command."""

import csv
import json
import pathlib

import jax
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from pretrain.checkpoints.saved_model import open_model
from pretrain.embed import __main__ as embed
from pretrain.embed import dtypes, neighbours
from pretrain.embed import texts as texts_of_files
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.inference import stream
from pretrain.models.encoder import encode
from tests.pretrain.export.conftest import _template, make_workdir, vocabularies  # noqa: F401 (fixtures)
from tests.pretrain.export.refusals import failing, failing_commands

_WORDS = ("some", "words", "of", "the", "x", "longer", "end.")
_RANDOM = np.random.default_rng(0)
# Of 1 to 24 words, so that some are cut.
TEXTS = [" ".join(_RANDOM.choice(_WORDS, size)) for size in _RANDOM.integers(1, 24, 45)]


@pytest.fixture(scope="module")
def workdir(make_workdir) -> pathlib.Path:  # noqa: F811
  return make_workdir("t5")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp("texts") / "in.csv"
  with open(path, "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([["id", "review"], *([number, text] for number, text in enumerate(TEXTS))])
  return path


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
  """The commands with the same pooling share an encoder, on one device: compiling is most of the time."""
  made, make = {}, texts_of_files.open_embedder

  def embedder(asked):
    name = (asked.pooling, asked.unit, asked.max_length, asked.checkpoint, asked.size, asked.dtype == "int8")
    if name not in made:
      made[name] = make(asked)
    made[name].cut = 0
    return made[name]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(texts_of_files, "open_embedder", embedder)
    patch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    yield


def _embed(workdir, source, *flags: str) -> int:
  sizes = ("--batch_size=8", "--max_length=32")
  return embed.main([f"--checkpoint={workdir}", f"--input={source}", *sizes, *flags])


def test_the_mean_counts_every_token_but_padding_and_cls_is_the_first(workdir, table, tmp_path, capsys):
  opened = open_model(workdir).open_encoder("", flag="--vocabulary")
  words, pad_id = opened.vocabulary, opened.vocabulary.special_ids.pad
  whole = [words.with_special_ids(ids, max_length=32) for ids in words.encode_batch(TEXTS)]
  rows = np.full((45, 40), pad_id, np.int32)
  for row, ids in zip(rows, whole):
    row[: len(ids)] = ids
  run = jax.jit(lambda params, rows: encode(params, opened.config, rows, rows != pad_id, pad_id=pad_id))
  hidden = np.asarray(run(opened.params, rows)[1].last)
  means = [np.mean(last[: len(ids)], axis=0) for last, ids in zip(hidden, whole)]
  lasts = [last[len(ids) - 1] for last, ids in zip(hidden, whole)]
  cut = sum(len(ids) + 2 > 32 for ids in words.encode_batch(TEXTS))
  for pooling, expected in {"mean": means, "cls": hidden[:, 0], "last": lasts}.items():
    output = tmp_path / f"{pooling}.npy"
    assert _embed(workdir, table, "--column=review", f"--output={output}", f"--pooling={pooling}") == 0
    found = np.load(output)
    assert found.dtype == np.float32 and found.shape == (45, 32)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert f"45 vectors of 32 numbers, {pooling} of 'review', {cut} cut to 32" in capsys.readouterr().err
  output = tmp_path / "first.npy"
  assert _embed(workdir, table, "--column=review", f"--output={output}", "--size=12", "--unit") == 0
  first = np.stack(means)[:, :12]
  np.testing.assert_allclose(np.load(output), first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-5)


def test_a_side_has_its_prefix_and_its_length(workdir, tmp_path):
  opened = open_model(workdir).open_encoder("", flag="--vocabulary")
  words, schema = opened.vocabulary, EmbeddingSchema("cls", False, "query: ", "the ", 6, 300)
  made = Embedder(opened, schema, batch_size=8)
  assert (made.length("query"), made.length("passage")) == (6, 128)  # its positions are fewer
  for side, prefix, most in (("query", "query: ", 6), ("passage", "the ", 128)):
    (found,) = made.inputs(["some longer words"], side)
    ids = words.with_special_ids(words.encode(f"{prefix}some longer words"), max_length=most)
    assert found["ids"].tolist() == ids
  assert made.cut == 1
  (tmp_path / FILE).write_text(EmbeddingSchema("last", True, "q: ", "p: ", 32, 256, (64, 32)).as_json())
  read = EmbeddingSchema.read(tmp_path)
  assert read == EmbeddingSchema("last", True, "q: ", "p: ", 32, 256, (64, 32))
  assert (read.length("passage", 512), read.length("query", 20), read.longest(512)) == (256, 20, 256)
  (tmp_path / FILE).unlink()
  read = EmbeddingSchema.read(tmp_path)
  assert read == EmbeddingSchema("mean", False, "", "") and read.length("query", 512) == 512

  def damaged(change):
    (tmp_path / FILE).write_text(json.dumps(json.loads(EmbeddingSchema().as_json()) | change))
    EmbeddingSchema.read(tmp_path)

  rows = [({"version": 9}, "version 9, expected 1"), ({"pooling": "max"}, "pooling is 'max'")]
  assert not failing([*rows, ({"unit": "yes"}, "unit is 'yes'"), ({"sizes": 3}, "sizes is 3")], damaged)


def test_each_form_gives_the_vectors_back_within_its_rounding():
  vectors = dtypes.unit(_RANDOM.normal(size=(50, 64)).astype(np.float32))
  largest, zeros = np.abs(vectors).max(axis=1, keepdims=True), np.zeros((1, 8), np.float32)
  for dtype, bound in {"float32": 0 * largest, "float16": 2**-11 * largest, "int8": largest / 127}.items():
    stored = dtypes.compressed(vectors, dtype)
    assert stored.dtype == dtypes.stored_type(dtype) and stored.shape == (50, dtypes.stored_width(64, dtype))
    assert dtypes.restored(stored).dtype == np.float32
    assert (np.abs(dtypes.restored(stored) - vectors) <= bound).all(), dtype
    np.testing.assert_array_equal(dtypes.restored(dtypes.compressed(zeros, dtype)), zeros)
  stored = dtypes.compressed(vectors, "binary")
  assert stored.shape == (50, 8) and stored[0, 0] == int("".join("01"[int(x > 0)] for x in vectors[0, :8]), 2)
  np.testing.assert_array_equal(dtypes.restored(stored), np.where(vectors > 0, 1, -1) / np.float32(8))


def test_a_killed_command_goes_on_and_gives_the_same_bytes(workdir, table, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  output, whole = tmp_path / "killed.parquet", tmp_path / "whole.parquet"
  assert _embed(workdir, table, "--column=review", f"--output={whole}", "--unit") == 0
  calls, vectors = [], Embedder.vectors

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) == 2:
      raise KeyboardInterrupt
    return vectors(self, inputs)

  monkeypatch.setattr(Embedder, "vectors", killed)
  flags = ("--column=review", f"--output={output}", "--unit")
  assert _embed(workdir, table, *flags) == 130 and not output.exists()
  assert _embed(workdir, table, *flags) == 0
  assert calls == [16, 16, 16, 13]
  assert output.read_bytes() == whole.read_bytes()
  rows = parquet.read_table(output).to_pylist()
  assert [row["id"] for row in rows] == list(map(str, range(45)))
  np.testing.assert_allclose([np.linalg.norm(row["vector"]) for row in rows], 1, atol=1e-6)
  capsys.readouterr()
  assert _embed(workdir, table, *flags) == 0
  assert capsys.readouterr().err.endswith("killed.parquet is complete: 45 rows answered before\n")
  monkeypatch.undo()
  assert _embed(workdir, table, *flags[:-1]) == 2 and output.read_bytes() == whole.read_bytes()


def test_the_nearest_texts_are_found_in_the_input_and_in_stored_vectors(workdir, tmp_path, capsys):
  source, output = tmp_path / "lines.txt", tmp_path / "v.npy"
  source.write_text("the end.\n\nsome longer words\nthe the the x\n", encoding="utf-8")
  look = ["--neighbours=some longer words", "--top=2"]
  assert _embed(workdir, source, *look) == 0
  first = capsys.readouterr().out.splitlines()
  assert len(first) == 3 and first[1].split("  ")[0].strip() == "1.0000"
  assert first[1].endswith("lines.txt, line 3: some longer words")
  assert _embed(workdir, source, f"--output={output}", *look) == 0
  assert capsys.readouterr().out.splitlines() == first
  vectors, stored = np.load(output), output.read_bytes()
  assert float(first[2].split()[0]) == pytest.approx(
    (dtypes.unit(vectors) @ dtypes.unit(vectors)[1])[[0, 2]].max(), abs=1e-4
  )
  assert _embed(workdir, source, f"--output={output}", *look) == 0  # reads them
  assert capsys.readouterr().out.splitlines() == first and output.read_bytes() == stored
  assert _embed(workdir, source, f"--output={output}", "--pooling=cls", *look) == 3
  # Of equal texts the first is nearer, and long lines end after 160 characters.
  nearest = neighbours.Nearest(np.float32([3, 4]), 2)
  nearest.add(np.float32([[0, 2], [6, 8], [1, 0]]), [("f, 1", "b"), ("f, 2", "x " * 99), ("f, 3", "c")])
  nearest.add(np.float32([[3, 4]]), [("f, 4", "d")])
  assert [*nearest.lines()] == [f" 1.0000  f, 2: {('x ' * 80)[:159]}…", " 1.0000  f, 4: d"]


def test_other_forms_are_stored_in_both_files_and_searched(workdir, tmp_path, capsys):
  source, whole = tmp_path / "lines.txt", tmp_path / "whole.npy"
  source.write_text("the end.\nsome longer words\nthe the the x\n", encoding="utf-8")
  assert _embed(workdir, source, f"--output={whole}", "--unit") == 0
  expected = dtypes.compressed(np.load(whole), "float16")
  for output in (tmp_path / "v.npy", tmp_path / "v.parquet"):
    flags = (f"--output={output}", "--unit", "--dtype=float16")
    assert _embed(workdir, source, *flags) == 0
    assert _embed(workdir, source, *flags, "--neighbours=some longer words", "--top=1") == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("line 2: some longer words")
    found = neighbours.StoredVectors(output, "vector")
    np.testing.assert_array_equal([*found.rows([0, 2])], dtypes.restored(expected[[0, 2]]))
  stored = parquet.read_table(tmp_path / "v.parquet")["vector"]
  assert stored.type.value_type == pyarrow.float16() and np.load(tmp_path / "v.npy").dtype == np.float16
  parquet.write_table(pyarrow.table({"vector": ["a"]}), tmp_path / "a.parquet")
  np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
  np.save(tmp_path / "wide.npy", np.zeros((1, 2)))
  rows = [(tmp_path / name, "not a file of vectors") for name in ("a.parquet", "flat.npy", "wide.npy")]
  assert not failing(rows, lambda path: neighbours.StoredVectors(path, "vector"))


MISTAKES = [  # input, flags, exit code, a word
  ("id,a\n1,x\n", (), 3, "--column=NAME"),
  ("id,a\n1,x\n", ("--column=c",), 3, "no column 'c'; its columns are id, a"),
  ("text\nx\n", ("--batch_size=0",), 2, "--batch_size=0"),
  ("text\nx\n", ("--size=-1",), 2, "--size=-1"),
  ("text\nx\n", ("--size=33",), 2, "--size=33"),
  ("text\nx\n", ("--max_length=2",), 2, "--max_length=2"),
  ("text\nx\n", ("--max_length=129",), 2, "\n  --max_length=128"),
  ("text\nx\n", ("--output=a.txt",), 2, ".npy or .parquet"),
  ("text\nx\n", ("--dtype=int8",), 2, "  --unit"),
  ("text\nx\n", ("--dtype=binary", "--size=12"), 2, "  --size=8"),
  ("text,n\nx\n", (), 3, "in.csv, row 1: 1 cell, expected 2"),
]


def test_a_mistake_leaves_nothing_and_is_told(workdir, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)

  def run(content, flags):
    pathlib.Path("in.csv").write_text(content, encoding="utf-8")
    return _embed(workdir, "in.csv", "--output=v.npy", *flags)

  assert not failing_commands(MISTAKES, run, capsys)
  assert _embed("none", "in.csv", "--output=a.txt") == 2  # before the checkpoint is opened
  assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
