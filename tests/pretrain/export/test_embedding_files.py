"""Embedding models in the files of sentence-transformers: written, read, and loaded by the library."""

import json
import pathlib
import re
import shutil
import warnings
from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs requirements-dev.txt")

from pretrain.checkpoints.saved_model import open_model  # noqa: E402
from pretrain.embed.schema import FILE, EmbeddingSchema  # noqa: E402
from pretrain.embed.vectors import Embedder  # noqa: E402
from pretrain.export import __main__, embedding_files, torch_pooling  # noqa: E402
from pretrain.export.check import torch_check  # noqa: E402
from pretrain.export.folders import EXTRA  # noqa: E402
from pretrain.ops.pooling import pool  # noqa: E402
from tests import lines  # noqa: E402

# Of several lengths, so that rows are padded; the last one is truncated.
TEXTS = ["a word", "some more words, than the first", "x", "many words and more of them " * 9]
PREFIXED: dict[str, Any] = {"query_prefix": "query: ", "passage_prefix": "passage: "}
CUT: dict[str, Any] = {"query_length": 40, "passage_length": 40}


@pytest.fixture(autouse=True)
def on_one_device(monkeypatch):
  monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])


@pytest.fixture
def make_model(make_workdir):
  """kind, fields of the schema -> the workdir of an embedding model."""

  def make(kind: str = "wordpiece", config: dict | None = None, **schema) -> pathlib.Path:
    workdir = make_workdir(kind, config)
    (workdir / FILE).write_text(EmbeddingSchema(**schema).as_json())
    return workdir

  return make


def _ours(workdir: pathlib.Path, side: str) -> np.ndarray:
  encoder = open_model(workdir).open_encoder(dtype="float32")
  embedder = Embedder(encoder, EmbeddingSchema.read(workdir), batch_size=4)
  return embedder.vectors(embedder.inputs(TEXTS, side))


def _library(folder: pathlib.Path) -> sentence_transformers.SentenceTransformer:
  return sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.parametrize(
  ("kind", "schema"),
  [
    ("t5", {"unit": True, **PREFIXED, **CUT}),
    ("wide_t5", {"pooling": "last", "query_prefix": "query: "}),
    ("wordpiece", {"pooling": "cls", "unit": True, "passage_prefix": "passage: "}),
    ("modern_mlm", {"pooling": "last", "unit": True, **PREFIXED, **CUT}),
    pytest.param("electra", {"unit": True, **PREFIXED}, marks=pytest.mark.nightly),
    pytest.param("byte_level", {"pooling": "last", **PREFIXED, **CUT}, marks=pytest.mark.nightly),
    pytest.param("ultra_electra", {"pooling": "cls"}, marks=pytest.mark.nightly),
    pytest.param("euro_electra", {**PREFIXED, **CUT}, marks=pytest.mark.nightly),
  ],
)
def test_the_stock_library_gives_our_vectors_and_an_import_of_its_folder_too(
  kind, schema, make_model, tmp_path, capsys, caplog, in_this_process, export
):
  workdir, output = make_model(kind, **schema), tmp_path / "out"
  assert export(workdir, output) == 0, capsys.readouterr().err
  printed = capsys.readouterr().err
  assert "files of sentence-transformers are written too" in printed
  assert float(re.search(r"of vectors ([\d.e-]+) \(.*query, passage", printed).group(1)) <= 1e-5
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    library = _library(output)
  assert "deprecat" not in caplog.text
  # Before it reads texts, because it stores the truncation of its last call in a tokenizer.json.
  library.save_pretrained(str(tmp_path / "saved"))
  queries, passages = _ours(workdir, "query"), _ours(workdir, "passage")
  np.testing.assert_allclose(library.encode_query(TEXTS), queries, atol=1e-5, rtol=0)
  np.testing.assert_allclose(library.encode_document(TEXTS), passages, atol=1e-5, rtol=0)
  np.testing.assert_allclose(library.encode(TEXTS), passages, atol=1e-5, rtol=0)
  assert np.abs(queries - passages).max() > 1e-3 or not any("prefix" in name for name in schema)
  # What the library writes, in its own spelling, is read as what we wrote.
  back = tmp_path / "back"
  if (output / EXTRA).is_file():
    shutil.copyfile(output / EXTRA, tmp_path / "saved" / EXTRA)
  flags = [f"--from={tmp_path / 'saved'}", f"--output={back}", f"--vocabulary={workdir / 'vocabulary'}"]
  assert __main__.main(["import", *flags]) == 0, capsys.readouterr().err
  assert EmbeddingSchema.read(back) == EmbeddingSchema(**schema)
  np.testing.assert_allclose(_ours(back, "query"), queries, atol=1e-6, rtol=0)
  again = tmp_path / "again"
  assert export(back, again) == 0, capsys.readouterr().err
  np.testing.assert_allclose(_library(again).encode_document(TEXTS), passages, atol=1e-5, rtol=0)


