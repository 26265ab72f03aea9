"""What may change between a checkpoint and the run that continues it."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from data.errors import ConfigError, DataError

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
  "train.microbatches",
  "train.multihost",
  "train.platform",
  "train.peak_flops",
  "data.directory",
  "data.module",
  "data.tfds_directory",
  "data.workers",
  "mesh.data",
  "mesh.fsdp",
  "mesh.tensor",
  "model.remat",
  "model.scan_unroll",
  "model.vocab_chunk_rows",
)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """{'train.batch_size': 32, ...} of a nested mapping; tuples and lists compare equal."""
  flat: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = list(value) if isinstance(value, tuple) else value
  return flat


def check_same_run(config: ConfigDict, digests: Mapping[str, str], meta: Mapping[str, Any]) -> list[str]:
  """Compares a config, and the sha256 `digests` of what it reads, with the `meta` of a checkpoint.

  Returns lines about harmless changes, 'field: saved -> given'. Raises ConfigError where a field differs that
  changes the meaning of the state, DataError for other records or another vocabulary.
  """
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
  saved, asked = flatten(meta["config"]), flatten(config.to_dict())
  changed = {
    name: f"{name}: {saved.get(name, 'absent')} -> {asked.get(name, 'absent')}"
    for name in sorted(saved.keys() | asked.keys())
    if saved.get(name) != asked.get(name)
    # A field that came later and is off here: the run was saved without it.
    and (name in saved or asked[name])
  }
  refused = [line for name, line in changed.items() if not _is_safe(name, saved, asked)]
  if refused:
    raise ConfigError(
      f"the workdir holds a run with another config ({'; '.join(refused)}); continue it with those values, "
      f"or start a new run with another --workdir"
    )
  return list(changed.values())


def _is_safe(name: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
  if name == "train.total_steps":
    return given.get(name, 0) >= saved.get(name, 0)
  return name in SAFE_FIELDS
