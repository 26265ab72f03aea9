"""The encoder as ONNX, through PyTorch's exporter, compared with our hidden states in onnxruntime."""

import logging
import pathlib
import warnings

import numpy as np

from data.errors import DataError
from pretrain.export.check import reference as self_check

INPUTS = ("input_ids", "attention_mask")


def write(folder: pathlib.Path, reference: pathlib.Path, *, max_length: int, tolerance: float) -> float:
  """Writes `onnx/model.onnx` of a stock folder and runs it on the sentences of `write_reference`'s .npz.

  Its inputs are input_ids and attention_mask, int64 [batch, length up to max_length]; its output is
  last_hidden_state, float32 [batch, length, embed]. Returns the largest |difference| of hidden states;
  DataError where that is above the tolerance, or the exporter or onnxruntime fails.
  """
  path = folder / "onnx" / "model.onnx"
  path.parent.mkdir()
  try:
    _export(folder, path, max_length)
    worst = _compare(path, reference)
  except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
    line = " ".join(str(error).split())[:300]
    raise DataError(
      f"onnx: PyTorch's exporter or onnxruntime failed ({line}); export without --onnx"
    ) from error
  if not worst <= tolerance:
    raise DataError(
      f"onnx: hidden states differ by {worst:.2e}, allowed {tolerance:.0e}; nothing was kept. --tolerance "
      "states another bound"
    )
  return worst


def _export(folder: pathlib.Path, path: pathlib.Path, max_length: int) -> None:
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
  # The plain attention: fused kernels are traced into more operators and gain nothing here.
  model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

  class LastHidden(torch.nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.encoder = model

    def forward(self, input_ids, attention_mask):
      return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

  length = min(7, max_length - 1)  # neither 1, which is taken for a constant, nor the longest
  ids = torch.ones(2, length, dtype=torch.int64)
  batch = torch.export.Dim("batch", min=1, max=4096)
  tokens = torch.export.Dim("length", min=2, max=max_length)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the exporter's own insides; what it wrote is compared below
    program = torch.onnx.export(
      LastHidden().eval(),
      (ids, torch.ones_like(ids)),
      dynamo=True,
      input_names=list(INPUTS),
      output_names=["last_hidden_state"],
      dynamic_shapes=({0: batch, 1: tokens},) * 2,
      verbose=False,
    )
  assert program is not None  # dynamo=True always returns one
  program.save(str(path))


def _compare(path: pathlib.Path, reference: pathlib.Path) -> float:
  import onnxruntime

  session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
  worst = 0.0
  for ids, mask, expected in self_check.read_reference(reference):
    (hidden,) = session.run(None, dict(zip(INPUTS, (ids, mask))))
    worst = max(worst, float(np.abs(hidden[mask > 0] - expected[mask > 0]).max()))
  return worst
