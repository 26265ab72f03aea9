"""What may change between a checkpoint and the run that continues it, and what a new run starts from."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from data.errors import ConfigError, DataError
from pretrain.checkpoint import load_params

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
  """Compares a config with the one a checkpoint was saved under.

  Args:
    config: of this start.
    digests: of the vocabulary and of the records of this start.
    meta: of the checkpoint.

  Returns:
    Lines about harmless changes, 'field: saved -> given'.

  Raises:
    ConfigError: a field that changes the meaning of the state differs.
    DataError: other records or another vocabulary.
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
  saved, given = flatten(meta["config"]), flatten(config.to_dict())
  changed = {
    name: f"{name}: {saved.get(name, 'absent')} -> {given.get(name, 'absent')}"
    for name in sorted(saved.keys() | given.keys())
    if saved.get(name) != given.get(name)
  }
  refused = [line for name, line in changed.items() if not _is_safe(name, saved, given)]
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


def warm_start(params: dict, config: ConfigDict) -> dict:
  """Puts in what the config takes from other checkpoints: a generator, a token table.

  Args:
    params: shapes of the parameters with shardings.
    config: `generator.init_from`, `model.freeze_embeddings_from`.

  Returns:
    params with those parts replaced by arrays, placed as the shapes say.

  Raises:
    DataError: the other checkpoint lacks a part, or its shapes differ.
  """
  if config.generator.init_from and config.corruption.kind == "generator":
    saved, _ = load_params(config.generator.init_from)
    part = _generator_part(saved, config.generator.init_from)
    wanted = {name: leaf for name, leaf in params["generator"].items() if name != "mixture"}
    grafted = _graft(wanted, part, where=f"{config.generator.init_from} (generator)")
    params = params | {"generator": params["generator"] | grafted}
  if config.model.freeze_embeddings == "checkpoint":
    saved, _ = load_params(config.model.freeze_embeddings_from)
    embeddings = dict(params["encoder"]["embeddings"])
    token = {"token": embeddings["token"]}
    source = {"token": saved["encoder"]["embeddings"]["token"]}
    embeddings |= _graft(token, source, where=f"{config.model.freeze_embeddings_from} (token table)")
    params = params | {"encoder": params["encoder"] | {"embeddings": embeddings}}
  return params


def _generator_part(saved: dict, where: str) -> dict:
  """A generator out of a finished run: its own, or its encoder with a masked-LM head."""
  shared = saved["encoder"]["embeddings"]
  if "generator" in saved:
    part = saved["generator"]
    return part | {"embeddings": shared | part.get("embeddings", {})}
  if "mlm" in saved.get("heads", {}):
    return {**saved["encoder"], "mlm_head": saved["heads"]["mlm"]}
  raise DataError(
    f"{where} has neither a generator nor a masked-LM head; give a checkpoint of a masked-LM run or of one "
    f"with a generator as generator.init_from"
  )


def _graft(fresh: dict, saved: dict, *, where: str) -> dict:
  flat_fresh = jax.tree_util.tree_leaves_with_path(fresh)
  flat_saved = {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(saved)
  }
  problems, values = [], []
  for path, leaf in flat_fresh:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    value = flat_saved.get(name)
    if value is None:
      problems.append(f"{name} is missing")
    elif value.shape != leaf.shape:
      problems.append(f"{name} has shape {value.shape}, expected {leaf.shape}")
    else:
      values.append(jax.device_put(np.asarray(value), leaf.sharding))
  if problems:
    raise DataError(f"{where}: {'; '.join(problems[:3])}; give a checkpoint of the same sizes")
  return jax.tree.unflatten(jax.tree.structure(fresh), values)
