"""The model card of an export: what was trained, on what, how well it did, and how to load it."""

import pathlib
import shlex
import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from pretrain.export.card import history
from pretrain.export.card.citations import citations
from pretrain.plan.dry_run import parameter_counts

_PAGE = pathlib.Path(__file__).with_name("card.md")
_LOAD_STOCK = pathlib.Path(__file__).with_name("load_stock.md")
_LOAD_ONNX = pathlib.Path(__file__).with_name("load_onnx.md")
# Hub's name of the task, by the end of the class's name.
_PIPELINES = {
  "ForMaskedLM": "fill-mask",
  "ForSequenceClassification": "text-classification",
  "ForTokenClassification": "token-classification",
  "ForQuestionAnswering": "question-answering",
}
# How to use the class: lines of Python after `tokenizer` and `model` are loaded, by the end of its name.
_USE = {
  "ForSequenceClassification": (
    'inputs = tokenizer("A sentence.", return_tensors="pt")  # a pair: tokenizer("First.", "Second.", ...)',
    "scores = model(**inputs).logits[0]  # one per class, in the order of model.config.id2label",
  ),
  "ForTokenClassification": (
    'inputs = tokenizer(["A", "few", "words"], is_split_into_words=True, return_tensors="pt")',
    "scores = model(**inputs).logits[0]  # a row per token, in the order of model.config.id2label",
  ),
  "ForQuestionAnswering": (
    'inputs = tokenizer("Who wrote it?", "The text that answers.", return_tensors="pt")',
    "answer = model(**inputs)",
    "start, end = answer.start_logits.argmax(), answer.end_logits.argmax()  # [CLS] twice: no answer",
    'text = tokenizer.decode(inputs["input_ids"][0, start : end + 1])',
  ),
}
# What a model is by the head that fine-tuning gave it, and what it answers; '': it was not fine-tuned.
_WHAT = {
  "": ("A text encoder", ""),
  "classification": ("A classifier of texts", "which of its classes, or which number, a text or a pair has"),
  "tagging": ("A tagger of words", "which of its classes each word of a text is of"),
  "question_answering": ("An answerer of questions", "which words of a text answer a question about it"),
  "span_pairs": ("A classifier of spans of words", "which of its classes a span, or a pair of them, is of"),
}
_USE_ENCODER = (
  'inputs = tokenizer("A sentence.", return_tensors="pt")',
  "hidden = model(**inputs).last_hidden_state",
)
_LOAD_PLAIN = {
  "fairseq": "`model.pt` is for the official fairseq code (`COCOLM_Model`, `AMOS_Model`); read it with "
  "`torch.load(..., weights_only=True)` and `argparse.Namespace` allowed.",
  "torch": "`model.safetensors` holds every parameter under this project's names, kernels as (in, out), "
  "layers stacked; `pretrain/export/check/torch_forward.py` computes hidden states from it in PyTorch.",
} | dict.fromkeys(
  ("cocolm", "amos"),
  "`pytorch_model.bin` and `config.json` are for the official Hugging Face port of 2021.",
)
_RELATIVE = {"none": "no relative positions", "t5": "T5 relative positions", "official": "relative positions"}


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
  folder: str = "PATH"  # what the user called the folder
  onnx: bool = False  # whether onnx/model.onnx is there


def write(facts: Facts, params: dict, meta: Mapping[str, Any], workdir: pathlib.Path) -> str:
  """The card as Markdown, with a YAML head for the model hubs.

  Parameters are counted, `meta` says config, step, data and devices, metrics are read in the run's directory.
  """
  figures, hours = history.read_metrics(workdir, meta["step"])
  logits, head = facts.logits_difference, _answering(params)
  page = string.Template(_PAGE.read_text(encoding="utf-8")).substitute(
    name=facts.name,
    shape=_shape(meta["config"]["model"], params),
    how_to_load=_how_to_load(facts),
    layout=facts.layout,
    reason=facts.reason,
    hidden_difference=f"{facts.hidden_difference:.1e}",
    logits_difference="" if logits is None else f", logits by {logits:.1e} of the largest",
    tolerance=f"{facts.tolerance:.0e}",
    extra=_about_extra(facts.extra),
    commands=_commands(facts.folder, bool(head)),
    what=_WHAT[head][0],
    intended_use=_intended_use(head),
    training="\n".join(history.training(meta, hours)),
    evaluation="\n".join(history.evaluation(figures)),
    license=facts.license or "Not stated by who exported it: ask them before you use it.",
    citations="\n".join(f"* {line}" for line in _citations(meta)),
  )
  return "\n".join([*_front_matter(facts), page])


def _answering(params: Mapping[str, Any]) -> str:
  """The head of a fine-tuned model, a key of `_WHAT`."""
  return next((head for head in params.get("heads", {}) if head in _WHAT), "")


