"""What a checkpoint's own records say of how it came about, as lines of the model card."""

import pathlib
from collections.abc import Mapping
from typing import Any

from pretrain import metrics
from pretrain.export.card import origin as card_origin


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
  """Whether the pretraining was that of others: as `import_checkpoint` saved it, or fine-tuned from there."""
  is_from_there = "source" in meta or meta["config"]["recipe"].startswith("imported")
  return is_from_there and meta.get("pretraining_step", meta["step"]) == 0


def _fine_tuning(meta: Mapping[str, Any]) -> list[str]:
  """Of a checkpoint of `finetune`: the task, the run that was chosen, and its classes."""
  task = meta.get("task") or {}
  if not task:
    return []
  name = f"`{task['name']}`" if task.get("name") else "a task its checkpoint does not name"
  updates = f" for {meta['step']:,} updates" if "pretraining_step" in meta else ""
  run = f", run {task['cell']}, seed {task['seed']}" if "cell" in task else ""
  value = f"; {task['metric']} {task['value']:.4f} on its development set" if "value" in task else ""
  labels = ", ".join(f"{number}: {label}" for number, label in enumerate(task.get("labels") or ()))
  classes = f" Classes: {labels}." if labels else ""
  return [f"Fine-tuned on {name}{updates}{run}{value}.{classes}", ""]


def training(meta: Mapping[str, Any], hours: float) -> list[str]:
  """Lines about fine-tuning, if there was any, and pretraining.

  Args:
    meta: of the checkpoint; 'task' and 'pretraining_step' if it was fine-tuned, 'source' if imported,
      'records' and 'started_from' unless an older program saved it.
    hours: of `read_metrics`.
  """
  config = meta["config"]
  data, train, optimizer = config["data"], config["train"], config["optimizer"]
  step = meta.get("pretraining_step", meta["step"])
  weights = {name: part["weight"] for name, part in config["objectives"].items() if part["weight"]}
  kind = config["corruption"]["kind"]
  generator = f"{config['generator']['num_layers']}-layer generator" if kind == "generator" else kind
  rows = {
    "recipe": config["recipe"],
    "initialised from": card_origin.started_from(meta),
    "text": card_origin.text(meta),
    "updates": f"{step:,}",
    "tokens seen": f"{step * train['batch_size'] * data['length']:,} (padding counted)",
    "batch": f"{train['batch_size']:,} x {data['length']} tokens, {card_origin.packing(meta)}",
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
  if is_imported(meta):
    name = card_origin.source_name(meta.get("source", {}))
    return [*_fine_tuning(meta), f"Imported from {name} and not pretrained further by this stack."]
  return [
    *_fine_tuning(meta),
    "| | |",
    "|---|---|",
    *(f"| {name} | {value} |" for name, value in rows.items()),
  ]


def evaluation(figures: Mapping[str, float]) -> list[str]:
  """Lines about the held-out figures of `read_metrics`."""
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
