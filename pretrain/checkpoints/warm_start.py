"""Loads a new run's initial parameters from other checkpoints, and records their origin.

A larger model may begin with a smaller one's parameters, and a larger vocabulary with those of the one that
it extends. Source of growth: AnswerDotAI/ModernBERT, src/bert_layers/initialization.py
(tile_weights_from_middle) and model.py.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data import files, vocabulary
from data.errors import DataError
from data.vocabulary import Extension, table_rows
from pretrain.checkpoints.checkpoint import DIGESTS, read_meta
from pretrain.checkpoints.saved_model import SavedModel, open_model
from pretrain.checkpoints.workdir import step_path
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

# Arrays with a row for each id: token tables, and the biases of heads that predict tokens.
_OF_TOKENS = re.compile(r"(.*/)?((token|table)/embedding|(mlm|mlm_head|clm)/bias)")
# Endings of paths, and the axis, from the last, that cannot grow.
_ROWS = re.compile(r"(^|/)((\w+)/embedding|(mlm|mlm_head|clm)/bias)$")
_HEADS = re.compile(r"(^|/)attention/((query|key|value)/(kernel|bias)|output/kernel)$")
_FIELD_OF_ROWS = {"token": "vocab_size", "position": "max_length"}


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
    lists = {field: path / DIGESTS for field, path in self.paths.items()}
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
  params: dict, origins: Origins, *, vocabulary_digest: str | None = None, vocabulary_directory: str = ""
) -> dict:
  """Loads parts of other checkpoints into a run's parameters: a model, a generator, a token table.

  `params` are ShapeDtypeStructs with shardings; loaded parts become arrays with these shardings. All
  checkpoints must have `vocabulary_digest`, because a token table is useless with another vocabulary, or one
  that the vocabulary in `vocabulary_directory` extends; then its new words get rows: `add_rows`.
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
      grow = functools.partial(grow_params, is_pre=there["norm_placement"] == "pre")
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
      what = (
        "ids keep the rows of their pieces"
        if extends.trims
        else "new words have the mean rows of their old pieces"
      )
      logger.info(f"{field}: {len(extends.pieces):,} {what}")
      params = add_rows(source.params, extends, rows=rows, where=field)
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


def grow_params(params: dict[str, Any], shapes: dict[str, Any], *, is_pre: bool = False) -> dict[str, Any]:
  """Returns host arrays `params` in the larger sizes of `shapes`, a tree with arrays or ShapeDtypeStructs.

  An axis of n numbers becomes one of N around its middle: new[i] = old[(i - (N - n) // 2) % n]. Of a layers,
  layer i of b copies layer round(i a / b); in a pre-norm encoder (`is_pre`) it reads the same norm, and the
  final norm stays the last. Nothing is rescaled. Arrays that have their size already, or that `shapes` lacks,
  are unchanged. All heads have one width, so whole heads are copied.

  DataError: a size is smaller; heads have another width, or an odd number of them is new; a table has another
  number of rows.
  """
  wanted = trees.by_path(shapes)
  grown = [
    _grown(path, np.asarray(leaf), wanted[path].shape, is_pre) if path in wanted else leaf
    for path, leaf in trees.by_path(params).items()
  ]
  return jax.tree.unflatten(jax.tree.structure(params), grown)


def _grown(path: str, array: np.ndarray, shape: tuple[int, ...], is_pre: bool) -> np.ndarray:
  if array.ndim != len(shape):
    return array
  saved = array.shape
  for axis, (size, wanted) in enumerate(zip(saved, shape, strict=True)):
    if size == wanted:
      continue
    is_stack = axis == 0 and not {"layers", "inner_norms"}.isdisjoint(path.split("/"))
    if not is_stack:
      _check_axis(path, axis, saved, shape)
    if size > wanted:
      raise DataError(f"{path} has shape {saved}, expected {tuple(shape)}; a model can only grow")
    rows = _layers(size, wanted) if is_stack else _tiles(size, wanted)
    if is_stack and is_pre and "mlp_norm" in path.split("/"):  # which the next layer's attention reads
      rows = [*(max(row - 1, 0) for row in rows[1:]), size - 1]
    array = np.take(array, rows, axis=axis)
  return array


def _tiles(size: int, wanted: int) -> np.ndarray:
  return (np.arange(wanted) - (wanted - size) // 2) % size


def _layers(size: int, wanted: int) -> list[int]:
  # Python's round, half to even; of at least twice as many layers the last would be layer `size`.
  return [min(round(number * size / wanted), size - 1) for number in range(wanted)]


def _check_axis(path: str, axis: int, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
  """Raises DataError if an axis with two sizes is one that cannot grow, or not by so much."""
  there, here = shape[axis], wanted[axis]
  if (table := _ROWS.search(path)) and axis == 0:
    field = _FIELD_OF_ROWS.get(table[3])
    way_out = f"\n  --config.model.{field}={there}" if field else ""
    raise DataError(f"{path} has {there:,} rows there, {here:,} here; expected the same{way_out}")
  if not (part := _HEADS.search(path)):
    return
  of_heads = len(shape) - (3 if part[2].startswith("output") else 2)
  width, wanted_width = shape[of_heads + 1], wanted[of_heads + 1]
  if width != wanted_width:
    heads, rest = divmod(wanted[of_heads] * wanted_width, width)
    way_out = "" if rest else f"\n  --config.model.num_heads={heads}"
    raise DataError(f"{path}: heads are {width} wide there, {wanted_width} here; expected one width{way_out}")
  if axis == of_heads and (here - there) % 2:
    raise DataError(
      f"{path}: {there} heads there, {here} here; expected an even number of new ones\n"
      f"  --config.model.num_heads={here + 1} --config.model.hidden_size={(here + 1) * width}"
    )


def add_rows(params: dict[str, Any], extension: Extension, *, rows: int, where: str) -> dict[str, Any]:
  """Returns parameters whose token tables and output biases have `rows` rows, and rows for the new words.

  The row of a new word is the mean of its old pieces' rows, computed in float32. An added row without an id
  is the mean of all old rows. Of a trimmed vocabulary each id has the row of its piece. All other parameters
  are unchanged. DataError: `rows` are too few, or a table has fewer rows than the old vocabulary has ids.
  """
  paths, structure = trees.by_path(params), jax.tree.structure(params)
  made = []
  for path, leaf in paths.items():
    if not _OF_TOKENS.fullmatch(path):
      made.append(leaf)
      continue
    old = np.asarray(leaf)
    least = table_rows(len(extension.pieces)) if extension.trims else len(old)
    if extension.size > len(old) or rows < least:
      raise DataError(
        f"{where}: {path} has {len(old):,} rows for the {extension.size:,} ids of its vocabulary, and gets "
        f"{rows:,}; expected at least\n  --config.model.vocab_size={least}"
      )
    wide = old.astype(np.float32)
    new = np.repeat(wide.mean(0, keepdims=True), rows, 0).astype(old.dtype)
    if not extension.trims:
      new[: len(old)] = old
    for number, pieces in extension.pieces.items():
      new[number] = wide[list(pieces)].mean(0)
    made.append(new)
  return jax.tree.unflatten(structure, made)
