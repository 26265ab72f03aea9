"""Writes the model card of an export: model, how to load it, training, results."""

import json
import pathlib
import re
import shlex
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from data.seqio_tasks import CORPORA
from data.tables import Cells
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export import embedding_files
from pretrain.export.stock.classes import CLASSES
from pretrain.logs import metrics
from pretrain.settings import mixture
from pretrain.settings.objectives import OBJECTIVES, Paper
from pretrain.settings.run import batch_sizes

_PAGE = """# $name

$what: $shape.

## How to load

$how_to_load

Layout `$layout`: $reason. $checked `sha256sum -c sha256.txt` checks all files.
$extra
With the code that trained it:

```
$commands
```

## Training

$training

## Evaluation

$evaluation

## Use and limits

The model is meant for $use.
It is not meant for generating text, for decisions about people without human review, or for languages and
domains that the training text does not cover. It repeats what its text holds, including its biases, errors
and gaps; no bias evaluation was made. Inputs longer than the limit above are cut.

## Licence

$license

## Citation

$citations
"""
_LOAD = """No custom code is needed:

```python
from transformers import AutoTokenizer, $model_class

tokenizer = AutoTokenizer.from_pretrained("$folder")
model = $model_class.from_pretrained("$folder")
$call
```

Text that spells a special token, such as `[MASK]`, becomes that token; with
`tokenizer(..., split_special_tokens=True)` it is ordinary text, as it was in pretraining. $segments
Pad on the right, as the tokenizer does."""
_LOAD_ONNX = """Without PyTorch, by onnxruntime and tokenizers alone:

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("$folder/tokenizer.json")
tokenizer.enable_truncation($longest)
session = onnxruntime.InferenceSession("$folder/onnx/model.onnx")
text = tokenizer.encode($text)  # a pair: tokenizer.encode("First.", "Second.")
inputs = {"input_ids": np.array([text.ids]), "attention_mask": np.array([text.attention_mask])}$types
$outputs = session.run(None, inputs)  # float32, one row for each text; several need equal lengths
```"""
_LOAD_VECTORS = """With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("$folder")
queries = model.encode_query(["Where does the river end?"])
documents = model.encode_document(["The river ends in the sea."])
scores = model.similarity(queries, documents)  # cosine, [queries, documents]
```

A vector is $made.$notes

Tasks of the benchmark MTEB, with `pip install mteb`:

```python
import mteb

tasks = mteb.get_tasks(tasks=["STSBenchmark", "NFCorpus"])
results = mteb.evaluate(model, tasks)
```"""
_LOAD_OWN = (
  "`model.safetensors` has all parameters under this project's names. Kernels are (in, out), and layers are "
  "stacked. `tests/pretrain/export/torch_own.py` of the project computes hidden states from it in PyTorch."
)
_LINEAR = (
  " This head is linear: dense and norm of the class undo each other. Before you fine-tune a new head in "
  'transformers, set `classifier_activation="gelu"` and draw `head.dense` anew.'
)
_CALL = """inputs = tokenizer("A sentence.", truncation=True, return_tensors="pt")
hidden = model(**inputs).last_hidden_state"""
_CALLS = {  # ending of the class's name: (the hub's name of its task, Python lines after the model is loaded)
  "ForMaskedLM": ("fill-mask", _CALL),
  "ForSequenceClassification": (
    "text-classification",
    """texts = ("A sentence.",)  # of a model of pairs: ("First.", "Second.")
inputs = tokenizer(*texts, truncation=True, return_tensors="pt")
scores = model(**inputs).logits[0]  # one per class, in the order of model.config.id2label""",
  ),
  "ForTokenClassification": (
    "token-classification",
    """words = ["A", "few", "words"]
inputs = tokenizer(words, is_split_into_words=True, truncation=True, return_tensors="pt")
scores = model(**inputs).logits[0]  # a row per token, in the order of model.config.id2label""",
  ),
  "ForQuestionAnswering": (
    "question-answering",
    """question, text = "Who wrote it?", "The text that answers."
inputs = tokenizer(question, text, truncation="only_second", return_tensors="pt")
answer, parts = model(**inputs), inputs.sequence_ids(0)
words = [at for at, part in enumerate(parts) if part == 1]  # the logits of a question mean nothing
starts, ends = answer.start_logits[0], answer.end_logits[0]
spans = [(start, end) for start in words for end in words if start <= end < start + 30]
start, end = max([(0, 0), *spans], key=lambda span: starts[span[0]] + ends[span[1]])
found = tokenizer.decode(inputs["input_ids"][0, start : end + 1]) if start else ''""",
  ),
}
_PRETRAINED = {  # pretraining head in a class with pre-norm layers: (the hub's task, what its pipeline gives)
  "mlm": ("fill-mask", "fills in a `[MASK]`"),
  "clm": ("fill-mask", "scores tokens for a `[MASK]`, which it did not read in pretraining"),
  "rtd": ("token-classification", "says of each token whether it is ORIGINAL or REPLACED"),
}
_EMBEDDING = "embedding"  # an encoder with `embedding.json`, a key of `_KINDS`
_KINDS = {  # head of a fine-tuned model ('': none): (kind of model, what it is for)
  "": ("A text encoder", "fine-tuning; without it, its sentence vectors are a weak baseline"),
  _EMBEDDING: ("A text embedding model", "search, similarity and clustering by the cosine of vectors"),
  "classification": (
    "A text classifier",
    "predicting the class, or the number, of a text or a pair of texts",
  ),
  "tagging": ("A word tagger", "predicting the class of each word of a text"),
  "question_answering": ("A question-answering model", "finding the words of a text that answer a question"),
  "span_pairs": ("A span classifier", "predicting the class of a span of words, or of a pair of spans"),
}
_POSITIONS = {"none": "no relative", "rope": "rotary", "t5": "T5 relative", "official": "relative"}
_POSITIONS["disentangled"] = "disentangled relative"


