"""Writes the model card of an export: model, training, results, and how to load it."""

import json
import pathlib
import re
import shlex
import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export import embedding_files
from pretrain.export.card import history
from pretrain.export.folders import PRE_NORM
from pretrain.plan.dry_run import parameter_counts
from pretrain.settings.objectives import OBJECTIVES, Paper

_PAGE = pathlib.Path(__file__).with_name("card.md")
_LOAD_STOCK = pathlib.Path(__file__).with_name("load_stock.md")
_LOAD_ONNX = pathlib.Path(__file__).with_name("load_onnx.md")
_LOAD_VECTORS = pathlib.Path(__file__).with_name("load_vectors.md")
_EMBEDDING = "embedding"  # an encoder with `embedding.json`, a key of _WHAT
# The hub's task name, by the ending of the class name.
_PIPELINES = {
  "ForMaskedLM": "fill-mask",
  "ForSequenceClassification": "text-classification",
  "ForTokenClassification": "token-classification",
  "ForQuestionAnswering": "question-answering",
}
# Usage example by the ending of the class name: Python lines that follow the loading of the model.
_USE = {
  "ForSequenceClassification": (
    'texts = ("A sentence.",)  # of a model of pairs: ("First.", "Second.")',
    'inputs = tokenizer(*texts, truncation=True, return_tensors="pt")',
    "scores = model(**inputs).logits[0]  # one per class, in the order of model.config.id2label",
  ),
  "ForTokenClassification": (
    'words = ["A", "few", "words"]',
    'inputs = tokenizer(words, is_split_into_words=True, truncation=True, return_tensors="pt")',
    "scores = model(**inputs).logits[0]  # a row per token, in the order of model.config.id2label",
  ),
  "ForQuestionAnswering": (
    'question, text = "Who wrote it?", "The text that answers."',
    'inputs = tokenizer(question, text, truncation="only_second", return_tensors="pt")',
    "answer, parts = model(**inputs), inputs.sequence_ids(0)",
    "words = [at for at, part in enumerate(parts) if part == 1]  # the logits of a question mean nothing",
    "starts, ends = answer.start_logits[0], answer.end_logits[0]",
    "spans = [(start, end) for start in words for end in words if start <= end < start + 30]",
    "start, end = max([(0, 0), *spans], key=lambda span: starts[span[0]] + ends[span[1]])",
    'found = tokenizer.decode(inputs["input_ids"][0, start : end + 1]) if start else ""',
  ),
}
# Head from fine-tuning -> (kind of model, what it predicts); '': not fine-tuned.
_WHAT = {
  "": ("A text encoder", ""),
  _EMBEDDING: ("A text embedding model", ""),
  "classification": ("A text classifier", "the class, or the number, of a text or a pair of texts"),
  "tagging": ("A word tagger", "the class of each word of a text"),
  "question_answering": ("A question-answering model", "the words of a text that answer a question about it"),
  "span_pairs": ("A span classifier", "the class of a span of words, or of a pair of spans"),
}
# A pretraining head in a class with pre-norm layers: (the hub's task name, what its pipeline gives).
_PRETRAINED = {
  "mlm": ("fill-mask", "fills in a `[MASK]`"),
  "clm": ("fill-mask", "scores tokens for a `[MASK]`, which it did not read in pretraining"),
  "rtd": ("token-classification", "says of each token whether it is ORIGINAL or REPLACED"),
}
_LINEAR = (
  " The class has dense, activation and norm before its last layer, and this head is linear: "
  '`classifier_activation` is "linear", and dense and norm undo each other. For fine-tuning in transformers '
  'with a new head, load it with `classifier_activation="gelu"` and draw `head.dense` anew.'
)
_USE_ENCODER = (
  'inputs = tokenizer("A sentence.", truncation=True, return_tensors="pt")',
  "hidden = model(**inputs).last_hidden_state",
)
_LOAD_PLAIN = {
  "fairseq": "`model.pt` is for the official fairseq code (`COCOLM_Model`, `AMOS_Model`). Read it with "
  "`torch.load(..., weights_only=True)`, with `argparse.Namespace` as a safe global.",
  "torch": "`model.safetensors` has all parameters under this project's names. Kernels are (in, out), and "
  "layers are stacked. `pretrain/export/check/torch_own.py` computes hidden states from it in PyTorch.",
} | dict.fromkeys(
  ("cocolm", "amos"),
  "`pytorch_model.bin` and `config.json` are for the official Hugging Face port of 2021.",
)
_RELATIVE = {
  "none": "no relative positions",
  "rope": "rotary positions",
  "t5": "T5 relative positions",
  "official": "relative positions",
}


