"""Describes how a checkpoint was trained, from its meta and metrics, as lines of the model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from data.corpora import CORPORA
from data.tables import Cells
from pretrain.logs import metrics
from pretrain.settings import mixture
from pretrain.settings.run import batch_sizes

_TAKEN = {
  "--new_phase": "weights of the previous phase",  # written by earlier versions
  "train.init_from": "encoder, and heads and generator if they match",
  "generator.init_from": "generator",
  "model.freeze_embeddings_from": "token table, which was not trained",
}


def read_metrics(workdir: Path, step: int) -> tuple[dict[str, float], float]:
  """Returns {metric: mean} of the last evaluation up to `step`, and hours of training from logged speeds.

  Without a `metrics.jsonl` in the run's directory both are empty: {} and 0.
  """
  figures: dict[str, float] = {}
  hours, last = 0.0, 0
  for values in metrics.read(workdir):
    at = values["step"]
    if at > step:
      break
    figures = metrics.heldout_means(values) or figures
    speed = values.get("perf/steps_per_second")
    if speed:
      hours += (at - last) / speed / 3_600
    if any(name.startswith("train/") for name in values):
      last = at
  return figures, hours


def is_imported(meta: Mapping[str, Any]) -> bool:
  """Returns whether pretraining was done elsewhere: an import, or a model fine-tuned from one."""
  is_from_there = "source" in meta or meta["config"]["recipe"].startswith("imported")
  return is_from_there and _pretraining_step(meta) == 0


def has_imported_start(meta: Mapping[str, Any]) -> bool:
  """Returns whether any part of the run, or of a run before it, began with imported weights."""
  sources = meta.get("started_from", {}).values()
  return any("source" in source or has_imported_start(source) for source in sources)


def training(meta: Mapping[str, Any], hours: float) -> list[str]:
  """Returns lines about fine-tuning, if there was any, and pretraining.

  `meta` has 'task' and 'pretraining_step' if the checkpoint was fine-tuned, 'source' if imported.
  """
  if is_imported(meta):
    name = _source_name(meta.get("source", {}))
    return [*_fine_tuning(meta), f"Imported from {name} and not pretrained further by this stack."]
  table = Cells(("", ""), [*_pretraining(meta, hours).items()])
  return [*_fine_tuning(meta), *table.as_markdown().splitlines()]


def evaluation(figures: Mapping[str, float]) -> list[str]:
  """Returns lines about the held-out metrics of `read_metrics`."""
  if not figures:
    return ["No held-out metrics were recorded for this checkpoint."]
  rows = {name: f"{value:.4f}" for name, value in sorted(figures.items()) if value is not None}
  intro = "On held-out blocks of the pretraining text (losses in nats, rates from 0 to 1):"
  return [intro, "", *Cells(("metric", "value"), [*rows.items()]).as_markdown().splitlines()]


def _pretraining_step(meta: Mapping[str, Any]) -> int:
  return meta.get("pretraining_step", meta["step"])


def _fine_tuning(meta: Mapping[str, Any]) -> list[str]:
  """Returns the sentence about a fine-tuned checkpoint's task, chosen run and classes; [] for others."""
  task = meta.get("task") or {}
  if not task:
    return []
  names = {"own": " on the user's own files", None: ""}
  name = names.get(task.get("name"), f" on `{task.get('name')}`")
  updates = f" for {meta['step']:,} updates" if "pretraining_step" in meta else ""
  run = f", run {task['cell']}, seed {task['seed']}" if "cell" in task else ""
  value = f"; {task['metric']} {task['value']:.4f} on its development set" if "value" in task else ""
  labels = ", ".join(f"{number}: {label}" for number, label in enumerate(task.get("labels") or ()))
  classes = f" Classes: {labels}." if labels else ""
  return [f"Fine-tuned{name}{updates}{run}{value}.{classes}", ""]


def _pretraining(meta: Mapping[str, Any], hours: float) -> dict[str, str]:
  config, step = meta["config"], _pretraining_step(meta)
  data, sizes, optimizer = config["data"], batch_sizes(config["train"]), config["optimizer"]
  weights = {name: part["weight"] for name, part in config["objectives"].items() if part["weight"]}
  kind = config["corruption"]["kind"]
  corruption = f"{config['generator']['num_layers']}-layer generator" if kind == "generator" else kind
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
    "corruption": f"{corruption}, mask rate {_mask_rate(config['corruption'])}",
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


def _mask_rate(corruption: Mapping[str, Any]) -> str:
  stages = corruption.get("mask_rates") or [(0.0, corruption["mask_rate"])]
  rates = ", ".join(f"{rate}" + (f" from {start:.0%} on" if start else "") for start, rate in stages)
  return f"{rates}, whole words" if corruption.get("whole_words") else rates


def _records(data: Mapping[str, Any], records: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the text that was read, and how it was packed into records."""
  if not records:
    return "not recorded", f"packing `{data['packing']}`"
  if "documents" not in records:
    return f"{_source_text(records['source'])}, read during training", f"packing `{records['packing']}`"
  used = "" if data["fraction"] == 1 else f" (only the first {data['fraction']:.0%} of the records were used)"
  size = f"{records['documents']:,} documents, {records['tokens']:,} training tokens"
  text = _mixture_text(records["sources"]) if "sources" in records else _source_text(records["source"])
  shorter = f" into at most {records['length']} tokens" if records["length"] != data["length"] else ""
  return f"{text}; {size}{used}", f"packing `{records['packing']}`{shorter}"


def _mixture_text(sources: Sequence[Mapping[str, Any]]) -> str:
  """Describes the sources of a mixture; rates are shares of all rows of the run."""
  parts = [
    f"{one['rate']:.2%} `{one['name']}` ({_source_text(one['source'])}; records {one['digest'][:12]})"
    for one in sources
  ]
  return f"a mixture of {', '.join(parts)}"


def _source_text(source: str) -> str:
  """Describes a `--source` of `data.prepare` in words; paths of the user's own files are left out."""
  kind, _, name = source.partition(":")
  if source == "installed_docs":
    return "the documentation of Python packages installed on the training machine"
  if kind == "seqio" and name in CORPORA:
    # These corpora replace the papers' corpora, so the card must not name the latter.
    read = [
      f"`{part.source.tfds_name}`" + ("" if part.keep == 1 else f" ({part.keep:.1%} of it)")
      for part in CORPORA[name].tfds
    ]
    return f"of TFDS {', '.join(read)}, in place of the papers' {CORPORA[name].papers}"
  if kind in ("tfds", "seqio") and name:
    return f"`{source}`"
  return "own files " + ", ".join(f"`{PurePath(path).name}`" for path in source.split(",") if path)


def _started_from(meta: Mapping[str, Any]) -> str:
  """Describes which weights a run, or an earlier one, loaded from other checkpoints; '' if none."""
  return "; ".join(
    f"{_TAKEN[field]}: {_start_text(start)}" for field, start in meta.get("started_from", {}).items()
  )


def _start_text(start: Mapping[str, Any]) -> str:
  """Describes one entry of a meta's 'started_from', and how that run itself began."""
  if "source" in start:
    return f"{_source_name(start['source'])}, imported"
  before = _started_from(start)
  began = f", which began with {before}" if before else ""
  return f"recipe `{start['recipe']}`, step {start['step']:,}{began}"


def _source_name(source: Mapping[str, Any]) -> str:
  return f"`{PurePath(source['path']).name}`" if source.get("path") else "another checkpoint"
