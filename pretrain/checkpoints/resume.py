"""Selects the checkpoint that a run resumes from, and checks what may have changed since."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from configs import base
from data import command
from data.changes import changes
from data.errors import ConfigError, DataError
from pretrain.checkpoints import checkpoint, integrity
from pretrain.reading.batches import known_skips, position
from pretrain.settings import fields, mixture

# Fields that may change at a resume, because they do not change what the run computes.
SAFE_FIELDS = (
  "recipe",
  "train.log_every",
  "train.eval_every",
  "train.eval_batches",
  "train.checkpoint_every",
  "train.checkpoints_to_keep",
  "train.checkpoint_steps",
  "train.max_nonfinite_steps",
  "train.spike_zscore",
  "train.spike_window",
  "train.spike_roll_back",
  "train.trackers",
  "train.probe_every",
  "train.probe_data",
  "train.replica_check_every",
  "train.microbatches",
  "train.multihost",
  "train.platform",
  "train.peak_flops",
  "data.source",  # the digest of the records, or the facts of a feed, are compared instead
  "data.directory",
  "data.mixture",  # the batches read so far are compared instead, see _check_mixture
  "data.temperature",
  "data.stages",
  "data.module",
  "data.tfds_directory",
  "data.clean",
  "data.workers",
  "optimizer.shard_update",
  "mesh.data",
  "mesh.fsdp",
  "mesh.tensor",
  "mesh.fsdp_across_slices",
  "model.attention",
  "model.remat",
  "model.scan_unroll",
  "model.vocab_chunk_rows",
)


def newest_good_step(workdir: str | os.PathLike) -> int | None:
  """Returns the newest undamaged step; None if none was ever saved.

  Newer steps that are damaged, or were saved as another step, are renamed, never removed, with a warning.
  DataError: all checkpoints are damaged, or two runs have saved in this workdir.
  """
  directory = checkpoint.place(workdir) / checkpoint.DIRECTORY
  steps = checkpoint.saved_steps(directory)
  runs = {step: integrity.run_id(directory / str(step)) for step in steps}
  if len({*runs.values()} - {""}) > 1:
    shown = ", ".join(f"step {step} of run {run}" for step, run in runs.items())
    raise DataError(f"{directory} has checkpoints of several runs ({shown}); move those of other runs away")
  for step in reversed(steps):
    path = directory / str(step)
    problem = integrity.problem(path)
    if problem is None:
      return step
    if jax.process_index() == 0:
      integrity.set_aside(path, f"is damaged: {problem}", "damaged")
  left = [path.name for path in directory.iterdir() if _has_files(path)] if directory.is_dir() else []
  if left:
    shown = ", ".join(sorted(left))
    raise DataError(
      f"{directory}: all checkpoints of this run are damaged ({shown}); restore one with all its files from "
      "a copy, or start a new run\n  --workdir=NEW"
    )
  return None


def _has_files(path: Path) -> bool:
  """Returns whether a directory is, or was, a step's, and has files."""
  is_of_step = checkpoint.is_step_name(path.name.partition(".damaged")[0]) and path.is_dir()
  return is_of_step and any(True for _ in integrity.files_of(path))


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `fields.flatten` with tuples as lists, as in JSON: saved and given values compare equal."""
  return {name: _listed(value) for name, value in fields.flatten(config).items()}


def _listed(value: Any) -> Any:
  return [_listed(one) for one in value] if isinstance(value, tuple) else value


def check_same_run(
  config: Mapping[str, Any], digests: Mapping[str, Any], meta: Mapping[str, Any]
) -> list[str]:
  """Compares a config, and the `digests` of its records, with the `meta` of a checkpoint.

  Returns lines about harmless changes, 'field: saved -> given'. Raises ConfigError if another field differs,
  DataError for other records or another vocabulary.
  """
  check_records(digests, meta)
  # Fields that are newer than the checkpoint count as having their defaults.
  saved = flatten(base.get_config().to_dict()) | flatten(meta["config"])
  asked = flatten(config)
  if gone := sorted(saved.keys() - asked.keys()):
    raise ConfigError(
      f"the workdir has a run with fields that this version lacks ({', '.join(gone)}); resume it with commit "
      f"{meta.get('commit') or 'of its first log line'}, or start a new run from its weights\n"
      "  --workdir=NEW --config.train.init_from=WORKDIR"
    )
  changed = changes(saved, asked)
  reasons = {name: _refusal(name, saved, asked, meta.get("step", 0)) for name in changed}
  refused = [
    changed[name] + f" ({reason})" * bool(reason) for name, reason in reasons.items() if reason is not None
  ]
  if refused:
    raise ConfigError(
      f"the workdir has a run with another config ({'; '.join(refused)}); resume it with those values, "
      f"or start a new run\n  --workdir=NEW"
    )
  return list(changed.values())


def check_records(digests: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
  """Raises ConfigError or DataError if records are not those of the run with this meta."""
  _check_feed(digests.get("feed"), meta.get("feed"))
  _check_mixture(digests.get("mixture"), meta)
  digests = {name: digest for name, digest in digests.items() if name not in ("mixture", "feed")}
  missing = [name for name in ("config", "interval_sums", *digests) if name not in meta]
  if missing:
    raise DataError(
      f"the newest checkpoint's meta lacks {', '.join(missing)}: no run of this program saved it; move that "
      "step away to resume from an older one, or start a new run from its weights\n"
      "  --workdir=NEW --config.train.init_from=DIR"
    )
  for name, digest in digests.items():
    if meta[name] != digest:
      what = name.replace("_digest", "")
      raise DataError(
        f"the {what} changed since the checkpoint was saved ({meta[name][:12]}... -> {digest[:12]}...); "
        f"restore the old {what}, or start a new run\n  --workdir=NEW"
      )


def _check_mixture(asked: list | None, meta: Mapping[str, Any]) -> None:
  """Raises ConfigError if a mixture differs from the saved one in the batches that were already read.

  Mixtures are as in `mixed.Found.digests`, or None. Later stages may differ.
  """
  saved = meta.get("mixture")
  if asked is None and saved is None:
    return
  if asked is None or saved is None:
    before, now = ("a mixture" if stages else "one directory" for stages in (saved, asked))
    raise ConfigError(
      f"the workdir has a run on {before} of records, but {now} is given; resume it with the same records, "
      "or start a new run\n  --workdir=NEW"
    )
  taken = position(meta["step"], known_skips(meta))
  # Directories may be renamed, so only digests of records are compared.
  past, wanted = ([stage for stage in stages if stage[0] < taken] for stages in (saved, asked))
  if [*_digests(past)] != [*_digests(wanted)]:
    raise ConfigError(
      f"the mixture of the first {taken:,} steps differs from that of the run ({mixture.shown(past)} -> "
      f"{mixture.shown(wanted)}); only stages from step {taken:,} on may change; restore the "
      "earlier ones, or start a new run\n  --workdir=NEW"
    )


def _check_feed(given: Mapping[str, Any] | None, saved: Mapping[str, Any] | None) -> None:
  """Raises ConfigError or DataError if a feed may return other blocks than the saved one.

  Both are as in `data.feed.Stream.facts`, or None for prepared records.
  """
  if given == saved:
    return
  anew = "or start a new run from its weights\n  --workdir=NEW --config.train.init_from=DIR"
  if given is None or saved is None or given["source"] != saved["source"]:
    before, now = (one["source"] if one else "prepared records" for one in (saved, given))
    raise ConfigError(
      f"the workdir has a run on {before}, but {now} is given; resume it with the same text, {anew}"
    )
  differ = changes(flatten(saved), flatten(given), show=lambda value: str(value)[:12])
  raise DataError(
    f"{given['source']} may return other blocks than when the run began ({'; '.join(differ.values())}); "
    f"restore the old data.module, records or package versions, {anew}"
  )


def _digests(stages: Sequence) -> Iterator[tuple[int, list]]:
  return ((step, [pair for _, *pair in rates]) for step, rates in stages)


def changed_packages(meta: Mapping[str, Any]) -> list[str]:
  """Returns 'jax: 0.10.1 -> 0.10.2' for each package that changes numbers and differs from `meta`."""
  saved = meta.get("packages", {})
  return [
    f"{name}: {saved[name]} -> {version}"
    for name, version in command.versions(checkpoint.PACKAGES).items()
    if saved.get(name, version) != version
  ]


def _refusal(name: str, saved: Mapping[str, Any], given: Mapping[str, Any], step: int) -> str | None:
  """Returns None if a field may change at a step; else why not, or '' if there is nothing special to say."""
  if name == "train.microbatches" and saved.get("train.batch_size_start"):
    return "batches grow by a microbatch"
  both = (saved, given)
  is_cooldown = all(fields_of["optimizer.schedule"] == "wsd" for fields_of in both)
  flat = min(fields_of["train.total_steps"] - fields_of["optimizer.decay_steps"] for fields_of in both)
  is_falling = None if step <= flat else f"step {step:,} is past step {flat:,}, where the rate begins to fall"
  if name in ("optimizer.decay_shape", "optimizer.end_learning_rate"):
    return is_falling if is_cooldown else ""
  if name not in ("train.total_steps", "optimizer.decay_steps"):
    return None if name in SAFE_FIELDS else ""
  if saved["corruption.mask_rates"]:
    return "corruption.mask_rates are by fractions of all steps"
  if saved["generator.temperature_start"]:
    return "generator.temperature_decay is a fraction of all steps"
  if saved["generator.mixture"] == "schedule":
    return "generator.mixture='schedule' goes by the fraction of all steps"
  if not is_cooldown:
    is_longer = name == "train.total_steps" and given[name] >= saved[name]
    return None if is_longer else ""
  return is_falling
