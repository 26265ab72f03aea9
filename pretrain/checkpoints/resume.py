"""Selects the checkpoint that a run resumes from, and checks what may have changed since."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from configs import base
from data import command
from data.errors import ConfigError, DataError, changes
from pretrain.checkpoints import checkpoint
from pretrain.reading.batches import known_skips, position
from pretrain.settings import fields, mixture

# Fields that may change at a resume. These do not change what the run computes.
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
  "train.microbatches",
  "train.multihost",
  "train.platform",
  "train.peak_flops",
  "data.source",  # the digest of the records, or the facts of a feed, are compared instead
  "data.directory",
  "data.mixture",  # the batches read so far are compared instead
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
# These change the updates that are still to come: a longer run, or a decay after a stable phase.
END_FIELDS = (
  "train.total_steps",
  "optimizer.decay_steps",
  "optimizer.decay_shape",
  "optimizer.end_learning_rate",
)

_ANEW = "\n  --workdir=NEW --config.train.init_from=WORKDIR"


def newest_good_step(workdir: str | os.PathLike) -> int | None:
  """Returns the newest undamaged step; None if none was ever saved.

  Newer steps that are damaged, or were saved as another step, are renamed, never removed, with a warning.
  DataError: all checkpoints are damaged, or two runs have saved in this workdir.
  """
  directory = checkpoint.place(workdir) / checkpoint.DIRECTORY
  steps = checkpoint.saved_steps(directory)
  runs = {step: checkpoint.run_id(directory / str(step)) for step in steps}
  if len({*runs.values()} - {""}) > 1:
    shown = ", ".join(f"step {step} of run {run}" for step, run in runs.items())
    raise DataError(f"{directory} has checkpoints of several runs ({shown}); move those of other runs away")
  for step in reversed(steps):
    path = directory / str(step)
    problem = checkpoint.problem(path)
    if problem is None:
      return step
    if jax.process_index() == 0:
      checkpoint.set_aside(path, f"is damaged: {problem}", "damaged")
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
  return is_of_step and any(True for _ in checkpoint.files_of(path))


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `fields.flatten` with tuples as lists, as in JSON: saved and given values compare equal."""
  return {name: _listed(value) for name, value in fields.flatten(config).items()}


def _listed(value: Any) -> Any:
  return [_listed(one) for one in value] if isinstance(value, tuple) else value


def check_same_run(
  config: Mapping[str, Any], digests: Mapping[str, Any], meta: Mapping[str, Any]
) -> list[str]:
  """Compares a config, and the `digests` of its records, with the `meta` of a checkpoint.

  Returns lines about fields that changed and may, 'field: saved -> given'. Raises ConfigError if another
  field differs, DataError for other records or another vocabulary.
  """
  check_records(digests, meta)
  # Fields that are newer than the checkpoint count as having their defaults.
  saved = flatten(base.get_config().to_dict()) | flatten(meta["config"])
  asked = flatten(config)
  if gone := sorted(saved.keys() - asked.keys()):
    raise ConfigError(
      f"the workdir has a run with fields that this version lacks ({', '.join(gone)}); resume it with commit "
      f"{meta.get('commit') or 'of its first log line'}, or start a new run from its weights{_ANEW}"
    )
  free = {*SAFE_FIELDS, *END_FIELDS}
  if saved["train.batch_size_start"]:  # batches grow by a microbatch
    free.remove("train.microbatches")
  changed = changes(saved, asked)
  if refused := [line for name, line in changed.items() if name not in free]:
    raise ConfigError(
      f"the workdir has a run with another config ({'; '.join(refused)}); resume it with those values, "
      f"or start a new run\n  --workdir=NEW"
    )
  return list(changed.values())


def check_records(digests: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
  """Raises ConfigError or DataError if records are not those of the run with this meta.

  'mixture' is as in `mixed.Found.digests`: later stages may differ, and directories may be renamed. 'feed' is
  as in `data.feed.Stream.facts`. Both are absent or None for one directory of prepared records.
  """
  before, now = _kind(meta), _kind(digests)
  if before != now:
    raise ConfigError(
      f"the workdir has a run on {before}, but {now} is given; resume it with the same text, or start a new "
      f"run from its weights{_ANEW}"
    )
  given = {name: digest for name, digest in digests.items() if name not in ("mixture", "feed")}
  if missing := [name for name in ("config", "interval_sums", *given) if name not in meta]:
    raise DataError(
      f"the newest checkpoint's meta lacks {', '.join(missing)}: no run of this program saved it; move that "
      f"step away to resume from an older one, or start a new run from its weights{_ANEW}"
    )
  saved = {name: meta[name] for name in given}
  if feed := digests.get("feed"):
    saved, given = saved | flatten(meta["feed"]), given | flatten(feed)
  if changed := changes(saved, given, show=lambda value: str(value)[:12]):
    raise DataError(
      f"what the run reads changed since it was saved ({'; '.join(changed.values())}); restore the old text, "
      f"vocabulary, module or packages, or start a new run from its weights{_ANEW}"
    )
  if stages := digests.get("mixture"):
    taken = position(meta["step"], known_skips(meta))
    past, wanted = ([one for one in each if one[0] < taken] for each in (meta["mixture"], stages))
    if [*_digests(past)] != [*_digests(wanted)]:
      raise ConfigError(
        f"the mixture of the first {taken:,} steps is not that of the run ({mixture.shown(past)} -> "
        f"{mixture.shown(wanted)}); only stages from step {taken:,} on may change; restore the earlier ones, "
        f"or start a new run from its weights{_ANEW}"
      )


def _kind(facts: Mapping[str, Any]) -> str:
  """Returns what a run reads, by its digests or by the meta of its checkpoint."""
  if feed := facts.get("feed"):
    return feed["source"]
  return "a mixture of records" if facts.get("mixture") else "one directory of records"


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
