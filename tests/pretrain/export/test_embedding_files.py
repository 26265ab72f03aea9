"""Embedding models in the files of sentence-transformers: written, read, and loaded by the library."""

import dataclasses
import json
import pathlib
import shutil
import warnings
from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs requirements-dev.txt")

from pretrain.checkpoints.saved_model import open_model  # noqa: E402
from pretrain.embed import schema as schemas  # noqa: E402
from pretrain.embed.schema import FILE, EmbeddingSchema  # noqa: E402
from pretrain.embed.vectors import Embedder  # noqa: E402
from pretrain.export import __main__, embedding_files  # noqa: E402
from pretrain.export.weight_files import EXTRA  # noqa: E402
from tests import lines  # noqa: E402
from tests.pretrain.export.refusals import failing  # noqa: E402

# Of several lengths, so that rows are padded; the last one is truncated.
TEXTS = ["a word", "some more words, than the first", "x", "many words and more of them " * 9]
BOTH: dict[str, Any] = {"query_prefix": "query: ", "passage_prefix": "passage: "}
KINDS = {
  "t5": EmbeddingSchema(unit=True, **BOTH, query_length=40, passage_length=40),
  "wide_t5": EmbeddingSchema(pooling="cls", query_prefix="query: "),  # its class needs an image processor
  "modern_mlm": EmbeddingSchema(
    "last", True, **BOTH, query_length=40, passage_length=60, sizes=(16, 8)
  ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_one_device(monkeypatch):
  monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])


def _ours(workdir: pathlib.Path, side: str, texts=TEXTS, **options) -> np.ndarray:
  encoder = open_model(workdir).open_encoder(dtype="float32")
  embedder = Embedder(encoder, EmbeddingSchema.read(workdir), batch_size=4, **options)
  return embedder.vectors(embedder.inputs(texts, side))


def _library(folder: pathlib.Path, **options) -> sentence_transformers.SentenceTransformer:
  options |= {"device": "cpu", "local_files_only": True}
  return sentence_transformers.SentenceTransformer(str(folder), **options)


def test_the_library_gives_our_vectors_and_an_import_of_its_folder_too(exported, tmp_path, caplog, bring):
  for kind, schema in KINDS.items():
    workdir, output, said = exported(kind, schema=schema)
    assert "of vectors " in said and "query, passage" in said
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      library = _library(output)
    assert "deprecat" not in caplog.text
    # Before it reads texts, because it stores the truncation of its last call in a tokenizer.json.
    saved, back = tmp_path / f"saved {kind}", tmp_path / f"back {kind}"
    library.save_pretrained(str(saved))
    texts = TEXTS[:3] if kind == "modern_mlm" else TEXTS  # the library has one length for both sides
    queries, passages = (_ours(workdir, side, texts) for side in ("query", "passage"))
    assert np.abs(queries - passages).max() > 1e-3, kind
    np.testing.assert_allclose(library.encode_query(texts), queries, atol=1e-5, rtol=0)
    for encode in (library.encode_document, library.encode):
      np.testing.assert_allclose(encode(texts), passages, atol=1e-5, rtol=0)
    # What the library writes, in its own spelling, is read as what we wrote, if it has a place there.
    if (output / EXTRA).is_file():
      shutil.copyfile(output / EXTRA, saved / EXTRA)
    read = EmbeddingSchema.read(bring(saved, back, f"--vocabulary={workdir / 'vocabulary'}"))
    longest = _lengths(schema.passage_length)
    assert dataclasses.asdict(read) == dataclasses.asdict(schema) | longest | {"sizes": ()}
    np.testing.assert_allclose(_ours(back, "query", texts), queries, atol=1e-6, rtol=0)