class Facts(NamedTuple):
  """The contents of a card that are not in the checkpoint's config."""

  name: str  # title
  layout: str
  reason: str  # why this layout
  architecture: str  # class name in config.json; '': transformers cannot load it
  extra: tuple[str, ...]  # paths in extra.safetensors
  pretokenization: str  # of the vocabulary: 'none' or 'official'
  hidden_difference: float
  logits_difference: float | None
  tolerance: float
  license: str  # SPDX identifier, or ''
  language: str  # ISO 639-1 code, or ''
  vectors_difference: float | None = None
  schema: EmbeddingSchema | None = None  # that the files of sentence-transformers say; None: not written
  folder: str = "PATH"  # the folder's name as the user gave it
  onnx: bool = False  # whether onnx/model.onnx was written
  reads_space: bool = False  # whether words given apart need the space before them
  head: str = ""  # name of the head that the class computes
  generators: tuple[str, ...] = ()  # folders with the heads of the generator


def write(facts: Facts, params: dict, meta: Mapping[str, Any], workdir: pathlib.Path) -> str:
  """Returns the card as Markdown, with YAML front matter for model hubs.

  `params` are counted. `meta` has config, step, data and devices. Metrics are read from the run's directory.
  """
  figures, hours = history.read_metrics(workdir, meta["step"])
  logits, vectors, head = facts.logits_difference, facts.vectors_difference, _answering(params)
  what = _EMBEDDING if not head and (workdir / FILE).is_file() else head
  page = string.Template(_PAGE.read_text(encoding="utf-8")).substitute(
    name=facts.name,
    shape=_shape(meta["config"]["model"], params),
    how_to_load=_how_to_load(facts, meta["config"]["model"]["max_length"]),
    layout=f"{facts.layout}`, class `{facts.architecture}" if facts.architecture else facts.layout,
    reason=facts.reason,
    hidden_difference=f"{facts.hidden_difference:.1e}",
    logits_difference="" if logits is None else f", logits by {logits:.1e} of the largest",
    vectors_difference="" if vectors is None else f", vectors by {vectors:.1e}",
    tolerance=f"{facts.tolerance:.0e}",
    extra=_about_extra(facts.extra),
    commands=_commands(facts.folder, head),
    what=_WHAT[what][0],
    intended_use=_intended_use(what),
    training="\n".join(history.training(meta, hours)),
    evaluation="\n".join(history.evaluation(figures)),
    license=facts.license or "Not given at export. Ask the model's author before you use it.",
    citations="\n".join(f"* {line}" for line in _citations(meta)),
  )
  return "\n".join([*_front_matter(facts, what), page])


def _answering(params: Mapping[str, Any]) -> str:
  """Returns the head of a fine-tuned model, a key of `_WHAT`; '' if there is none."""
  return next((head for head in params.get("heads", {}) if head in _WHAT), "")


def _intended_use(head: str) -> str:
  if head == _EMBEDDING:
    return (
      "Vectors of texts for search, similarity, clustering and duplicates, in the language and domain of\n"
      "the training text. Compare vectors by cosine."
    )
  if not head:
    return (
      "Fine-tuning for tasks such as classification, similarity, extraction and retrieval, in the "
      "language\nand domain of the pretraining text. Without fine-tuning its sentence vectors are a weak "
      "baseline."
    )
  return (
    f"Predicting {_WHAT[head][1]},\nfor texts similar to the fine-tuning data (see Training). Its quality on "
    "other texts was not measured, nor whether\nits probabilities are calibrated."
  )


def _front_matter(facts: Facts, what: str) -> list[str]:
  fields = {"language": facts.language, "license": facts.license}
  if facts.architecture:
    tasks = [task for ending, task in _PIPELINES.items() if facts.architecture.endswith(ending)]
    fields |= {"library_name": "transformers", "pipeline_tag": (tasks or ["feature-extraction"])[0]}
    if what == _EMBEDDING:
      fields |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
  lines = [f"{name}: {value}" for name, value in fields.items() if value]
  return ["---", *lines, "---", ""] if lines else []