def test_files_are_as_version_3_reads_them(make_model, tmp_path, capsys, in_this_process, export):
  """It passes each field of a config to the module; without a switch for the mean, it takes the mean too."""
  assert export(make_model(pooling="last", unit=True, **PREFIXED), tmp_path / "out") == 0
  read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
  assert [(module["path"], module["type"]) for module in read["modules.json"]] == [
    ("", "sentence_transformers.models.Transformer"),
    ("1_Pooling", "sentence_transformers.models.Pooling"),
    ("2_Normalize", "sentence_transformers.models.Normalize"),
  ]
  assert read["sentence_bert_config.json"] == {"max_seq_length": 128, "do_lower_case": False}
  settings = read["config_sentence_transformers.json"]
  assert settings["prompts"] == {"query": "query: ", "document": "passage: "}
  assert settings["default_prompt_name"] == "document" and settings["similarity_fn_name"] == "cosine"
  assert json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text()) == {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
  }


@pytest.mark.parametrize("has_library", [True, False])
def test_files_that_say_something_else_fail_the_self_check(
  has_library, make_model, tmp_path, capsys, monkeypatch, in_this_process, export
):
  if not has_library:
    monkeypatch.setattr(torch_check, "find_spec", lambda name: None)
    assert export(make_model(unit=True, **PREFIXED), tmp_path / "out") == 0, capsys.readouterr().err
    assert float(re.search(r"of vectors ([\d.e-]+)", capsys.readouterr().err).group(1)) <= 1e-5
  write = embedding_files.write

  def other(folder, schema, config):
    write(folder, EmbeddingSchema(pooling="cls", unit=True, **PREFIXED), config)

  monkeypatch.setattr(embedding_files, "write", other)
  assert export(make_model(unit=True, **PREFIXED), tmp_path / "other") == 3
  assert "differs from this model by" in capsys.readouterr().err
  assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_is_left_out(pooling, side):
  hidden = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
  mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
  expected = pool(jax.numpy.asarray(hidden), jax.numpy.asarray(mask > 0), pooling)
  if side == "left":
    hidden, mask = np.stack([np.roll(hidden[0], 2, axis=0), hidden[1]]), mask[:, ::-1].copy()
  made = torch_pooling.vectors(torch.tensor(hidden), torch.tensor(mask), EmbeddingSchema(pooling=pooling))
  np.testing.assert_allclose(made, expected, atol=1e-6)


def test_the_card_says_how_vectors_are_made(make_model, tmp_path, capsys, in_this_process, export):
  schema = {"pooling": "last", "unit": True, **PREFIXED, "query_length": 20, "passage_length": 60}
  workdir, output = make_model(sizes=(8, 16), **schema), tmp_path / "out"
  assert export(workdir, output) == 0
  assert json.loads((output / "sentence_bert_config.json").read_text())["max_seq_length"] == 60
  assert EmbeddingSchema.read(output) == EmbeddingSchema.read(workdir)
  card = (output / "README.md").read_text()
  for phrase in (
    "library_name: sentence-transformers\npipeline_tag: sentence-similarity",
    "A text embedding model: ",
    "A vector is the hidden state at the last token, divided by its length.",
    '`encode_query` puts `"query: "` before each text, `encode_document` and `encode` put `"passage: "`.',
    "at most 20 tokens, documents with 60; `max_seq_length` is the larger.",
    "The first 8, 16 numbers",
    ", vectors by ",
    "results = mteb.evaluate(model, tasks)",
  ):
    assert phrase in card, phrase
  assert "$" not in card
  code = card.partition("With sentence-transformers:\n\n```python\n")[2].partition("```")[0]
  names: dict = {}
  exec(code.replace('"out"', f'"{output}"'), names)
  assert names["scores"].shape == (1, 1)
  shorter = sentence_transformers.SentenceTransformer(str(output), device="cpu", truncate_dim=8)
  encoder = open_model(workdir).open_encoder(dtype="float32")
  ours = Embedder(encoder, EmbeddingSchema.read(workdir), batch_size=4, size=8)
  theirs = shorter.encode_document(TEXTS[:3], normalize_embeddings=True)
  np.testing.assert_allclose(theirs, ours.vectors(ours.inputs(TEXTS[:3])), atol=1e-5)


def test_a_layout_that_the_library_cannot_read_keeps_the_schema(
  make_model, tmp_path, capsys, in_this_process, export
):
  workdir, output, back = make_model(pooling="cls", **PREFIXED), tmp_path / "out", tmp_path / "back"
  assert export(workdir, output, "--to=torch") == 0, capsys.readouterr().err
  assert not (output / "modules.json").exists() and FILE in (output / "sha256.txt").read_text()
  assert __main__.main(["import", f"--from={output}", f"--output={back}"]) == 0, capsys.readouterr().err
  assert EmbeddingSchema.read(back) == EmbeddingSchema.read(workdir)
  assert export(make_model(), tmp_path / "no", "--to=torch", "--sentence_transformers") == 2


