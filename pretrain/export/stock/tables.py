"""Maps tensor names of stock transformers classes (BERT, ELECTRA, MPNet, LayoutLMv3) to our paths.

Names here lack the base model's prefix (`bert.` and so on), which is optional in checkpoints.

Source of the names: transformers 5.23, modeling_{bert,electra,mpnet,layoutlmv3}.py.
"""

import numpy as np

from pretrain.export.tensor_rows import OUTPUT_KERNEL, SAME, Layout, Part, Row, Tie, linear, norm

HEADS_KERNEL = Layout(
  lambda a, heads: [a.T.reshape(a.shape[1], heads, -1)],
  lambda parts: parts[0].reshape(parts[0].shape[0], -1).T,
)
HEADS_BIAS = Layout(lambda a, heads: [a.reshape(heads, -1)], lambda parts: parts[0].reshape(-1))
# A positive logit means "replaced" in ELECTRA, but "original" here.
NEGATED = Layout(lambda a, heads: [-a], lambda parts: -parts[0])
NEGATED_LINEAR = Layout(lambda a, heads: [-a.T], lambda parts: -parts[0].T)


def _layers(query: str, key: str, value: str, output: str, layer_norm: str) -> tuple[Row, ...]:
  """Returns the rows of a layer from its names within attention; other names are the same in all classes."""
  ours, prefix = "trunk/layers", "encoder.layer.{}"
  attention, square = f"{prefix}.attention", ("D", "D")
  return (
    *linear(f"{attention}.{query}", f"{ours}/attention/query", square, HEADS_KERNEL, HEADS_BIAS),
    *linear(f"{attention}.{key}", f"{ours}/attention/key", square, HEADS_KERNEL, HEADS_BIAS),
    *linear(f"{attention}.{value}", f"{ours}/attention/value", square, HEADS_KERNEL, HEADS_BIAS),
    *linear(f"{attention}.{output}", f"{ours}/attention/output", square, OUTPUT_KERNEL),
    *norm(f"{attention}.{layer_norm}", f"{ours}/attention_norm"),
    *linear(f"{prefix}.intermediate.dense", f"{ours}/up", ("F", "D")),
    *linear(f"{prefix}.output.dense", f"{ours}/down", ("D", "F")),
    *norm(f"{prefix}.output.LayerNorm", f"{ours}/mlp_norm"),
  )


def _mlm(bias: str, dense: str, layer_norm: str) -> Part:
  rows = (Row(bias, ("bias",), ("V",), SAME), *linear(dense, "dense", ("D", "D")))
  return Part((*rows, *norm(layer_norm, "norm")), "heads/mlm/")


def _classification(dense: str, output: str) -> Part:
  rows = (*linear(dense, "dense", ("D", "D")), *linear(output, "output", ("C", "D")))
  return Part(rows, "heads/classification/")


