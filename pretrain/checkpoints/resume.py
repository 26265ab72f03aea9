"""Which checkpoint a run continues from, and what may have changed since."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from data import command
from data.changes import changes
from data.errors import ConfigError, DataError
from pretrain.checkpoints import checkpoint, integrity
from pretrain.command import fields
from pretrain.reading.skips import Skip, position
from pretrain.settings import mixture

# Fields that change how a run is carried out, not what it computes.
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
  "data.source",  # the digest of the records decides, or what a feed says of itself
  "data.skip_hours",
  "data.directory",
  "data.mixture",  # what was read so far decides, see _check_mixture
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

LATER_FIELDS = {"data.feed": "records", "data.skip_hours": 0.25}  # what checkpoints of before mean
LATER_DIGESTS = ("manifest_digest",)  # checkpoints of before have none


def newest_good_step(workdir: str | os.PathLike, log: Callable[[str], None]) -> int | None:
  """The newest step whose files are those that were saved; None where none was ever saved.

  A newer one that is damaged, or was saved as another step, is renamed, never removed, with a line to `log`.
  DataError: there are checkpoints and none is good, or two runs have saved in this workdir.
  """
  directory = Path(workdir).absolute() / checkpoint.DIRECTORY
  steps = checkpoint.saved_steps(directory)
  runs = {step: integrity.run_id(directory / str(step)) for step in steps}
  if len({*runs.values()} - {""}) > 1:
    shown = ", ".join(f"step {step} of run {run}" for step, run in runs.items())
    raise DataError(f"{directory} holds checkpoints of several runs ({shown}); move those of the others away")
  for step in reversed(steps):
    path = directory / str(step)
    problem = integrity.problem(path)
    if problem is None:
      return step
    if jax.process_index() == 0:
      integrity.set_aside(path, f"is damaged: {problem}", "damaged", log)
  left = [path.name for path in directory.iterdir() if _has_files(path)] if directory.is_dir() else []
  if left:
    shown = ", ".join(sorted(left))
    raise DataError(
      f"{directory}: no checkpoint of this run is whole ({shown}); bring one back from a copy with all its "
      "files, or start a new run with another --workdir"
    )
  return None


def _has_files(path: Path) -> bool:
  """Whether a directory was a step's, whatever became of it."""
  return checkpoint.is_step_name(path.name.partition(".damaged")[0]) and any(
    file.is_file() for file in path.rglob("*")
  )


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
  """`fields.flatten` as JSON has it: a tuple is a list, so that saved and given values compare equal."""
  leaves = fields.flatten(config).items()
  return {name: list(value) if isinstance(value, tuple) else value for name, value in leaves}


def check_same_run(config: ConfigDict, digests: Mapping[str, Any], meta: Mapping[str, Any]) -> list[str]:
  """Compares a config, and the `digests` of the records that it reads, with the `meta` of a checkpoint.

  Returns lines about harmless changes, 'field: saved -> given'. Raises ConfigError where a field differs that
  changes the meaning of the state, DataError for other records or another vocabulary.
  """
  _check_feed(digests.get("feed"), meta.get("feed"))
  _check_mixture(digests.get("mixture"), meta)
  digests = {
    name: digest
    for name, digest in digests.items()
    if name not in ("mixture", "feed") and (name in meta or name not in LATER_DIGESTS)
  }
  missing = [name for name in ("config", "interval_sums", *digests) if name not in meta]
  if missing:
    raise DataError(
      f"the newest checkpoint's meta lacks {', '.join(missing)}: its file was changed, or it is not of this "
      f"program; move that step away to continue from an older one, or start a new run with another --workdir"
    )
  for name, digest in digests.items():
    if meta[name] != digest:
      what = name.replace("_digest", "")
      raise DataError(
        f"the {what} changed since the checkpoint was saved ({meta[name][:12]}... -> {digest[:12]}...); "
        f"bring the old {what} back, or start a new run with another --workdir"
      )
  saved, asked = LATER_FIELDS | flatten(meta["config"]), flatten(config.to_dict())
  changed = {
    name: line
    for name, line in changes(saved, asked).items()
    # A field that came later and is off here: the run was saved without it.
    if name in saved or asked[name]
  }
  refused = [line for name, line in changed.items() if not _is_safe(name, saved, asked)]
  if refused:
    raise ConfigError(
      f"the workdir holds a run with another config ({'; '.join(refused)}); continue it with those values, "
      f"or start a new run with another --workdir"
    )
  return list(changed.values())