def _folder(root: pathlib.Path, **files) -> pathlib.Path:
  """The files of a sentence-transformers model, without its encoder; `files` replaces some."""
  kinds = ("Transformer", "Pooling", "Normalize")
  contents = {
    "modules": [{"path": f"{n}_{kind}" * (n > 0), "type": f"sentence_transformers.models.{kind}"}
                for n, kind in enumerate(kinds)],
    "pooling": {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers": {"prompts": {"query": "q: ", "passage": "p: ", "STS": "s: "}},
    "sentence_bert_config": {"max_seq_length": 64, "do_lower_case": False},
  } | files  # fmt: skip
  (root / "1_Pooling").mkdir(parents=True)
  for name, content in contents.items():
    path = root / "1_Pooling" / "config.json" if name == "pooling" else root / f"{name}.json"
    path.write_text(json.dumps(content))
  return root


@pytest.mark.parametrize(
  ("pooling", "expected"),
  [
    ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
    ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
    ({"embedding_dimension": 8, "pooling_mode": "lasttoken"}, "last"),
    ({"embedding_dimension": 8, "pooling_mode": ["cls"]}, "cls"),
    ({"word_embedding_dimension": 8}, "mean"),
  ],
)
def test_both_spellings_of_the_pooling_are_read(pooling, expected, tmp_path):
  said = []
  with lines.heard(said.append):
    schema = embedding_files.read(_folder(tmp_path / "in", pooling=pooling), cased=True, positions=128)
  assert schema == EmbeddingSchema(
    pooling=expected,
    unit=True,
    query_prefix="q: ",
    passage_prefix="p: ",
    query_length=64,
    passage_length=64,
  )
  assert "other than of query and document are not imported: STS" in "".join(said)


def _modules(*kinds: str) -> list[dict]:
  return [{"path": f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"}
          for number, kind in enumerate(kinds)]  # fmt: skip


@pytest.mark.parametrize(
  ("files", "message"),
  [
    ({"modules": _modules("Transformer", "Pooling", "Dense", "Normalize")}, "Pooling, Dense, Normalize"),
    ({"modules": _modules("Transformer")}, "chain Transformer (known"),
    ({"modules": [{"type": "own.Transformer"}, *_modules("", "Pooling")[1:]]}, "chain own.Transformer"),
    ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling by max_tokens (known: cls, mean, last)"),
    ({"pooling": {"pooling_mode": ["cls", "mean"]}}, "pooling by cls, mean"),
    ({"pooling": {"pooling_mode": "weightedmean"}}, "pooling by weightedmean"),
    ({"pooling": {"include_prompt": False}}, "include_prompt"),
    ({"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case"),
  ],
)
def test_what_has_no_counterpart_is_refused_with_the_way_to_the_encoder(files, message, tmp_path):
  with pytest.raises(embedding_files.DataError, match=re.escape(message)) as caught:
    embedding_files.read(_folder(tmp_path / "in", **files), cased=True, positions=128)
  first, *ways = str(caught.value).replace(str(tmp_path), "").splitlines()
  assert len(first) <= 160 and ways == ["  --encoder_only"]


@pytest.mark.parametrize(
  ("files", "message"),
  [
    ({"modules": {}}, "expected a JSON array"),
    ({"modules": [{"type": "sentence_transformers.Transformer"},
                  {"type": "sentence_transformers.Pooling", "path": "../1_Pooling"}]},
     "'../1_Pooling' is not a folder in its folder"),
    ({"modules": [{"type": "sentence_transformers.Transformer"},
                  {"type": "sentence_transformers.Pooling", "path": ".."}]}, "'..' is not a folder"),
    ({"config_sentence_transformers": {"prompts": {"query": 3}}}, "are not texts and a number"),
    ({"config_sentence_transformers": {"prompts": ["q: "]}}, "are not texts and a number"),
    ({"sentence_bert_config": {"max_seq_length": "64"}}, "are not texts and a number"),
    ({"sentence_bert_config": {"max_seq_length": -1}}, "are not texts and a number"),
    ({"embedding": {"version": 1}}, "damaged"),
  ],
)  # fmt: skip
def test_a_damaged_folder_is_refused(files, message, tmp_path):
  with pytest.raises(embedding_files.DataError, match=re.escape(message)):
    embedding_files.read(_folder(tmp_path / "in", **files), cased=True, positions=128)


def test_the_encoder_of_an_unsupported_model_can_be_imported_alone(
  make_model, tmp_path, capsys, in_this_process, export
):
  output = tmp_path / "out"
  assert export(make_model(), output) == 0
  (output / FILE).unlink()
  for path in (output / "sha256.txt", output / "modules.json", output / "1_Pooling" / "config.json"):
    path.unlink()
  (output / "1_Pooling").rmdir()
  _folder(output, modules=_modules("Transformer", "Pooling", "Dense"))
  flags = ["import", f"--from={output}", f"--output={tmp_path / 'back'}"]
  assert __main__.main(flags) == 3
  assert "\n  --encoder_only" in capsys.readouterr().err and not (tmp_path / "back").exists()
  assert __main__.main([*flags, "--encoder_only"]) == 0, capsys.readouterr().err
  assert not (tmp_path / "back" / FILE).exists()
