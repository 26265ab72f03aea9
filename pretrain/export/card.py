"""The model card of an export: what was trained, on what, how well it did, and how to load it."""

import json
import pathlib
import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from pretrain.metrics import FILE_NAME
from pretrain.report import parameter_counts

_TEMPLATE = pathlib.Path(__file__).with_name("card.md")
_CITATIONS = {
  "coco_lm": "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. COCO-LM: Correcting and Contrasting Text "
  "Sequences for Language Model Pretraining. NeurIPS 2021.",
  "amos": "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. Pretraining Text Encoders with Adversarial "
  "Mixture of Training Signal Generators. ICLR 2022.",
  "taco": "Fu, Zhou, Yang, Tang, Liu, Liu, Li. Contextual Representation Learning beyond Masked Language "
  "Modeling. ACL 2022.",
  "electra": "Clark, Luong, Le, Manning. ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
  "Generators. ICLR 2020.",
  "all_token": "Clark, Luong, Le, Manning. ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
  "Generators. ICLR 2020.",
  "roberta": "Liu et al. RoBERTa: A Robustly Optimized BERT Pretraining Approach. 2019.",
  "bert": "Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for Language "
  "Understanding. NAACL 2019.",
}
# Every name in a recipe's title counts: the union of three papers cites three.
_ALIASES = {"amos_coco_taco": ("amos", "coco_lm", "taco")}
_DATA = {
  "installed_docs": "the documentation of Python packages installed on the training machine",
  "seqio:wikipedia_books": "English Wikipedia and BookCorpus",
  "seqio:web_160gb": "Wikipedia, BookCorpus, CC-News, OpenWebText and Stories (160 GB)",
}


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


def read_metrics(workdir: pathlib.Path, step: int) -> tuple[dict[str, float], float]:
  """Held-out figures and hours of a run.

  Args:
    workdir: with `metrics.jsonl`; without one nothing is known.
    step: of the checkpoint.

  Returns:
    {metric: mean} of the last evaluation up to `step`, and hours of training as the log's speeds give them.
  """
  figures: dict[str, float] = {}
  hours, last = 0.0, 0
  path = workdir / FILE_NAME
  lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
  for line in lines:
    try:
      values = json.loads(line)
      at = int(values["step"])
    except (ValueError, KeyError, TypeError):  # a last line cut by a kill
      continue
    if at > step:
      break
    evaluated = {name[5:]: value for name, value in values.items() if name.startswith("eval/")}
    figures = evaluated or figures
    speed = values.get("perf/steps_per_second")
    if speed:
      hours += (at - last) / speed / 3_600
    if any(name.startswith("train/") for name in values):
      last = at
  return figures, hours


def _recipe_citations(recipe: str) -> list[str]:
  names = next((parts for alias, parts in _ALIASES.items() if recipe.startswith(alias)), None)
  if names is None:
    names = [name for name in _CITATIONS if recipe.startswith(name)][:1]
  return [_CITATIONS[name] for name in names]


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
      "layers stacked; `pretrain/export/torch_forward.py` computes hidden states from it in PyTorch.",
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


def _is_imported(meta: Mapping[str, Any]) -> bool:
  """Whether the checkpoint is one of others, as `import_checkpoint` saved it."""
  return meta["step"] == 0 and "source" in meta


def _training(config: Mapping[str, Any], meta: Mapping[str, Any], hours: float) -> list[str]:
  data, train, optimizer = config["data"], config["train"], config["optimizer"]
  step = meta["step"]
  weights = {name: part["weight"] for name, part in config["objectives"].items() if part["weight"]}
  kind = config["corruption"]["kind"]
  generator = f"{config['generator']['num_layers']}-layer generator" if kind == "generator" else kind
  rows = {
    "recipe": config["recipe"],
    "text": _DATA.get(data["source"], f"`{data['source']}`"),
    "updates": f"{step:,}",
    "tokens seen": f"{step * train['batch_size'] * data['length']:,} (padding counted)",
    "batch": f"{train['batch_size']:,} x {data['length']} tokens, packing `{data['packing']}`",
    "corruption": f"{generator}, mask rate {config['corruption']['mask_rate']}",
    "objectives (weight)": ", ".join(f"{name} ({weight:g})" for name, weight in weights.items()),
    "learning rate": f"{optimizer['learning_rate']:g}, warm-up {optimizer['warmup_steps']:,} updates, then "
    f"{optimizer['schedule']}",
    "Adam": f"b1 {optimizer['adam_b1']}, b2 {optimizer['adam_b2']}, eps {optimizer['adam_eps']:g}, weight "
    f"decay {optimizer['weight_decay']}, clip {optimizer['clip_norm']}",
    "dropout": f"{config['model']['dropout']}, attention {config['model']['attention_dropout']}",
    "seed": config["seed"],
    "hardware": meta.get("devices", "not recorded"),
    "hours": f"{hours:.2f} (from logged speeds)" if hours else "not recorded",
    "packages": ", ".join(f"{name} {version}" for name, version in meta["packages"].items()),
  }
  if _is_imported(meta):
    return [f"Imported from `{meta['source']['path']}` and not trained further by this stack."]
  return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _evaluation(figures: Mapping[str, float]) -> list[str]:
  if not figures:
    return ["No held-out figures were recorded with this checkpoint."]
  rows = [f"| {name} | {value:.4f} |" for name, value in sorted(figures.items()) if value is not None]
  return [
    "On held-out blocks of the pretraining text (losses in nats, rates from 0 to 1):",
    "",
    "| metric | value |",
    "|---|---|",
    *rows,
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
  figures, hours = read_metrics(workdir, meta["step"])
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
    training="\n".join(_training(meta["config"], meta, hours)),
    evaluation="\n".join(_evaluation(figures)),
    license=facts.license or "Not stated by who exported it: ask them before you use it.",
    citations="\n".join(
      [
        *(f"* {citation}" for citation in _recipe_citations(meta["config"]["recipe"])),
        "* Please cite the imported model's own paper."
        if _is_imported(meta)
        else "* Trained with a JAX stack for pretraining text encoders; please cite the paper of the method.",
      ]
    ),
  )
  return "\n".join([*_front_matter(facts), filled])


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