def _check_mixture(asked: list | None, meta: Mapping[str, Any]) -> None:
  """Raises ConfigError where a mixture differs from the saved one in the batches that were taken so far.

  The mixtures are as `mixed.Found.digests` has them, None without one. A stage that begins later may differ.
  """
  saved = meta.get("mixture")
  if asked is None and saved is None:
    return
  if asked is None or saved is None:
    before, now = ("a mixture" if stages else "one directory" for stages in (saved, asked))
    raise ConfigError(
      f"the workdir holds a run on {before} of records, and {now} is given; continue it with what it was "
      "trained on, or start a new run with another --workdir"
    )
  skips = [Skip(*skip) for skip in meta.get("spikes", {}).get("skips", [])]
  taken = position(meta["step"], skips)
  # Names are those of directories, which may be moved; the digests of their records decide.
  past, wanted = ([stage for stage in stages if stage[0] < taken] for stages in (saved, asked))
  if [*_digests(past)] != [*_digests(wanted)]:
    raise ConfigError(
      f"the mixture of the first {taken:,} steps differs from that of the run ({mixture.shown(past)} -> "
      f"{mixture.shown(wanted)}); only stages from step {taken:,} on may change; give the old "
      "ones as they were, or start a new run with another --workdir"
    )


def has_other_shares(config: ConfigDict, digests: Mapping[str, Any], meta: Mapping[str, Any]) -> bool:
  """Returns whether later stages or another end change the sources' shares of the whole run."""
  asked, saved = digests.get("mixture", []), meta.get("mixture", [])
  is_longer = config.train.total_steps != meta["config"]["train"]["total_steps"]
  return [*_digests(asked)] != [*_digests(saved)] or (is_longer and len(asked) > 1)


def _check_feed(given: Mapping[str, Any] | None, saved: Mapping[str, Any] | None) -> None:
  """Raises ConfigError or DataError where a feed would give other blocks than the saved one.

  Both are as `data.feed.stream.Stream.facts` has them, None for prepared records.
  """
  if given == saved:
    return
  anew = "or begin with the weights of this one in a new workdir (--config.train.init_from=DIR)"
  if given is None or saved is None or given["source"] != saved["source"]:
    before, now = (one["source"] if one else "prepared records" for one in (saved, given))
    raise ConfigError(
      f"the workdir holds a run on {before}, and {now} is given; continue it with what it was trained on, "
      f"{anew}"
    )
  if given["module"] != saved["module"]:
    raise DataError(
      f"data.module: the file changed since the run began ({saved['module'][:12]}... -> "
      f"{given['module'][:12]}...), so {given['source']} may give other blocks; bring the old file back, "
      f"{anew}"
    )
  old = {name: version for name, version in saved["versions"].items() if given["versions"][name] != version}
  if old:
    found = ", ".join(f"{name} {version} -> {given['versions'][name]}" for name, version in old.items())
    pins = " ".join(f"{name}=={version}" for name, version in old.items())
    raise DataError(
      f"packages changed since the run began ({found}), and with them the order of {given['source']} may; "
      f"install those of then (pip install {pins}), {anew}"
    )
  raise DataError(
    f"the records of {given['source']} are others than when the run began ({saved['records'][:12]}... -> "
    f"{given['records'][:12]}...); bring the old ones back, {anew}"
  )


def _digests(stages: Sequence) -> Iterator[tuple[int, list]]:
  return ((step, [pair for _, *pair in rates]) for step, rates in stages)


def changed_packages(meta: Mapping[str, Any]) -> list[str]:
  """'jax: 0.10.1 -> 0.10.2' for each package that decides numbers and is not the one that saved `meta`."""
  saved = meta.get("packages", {})
  return [
    f"{name}: {saved[name]} -> {version}"
    for name, version in command.versions(checkpoint.PACKAGES).items()
    if saved.get(name, version) != version
  ]


def _is_safe(name: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
  if name == "train.total_steps":
    return given.get(name, 0) >= saved.get(name, 0)
  return name in SAFE_FIELDS