class Facts(NamedTuple):
  """The contents of a card that are not in the checkpoint's config."""

  name: str  # title
  layout: str
  reason: str  # why this layout
  checked: str  # sentence about the self-check
  architecture: str = ""  # class name in config.json; '': transformers cannot load it
  head: str = ""  # name of the head that the class computes
  extra: tuple[str, ...] = ()  # paths in extra.safetensors
  license: str = ""  # SPDX identifier
  language: str = ""  # ISO 639-1 code
  schema: EmbeddingSchema | None = None  # that the files of sentence-transformers say; None: not written
  folder: str = "PATH"  # the folder's name as the user gave it
  onnx: bool = False  # whether onnx/model.onnx was written
  pair_segments: bool = False  # whether the second text of a pair is segment 1
  reads_space: bool = False  # whether words given apart need the space before them
  generators: tuple[str, ...] = ()  # folders with the heads of the generator


def write(facts: Facts, params: dict, meta: Mapping[str, Any], workdir: pathlib.Path) -> str:
  """Returns the card as Markdown, with YAML front matter for model hubs.

  `params` are counted. `meta` has config, step, data and devices. Metrics are read from the run's directory.
  """
  figures, hours = read_metrics(workdir, meta["step"])
  model = meta["config"]["model"]
  head = next((head for head in params.get("heads", {}) if head in _KINDS), "")
  kind = _EMBEDDING if not head and (workdir / FILE).is_file() else head
  counts = {name: sum(leaf.size for leaf in jax.tree.leaves(params.get(name, {}))) for name in params}
  position = "rope" if model.get("position") == "rope" else model["relative_position"]
  sizes = (
    f"{model['num_layers']} layers x {model['hidden_size']}, {model['num_heads']} heads, vocabulary of "
    f"{model['vocab_size']:,}, at most {model['max_length']} tokens, {_POSITIONS[position]} positions; "
  )
  networks = [name for name in ("encoder", "generator") if counts.get(name)]
  sizes += ", ".join(f"{counts[name]:,} parameters in the {name}" for name in networks)
  rows = [(name, f"{value:.4f}") for name, value in sorted(figures.items()) if value is not None]
  evaluation = "On held-out blocks of the pretraining text (losses in nats, rates from 0 to 1):\n\n"
  evaluation += Cells(("metric", "value"), rows).as_markdown()
  modules = sorted({"/".join(path.split("/")[:2]) for path in facts.extra})
  extra = (
    "\n`extra.safetensors` has the parameters without a place in the class, under our own names, "
    f"kernels as (in, out): {len(facts.extra)} tensors of {', '.join(f'`{module}`' for module in modules)}.\n"
  )
  page = string.Template(_PAGE).substitute(
    name=facts.name,
    what=_KINDS[kind][0],
    shape=sizes,
    how_to_load=_how_to_load(facts, model["max_length"]) if facts.architecture else _LOAD_OWN,
    layout=f"{facts.layout}`, class `{facts.architecture}" if facts.architecture else facts.layout,
    reason=facts.reason,
    checked=facts.checked,
    extra=extra if facts.extra else "",
    commands=_commands(facts.folder, head),
    training="\n".join(training(meta, hours)),
    evaluation=evaluation if rows else "No held-out metrics were recorded for this checkpoint.",
    use=_KINDS[kind][1],
    license=facts.license or "Not given at export. Ask the model's author before you use it.",
    citations="\n".join(f"* {line}" for line in _citations(meta)),
  )
  front = {"language": facts.language, "license": facts.license}
  if facts.architecture:
    tasks = [task for ending, (task, _) in _CALLS.items() if facts.architecture.endswith(ending)]
    front |= {"library_name": "transformers", "pipeline_tag": [*tasks, "feature-extraction"][0]}
    if kind == _EMBEDDING:
      front |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
  lines = [f"{name}: {value}" for name, value in front.items() if value]
  return "\n".join([*(["---", *lines, "---", ""] if lines else []), page])


