"""The model card of an export: what was trained, on what, how well it did, and how to load it."""

import pathlib
import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from pretrain.dry_run import parameter_counts
from pretrain.export.card import citations as card_citations
from pretrain.export.card import history as card_history
from pretrain.export.card import origin as card_origin

_TEMPLATE = pathlib.Path(__file__).with_name("card.md")


class Facts(NamedTuple):
  """What the card is made of besides the checkpoint's config."""

  name: str  # title
  layout: str
  reason: str  # why this layout
  architecture: str  # class name in config.json; '' where no stock class reads it
  extra: tuple[str, ...]  # paths in extra.safetensors
  pretokenization: str  # of the vocabulary: 'none' or 'official'
  hidden_difference: float
  logits_difference: float | None
  tolerance: float
  license: str  # SPDX identifier, or ''
  language: str  # ISO 639-1 code, or ''
  sentence_transformers: bool = False  # whether its files are there


def _front_matter(facts: Facts) -> list[str]:
  lines = ["---"]
  lines += [f"language: {facts.language}"] if facts.language else []
  lines += [f"license: {facts.license}"] if facts.license else []
  if facts.architecture:
    lines += ["library_name: transformers", f"pipeline_tag: {_pipeline(facts.architecture)}"]
  return [*lines, "---", ""] if len(lines) > 1 else []


def _pipeline(architecture: str) -> str:
  for ending, tag in (
    ("ForMaskedLM", "fill-mask"),
    ("ForSequenceClassification", "text-classification"),
    ("ForQuestionAnswering", "question-answering"),
  ):
    if architecture.endswith(ending):
      return tag
  return "feature-extraction"


def _how_to_load(facts: Facts) -> list[str]:
  if not facts.architecture:
    readers = {
      "fairseq": "`model.pt` is for the official fairseq code (`COCOLM_Model`, `AMOS_Model`); read it with "
      "`torch.load(..., weights_only=True)` and `argparse.Namespace` allowed.",
      "torch": "`model.safetensors` holds every parameter under this project's names, kernels as (in, out), "
      "layers stacked; `pretrain/export/check/torch_forward.py` computes hidden states from it in PyTorch.",
    }
    default = "`pytorch_model.bin` and `config.json` are for the official Hugging Face port of 2021."
    lines = [readers.get(facts.layout, default)]
    if facts.layout != "torch" and facts.pretokenization == "none":
      lines += [
        "",
        "The official tokenizer sets punctuation apart before it makes pieces; the text of this model was "
        "not treated so. Encode text with `sp.model` alone for the ids it was trained on.",
      ]
    return lines
  notes = [
    "Text that spells a special token, such as `[MASK]`, becomes that token; with "
    "`tokenizer(..., split_special_tokens=True)` it is ordinary text, as it was in pretraining. Segment ids "
    "are not used: every token is of segment 0. Pad on the right, as the tokenizer does.",
  ]
  if facts.layout == "layoutlmv3":
    notes += ["", "When this class is fine-tuned in PyTorch its table of distances stays as it is."]
  if facts.sentence_transformers:
    notes += [
      "",
      'With sentence-transformers, `SentenceTransformer("PATH").encode(sentences)` gives the mean of the '
      "hidden states over a sentence's tokens, not normalised.",
    ]
  return [
    "No custom code is needed:",
    "",
    "```python",
    "from transformers import AutoModel, AutoTokenizer",
    "",
    'tokenizer = AutoTokenizer.from_pretrained("PATH")',
    'model = AutoModel.from_pretrained("PATH")',
    'inputs = tokenizer("A sentence.", return_tensors="pt")',
    "hidden = model(**inputs).last_hidden_state",
    "```",
    "",
    *notes,
  ]


def write(facts: Facts, params: dict, meta: Mapping[str, Any], workdir: pathlib.Path) -> str:
  """Makes the card.

  Args:
    facts: about the export.
    params: of the checkpoint, for the parameter counts.
    meta: of the checkpoint.
    workdir: of the run, for its metrics.

  Returns:
    Markdown, with a YAML head for the model hubs.
  """
  figures, hours = card_history.read_metrics(workdir, meta["step"])
  logits = facts.logits_difference
  filled = string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
    name=facts.name,
    shape=_shape(meta["config"]["model"], params),
    how_to_load="\n".join(_how_to_load(facts)),
    layout=facts.layout,
    reason=facts.reason,
    hidden_difference=f"{facts.hidden_difference:.1e}",
    logits_difference="" if logits is None else f", logits by {logits:.1e} of the largest",
    tolerance=f"{facts.tolerance:.0e}",
    extra=_extra(facts.extra),
    training="\n".join(card_history.training(meta, hours)),
    evaluation="\n".join(card_history.evaluation(figures)),
    license=facts.license or "Not stated by who exported it: ask them before you use it.",
    citations="\n".join(f"* {line}" for line in _citations(meta)),
  )
  return "\n".join([*_front_matter(facts), filled])


def _citations(meta: Mapping[str, Any]) -> list[str]:
  lines = card_citations.citations(meta["config"])
  is_imported = card_history.is_imported(meta)
  if is_imported or card_origin.has_imported_start(meta):
    lines.append("Please cite the imported model's own paper.")
  if not is_imported:
    lines.append(
      "Trained with a JAX stack for pretraining text encoders; please cite the paper of the method."
    )
  return lines


def _shape(model: Mapping[str, Any], params: dict) -> str:
  relative = {
    "none": "no relative positions",
    "t5": "T5 relative positions",
    "official": "relative positions",
  }
  counts = parameter_counts(params)
  parts = [f"{counts[part]:,} parameters in the {part}" for part in ("encoder", "generator") if counts[part]]
  return (
    f"{model['num_layers']} layers x {model['hidden_size']}, {model['num_heads']} heads, vocabulary of "
    f"{model['vocab_size']:,}, at most {model['max_length']} tokens, {relative[model['relative_position']]}; "
    + ", ".join(parts)
  )


def _extra(paths: tuple[str, ...]) -> str:
  if not paths:
    return ""
  parts = sorted({"/".join(path.split("/")[:2]) for path in paths})
  listed = ", ".join(f"`{part}`" for part in parts)
  return (
    f"`extra.safetensors` holds what the class has no slot for, under this project's names, kernels as "
    f"(in, out): {len(paths)} tensors of {listed}.\n"
  )
