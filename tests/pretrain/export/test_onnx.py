"""ONNX beside a stock export."""

import re
import types
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
pytest.importorskip("onnxruntime", reason="needs requirements-export.txt")

from data.errors import DataError  # noqa: E402
from pretrain.embed.schema import FILE, EmbeddingSchema  # noqa: E402
from pretrain.export import onnx_file  # noqa: E402
from pretrain.export.self_check import Case  # noqa: E402
from tests.pretrain.export.test_fine_tuned import head  # noqa: E402

SCHEMA = EmbeddingSchema(pooling="last", unit=True, passage_prefix="passage: ")


def _made(kind, flag, make_workdir, tmp_path, capsys, export, schema=None, **model):
  """The folder, and the names that the ten lines of its card made."""
  # Few layers, because the time of PyTorch's exporter grows with them; the second modern one has a window.
  workdir = make_workdir(kind, {"model.num_layers": 2 if kind.startswith("modern") else 1}, **model)
  if schema:
    (workdir / FILE).write_text(schema.as_json())
  out = tmp_path / kind
  assert export(workdir, out, flag) == 0, capsys.readouterr().err
  captured = capsys.readouterr()
  assert float(re.search(r"onnx: .* ([\d.e-]+)", captured.err).group(1)) <= 1e-5
  assert captured.out == "" and "warning: " not in captured.err
  assert "onnx/model.onnx" in (out / "sha256.txt").read_text()
  code = (out / "README.md").read_text().partition("tokenizers alone:\n\n```python\n")[2].partition("```")[0]
  assert len(code.splitlines()) <= 10
  names: dict = {}
  exec(code.replace(f'"{kind}/', f'"{out}/'), names)  # the card names the folder as the user called it
  return out, names


def test_onnx_gives_our_logits_in_the_ten_lines_of_the_card(make_workdir, tmp_path, capsys, export):
  import transformers

  for kind, flag, name in (
    ("wordpiece", "--to=onnx", "classification"),
    ("t5", "--onnx", "question_answering"),
  ):
    out, names = _made(kind, flag, make_workdir, tmp_path, capsys, export, heads=head(name))
    card = (out / "README.md").read_text()
    stock = getattr(transformers, re.search(r"AutoModelFor\w+", card).group()).from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    with torch.no_grad():
      made = stock.eval()(**tokenizer("A sentence.", return_tensors="pt"))
    expected = made.logits if "logits" in made else torch.stack([made.start_logits, made.end_logits], dim=-1)
    np.testing.assert_allclose(names["scores"], expected.numpy(), atol=1e-5)
    for rows, length in ((1, 2), (3, 128)):  # other batches and lengths than those of the exporter
      ids = np.random.default_rng(rows).integers(7, 200, (rows, length))
      hidden = names["session"].run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
      assert hidden.shape == (rows, length, 32)


def test_onnx_of_an_embedding_model_ends_in_its_vectors(make_workdir, tmp_path, capsys, export):
  import transformers

  out, names = _made("modern_mlm", "--onnx", make_workdir, tmp_path, capsys, export, SCHEMA)
  outputs = [output.name for output in names["session"].get_outputs()]
  assert outputs == ["last_hidden_state", "sentence_embedding"]  # names that the library's backend looks for
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  with torch.no_grad():
    inputs = tokenizer("passage: A sentence.", return_tensors="pt")
    last = transformers.AutoModel.from_pretrained(out).eval()(**inputs).last_hidden_state[:, -1].numpy()
  np.testing.assert_allclose(names["vectors"], last / np.linalg.norm(last), atol=1e-5)


def test_onnx_that_computes_something_else_is_refused(tmp_path, monkeypatch):
  """The session is a stub: PyTorch's exporter makes no faults on demand."""
  ids, hidden = np.ones((2, 3), np.int64), np.zeros((2, 3, 4), np.float32)
  logits, mask = np.float32([[1, 2, 3], [4, 5, 8]]), np.asarray([[1, 1, 1], [1, 0, 0]])
  names = {"logits": onnx_file.LOGITS, "vectors": onnx_file.VECTORS}
  monkeypatch.setattr(onnx_file, "_export", lambda *_: None)
  for at, (name, expected, found, difference) in enumerate(
    (
      ("logits", logits, logits + np.float32([[0, 0, 0], [0, 0.8, 0]]), 0.1),  # of the largest
      ("logits", logits / 16, logits / 16 - np.float32(0.25), 0.25),
      ("logits", hidden, hidden + mask[..., None] * 0.5, 0.5),
      ("logits", hidden, hidden + (1 - mask[..., None]), 0),  # logits of padding
      ("vectors", hidden[:, 0], hidden[:, 0] + 0.25, 0.25),
    )
  ):
    cases = [Case("texts", (), ids, mask, hidden, **{name: expected})]
    outputs = [types.SimpleNamespace(name=each) for each in (onnx_file.HIDDEN, names[name])]
    session = mock.Mock(**{"get_outputs.return_value": outputs, "run.return_value": (hidden, found)})
    monkeypatch.setattr("onnxruntime.InferenceSession", mock.Mock(return_value=session))
    (tmp_path / str(at)).mkdir()
    limits = {"max_length": 3, "tolerance": 1.0}
    assert onnx_file.write(tmp_path / str(at), cases, **limits) == pytest.approx(difference)
  (tmp_path / "last").mkdir()
  with pytest.raises(DataError, match=r"by 2.50e-01.*\n  --tolerance=5e-01"):
    onnx_file.write(tmp_path / "last", cases, max_length=3, tolerance=0.2)