def _how_to_load(facts: Facts, longest: int) -> str:
  ending = next((ending for ending in _CALLS if facts.architecture.endswith(ending)), "")
  ending = "" if ending == "ForMaskedLM" else ending
  call = _CALLS[ending][1] if ending else _CALL
  call = call.replace('"few", "words"', '" few", " words"') if facts.reads_space else call
  named: dict[str, Any] = {"folder": facts.folder, "model_class": f"AutoModel{ending}", "call": call}
  named |= {"segments": "Segment ids are not used: every token is of segment 0.", "types": ""}
  if facts.pair_segments:
    named["segments"] = "The second text of a pair is segment 1, as the tokenizer's `token_type_ids` say."
    named["types"] = '\ninputs["token_type_ids"] = np.array([text.type_ids])'
  paragraphs = [string.Template(_LOAD).substitute(named)]
  if CLASSES[facts.layout].is_pre_norm and facts.head in _PRETRAINED:
    task, gives = _PRETRAINED[facts.head]
    is_linear = facts.layout == "modernbert" and facts.head != "mlm"
    text = f'With its pretraining head, `pipeline("{task}", model="{facts.folder}")` of transformers {gives}.'
    paragraphs.append(text + (_LINEAR if is_linear else ""))
  if facts.onnx:
    outputs = ["hidden", *["scores"] * bool(ending), *["vectors"] * bool(facts.schema)]
    prefix = facts.schema.passage_prefix if facts.schema else ""
    named |= {"longest": longest, "text": json.dumps(f"{prefix}A sentence.")}
    named["outputs"] = ", ".join(outputs) if outputs[1:] else "(hidden,)"
    paragraphs.append(string.Template(_LOAD_ONNX).substitute(named))
  if facts.generators:
    listed = ", ".join(f"`{facts.folder}/{name}`" for name in facts.generators)
    paragraphs.append(
      f"The generator's heads, each with the layers below it, are masked language models in {listed}: load "
      "one with `AutoModelForMaskedLM.from_pretrained`, or import it as this model."
    )
  if facts.schema:
    named |= {"made": embedding_files.described(facts.schema), "notes": _notes(facts.schema, facts.folder)}
    paragraphs.append(string.Template(_LOAD_VECTORS).substitute(named))
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
  """Returns commands for the folder, a line each; `head` is that of a fine-tuned model, or ''."""
  model = shlex.quote(f"{folder}.model")
  lines = [f"python -m pretrain.export import --from={shlex.quote(folder)} --output={model}"]
  if head:
    labelled = "test.json" if head == "question_answering" else "test.csv"  # SQuAD's format
    lines.append(f"python -m finetune.predict --model={model} --input=new.csv --output=answers.csv")
    lines.append(f"python -m finetune.evaluate --model={model} --data={labelled}")
  lines.append(f"python -m pretrain.embed --checkpoint={model} --input=new.csv --output=vectors.npy")
  return "\n".join(lines)


