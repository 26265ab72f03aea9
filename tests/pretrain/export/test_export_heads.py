"""Exports of fine-tuned checkpoints, and ONNX."""

import json
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from pretrain.export import onnx_file  # noqa: E402
from pretrain.export.check import torch_check  # noqa: E402


@pytest.mark.parametrize("kind", ["t5", "wide_t5"])
def test_onnx_computes_the_same_for_other_batches_and_lengths(
  kind, make_workdir, tmp_path, capsys, in_this_process, export
):
  pytest.importorskip("onnxruntime", reason="needs requirements-export.txt")
  assert export(make_workdir(kind), tmp_path / "out", "--onnx") == 0, capsys.readouterr().err
  captured = capsys.readouterr()
  assert float(re.search(r"onnx: .* ([\d.e-]+)", captured.out).group(1)) <= 1e-5
  assert captured.err == ""
  assert "onnx/model.onnx" in (tmp_path / "out" / "sha256.txt").read_text()


def test_onnx_that_computes_something_else_is_refused(
  make_workdir, tmp_path, capsys, monkeypatch, in_this_process, export
):
  pytest.importorskip("onnxruntime", reason="needs requirements-export.txt")
  monkeypatch.setattr(onnx_file, "_export", lambda *args: None)
  monkeypatch.setattr(onnx_file, "_compare", lambda *args: 1e-3)
  assert export(make_workdir("t5"), tmp_path / "out", "--onnx") == 3
  assert "onnx: hidden states differ by 1.00e-03" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def _classifier(num_labels: int) -> dict:
  rng = np.random.default_rng(3)
  shapes = {"dense": ((32, 32), 32), "output": ((32, num_labels), num_labels)}
  return {
    name: {
      "kernel": rng.standard_normal(kernel).astype(np.float32),
      "bias": rng.standard_normal(bias).astype(np.float32),
    }
    for name, (kernel, bias) in shapes.items()
  }


@pytest.mark.parametrize(
  ("kind", "architecture"),
  [
    ("t5", "MPNetForSequenceClassification"),
    ("wide_t5", "LayoutLMv3ForSequenceClassification"),
    ("wordpiece", "BertForSequenceClassification"),
  ],
)
def test_a_fine_tuned_classifier_answers_through_a_pipeline_with_its_labels(
  kind, architecture, make_workdir, tmp_path, capsys, in_this_process, export
):
  task = {"labels": ["bad", "good", "unsure"], "problem_type": "single_label_classification"}
  workdir = make_workdir(kind, heads={"classification": _classifier(3)}, task=task)
  assert export(workdir, tmp_path / "out") == 0, capsys.readouterr().err
  assert "of classification logits" in capsys.readouterr().out
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config["architectures"] == [architecture]
  assert config["id2label"] == {"0": "bad", "1": "good", "2": "unsure"}
  assert config["problem_type"] == "single_label_classification"


def test_a_pipeline_with_labels_in_another_order_fails_the_self_check(
  make_workdir, tmp_path, capsys, monkeypatch, in_this_process, export
):
  monkeypatch.setattr(
    torch_check,
    "_from_pipeline",
    lambda folder, texts, run=torch_check._from_pipeline: run(folder, texts).flip(1),
  )
  workdir = make_workdir("t5", heads={"classification": _classifier(3)})
  assert export(workdir, tmp_path / "out") == 3
  assert "self-check: the mpnet export differs" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["t5", "wide_t5", "wordpiece"])
def test_a_fine_tuned_question_answerer_gives_our_start_and_end_logits(
  kind, make_workdir, tmp_path, capsys, in_this_process, export
):
  rng = np.random.default_rng(4)
  head = {"kernel": rng.standard_normal((32, 2)).astype(np.float32), "bias": np.float32([0.5, -0.25])}
  workdir = make_workdir(kind, heads={"question_answering": head})
  assert export(workdir, tmp_path / "out") == 0, capsys.readouterr().err
  assert "of question_answering logits" in capsys.readouterr().out
  architecture = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
  assert architecture.endswith("ForQuestionAnswering")
