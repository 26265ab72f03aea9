"""Loads a new run's initial parameters from other checkpoints, and records their origin."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data import files, vocabulary
from data.errors import DataError
from pretrain.checkpoints import growth, integrity, new_words
from pretrain.checkpoints.addresses import step_path
from pretrain.checkpoints.checkpoint import read_meta
from pretrain.checkpoints.saved_model import SavedModel, open_model
from pretrain.corruption.generator import with_token
from pretrain.mesh import trees
from pretrain.settings.model import EncoderSettings

logger = logging.getLogger(__name__)

# Fields of `model` that change what the same arrays compute.
MEANING_FIELDS = (
  "num_heads",
  "num_segments",
  "pair_segments",
  "layer_norm_eps",
  "relative_position",
  "relative_buckets",
  "relative_max_distance",
  "position",
  "norm_placement",
  "norm",
  "embedding_norm",
  "mlp",
  "activation",
)

# A new phase may change these; the trainer reports it.
PHASE_FIELDS = ("rope_theta", "rope_theta_local", "window", "global_every", "global_layers")


@dataclasses.dataclass(frozen=True)
class Origins:
  """The checkpoints from which a new run loads values; each is searched for once."""

  named: Mapping[str, str]  # {field: checkpoint in the config}; later ones replace earlier ones
  encoder: Mapping[str, Any]  # `MEANING_FIELDS` and `PHASE_FIELDS` of the run's encoder
  generator: Mapping[str, Any]  # the same fields of its generator, which has its own heads
  grows: bool = False  # whether the model of `train.init_from` is grown to the run's sizes

  @functools.cached_property
  def paths(self) -> dict[str, Path]:
    """{field: directory of the step}; addresses are downloaded. DataError: a checkpoint is missing."""
    paths = {}
    for field, name in self.named.items():
      try:
        paths[field] = step_path(name)
      except DataError as error:
        raise DataError(f"{field}={name}: {error}") from error
    return paths

  def digests(self) -> dict[str, list[str]]:
    """Returns {field: [step, start of the digest of its list of digests]}, to compare processes."""
    lists = {field: path / integrity.NAME for field, path in self.paths.items()}
    digest = lambda path: files.sha256(path)[:12] if path.is_file() else ""  # noqa: E731
    return {field: [path.parent.name, digest(path)] for field, path in lists.items()}

  def facts(self) -> dict[str, Any]:
    """Returns {field: {'recipe', 'step' and, if it has them, 'source' and 'started_from'}} for the card."""
    facts = {}
    for field, path in self.paths.items():
      meta = read_meta(path)
      kept = {name: meta[name] for name in ("step", "source", "started_from") if name in meta}
      facts[field] = {"recipe": meta.get("config", {}).get("recipe", ""), **kept}
    return facts


def origins(config: Mapping[str, Any]) -> Origins:
  """Returns the checkpoints from which a config, as a dict, loads values; files are not read yet."""
  named = {"train.init_from": config["train"]["init_from"]}
  if config["corruption"]["kind"] == "generator":
    named["generator.init_from"] = config["generator"]["init_from"]
  if config["model"]["freeze_embeddings"] == "checkpoint":
    named["model.freeze_embeddings_from"] = config["model"]["freeze_embeddings_from"]
  named = {name: path for name, path in named.items() if path}
  grows = config["train"]["init_grow"] == "tile"
  return Origins(named, _meaning(config), _meaning(config, is_generator=True), grows)


def load_into(
  params: dict,
  origins: Origins,
  *,
  vocabulary_digest: str | None = None,
  vocabulary_directory: str = "",
) -> dict:
  """Loads parts of other checkpoints into a run's parameters: a model, a generator, a token table.

  `params` are ShapeDtypeStructs with shardings; loaded parts become arrays with these shardings. All
  checkpoints must have `vocabulary_digest`, because a token table is useless with another vocabulary, or one
  that the vocabulary in `vocabulary_directory` extends; then its new words get rows: `new_words.add_rows`.
  Where the run stores the encoder's table as a difference to the generator's, the loaded table is kept: the
  generator's is the loaded one or, without, the encoder's.
  DataError: another vocabulary, another kind of encoder, a missing part, or other shapes.
  """
  token = params["encoder"]["embeddings"]["token"]
  if "difference" in token:
    params = with_token(params, embedding=token["difference"])
  for field, path in origins.paths.items():
    where = origins.named[field]
    rows = params["encoder"]["embeddings"]["token"]["embedding"].shape[0]
    source = _open(path, vocabulary_digest, vocabulary_directory, f"{field}={where}", rows=rows)
    if field == "train.init_from":
      there = _meaning(source.meta["config"])
      heads = {"num_heads": there["num_heads"]} if origins.grows else {}  # growth compares their widths
      _check_meaning({**origins.encoder, **heads}, there, f"{field}={where}")
      grow = functools.partial(growth.grow, is_pre=there["norm_placement"] == "pre")
      params = _continued(params, source, where, grow=grow if origins.grows else None)
    elif field == "generator.init_from":
      generator = _generator_part(source.params, where)
      there = _meaning(source.meta["config"], is_generator="generator" in source.params)
      _check_meaning(origins.generator, there, f"{field}={where}")
      wanted = {name: leaf for name, leaf in params["generator"].items() if name != "mixture"}
      grafted = _graft(wanted, generator, where=f"{where} (generator)")
      params = params | {"generator": params["generator"] | grafted}
    else:
      embeddings = params["encoder"]["embeddings"]
      token = {"token": embeddings["token"]}
      saved = {"token": source.params["encoder"]["embeddings"]["token"]}
      embeddings = embeddings | _graft(token, saved, where=f"{where} (token table)")
      params = params | {"encoder": params["encoder"] | {"embeddings": embeddings}}
  return _parted(params) if "difference" in token else params


def _parted(params: dict) -> dict:
  """Returns the parameters with the encoder's token table as a difference to the generator's."""
  generator, table = params["generator"], params["encoder"]["embeddings"]["token"]["embedding"]
  base = generator["embeddings"]["token"]["embedding"]
  if isinstance(table, jax.Array):
    base = base if isinstance(base, jax.Array) else table
    table = table - base
  generator = generator | {"embeddings": generator["embeddings"] | {"token": {"embedding": base}}}
  return with_token(params, difference=table) | {"generator": generator}


def _generator_part(saved: dict, where: str) -> dict:
  """Returns a generator from a finished run: its own, or its encoder with a masked-LM head."""
  shared = saved["encoder"]["embeddings"]
  if "generator" in saved:
    part = saved["generator"]
    return part | {"embeddings": shared | part.get("embeddings", {})}
  if "mlm" in saved.get("heads", {}):
    return {**saved["encoder"], "mlm_head": saved["heads"]["mlm"]}
  raise DataError(
    f"generator.init_from={where} has neither a generator nor a masked-LM head; expected a checkpoint of a "
    f"masked-LM run, or of a run with a generator"
  )


def _continued(params: dict, source: SavedModel, where: str, *, grow: Callable | None) -> dict:
  """Loads the encoder of `train.init_from`, and its heads and generator if they match or can be grown."""
  saved = source.params
  if grow:
    saved = saved | {"encoder": _grown_encoder(params["encoder"], saved.get("encoder", {}), where, grow)}
  problems = trees.differences(params["encoder"], saved.get("encoder", {}))
  if problems:
    raise DataError(
      f"train.init_from={where} (encoder): {trees.first_lines(problems)}; expected the same sizes"
    )
  loaded, fresh = {"encoder": _graft(params["encoder"], saved["encoder"], where=where)}, []
  saved_parts = _parts(saved)
  for name, subtree in _parts(params).items():
    problems = [] if name in saved_parts else ["not in it"]
    if grow and not problems:
      try:
        saved_parts[name] = grow(saved_parts[name], subtree)
      except DataError as error:
        problems = [str(error).partition("\n")[0]]
    problems = problems or trees.differences(subtree, saved_parts[name])
    if problems:
      fresh.append(f"{name} ({trees.first_lines(problems)})")
    else:
      loaded[name] = _graft(subtree, saved_parts[name], where=where)
  left = sorted(saved_parts.keys() - loaded.keys())
  logger.info(
    f"Starting from {where}, step {source.meta['step']:,}: loaded {', '.join(loaded)}; fresh: "
    f"{', '.join([*fresh, 'optimizer', 'step'])}; unused: {', '.join(left) or 'nothing'}"
  )
  heads = {name: loaded.get(f"heads/{name}", subtree) for name, subtree in params["heads"].items()}
  params = params | {"encoder": loaded["encoder"], "heads": heads}
  if "generator" in params:
    params["generator"] = params["generator"] | loaded.get("generator", {})
    if "generator/mixture" in loaded:
      params["generator"]["mixture"] = loaded["generator/mixture"]
  return params


def _grown_encoder(encoder: dict, saved: dict, where: str, grow: Callable) -> dict:
  """Returns a smaller encoder's parameters in the sizes of `encoder`, and logs both; errors are `grow`'s."""
  try:
    grown = grow(saved, encoder)
  except DataError as error:
    raise DataError(f"train.init_from={where} (encoder): {error}") from error
  sizes = []
  for tree in (saved, encoder):
    shapes = {path.rpartition("trunk/layers/")[2]: leaf.shape for path, leaf in trees.by_path(tree).items()}
    layers, width, mlp = shapes["up/kernel"]
    sizes.append(f"{layers} layers x {width}, MLP {mlp:,}")
  logger.info(f"train.init_grow=tile: {where} has {sizes[0]}; grown to {sizes[1]}")
  return grown


def _open(path: Path, vocabulary_digest: str | None, directory: str, field: str, *, rows: int) -> SavedModel:
  """Opens the model that a config field names; DataError if the records have another vocabulary."""
  source = open_model(path)
  digest = source.meta["vocabulary_digest"]
  if digest != vocabulary_digest:
    extends = vocabulary.load(directory).extends if directory else None
    if extends and extends.digest == digest:
      logger.info(f"{field}: {len(extends.pieces):,} new words have the mean rows of their old pieces")
      params = new_words.add_rows(source.params, extends, rows=rows, where=field)
      return dataclasses.replace(source, params=params)
    raise DataError(
      f"{field}: its vocabulary ({str(digest)[:12]}...) is not that of the records "
      f"({str(vocabulary_digest)[:12]}...); prepare them with its vocabulary\n"
      f"  --config.data.vocabulary={source.workdir / 'vocabulary'}"
    )
  return source


def _meaning(config: Mapping[str, Any], *, is_generator: bool = False) -> dict[str, Any]:
  """Returns the fields of `MEANING_FIELDS`, for the encoder or for the generator with its own heads."""
  model = config.get("model", {})
  # Older checkpoints lack the fields that have defaults; those of today are what they computed.
  absent = {field.name: field.default for field in dataclasses.fields(EncoderSettings)}
  fields = {name: model.get(name, absent[name]) for name in (*MEANING_FIELDS, *PHASE_FIELDS)}
  fields["global_layers"] = tuple(fields["global_layers"])  # JSON has lists
  if is_generator:
    fields["num_heads"] = config.get("generator", {}).get("num_heads", 0) or fields["num_heads"]
  return fields


def _check_meaning(ours: Mapping[str, Any], saved: Mapping[str, Any], field: str) -> None:
  """Raises DataError for another kind of encoder; reports what a new phase changes."""
  both = [ours, saved]
  unread = ("relative_buckets", "relative_max_distance") if _all(both, "relative_position", "none") else ()
  unread += () if _all(both, "position", "rope") else ("rope_theta", "rope_theta_local")
  differ = {
    name: f"{saved[name]} there, {value} here" for name, value in ours.items() if saved[name] != value
  }
  differ = {name: line for name, line in differ.items() if name not in unread}
  refused = [f"{name}: {line}" for name, line in differ.items() if name not in PHASE_FIELDS]
  if refused:
    raise DataError(f"{field}: another kind of model ({'; '.join(refused)}); use its values")
  for name, line in differ.items():
    logger.info(f"{field}: this phase changes model.{name}: {line}")


def _all(encoders: Iterable[Mapping[str, Any]], name: str, value: Any) -> bool:
  return all(encoder[name] == value for encoder in encoders)


def _parts(params: dict) -> dict[str, dict]:
  """Returns the parts that are loaded completely or not at all: each head, the generator, its mixture."""
  subtrees = {f"heads/{name}": head for name, head in params.get("heads", {}).items()}
  if "generator" in params:
    generator = {name: subtree for name, subtree in params["generator"].items() if name != "mixture"}
    subtrees["generator"] = generator
    if "mixture" in params["generator"]:
      subtrees["generator/mixture"] = params["generator"]["mixture"]
  return subtrees


def _graft(fresh: dict, saved: dict, *, where: str) -> dict:
  """Replaces shapes by a checkpoint's arrays, placed on devices; DataError if one does not match."""
  problems = trees.differences(fresh, saved, is_exact=False)
  if problems:
    raise DataError(f"{where}: {trees.first_lines(problems)}; expected the same sizes")
  arrays = trees.by_path(saved)
  placed = []
  for path, leaf in trees.by_path(fresh).items():
    array = np.asarray(arrays[path])
    if not np.isfinite(array).all():
      raise DataError(f"{where}: {path} contains NaN or infinity; use an earlier checkpoint of its run")
    placed.append(jax.device_put(array, leaf.sharding))
  return jax.tree.unflatten(jax.tree.structure(fresh), placed)