LAYERS = {"mpnet": _layers("attn.q", "attn.k", "attn.v", "attn.o", layer_norm="LayerNorm")} | dict.fromkeys(
  ("layoutlmv3", "bert", "electra"),
  _layers("self.query", "self.key", "self.value", "output.dense", layer_norm="output.LayerNorm"),
)
_SPAN = Part(linear("qa_outputs", "question_answering", ("2", "D")), "heads/")
_TAGGING = Part(linear("classifier", "tagging", ("C", "D")), "heads/")
# From this number of labels on, LayoutLMv3's token head has the shape of a text classifier.
MANY_LABELS = 10
WIDE_TAGGING = _classification("classifier.dense", "classifier.out_proj")._replace(path="heads/tagging/")
_RTD_ROWS = (
  *linear("dense", "dense", ("D", "D")),
  Row("dense_prediction.weight", ("kernel",), ("1", "D"), NEGATED_LINEAR),
  Row("dense_prediction.bias", ("bias",), ("1",), NEGATED),
)
# {layout: {ending of the class name: its head}}. A class has one head; the first whose parameters exist is
# written. LayoutLMv3's question answering has the shape of a text classifier (`forms.linear_head_as_tanh`).
HEADS = {
  "mpnet": {
    "ForSequenceClassification": _classification("classifier.dense", "classifier.out_proj"),
    "ForTokenClassification": _TAGGING,
    "ForQuestionAnswering": _SPAN,
    "ForMaskedLM": _mlm("lm_head.bias", "lm_head.dense", "lm_head.layer_norm"),
  },
  "layoutlmv3": {
    "ForSequenceClassification": _classification("classifier.dense", "classifier.out_proj"),
    "ForTokenClassification": _TAGGING,
    "ForQuestionAnswering": _classification("qa_outputs.dense", "qa_outputs.out_proj")._replace(
      path="heads/question_answering/"
    ),
  },
  "bert": {
    "ForSequenceClassification": _classification("pooler.dense", "classifier"),
    "ForTokenClassification": _TAGGING,
    "ForQuestionAnswering": _SPAN,
    "ForMaskedLM": _mlm(
      "cls.predictions.bias", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
    ),
  },
  "electra": {
    "ForSequenceClassification": _classification("classifier.dense", "classifier.out_proj"),
    "ForTokenClassification": _TAGGING,
    "ForQuestionAnswering": _SPAN,
    "ForPreTraining": Part(_RTD_ROWS, "heads/rtd/", "discriminator_predictions."),
    "ForMaskedLM": _mlm(
      "generator_lm_head.bias", "generator_predictions.dense", "generator_predictions.LayerNorm"
    ),
  },
}
_WORDS = "embeddings.word_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
DISTANCES = "encoder.rel_pos_bias.weight"
SPATIAL = tuple(f"embeddings.{axis}_position_embeddings.weight" for axis in "xyhw")
RELATIVE_PATH = "encoder/trunk/relative_position/embedding"
_TIED = {
  "mpnet": (("lm_head.decoder.weight", _WORDS), ("lm_head.decoder.bias", "lm_head.bias")),
  "layoutlmv3": (),
  "bert": (
    ("cls.predictions.decoder.weight", _WORDS),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
  ),
  "electra": (("generator_lm_head.weight", _WORDS),),
}
# Tensors that a checkpoint may store twice; never written, because the classes tie them.
TIES = {layout: tuple(Tie(*names, path="") for names in tied) for layout, tied in _TIED.items()}


def encoder_parts(layout: str, *, offset: int, has_segments: bool) -> tuple[Part, ...]:
  """Returns the parts of an encoder, with its segment table if our model has segments.

  `offset` is the first token's row in the position table; the rows before it are for padding, written as 0.
  """
  positions = Layout(
    lambda a, heads: [a[offset:]],
    lambda parts: np.concatenate([np.zeros((offset, parts[0].shape[1]), parts[0].dtype), parts[0]]),
  )
  embeddings = (
    Row(_WORDS, ("token/embedding",), ("V", "D"), SAME),
    Row("embeddings.position_embeddings.weight", ("position/embedding",), ("P", "D"), positions),
    *norm("embeddings.LayerNorm", "norm"),
    *((Row(_SEGMENTS, ("segment/embedding",), ("T", "D"), SAME),) if has_segments else ()),
  )
  parts = [
    Part(embeddings, "encoder/embeddings/", is_required=True),
    Part(LAYERS[layout], "encoder/", is_required=True),
  ]
  if layout == "mpnet":
    path = (RELATIVE_PATH.removeprefix("encoder/"),)
    relative = Row("encoder.relative_attention_bias.weight", path, ("R", "A"), SAME)
    parts.append(Part((relative,), "encoder/", is_required=True))
  return tuple(parts)


def blank_tables(layout: str, *, has_segments: bool) -> tuple[str, ...]:
  """Returns the class's tables that are 0 in our models: unused segments, and coordinates on a page."""
  segments = () if has_segments or layout == "mpnet" else (_SEGMENTS,)
  return segments + (SPATIAL if layout == "layoutlmv3" else ())
