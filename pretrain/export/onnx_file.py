"""Exports a stock folder to ONNX through PyTorch, and compares it with our outputs in onnxruntime."""

import json
import logging
import pathlib
import warnings
from collections.abc import Sequence

import numpy as np

from data.errors import DataError, on_one_line
from pretrain.embed.schema import EmbeddingSchema
from pretrain.export import embedding_files
from pretrain.export.self_check import Case, difference
from pretrain.ops.positions import segments_of_pairs

INPUTS, TYPES = ("input_ids", "attention_mask"), "token_type_ids"
HIDDEN, LOGITS, VECTORS = "last_hidden_state", "logits", "sentence_embedding"  # outputs
# Fine-tuned classes, whose logits are a second output.
_WITH_LOGITS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def write(
  folder: pathlib.Path,
  cases: Sequence[Case],
  *,
  max_length: int,
  tolerance: float,
  schema: EmbeddingSchema | None = None,
  pair_segments: bool = False,
) -> float:
  """Writes `onnx/model.onnx` of a stock folder; returns its largest |difference| from our outputs in `cases`.

  Inputs are input_ids, attention_mask and, with `pair_segments`, token_type_ids, int64 [batch, length up to
  max_length]. Outputs are float32:

  * last_hidden_state [batch, length, embed];
  * logits of a fine-tuned model: [batch, labels] for texts, [batch, length, labels] for tokens, [batch,
    length, 2] for the start and end of answers;
  * with a `schema` sentence_embedding [batch, embed].

  Differences of logits are divided by max(1, largest |logit|).
  DataError: the difference is above the tolerance, or the exporter or onnxruntime fails.
  """
  path = folder / "onnx" / "model.onnx"
  path.parent.mkdir()
  try:
    inputs = INPUTS + (TYPES,) * pair_segments
    _export(folder, path, max_length, schema, inputs)
    worst = _compare(path, cases, inputs)
  except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
    line = on_one_line(error)[:300]
    raise DataError(
      f"onnx: PyTorch's exporter or onnxruntime failed; export without --onnx ({line})"
    ) from error
  if not worst <= tolerance:
    raise DataError(
      f"onnx: outputs differ by {worst:.2e}, allowed {tolerance:.0e}; nothing was written; "
      f"to allow it\n  --tolerance={2 * worst:.0e}"
    )
  return worst


def _export(
  folder: pathlib.Path,
  path: pathlib.Path,
  max_length: int,
  schema: EmbeddingSchema | None,
  inputs: tuple[str, ...],
) -> None:
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about torchvision, which is not needed
  architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
  has_logits = architecture.endswith(_WITH_LOGITS)
  kind = getattr(transformers, architecture) if has_logits else transformers.AutoModel
  # Fused kernels would be traced into more operators, without a gain.
  model = kind.from_pretrained(folder, attn_implementation="eager").eval()

  class Outputs(torch.nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.model = model

    def forward(self, input_ids, attention_mask, *types):
      named = dict(zip(inputs, (input_ids, attention_mask, *types)))
      made = self.model(**named, output_hidden_states=has_logits)
      outputs = [made.hidden_states[-1] if has_logits else made.last_hidden_state]
      if "start_logits" in made:
        outputs.append(torch.stack([made.start_logits, made.end_logits], dim=-1))
      elif has_logits:
        outputs.append(made.logits)
      return *outputs, *([embedding_files.pooled(outputs[0], attention_mask, schema)] if schema else [])

  length = min(7, max_length - 1)  # the exporter would take 1, or the maximum, for a constant
  ids = torch.ones(2, length, dtype=torch.int64)
  batch = torch.export.Dim("batch", min=1, max=4096)
  tokens = torch.export.Dim("length", min=2, max=max_length)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the exporter's internals; its output is compared below
    program = torch.onnx.export(
      Outputs().eval(),
      (ids, *[torch.ones_like(ids)] * (len(inputs) - 1)),
      dynamo=True,
      input_names=list(inputs),
      output_names=[HIDDEN, *[LOGITS] * has_logits, *[VECTORS] * bool(schema)],
      dynamic_shapes=({0: batch, 1: tokens},) * 2 + (({0: batch, 1: tokens},),) * (len(inputs) > 2),
      verbose=False,
    )
  assert program is not None  # dynamo=True always returns one
  program.save(str(path))


def _compare(path: pathlib.Path, cases: Sequence[Case], inputs: tuple[str, ...]) -> float:
  import onnxruntime

  session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
  names, worst = [output.name for output in session.get_outputs()], 0.0
  for case in cases:
    types = np.asarray(segments_of_pairs(case.ids, case.mask > 0), np.int64)
    made = session.run(None, dict(zip(inputs, (case.ids, case.mask, types))))
    outputs, is_token = dict(zip(names, map(np.asarray, made))), case.mask > 0
    worst = max(worst, difference(outputs[HIDDEN], case.hidden, is_token))
    if VECTORS in outputs and case.vectors is not None:
      worst = max(worst, difference(outputs[VECTORS], case.vectors))
    if LOGITS in outputs and case.logits is not None:
      where = is_token if case.logits.ndim == 3 else ...  # logits for tokens, or for texts
      worst = max(worst, difference(outputs[LOGITS], case.logits, where, relative=True))
  return worst