def test_files_are_as_version_3_reads_them_and_the_card_names_lengths(exported):
  """It passes each field of a config to the module; without a switch for the mean, it takes the mean too."""
  workdir, output, _ = exported("modern_mlm", schema=KINDS["modern_mlm"])
  read = {path.name: json.loads(path.read_text()) for path in output.glob("*.json")}
  assert [(module["path"], module["type"]) for module in read["modules.json"]] == [
    ("", "sentence_transformers.models.Transformer"),
    ("1_Pooling", "sentence_transformers.models.Pooling"),
    ("2_Normalize", "sentence_transformers.models.Normalize"),
  ]
  assert read["sentence_bert_config.json"] == {"max_seq_length": 60, "do_lower_case": False}
  settings = read["config_sentence_transformers.json"]
  assert settings["prompts"] == {"query": "query: ", "document": "passage: "}
  assert settings["default_prompt_name"] == "document" and settings["similarity_fn_name"] == "cosine"
  assert json.loads((output / "1_Pooling" / "config.json").read_text()) == {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
  }
  assert EmbeddingSchema.read(output) == EmbeddingSchema.read(workdir)  # lengths of both sides, and sizes
  card = (output / "README.md").read_text()
  assert "at most 40 tokens, documents with 60" in card and "The first 8, 16 numbers" in card
  theirs = _library(output, truncate_dim=8).encode_document(TEXTS[:3], normalize_embeddings=True)
  np.testing.assert_allclose(theirs, _ours(workdir, "passage", TEXTS[:3], size=8), atol=1e-5)


def test_pooling_in_torch_is_right_with_padding_on_either_side():
  hidden = np.float32(np.random.default_rng(0).normal(size=(4, 7, 5)))
  mask = np.arange(7) < np.array([[7], [4], [1], [5]])
  mask[3] = mask[3][::-1]  # padded on the left
  for pooling in ("cls", "mean", "last"):
    tokens = [row[on] for row, on in zip(hidden, mask)]
    expected = np.stack([{"cls": t[0], "mean": t.mean(0), "last": t[-1]}[pooling] for t in tokens])
    for unit in (False, True):
      schema, expected = EmbeddingSchema(pooling, unit), schemas.unit(expected) if unit else expected
      found = embedding_files.pooled(torch.tensor(hidden), torch.tensor(mask).long(), schema).numpy()
      np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_layout_that_the_library_cannot_read_keeps_the_schema(exported, tmp_path, bring):
  _, output, _ = exported("homeless", "--to=torch", schema=KINDS["modern_mlm"])
  assert not (output / "modules.json").exists() and FILE in (output / "sha256.txt").read_text()
  assert EmbeddingSchema.read(bring(output, tmp_path / "back")) == KINDS["modern_mlm"]


def _modules(*kinds: str, **paths: str) -> list[dict]:
  paths = {kind: f"{number}_{kind}" for number, kind in enumerate(kinds)} | paths
  return [{"path": paths[kind], "type": f"sentence_transformers.models.{kind}"} for kind in kinds]