def read_metrics(workdir: pathlib.Path, step: int) -> tuple[dict[str, float], float]:
  """Returns {metric: mean} of the last evaluation up to `step`, and hours of training from logged speeds.

  Without a `metrics.jsonl` in the run's directory both are empty: {} and 0.
  """
  lines = [line for line in metrics.read(workdir) if line["step"] <= step]
  evaluations = [means for means in map(metrics.heldout_means, lines) if means]
  return evaluations[-1] if evaluations else {}, float(metrics.hours(lines)[1][-1])


def training(meta: Mapping[str, Any], hours: float) -> list[str]:
  """Returns lines about fine-tuning, if there was any, and pretraining.

  `meta` has 'task' and 'pretraining_step' if the checkpoint was fine-tuned, 'source' if imported.
  """
  lines, task = [], meta.get("task") or {}
  if task:
    of = {"own": " on the user's own files", None: ""}.get(task.get("name"), f" on `{task.get('name')}`")
    updates = f" for {meta['step']:,} updates" if "pretraining_step" in meta else ""
    run = f", run {task['cell']}, seed {task['seed']}" if "cell" in task else ""
    value = f"; {task['metric']} {task['value']:.4f} on its development set" if "value" in task else ""
    labels = ", ".join(f"{number}: {label}" for number, label in enumerate(task.get("labels") or ()))
    lines += [f"Fine-tuned{of}{updates}{run}{value}.{f' Classes: {labels}.' if labels else ''}", ""]
  if _is_imported(meta):
    name = _source_name(meta.get("source", {}))
    return [*lines, f"Imported from {name} and not pretrained further by this stack."]
  return [*lines, *Cells(("", ""), [*_pretraining(meta, hours).items()]).as_markdown().splitlines()]


def _pretraining(meta: Mapping[str, Any], hours: float) -> dict[str, str]:
  config, step = meta["config"], meta.get("pretraining_step", meta["step"])
  data, sizes, optimizer = config["data"], batch_sizes(config["train"]), config["optimizer"]
  weights = {name: part["weight"] for name, part in config["objectives"].items() if part["weight"]}
  masks, layers = config["corruption"], config["generator"]["num_layers"]
  corruption = f"{layers}-layer generator" if masks["kind"] == "generator" else masks["kind"]
  changes = masks.get("mask_rates") or [(0.0, masks["mask_rate"])]
  rates = [f"{rate}" + (f" from {start:.0%} on" if start else "") for start, rate in changes]
  rates += ["whole words"] * bool(masks.get("whole_words"))
  text, packing = _records(data, meta.get("records", {}))
  stages, averaged = meta.get("mixture", []), ", ".join(f"{at:,}" for at in meta.get("averaged", []))
  if "averaged_runs" in meta:
    fields = ", ".join(f"`{name}`" for name in meta["averaged_fields"])
    averaged += f" of {meta['averaged_runs']} runs" + (f" that differ in {fields}" if fields else "")
  return {
    "recipe": config["recipe"],
    "initialised from": _started_from(meta) or "random values",
    "text": text,
    **({"rates by step": mixture.shown(stages)} if len(stages) > 1 else {}),
    "updates": f"{step:,}" + (f"; the weights are the mean of those after {averaged}" if averaged else ""),
    "tokens seen": f"{sizes.rows_before(step) * data['length']:,} (padding counted)",
    "batch": f"{sizes.shown()} x {data['length']} tokens, {packing}",
    "corruption": f"{corruption}, mask rate {', '.join(rates)}",
    "objectives (weight)": ", ".join(f"{name} ({weight:g})" for name, weight in weights.items()),
    "learning rate": f"{optimizer['learning_rate']:g}, warm-up {optimizer['warmup_steps']:,} updates, then "
    f"{optimizer['schedule']}",
    "Adam": f"b1 {optimizer['adam_b1']}, b2 {optimizer['adam_b2']}, eps {optimizer['adam_eps']:g}, weight "
    f"decay {optimizer['weight_decay']}, clip {optimizer['clip_norm']}",
    "dropout": f"{config['model']['dropout']}, attention {config['model']['attention_dropout']}",
    "seed": str(config["seed"]),
    "hardware": meta.get("devices", "not recorded"),
    "hours": f"{hours:.2f} (from logged speeds)" if hours else "not recorded",
    "packages": ", ".join(f"{name} {version}" for name, version in meta["packages"].items()),
  }


