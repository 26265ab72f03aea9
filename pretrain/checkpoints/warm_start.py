"""What a new run starts from: the parameters it takes from other checkpoints, and where those came from."""

import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from data.errors import DataError
from pretrain.checkpoints.bucket_steps import step_path
from pretrain.checkpoints.checkpoint import read_meta
from pretrain.checkpoints.saved_model import SavedModel, open_model
from pretrain.mesh import trees

logger = logging.getLogger(__name__)

# Fields of `model` under which the same arrays would compute something else.
MEANING_FIELDS = (
  "num_heads",
  "num_segments",
  "layer_norm_eps",
  "relative_position",
  "relative_buckets",
  "relative_max_distance",
)


def starts(config: Mapping[str, Any]) -> dict[str, str]:
  """{field: checkpoint} of the checkpoints that a config (as a dict) takes values from, in this order."""
  named = {"train.init_from": config["train"]["init_from"]}
  if config["corruption"]["kind"] == "generator":
    named["generator.init_from"] = config["generator"]["init_from"]
  if config["model"]["freeze_embeddings"] == "checkpoint":
    named["model.freeze_embeddings_from"] = config["model"]["freeze_embeddings_from"]
  return {name: path for name, path in named.items() if path}


def started_from(config: ConfigDict) -> dict[str, Any]:
  """What the model card says of the checkpoints that a new run takes values from.

  It is {field: 'recipe', 'step' and, where that checkpoint has them, its 'source' and 'started_from'}.
  Raises DataError where the config names a checkpoint that is not there.
  """
  return {field: _origin(path) for field, path in starts(config.to_dict()).items()}


def _origin(path: str) -> dict[str, Any]:
  meta = read_meta(step_path(path))
  recipe = meta.get("config", {}).get("recipe", "")
  return {"recipe": recipe} | {
    name: meta[name] for name in ("step", "source", "started_from") if name in meta
  }


def load_into(
  params: dict,
  config: ConfigDict,
  *,
  vocabulary_digest: str | None = None,
) -> dict:
  """Puts in what the config takes from other checkpoints: a whole model, a generator, a token table.

  `train.init_from`, `generator.init_from` and `model.freeze_embeddings_from` each go over the one before it.
  `params` are ShapeDtypeStructs with shardings; in the result those parts are arrays, placed as they say.
  The rows of a token table mean nothing under another vocabulary, so all must have `vocabulary_digest`.
  Raises DataError for another vocabulary, an encoder of another kind, a missing part or other shapes.
  """
  if config.train.init_from:
    params = _continued(params, config, vocabulary_digest=vocabulary_digest)
  if config.generator.init_from and config.corruption.kind == "generator":
    field = f"generator.init_from={config.generator.init_from}"
    source = _open(config.generator.init_from, vocabulary_digest, field)
    generator = _generator_part(source.params, config.generator.init_from)
    there = _meaning(source.meta["config"], is_generator="generator" in source.params)
    _check_meaning(_meaning(config, is_generator=True), there, field)
    wanted = {name: leaf for name, leaf in params["generator"].items() if name != "mixture"}
    grafted = _graft(wanted, generator, where=f"{config.generator.init_from} (generator)")
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


def _continued(params: dict, config: ConfigDict, *, vocabulary_digest: str | None) -> dict:
  """Puts in the encoder of `train.init_from`, and its heads and generator where they are the same."""
  where = config.train.init_from
  source = _open(where, vocabulary_digest, f"train.init_from={where}")
  saved, meta = source.params, source.meta
  _check_meaning(_meaning(config), _meaning(meta["config"]), f"train.init_from={where}")
  problems = trees.differences(params["encoder"], saved.get("encoder", {}))
  if problems:
    raise DataError(
      f"train.init_from={where} (encoder): {trees.first_lines(problems)}; give a checkpoint of the same sizes"
    )
  loaded, fresh = {"encoder": _graft(params["encoder"], saved["encoder"], where=where)}, []
  saved_parts = _parts(saved)
  for name, subtree in _parts(params).items():
    problems = trees.differences(subtree, saved_parts[name]) if name in saved_parts else ["not in it"]
    if problems:
      fresh.append(f"{name} ({trees.first_lines(problems)})")
    else:
      loaded[name] = _graft(subtree, saved_parts[name], where=where)
  left = sorted(saved_parts.keys() - loaded.keys())
  logger.info(
    f"Starting from {where}, step {meta['step']:,}: loaded {', '.join(loaded)}; fresh: "
    f"{', '.join([*fresh, 'optimizer', 'step'])}; left over: {', '.join(left) or 'nothing'}"
  )
  heads = {name: loaded.get(f"heads/{name}", subtree) for name, subtree in params["heads"].items()}
  params = params | {"encoder": loaded["encoder"], "heads": heads}
  if "generator" in params:
    params["generator"] = params["generator"] | loaded.get("generator", {})
    if "generator/mixture" in loaded:
      params["generator"]["mixture"] = loaded["generator/mixture"]
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
  fields = {name: model.get(name, "absent") for name in MEANING_FIELDS}
  if is_generator:
    fields["num_heads"] = config.get("generator", {}).get("num_heads", 0) or fields["num_heads"]
  return fields


def _check_meaning(ours: Mapping[str, Any], saved: Mapping[str, Any], field: str) -> None:
  is_without = ours["relative_position"] == saved["relative_position"] == "none"
  differ = [
    f"{name}: {saved[name]} there, {value} here"
    for name, value in ours.items()
    if saved[name] != value and not (is_without and name in ("relative_buckets", "relative_max_distance"))
  ]
  if differ:
    raise DataError(f"{field}: it is another model ({'; '.join(differ)}); use its values")


def _parts(params: dict) -> dict[str, dict]:
  """What is loaded as a whole or not at all, beside the encoder: each head, the generator, its mixture."""
  subtrees = {f"heads/{name}": head for name, head in params.get("heads", {}).items()}
  if "generator" in params:
    generator = {name: subtree for name, subtree in params["generator"].items() if name != "mixture"}
    subtrees["generator"] = generator
    if "mixture" in params["generator"]:
      subtrees["generator/mixture"] = params["generator"]["mixture"]
  return subtrees


def _graft(fresh: dict, saved: dict, *, where: str) -> dict:
  """Arrays of a checkpoint in the places of shapes; DataError where one does not fit."""
  problems = trees.differences(fresh, saved, is_exact=False)
  if problems:
    raise DataError(f"{where}: {trees.first_lines(problems)}; give a checkpoint of the same sizes")
  arrays = trees.by_path(saved)
  placed = []
  for path, leaf in trees.by_path(fresh).items():
    array = np.asarray(arrays[path])
    if not np.isfinite(array).all():
      raise DataError(f"{where}: {path} is not finite everywhere; give an earlier checkpoint of its run")
    placed.append(jax.device_put(array, leaf.sharding))
  return jax.tree.unflatten(jax.tree.structure(fresh), placed)