def _how_to_load(facts: Facts, longest: int) -> str:
  if facts.architecture:
    ending = next((ending for ending in _USE if facts.architecture.endswith(ending)), "")
    page = string.Template(_LOAD_STOCK.read_text(encoding="utf-8").strip())
    lines = "\n".join(_USE.get(ending, _USE_ENCODER))
    if facts.reads_space:
      lines = lines.replace('"few", "words"', '" few", " words"')
    paragraphs = [page.substitute(model_class=f"AutoModel{ending}", folder=facts.folder, use=lines)]
    if facts.layout in PRE_NORM and facts.head in _PRETRAINED:
      task, gives = _PRETRAINED[facts.head]
      is_linear = facts.layout == "modernbert" and facts.head != "mlm"
      call = f'`pipeline("{task}", model="{facts.folder}")` of transformers {gives}.'
      paragraphs.append(f"With its pretraining head, {call}{_LINEAR if is_linear else ''}")
    if facts.onnx:
      names = ["hidden", *["scores"] * (ending in _USE), *["vectors"] * bool(facts.schema)]
      outputs = ", ".join(names) if names[1:] else "(hidden,)"
      text = json.dumps((facts.schema.passage_prefix if facts.schema else "") + "A sentence.")
      page = string.Template(_LOAD_ONNX.read_text(encoding="utf-8").strip())
      paragraphs.append(page.substitute(folder=facts.folder, outputs=outputs, text=text, longest=longest))
    if facts.generators:
      listed = ", ".join(f"`{facts.folder}/{name}`" for name in facts.generators)
      paragraphs.append(
        f"The generator's heads, each with the layers below it, are masked language models in {listed}: load "
        "one with `AutoModelForMaskedLM.from_pretrained`, or import it as this model."
      )
    if facts.schema:
      page = string.Template(_LOAD_VECTORS.read_text(encoding="utf-8").strip())
      made, notes = embedding_files.described(facts.schema), _notes(facts.schema, facts.folder)
      paragraphs.append(page.substitute(folder=facts.folder, made=made, notes=notes))
  else:
    paragraphs = [_LOAD_PLAIN[facts.layout]]
    if facts.layout != "torch" and facts.pretokenization == "none":
      paragraphs.append(
        "The official tokenizer splits off punctuation before it makes pieces; this model was trained "
        "without that step. To get the ids it was trained on, encode text with `sp.model` alone."
      )
  return "\n\n".join(paragraphs)


def _notes(schema: EmbeddingSchema, folder: str) -> str:
  """Returns sentences about prefixes, lengths and Matryoshka sizes, each with a space before it."""
  lines = []
  if schema.query_prefix or schema.passage_prefix:
    query, passage = map(json.dumps, (schema.query_prefix, schema.passage_prefix))
    lines.append(
      f"`encode_query` puts `{query}` before each text, `encode_document` and `encode` put `{passage}`."
    )
  if schema.query_length != schema.passage_length:
    lines.append(
      f"Queries were trained with at most {schema.query_length or 'all'} tokens, documents with "
      f"{schema.passage_length or 'all'}; `max_seq_length` is the larger."
    )
  if schema.sizes:
    least = min(schema.sizes)
    lines.append(
      f"The first {', '.join(map(str, sorted(schema.sizes)))} numbers of a vector were trained to suffice "
      f'(Matryoshka): `SentenceTransformer("{folder}", truncate_dim={least})` returns {least}; '
      "`encode_query(..., normalize_embeddings=True)` gives them length 1 again."
    )
  return "".join(f" {line}" for line in lines)


def _commands(folder: str, head: str) -> str:
  """Returns a code block of commands for the folder; `head` is that of a fine-tuned model, or ''."""
  model = shlex.quote(f"{folder}.model")
  lines = [f"python -m pretrain.export import --from={shlex.quote(folder)} --output={model}"]
  if head:
    labelled = "test.json" if head == "question_answering" else "test.csv"  # SQuAD's format
    lines += [
      f"python -m finetune.predict --model={model} --input=new.csv --output=answers.csv",
      f"python -m finetune.evaluate --model={model} --data={labelled}",
    ]
  lines.append(f"python -m pretrain.embed --checkpoint={model} --input=new.csv --output=vectors.npy")
  return "\n".join(["```", *lines, "```"])


def _citations(meta: Mapping[str, Any]) -> list[str]:
  config = meta["config"]
  papers = {OBJECTIVES[name].paper for name, fields in config["objectives"].items() if fields["weight"]}
  if config["corruption"]["kind"] == "generator" and config["generator"]["mixture"] != "none":
    papers.add(Paper.AMOS)
  # An ablation may switch off the paper's own objectives, so the recipe's name counts too.
  papers |= {paper for paper in Paper if re.match(rf"{paper.name.lower()}(?![a-z])", config["recipe"])}
  lines = [str(paper) for paper in dict.fromkeys([*Paper, *sorted(papers)]) if paper in papers]
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
  kind = "rope" if model.get("position") == "rope" else model["relative_position"]
  return (
    f"{model['num_layers']} layers x {model['hidden_size']}, {model['num_heads']} heads, vocabulary of "
    f"{model['vocab_size']:,}, at most {model['max_length']} tokens, "
    f"{_RELATIVE[kind]}; {parameters}"
  )


def _about_extra(paths: tuple[str, ...]) -> str:
  if not paths:
    return ""
  modules = sorted({"/".join(path.split("/")[:2]) for path in paths})
  return (
    "`extra.safetensors` contains the parameters without a place in the class, under this project's names, "
    f"kernels as (in, out): {len(paths)} tensors of {', '.join(f'`{module}`' for module in modules)}.\n"
  )
