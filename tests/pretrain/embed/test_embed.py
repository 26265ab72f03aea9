"""Vectors of texts: what they are, their schema and types, mistakes, and a killed command."""

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
from pretrain.embed import texts as texts_of_files
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.inference import stream
from pretrain.models.encoder import encode
from pretrain.search import build
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
    name = (asked.pooling, asked.unit, asked.max_length, asked.checkpoint, asked.size)
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
    values = json.loads(EmbeddingSchema().as_json())
    del values["sha256"]  # as in a file that was written by hand
    (tmp_path / FILE).write_text(json.dumps(values | change))
    EmbeddingSchema.read(tmp_path)

  damaged({"query_prefix": "by hand"})
  rows = [
    ({"sha256": "0"}, "its sha256 differs"),
    ({"version": 9}, "version 9, expected 1"),
    ({"pooling": "max"}, "pooling is 'max'"),
  ]
  assert not failing([*rows, ({"unit": "yes"}, "unit is 'yes'"), ({"sizes": 3}, "sizes is 3")], damaged)


def test_a_killed_command_leaves_nothing_and_begins_again(workdir, table, tmp_path, monkeypatch):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  output = tmp_path / "killed.parquet"
  calls, vectors = [], Embedder.vectors

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) == 2:
      raise KeyboardInterrupt
    return vectors(self, inputs)

  monkeypatch.setattr(Embedder, "vectors", killed)
  flags = ("--column=review", f"--output={output}", "--unit")
  assert _embed(workdir, table, *flags) == 130 and not [*tmp_path.iterdir()]
  assert _embed(workdir, table, *flags) == 0
  assert calls == [16, 16, 16, 16, 13]
  rows = parquet.read_table(output).to_pylist()
  assert [row["id"] for row in rows] == list(map(str, range(45)))
  np.testing.assert_allclose([np.linalg.norm(row["vector"]) for row in rows], 1, atol=1e-6)
  stored = output.read_bytes()
  assert _embed(workdir, table, *flags) == 2 and output.read_bytes() == stored  # it is there already


def test_float16_is_stored_in_both_files(workdir, tmp_path):
  source, whole = tmp_path / "lines.txt", tmp_path / "whole.npy"
  source.write_text("the end.\nsome longer words\nthe the the x\n", encoding="utf-8")
  assert _embed(workdir, source, f"--output={whole}", "--unit") == 0
  expected = np.load(whole).astype(np.float16)
  for output in (tmp_path / "v.npy", tmp_path / "v.parquet"):
    assert _embed(workdir, source, f"--output={output}", "--unit", "--dtype=float16") == 0
    found = build.StoredVectors(output)
    assert (found.count, found.width) == expected.shape
    np.testing.assert_array_equal([*found.rows([0, 2])], expected[[0, 2]].astype(np.float32))
  stored = parquet.read_table(tmp_path / "v.parquet")["vector"]
  assert stored.type.value_type == pyarrow.float16() and np.load(tmp_path / "v.npy").dtype == np.float16
  parquet.write_table(pyarrow.table({"vector": ["a"]}), tmp_path / "a.parquet")
  np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
  np.save(tmp_path / "wide.npy", np.zeros((1, 2)))
  rows = [(tmp_path / name, "not a file of vectors") for name in ("a.parquet", "flat.npy", "wide.npy")]
  assert not failing(rows, build.StoredVectors)


MISTAKES = [  # input, flags, exit code, a word
  ("id,a\n1,x\n", (), 3, "--column=NAME"),
  ("id,a\n1,x\n", ("--column=c",), 3, "no column 'c'; its columns are id, a"),
  ("text\nx\n", ("--batch_size=0",), 2, "--batch_size=0"),
  ("text\nx\n", ("--size=-1",), 2, "--size=-1"),
  ("text\nx\n", ("--size=33",), 2, "--size=33"),
  ("text\nx\n", ("--max_length=2",), 2, "--max_length=2"),
  ("text\nx\n", ("--max_length=129",), 2, "\n  --max_length=128"),
  ("text\nx\n", ("--output=a.txt",), 2, ".npy or .parquet"),
  ("text\nx\n", ("--dtype=int8",), 2, "--dtype"),
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