def _intended_use(head: str) -> str:
  if not head:
    return (
      "To be fine-tuned on a task of understanding text (classification, similarity, extraction, retrieval) "
      "in the language\nand domain of its pretraining text. Without fine-tuning its sentence vectors are a "
      "weak baseline."
    )
  return (
    f"To say {_WHAT[head][1]},\nin texts like those it was fine-tuned on (see Training). How good it is on "
    "others was not measured, nor whether its\nprobabilities are as often right as they say."
  )


def _front_matter(facts: Facts) -> list[str]:
  fields = {"language": facts.language, "license": facts.license}
  if facts.architecture:
    tasks = [task for ending, task in _PIPELINES.items() if facts.architecture.endswith(ending)]
    fields |= {"library_name": "transformers", "pipeline_tag": (tasks or ["feature-extraction"])[0]}
  lines = [f"{name}: {value}" for name, value in fields.items() if value]
  return ["---", *lines, "---", ""] if lines else []


def _how_to_load(facts: Facts) -> str:
  if facts.architecture:
    ending = next((ending for ending in _USE if facts.architecture.endswith(ending)), "")
    page = string.Template(_LOAD_STOCK.read_text(encoding="utf-8").strip())
    lines = "\n".join(_USE.get(ending, _USE_ENCODER))
    paragraphs = [page.substitute(model_class=f"AutoModel{ending}", folder=facts.folder, use=lines)]
    if ending in ("ForSequenceClassification", "ForTokenClassification"):
      paragraphs.append(
        f'`pipeline("{_PIPELINES[ending]}", model="{facts.folder}")` of transformers answers with the names '
        "of the classes."
      )
    if facts.layout == "layoutlmv3":
      paragraphs.append("When this class is fine-tuned in PyTorch its table of distances stays as it is.")
    if facts.onnx:
      scores = "hidden, scores" if ending in _USE else "(hidden,)"
      page = string.Template(_LOAD_ONNX.read_text(encoding="utf-8").strip())
      paragraphs.append(page.substitute(folder=facts.folder, outputs=scores))
    if facts.sentence_transformers:
      paragraphs.append(
        f'With sentence-transformers, `SentenceTransformer("{facts.folder}").encode(sentences)` gives the '
        "mean of the hidden states over a sentence's tokens, not normalised."
      )
  else:
    paragraphs = [_LOAD_PLAIN[facts.layout]]
    if facts.layout != "torch" and facts.pretokenization == "none":
      paragraphs.append(
        "The official tokenizer sets punctuation apart before it makes pieces; the text of this model was "
        "not treated so. Encode text with `sp.model` alone for the ids it was trained on."
      )
  return "\n\n".join(paragraphs)


def _commands(folder: str, is_answering: bool) -> str:
  """What this project's commands are called with for a folder; `is_answering`: a fine-tuned head is there."""
  model = shlex.quote(f"{folder}.model")
  lines = [f"python -m pretrain.export import --from={shlex.quote(folder)} --output={model}"]
  if is_answering:
    lines += [
      f"python -m finetune.predict --model={model} --input=new.csv --output=answers.csv",
      f"python -m finetune.evaluate --model={model} --data=test.csv",
    ]
  lines.append(f"python -m pretrain.embed --checkpoint={model} --input=new.csv --output=vectors.npy")
  return "\n".join(["```", *lines, "```"])


def _citations(meta: Mapping[str, Any]) -> list[str]:
  lines = citations(meta["config"])
  is_imported = history.is_imported(meta)
  if is_imported or history.has_imported_start(meta):
    lines.append("Please cite the imported model's own paper.")
  if not is_imported:
    lines.append(
      "Trained with a JAX stack for pretraining text encoders; please cite the paper of the method."
    )
  return lines


def _shape(model: Mapping[str, Any], params: dict) -> str:
  counts = parameter_counts(params)
  networks = [name for name in ("encoder", "generator") if counts[name]]
  parameters = ", ".join(f"{counts[name]:,} parameters in the {name}" for name in networks)
  return (
    f"{model['num_layers']} layers x {model['hidden_size']}, {model['num_heads']} heads, vocabulary of "
    f"{model['vocab_size']:,}, at most {model['max_length']} tokens, "
    f"{_RELATIVE[model['relative_position']]}; {parameters}"
  )


def _about_extra(paths: tuple[str, ...]) -> str:
  """The sentence about extra.safetensors; '' if there is no such file."""
  if not paths:
    return ""
  modules = sorted({"/".join(path.split("/")[:2]) for path in paths})
  return (
    "`extra.safetensors` holds what the class has no slot for, under this project's names, kernels as "
    f"(in, out): {len(paths)} tensors of {', '.join(f'`{module}`' for module in modules)}.\n"
  )