def _records(data: Mapping[str, Any], records: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the text that was read, and how it was packed; a mixture names the rate of each source."""
  if not records:
    return "not recorded", f"packing `{data['packing']}`"
  if "documents" not in records:
    return f"{_source_text(records['source'])}, read during training", f"packing `{records['packing']}`"
  used = "" if data["fraction"] == 1 else f" (only the first {data['fraction']:.0%} of the records were used)"
  parts = [
    f"{one['rate']:.2%} `{one['name']}` ({_source_text(one['source'])}; records {one['digest'][:12]})"
    for one in records.get("sources", ())
  ]
  text = f"a mixture of {', '.join(parts)}" if "sources" in records else _source_text(records["source"])
  shorter = f" into at most {records['length']} tokens" if records["length"] != data["length"] else ""
  size = f"{records['documents']:,} documents, {records['tokens']:,} training tokens"
  return f"{text}; {size}{used}", f"packing `{records['packing']}`{shorter}"


def _source_text(source: str) -> str:
  """Describes a `--source` of `data.prepare` in words; folders of the user's own files are left out."""
  kind, _, name = source.partition(":")
  if source == "installed_docs":
    return "the documentation of Python packages installed on the training machine"
  if kind == "seqio" and name in CORPORA:
    # These corpora replace the papers' corpora, so the card must not name the latter.
    read = [
      f"`{part.tfds_name}`" + ("" if part.keep == 1 else f" ({part.keep:.1%} of it)")
      for part in CORPORA[name].parts
    ]
    return f"of TFDS {', '.join(read)}, in place of the papers' {CORPORA[name].papers}"
  if kind in ("tfds", "seqio") and name:
    return f"`{source}`"
  return "own files " + ", ".join(f"`{pathlib.PurePath(path).name}`" for path in source.split(",") if path)


def _started_from(meta: Mapping[str, Any]) -> str:
  """Describes which weights a run, or an earlier one, loaded from other checkpoints; '' if none."""
  texts = []
  for field, start in meta.get("started_from", {}).items():
    if "source" in start:
      texts.append(f"`{field}`: {_source_name(start['source'])}, imported")
    else:
      before = _started_from(start)
      began = f", which began with {before}" if before else ""
      texts.append(f"`{field}`: recipe `{start['recipe']}`, step {start['step']:,}{began}")
  return "; ".join(texts)


def _source_name(source: Mapping[str, Any]) -> str:
  return f"`{pathlib.PurePath(source['path']).name}`" if source.get("path") else "another checkpoint"


def _is_imported(meta: Mapping[str, Any]) -> bool:
  """Returns whether pretraining was done elsewhere: an import, or a model fine-tuned from one."""
  is_from_there = "source" in meta or meta["config"]["recipe"].startswith("imported")
  return is_from_there and meta.get("pretraining_step", meta["step"]) == 0


def _has_imported_start(meta: Mapping[str, Any]) -> bool:
  sources = meta.get("started_from", {}).values()
  return any("source" in source or _has_imported_start(source) for source in sources)


def _citations(meta: Mapping[str, Any]) -> Sequence[str]:
  config = meta["config"]
  papers = {OBJECTIVES[name].paper for name, fields in config["objectives"].items() if fields["weight"]}
  if config["corruption"]["kind"] == "generator" and config["generator"]["mixture"] != "none":
    papers.add(Paper.AMOS)
  # An ablation may switch off the paper's own objectives, so the recipe's name counts too.
  papers |= {paper for paper in Paper if re.match(rf"{paper.name.lower()}(?![a-z])", config["recipe"])}
  lines = [str(paper) for paper in dict.fromkeys([*Paper, *sorted(papers)]) if paper in papers]
  if _is_imported(meta) or _has_imported_start(meta):
    lines.append("Please cite the imported model's own paper.")
  if not _is_imported(meta):
    lines.append(
      "Trained with a JAX stack for pretraining text encoders; please cite the paper of the method."
    )
  return lines
