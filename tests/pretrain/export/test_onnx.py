"""ONNX beside a stock export. Run: python -m pytest tests/pretrain/export/test_onnx.py"""

import re

import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
pytest.importorskip("onnxruntime", reason="needs requirements-export.txt")

from pretrain.export import onnx_file  # noqa: E402


@pytest.mark.parametrize("kind", ["t5", pytest.param("wide_t5", marks=pytest.mark.nightly)])
def test_onnx_computes_the_same_for_other_batches_and_lengths(
  kind, make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir = make_workdir(kind, {"model.num_layers": 1})  # the time of PyTorch's exporter grows with layers
  assert export(workdir, tmp_path / "out", "--onnx") == 0, capsys.readouterr().err
  captured = capsys.readouterr()
  assert float(re.search(r"onnx: .* ([\d.e-]+)", captured.out).group(1)) <= 1e-5
  assert captured.err == ""
  assert "onnx/model.onnx" in (tmp_path / "out" / "sha256.txt").read_text()


def test_onnx_that_computes_something_else_is_refused(
  make_workdir, tmp_path, capsys, monkeypatch, in_this_process, export
):
  monkeypatch.setattr(onnx_file, "_export", lambda *args: None)
  monkeypatch.setattr(onnx_file, "_compare", lambda *args: 1e-3)
  workdir = make_workdir("t5", {"model.num_layers": 1})
  assert export(workdir, tmp_path / "out", "--onnx") == 3
  assert "onnx: hidden states differ by 1.00e-03" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())