def _folder(root: pathlib.Path, **files) -> pathlib.Path:
  """The files of a sentence-transformers model, without its encoder; `files` replaces some."""
  contents = {
    "modules": _modules("Transformer", "Pooling", "Normalize"),
    "pooling": {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers": {"prompts": {"query": "q: ", "passage": "p: ", "STS": "s: "}},
    "sentence_bert_config": {"max_seq_length": 64, "do_lower_case": False},
  } | files
  (root / "1_Pooling").mkdir(parents=True, exist_ok=True)
  for name, content in contents.items():
    path = root / "1_Pooling" / "config.json" if name == "pooling" else root / f"{name}.json"
    path.write_text(json.dumps(content))
  return root


def _lengths(most: int) -> dict:
  return {"query_length": most, "passage_length": most}


def _prefixes(passage: str, query: str = "") -> dict:
  return {"query_prefix": query, "passage_prefix": passage}


def test_both_spellings_of_pooling_prompts_and_lengths_are_read(tmp_path):
  query, length = "config_sentence_transformers", "sentence_bert_config"
  rows = [  # files, fields of the schema that are others than unit=True, mean, q:, p:, 64
    ({"pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}, {"pooling": "cls"}),
    ({"pooling": {"pooling_mode_lasttoken": True, "include_prompt": True}}, {"pooling": "last"}),
    ({"pooling": {"embedding_dimension": 8, "pooling_mode": "lasttoken"}}, {"pooling": "last"}),
    ({"pooling": {"embedding_dimension": 8, "pooling_mode": ["cls"]}}, {"pooling": "cls"}),
    ({"pooling": {"word_embedding_dimension": 8}}, {}),
    ({"modules": _modules("Transformer", "Pooling")}, {"unit": False}),
    ({query: {"prompts": {"document": "d: ", "passage": "p: "}}}, _prefixes("d: ")),
    ({query: {"prompts": {"corpus": "c: "}}}, _prefixes("c: ")),
    ({query: {}}, _prefixes("")),
    ({length: {"max_seq_length": 128}}, _lengths(0)),
    ({length: {"max_seq_length": 127}}, _lengths(127)),
    ({length: {}, "tokenizer_config": {"model_max_length": 32}}, _lengths(32)),
    ({length: {}, "tokenizer_config": {"model_max_length": int(1e30)}}, _lengths(0)),
  ]
  for at, (files, fields) in enumerate(rows):
    said: list[str] = []
    with lines.heard(said.append):
      schema = embedding_files.read(_folder(tmp_path / str(at), **files), cased=True, positions=128)
    expected = {"unit": True} | _prefixes("p: ", "q: ") | _lengths(64) | fields
    assert schema == EmbeddingSchema(**expected), files
    assert ("not imported: STS" in "".join(said)) == (query not in files)
  assert embedding_files.read(tmp_path, cased=True, positions=128) is None
  lower = _folder(tmp_path / "lower", sentence_bert_config={"do_lower_case": True})
  assert embedding_files.read(lower, cased=False, positions=128) is not None


_OWN = [{"type": "own.Transformer"}, *_modules("", "Pooling")[1:]]
REFUSED = [  # files, a word of the refusal; those of the first group have a way to the encoder
  ({"modules": _modules("Transformer", "Pooling", "Dense", "Normalize")}, "Pooling, Dense, Normalize"),
  ({"modules": _modules("Transformer")}, "chain Transformer"),
  ({"modules": _OWN}, "chain own.Transformer"),
  ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling by max_tokens"),
  ({"pooling": {"pooling_mode": ["cls", "mean"]}}, "pooling by cls, mean"),
  ({"pooling": {"include_prompt": False}}, "include_prompt"),
  ({"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case"),
  ({"modules": {}}, "modules.json"),
  ({"modules": _modules("Transformer", "Pooling", Pooling="../1_Pooling")}, "'../1_Pooling'"),
  ({"modules": _modules("Transformer", "Pooling", Pooling="..")}, "'..'"),
  ({"config_sentence_transformers": {"prompts": {"query": 3}}}, "prompts"),
  ({"config_sentence_transformers": {"prompts": ["q: "]}}, "prompts"),
  ({"sentence_bert_config": {"max_seq_length": "64"}}, "max_seq_length"),
  ({"sentence_bert_config": {"max_seq_length": -1}}, "max_seq_length"),
]


def test_what_has_no_counterpart_is_refused(exported, tmp_path, capsys, bring):
  def read(files):
    embedding_files.read(_folder(tmp_path / "in", **files), cased=True, positions=128)

  ways = [(files, "\n  --encoder_only") for files, _ in REFUSED[:7]]
  assert not failing([*REFUSED, *ways], read)
  output = shutil.copytree(exported("t5", schema=KINDS["t5"]).folder, tmp_path / "out")
  for name in (FILE, "sha256.txt"):
    (output / name).unlink()
  _folder(output, modules=_modules("Transformer", "Pooling", "Dense"))
  assert __main__.main(["import", f"--from={output}", f"--output={tmp_path / 'back'}"]) == 3
  assert "\n  --encoder_only" in capsys.readouterr().err and not (tmp_path / "back").exists()
  assert not (bring(output, tmp_path / "back", "--encoder_only") / FILE).exists()
