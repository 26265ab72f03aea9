"""ONNX beside a stock export. Run: python -m pytest tests/pretrain/export/test_onnx.py"""

import re
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
pytest.importorskip("onnxruntime", reason="needs requirements-export.txt")

from pretrain.embed.schema import FILE, EmbeddingSchema  # noqa: E402
from pretrain.export import onnx_file  # noqa: E402


def _linear(outputs: int) -> dict:
  random = np.random.default_rng(3)
  return {
    "kernel": np.float32(random.normal(size=(32, outputs))),
    "bias": np.float32(random.normal(size=outputs)),
  }


def _layers(kind: str) -> int:
  """Few, because the time of PyTorch's exporter grows with layers; the second modern one has a window."""
  return 2 if kind.startswith("modern") else 1


@pytest.mark.parametrize(
  ("kind", "head"),
  [
    ("wordpiece", {"classification": {"dense": _linear(32), "output": _linear(3)}}),
    ("modern_mlm", {"tagging": _linear(4)}),
    pytest.param("t5", {"tagging": _linear(4)}, marks=pytest.mark.nightly),
    pytest.param("wide_t5", {"question_answering": _linear(2)}, marks=pytest.mark.nightly),
  ],
)
def test_onnx_gives_our_logits_in_the_ten_lines_of_the_card(
  kind, head, make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir = make_workdir(kind, {"model.num_layers": _layers(kind)}, heads=head)
  out = tmp_path / "out"
  assert export(workdir, out, "--to=onnx") == 0, capsys.readouterr().err
  assert float(re.search(r"onnx: .* ([\d.e-]+)", capsys.readouterr().err).group(1)) <= 1e-5
  card = (out / "README.md").read_text()
  code = card.partition("tokenizers alone:\n\n```python\n")[2].partition("```")[0]
  assert len(code.splitlines()) <= 10
  names: dict = {}
  exec(code.replace('"out/', f'"{out}/'), names)  # the card names the folder as the user called it
  import transformers

  stock = getattr(transformers, re.search(r"AutoModelFor\w+", card).group()).from_pretrained(out)
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  with torch.no_grad():
    made = stock.eval()(**tokenizer("A sentence.", return_tensors="pt"))
  expected = made.logits if "logits" in made else torch.stack([made.start_logits, made.end_logits], dim=-1)
  np.testing.assert_allclose(names["scores"], expected.numpy(), atol=1e-5)


def test_logits_of_onnx_that_are_others_are_found(tmp_path, monkeypatch):
  ids, hidden = np.ones((2, 3), np.int64), np.zeros((2, 3, 4), np.float32)
  arrays = {"0/ids": ids, "0/mask": ids, "0/hidden": hidden, "0/logits": np.float32([[1, 2, 3], [4, 5, 8]])}
  np.savez(tmp_path / "a.npz", cases=np.frombuffer(b"[{}]", np.uint8), **arrays)

  class Session:
    def __init__(self, *_, **__):
      pass

    def get_outputs(self):
      return [types.SimpleNamespace(name=name) for name in (onnx_file.HIDDEN, onnx_file.LOGITS)]

    def run(self, *_):
      return hidden, arrays["0/logits"] + np.float32([[0, 0, 0], [0, 0.8, 0]])

  monkeypatch.setattr("onnxruntime.InferenceSession", Session)
  assert onnx_file._compare(tmp_path / "a.onnx", tmp_path / "a.npz") == pytest.approx(0.1)


@pytest.mark.parametrize(
  ("kind", "schema"),
  [
    ("wordpiece", EmbeddingSchema(pooling="last", unit=True, passage_prefix="passage: ")),
    pytest.param("t5", EmbeddingSchema(), marks=pytest.mark.nightly),
    pytest.param("modern_mlm", EmbeddingSchema(pooling="cls", unit=True), marks=pytest.mark.nightly),
  ],
)
def test_onnx_of_an_embedding_model_ends_in_its_vectors(
  kind, schema, make_workdir, tmp_path, capsys, in_this_process, export
):
  sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs requirements-dev.txt")
  workdir, out = make_workdir(kind, {"model.num_layers": _layers(kind)}), tmp_path / "out"
  (workdir / FILE).write_text(schema.as_json())
  assert export(workdir, out, "--onnx") == 0, capsys.readouterr().err
  assert float(re.search(r"onnx: .* ([\d.e-]+)", capsys.readouterr().err).group(1)) <= 1e-5
  code = (out / "README.md").read_text().partition("tokenizers alone:\n\n```python\n")[2].partition("```")[0]
  names: dict = {}
  exec(code.replace('"out/', f'"{out}/'), names)
  outputs = [output.name for output in names["session"].get_outputs()]
  assert outputs == ["last_hidden_state", "sentence_embedding"]  # names that the library's backend looks for
  library = sentence_transformers.SentenceTransformer(str(out), device="cpu", local_files_only=True)
  np.testing.assert_allclose(names["vectors"], library.encode_document(["A sentence."]), atol=1e-5)


def test_vectors_of_onnx_that_are_others_are_found(tmp_path, monkeypatch):
  ids, hidden = np.ones((2, 3), np.int64), np.zeros((2, 3, 4), np.float32)
  arrays = {"0/ids": ids, "0/mask": ids, "0/hidden": hidden, "0/vectors": hidden[:, 0]}
  np.savez(tmp_path / "a.npz", cases=np.frombuffer(b"[{}]", np.uint8), **arrays)

  class Session:
    def __init__(self, *_, **__):
      pass

    def get_outputs(self):
      return [types.SimpleNamespace(name=name) for name in (onnx_file.HIDDEN, onnx_file.VECTORS)]

    def run(self, *_):
      return hidden, hidden[:, 0] + 0.25

  monkeypatch.setattr("onnxruntime.InferenceSession", Session)
  assert onnx_file._compare(tmp_path / "a.onnx", tmp_path / "a.npz") == 0.25


@pytest.mark.parametrize("kind", ["t5", pytest.param("wide_t5", marks=pytest.mark.nightly), "modern_mlm"])
def test_onnx_computes_the_same_for_other_batches_and_lengths(
  kind, make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir = make_workdir(kind, {"model.num_layers": _layers(kind)})
  assert export(workdir, tmp_path / "out", "--onnx") == 0, capsys.readouterr().err
  captured = capsys.readouterr()
  assert float(re.search(r"onnx: .* ([\d.e-]+)", captured.err).group(1)) <= 1e-5
  assert captured.out == "" and "warning: " not in captured.err
  assert "onnx/model.onnx" in (tmp_path / "out" / "sha256.txt").read_text()


def test_onnx_that_computes_something_else_is_refused(
  make_workdir, tmp_path, capsys, monkeypatch, in_this_process, export
):
  monkeypatch.setattr(onnx_file, "_export", lambda *args: None)
  monkeypatch.setattr(onnx_file, "_compare", lambda *args: 1e-3)
  workdir = make_workdir("t5", {"model.num_layers": 1})
  assert export(workdir, tmp_path / "out", "--onnx") == 3
  assert "onnx: outputs differ by 1.00e-03" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())
