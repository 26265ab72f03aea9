"""Vectors of texts: what they are, neighbours, mistakes, and a killed command that goes on."""

import csv
import pathlib

import jax
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data import vocabulary
from data.errors import DataError
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed import __main__ as embed
from pretrain.embed import dtypes, neighbours
from pretrain.embed import texts as texts_of_files
from pretrain.inference import stream
from pretrain.models.encoder import encode
from tests import buckets
from tests.pretrain.export.conftest import (  # noqa: F401 (fixtures)
  _template,
  make_workdir,
  vocabularies,
)

_WORDS = ("some", "words", "of", "the", "x", "longer", "end.")


@pytest.fixture(scope="module")
def workdir(make_workdir) -> pathlib.Path:  # noqa: F811
  return make_workdir("t5")


@pytest.fixture(scope="module")
def texts() -> list[str]:
  """Of 1 to 24 words, so that some are cut."""
  random = np.random.default_rng(0)
  return [" ".join(random.choice(_WORDS, size)) for size in random.integers(1, 24, 45)]


@pytest.fixture(scope="module")
def table(tmp_path_factory, texts) -> pathlib.Path:
  path = tmp_path_factory.mktemp("texts") / "in.csv"
  with open(path, "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([["id", "review"], *([number, text] for number, text in enumerate(texts))])
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


def test_the_mean_counts_every_token_but_padding_and_cls_is_the_first(
  workdir, table, texts, tmp_path, capsys
):
  """tests/pretrain/export/test_export.py compares them with transformers."""
  opened = open_model(workdir).open_encoder("", flag="--vocabulary")
  words, pad_id = opened.vocabulary, opened.vocabulary.special_ids.pad
  whole = [words.with_special_ids(ids, max_length=32) for ids in words.encode_batch(texts)]
  rows = np.full((45, 40), pad_id, np.int32)
  for row, ids in zip(rows, whole):
    row[: len(ids)] = ids
  run = jax.jit(lambda params, rows: encode(params, opened.config, rows, rows != pad_id, pad_id=pad_id))
  hidden = np.asarray(run(opened.params, rows)[1].last)
  means = [np.mean(last[: len(ids)], axis=0) for last, ids in zip(hidden, whole)]
  expected = {"mean": np.stack(means), "cls": hidden[:, 0]}
  for pooling, vectors in expected.items():
    output = tmp_path / f"{pooling}.npy"
    assert _embed(workdir, table, "--column=review", f"--output={output}", f"--pooling={pooling}") == 0
    found = np.load(output)
    assert found.dtype == np.float32 and found.shape == (45, 32)
    np.testing.assert_allclose(found, vectors, atol=1e-5, rtol=0)
    printed = capsys.readouterr().err
    assert f"45 vectors of 32 numbers, {pooling} of 'review'" in printed and "cut to 32 tokens" in printed


def test_a_killed_command_goes_on_and_gives_the_same_bytes(workdir, table, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(stream, "BATCHES_OF_PART", 2)
  output, whole = tmp_path / "killed.parquet", tmp_path / "whole.parquet"
  assert _embed(workdir, table, "--column=review", f"--output={whole}", "--unit") == 0
  calls = []
  from pretrain.embed.vectors import Embedder

  vectors = Embedder.vectors

  def killed(self, inputs):
    calls.append(len(inputs))
    if len(calls) == 2:
      raise KeyboardInterrupt
    return vectors(self, inputs)

  monkeypatch.setattr(Embedder, "vectors", killed)
  assert _embed(workdir, table, "--column=review", f"--output={output}", "--unit") == 130
  assert not output.exists() and "run the same command again" in capsys.readouterr().err
  assert _embed(workdir, table, "--column=review", f"--output={output}", "--unit") == 0
  assert calls == [16, 16, 16, 13]
  assert output.read_bytes() == whole.read_bytes()
  rows = parquet.read_table(output).to_pylist()
  assert [row["id"] for row in rows] == list(map(str, range(45)))
  np.testing.assert_allclose([np.linalg.norm(row["vector"]) for row in rows], 1, atol=1e-6)
  capsys.readouterr()
  assert _embed(workdir, table, "--column=review", f"--output={output}", "--unit") == 0
  assert capsys.readouterr().err.endswith("killed.parquet is complete: 45 rows answered before\n")
  monkeypatch.undo()
  assert _embed(workdir, table, "--column=review", f"--output={output}") == 2
  assert "is there already" in capsys.readouterr().err


def test_the_nearest_texts_are_found_in_the_input_and_in_stored_vectors(workdir, tmp_path, capsys):
  source, output = tmp_path / "lines.txt", tmp_path / "v.npy"
  source.write_text("the end.\n\nsome longer words\nthe the the x\n", encoding="utf-8")
  look = ["--neighbours=some longer words", "--top=2"]
  assert _embed(workdir, source, *look) == 0
  captured = capsys.readouterr()
  first = captured.out.splitlines()
  assert "3 vectors" in captured.err and first[0].startswith("nearest to 'some longer words'")
  assert first[1].split("  ")[0].strip() == "1.0000" and first[1].endswith(
    "lines.txt, line 3: some longer words"
  )
  assert len(first) == 3
  assert _embed(workdir, source, f"--output={output}", *look) == 0
  assert capsys.readouterr().out.splitlines() == first
  stored = output.read_bytes()
  assert _embed(workdir, source, f"--output={output}", *look) == 0  # reads them
  assert capsys.readouterr().out.splitlines() == first and output.read_bytes() == stored
  assert _embed(workdir, source, f"--output={output}", "--pooling=cls", *look) == 3
  assert "from that of this input, model and --pooling" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary"])
def test_other_forms_are_stored_in_both_files_and_searched(dtype, workdir, tmp_path, capsys):
  source = tmp_path / "lines.txt"
  source.write_text("the end.\nsome longer words\nthe the the x\n", encoding="utf-8")
  npy, table, whole = tmp_path / "v.npy", tmp_path / "v.parquet", tmp_path / "whole.npy"
  assert _embed(workdir, source, f"--output={whole}", "--unit") == 0
  for output in (npy, table):
    flags = (f"--output={output}", "--unit", f"--dtype={dtype}")
    assert _embed(workdir, source, *flags) == 0
    assert _embed(workdir, source, *flags, "--neighbours=some longer words", "--top=1") == 0
    assert "1.0000" in (line := capsys.readouterr().out.splitlines()[1]) or dtype == "binary"
    assert line.endswith("line 2: some longer words")
  expected = dtypes.compressed(np.load(whole), dtype)
  np.testing.assert_array_equal(np.load(npy), expected)
  stored = parquet.read_table(table)["vector"]
  assert stored.type.value_type == pyarrow.from_numpy_dtype(expected.dtype)
  np.testing.assert_array_equal(np.stack(stored.to_numpy()), expected)


@pytest.mark.parametrize(
  ("content", "flags", "code", "message"),
  [
    ("id,a\n1,x\n", (), 3, "but none with the name 'text'; its columns are id, a; choose one with --column"),
    ("id,a\n1,x\n", ("--column=c",), 3, "no column 'c'; its columns are id, a"),
    ("text\n", (), 3, "no row in this file"),
    ("text\nx\n", ("--batch_size=0",), 2, "--batch_size=0: expected at least 1"),
    ("text\nx\n", ("--size=-1",), 2, "--size=-1: the model's vectors have "),
    ("text\nx\n", ("--max_length=999",), 2, "the checkpoint supports at most 128 tokens"),
    ("text\nx\n", ("--output=a.txt",), 2, "expected a name that ends in .npy or .parquet"),
    ("text\nx\n", ("--dtype=int8",), 2, "--dtype=int8 stores directions without lengths"),
    ("text\nx\n", ("--dtype=binary", "--size=12"), 2, "vectors have 12; use"),
    ("text,n\nx\n", (), 3, "in.csv, row 1: 1 cell, expected 2"),
  ],
)
def test_a_mistake_is_one_line(content, flags, code, message, workdir, tmp_path, capsys):
  source = tmp_path / "in.csv"
  source.write_text(content, encoding="utf-8")
  assert _embed(workdir, source, f"--output={tmp_path / 'v.npy'}", *flags) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert message in error and all(way.startswith("  ") for way in ways)
  assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_column_without_lists_has_no_vectors(tmp_path):
  parquet.write_table(pyarrow.table({"vector": ["a"]}), tmp_path / "a.parquet")
  with pytest.raises(DataError, match=r"a\.parquet: not a file of vectors"):
    neighbours.StoredVectors(tmp_path / "a.parquet", "vector")


def test_an_unknown_ending_is_refused_before_the_checkpoint_is_opened(table, tmp_path, capsys):
  assert _embed(tmp_path / "none", table, "--column=review", "--output=a.txt") == 2
  assert "--output=a.txt: expected a name that ends in" in capsys.readouterr().err


def test_texts_of_a_pipe_need_no_file(workdir, texts, tmp_path, monkeypatch, capsys):
  import io

  class Pipe:
    buffer = io.BufferedReader(io.BytesIO("\n".join(texts[:3]).encode()))

  monkeypatch.setattr("sys.stdin", Pipe)
  assert _embed(workdir, "-", f"--output={tmp_path / 'v.npy'}") == 0, capsys.readouterr().err
  assert np.load(tmp_path / "v.npy").shape == (3, 32)
  assert vocabulary.load(workdir / "vocabulary").size


def test_input_and_output_of_a_bucket(workdir, table, tmp_path):
  buckets.put("memory://embed/in", {"in.csv": table.read_bytes()})
  with buckets.machine(tmp_path / "cache"):
    flags = ("--column=review", "--output=memory://embed/vectors.npy")
    assert _embed(workdir, "memory://embed/in/in.csv", *flags) == 0
    assert _embed(workdir, table, "--column=review", f"--output={tmp_path / 'vectors.npy'}") == 0
  found = buckets.fetched("memory://embed", tmp_path / "found")
  assert (found / "vectors.npy").read_bytes() == (tmp_path / "vectors.npy").read_bytes()
  assert buckets.names("memory://embed") == {"in/in.csv", "vectors.npy"}
