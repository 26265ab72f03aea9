"""What may change between a checkpoint and the run that continues it, and what a new run starts from."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from data.errors import ConfigError, DataError
from pretrain import trees
from pretrain.saved_model import SavedModel, open_model

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

# Fields of `model` under which the same arrays would compute something else.
MEANING_FIELDS = (
  "num_heads",
  "num_segments",
  "layer_norm_eps",
  "relative_position",
  "relative_buckets",
  "relative_max_distance",
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
    config: what the run is started with now.
    digests: sha256 of the vocabulary and of the records that it would read.
    meta: what the checkpoint says of the run that saved it.

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
    # A field that came later and is off here: the run was saved without it.
    and (name in saved or given[name])
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


def warm_start(
  params: dict,
  config: ConfigDict,
  *,
  vocabulary_digest: str | None = None,
  say: Callable[[str], None] = print,
) -> dict:
  """Puts in what the config takes from other checkpoints: a whole model, a generator, a token table.

  Args:
    params: shapes of the parameters with shardings.
    config: `train.init_from`, `generator.init_from`, `model.freeze_embeddings_from`; each goes over the one
      before it.
    vocabulary_digest: of this run's records, which those of all these checkpoints must equal: the rows of a
      token table mean nothing under another vocabulary.
    say: takes a line about what of `train.init_from` was taken.

  Returns:
    params with those parts replaced by arrays, placed as the shapes say.

  Raises:
    DataError: another vocabulary, an encoder of another kind, a part that is missing, or shapes that differ.
  """
  if config.train.init_from:
    params = _continued(params, config, vocabulary_digest=vocabulary_digest, say=say)
  if config.generator.init_from and config.corruption.kind == "generator":
    field = f"generator.init_from={config.generator.init_from}"
    source = _open(config.generator.init_from, vocabulary_digest, field)
    part = _generator_part(source.params, config.generator.init_from)
    there = _meaning(source.meta["config"], is_generator="generator" in source.params)
    _check_meaning(_meaning(config, is_generator=True), there, field)
    wanted = {name: leaf for name, leaf in params["generator"].items() if name != "mixture"}
    grafted = _graft(wanted, part, where=f"{config.generator.init_from} (generator)")
    params = params | {"generator": params["generator"] | grafted}
  if config.model.freeze_embeddings == "checkpoint":
    field = f"model.freeze_embeddings_from={config.model.freeze_embeddings_from}"
    source = _open(config.model.freeze_embeddings_from, vocabulary_digest, field)
    embeddings = dict(params["encoder"]["embeddings"])
    token = {"token": embeddings["token"]}
    saved = {"token": source.params["encoder"]["embeddings"]["token"]}
    embeddings |= _graft(token, saved, where=f"{config.model.freeze_embeddings_from} (token table)")
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


def _continued(
  params: dict, config: ConfigDict, *, vocabulary_digest: str | None, say: Callable[[str], None]
) -> dict:
  """Puts in the encoder of `train.init_from`, and its heads and generator where they are the same."""
  where = config.train.init_from
  source = _open(where, vocabulary_digest, f"train.init_from={where}")
  saved, meta = source.params, source.meta
  _check_meaning(_meaning(config), _meaning(meta["config"]), f"train.init_from={where}")
  found = trees.differences(params["encoder"], saved.get("encoder", {}))
  if found:
    raise DataError(
      f"train.init_from={where} (encoder): {trees.first_lines(found)}; give a checkpoint of the same sizes"
    )
  taken, fresh = {"encoder": _graft(params["encoder"], saved["encoder"], where=where)}, []
  wanted, there = _parts(params), _parts(saved)
  for name, part in wanted.items():
    found = trees.differences(part, there[name]) if name in there else ["not in it"]
    if found:
      fresh.append(f"{name} ({trees.first_lines(found)})")
    else:
      taken[name] = _graft(part, there[name], where=where)
  left = sorted(there.keys() - taken.keys())
  say(
    f"Starting from {where}, step {meta['step']:,}: loaded {', '.join(taken)}; fresh: "
    f"{', '.join([*fresh, 'optimizer', 'step'])}; left over: {', '.join(left) or 'nothing'}"
  )
  heads = {name: taken.get(f"heads/{name}", part) for name, part in params["heads"].items()}
  params = params | {"encoder": taken["encoder"], "heads": heads}
  if "generator" in params:
    params["generator"] = params["generator"] | taken.get("generator", {})
    if "generator/mixture" in taken:
      params["generator"]["mixture"] = taken["generator/mixture"]
  return params


def _open(directory: str, vocabulary_digest: str | None, field: str) -> SavedModel:
  """The model that a field of the config names; DataError where the records have another vocabulary."""
  source = open_model(directory)
  digest = source.meta["vocabulary_digest"]
  if digest != vocabulary_digest:
    raise DataError(
      f"{field}: its vocabulary is another ({str(digest)[:12]}... there, {str(vocabulary_digest)[:12]}... of "
      f"the records); prepare them with its vocabulary (data.vocabulary)"
    )
  return source


def _meaning(config: Mapping[str, Any] | ConfigDict, *, is_generator: bool = False) -> dict[str, Any]:
  """The fields of `MEANING_FIELDS`, of the encoder or of the generator, which has heads of its own."""
  model = config.get("model", {})
  found = {name: model.get(name, "absent") for name in MEANING_FIELDS}
  if is_generator:
    found["num_heads"] = config.get("generator", {}).get("num_heads", 0) or found["num_heads"]
  return found


def _check_meaning(given: Mapping[str, Any], saved: Mapping[str, Any], field: str) -> None:
  is_without = given["relative_position"] == saved["relative_position"] == "none"
  differ = [
    f"{name}: {saved[name]} there, {value} here"
    for name, value in given.items()
    if saved[name] != value and not (is_without and name in ("relative_buckets", "relative_max_distance"))
  ]
  if differ:
    raise DataError(f"{field}: it is another model ({'; '.join(differ)}); use its values")


def _parts(params: dict) -> dict[str, dict]:
  """What is taken over together or not at all, beside the encoder."""
  parts = {f"heads/{name}": part for name, part in params.get("heads", {}).items()}
  if "generator" in params:
    parts["generator"] = {name: part for name, part in params["generator"].items() if name != "mixture"}
    if "mixture" in params["generator"]:
      parts["generator/mixture"] = params["generator"]["mixture"]
  return parts


def _graft(fresh: dict, saved: dict, *, where: str) -> dict:
  """Arrays of a checkpoint in the places of shapes; DataError where one does not fit."""
  problems = trees.differences(fresh, saved, is_exact=False)
  if problems:
    raise DataError(f"{where}: {trees.first_lines(problems)}; give a checkpoint of the same sizes")
  there = trees.by_path(saved)
  return jax.tree.unflatten(
    jax.tree.structure(fresh),
    [jax.device_put(np.asarray(there[name]), leaf.sharding) for name, leaf in trees.by_path(fresh).items()],
  )
