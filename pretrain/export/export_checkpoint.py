"""Exports a checkpoint: choose a layout, write a temporary folder, check it, rename it."""

import dataclasses
import logging
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from configs import base
from data import errors, files
from data.errors import ConfigError, DataError
from pretrain.build import generator_config
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel, open_model
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export import card, embedding_files, self_check, task_fields
from pretrain.export.recognise import OWN
from pretrain.export.stock import classes
from pretrain.export.stock.convert import to_stock
from pretrain.export.tensor_rows import flatten
from pretrain.export.tokenizer.convert import write_tokenizer
from pretrain.export.weight_files import EXTRA, read_state, save_json, save_tensors
from pretrain.mesh import trees
from pretrain.models.layers import EncoderConfig
from pretrain.settings.model import GeneratorSettings

logger = logging.getLogger(__name__)

DIGESTS = "sha256.txt"


@dataclasses.dataclass(frozen=True)
class Request:
  """The flags of an export, under the same names."""

  checkpoint: str
  output: pathlib.Path
  to: str = "auto"
  step: int | None = None
  vocabulary: str = ""
  tolerance: float = 1e-5
  onnx: bool = False
  generator: bool = False
  sentence_transformers: bool = False
  name: str = ""
  license: str = ""
  language: str = ""


def read_model(request: Request) -> tuple[SavedModel, OpenedEncoder]:
  """Opens the checkpoint; its config has float32 and plain attention, as in PyTorch.

  DataError: a parameter has a NaN or infinity.
  """
  saved = open_model(request.checkpoint, request.step)
  for path, array in trees.by_path(saved.params).items():
    if not np.isfinite(array).all():
      raise DataError(
        f"checkpoint {saved.path}: {path} contains NaN or infinity; export an earlier step with --step"
      )
  opened = saved.open_encoder(request.vocabulary, flag="--vocabulary", dtype="float32")
  return saved, opened._replace(config=dataclasses.replace(opened.config, attention="plain"))


class Written(NamedTuple):
  """The contents of an exported folder, for the self-check and the card."""

  architecture: str = ""  # class name in config.json; '': transformers cannot load it
  head: str = ""  # name of the head that the class computes; '': none
  extra: tuple[str, ...] = ()  # this project's paths in extra.safetensors


def export(request: Request) -> None:
  """Exports a checkpoint; the output folder is created only after the self-check has passed."""
  if not 0 < request.tolerance < float("inf"):
    raise ConfigError(f"--tolerance={request.tolerance} is not above 0; use\n  --tolerance=1e-5")
  files.refuse_others(request.output, maker="export", mark=DIGESTS)
  saved, encoder = model = read_model(request)
  choice = _choose(request, *model)
  logger.info(f"layout {choice.layout}: {choice.reason}")
  with (
    errors.writing(f"--output={request.output}"),
    files.whole_directory(request.output, replace=True) as folder,
  ):
    written = _write(folder, choice.layout, *model)
    schema = _write_schema(request, folder, choice.layout, *model)
    if (saved.workdir / task_fields.TASK).is_file():
      shutil.copyfile(saved.workdir / task_fields.TASK, folder / task_fields.TASK)
    checked = _check(request, *model, folder, choice.layout, written.head, schema)
    generators = _write_generators(request, folder, *model) if request.generator else ()
    facts = card.Facts(
      name=request.name or f"{saved.meta['config']['recipe']}, step {saved.meta['step']:,}",
      layout=choice.layout,
      reason=choice.reason,
      checked=checked,
      **written._asdict(),
      license=request.license,
      language=request.language,
      schema=schema,
      folder=request.output.absolute().name,
      onnx=request.onnx,
      reads_space=encoder.vocabulary.reads_space,
      pair_segments=encoder.config.pair_segments,
      generators=generators,
    )
    text = card.write(facts, saved.params, saved.meta, saved.workdir)
    (folder / "README.md").write_text(text, encoding="utf-8")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{files.sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / DIGESTS).write_text("".join(lines), encoding="utf-8")  # format of sha256sum
  logger.info(f"{request.output}: {', '.join(sorted(entry.name for entry in request.output.iterdir()))}")


def _choose(request: Request, saved: SavedModel, encoder: OpenedEncoder) -> classes.Choice:
  layout, config, heads = request.to, encoder.config, set(saved.params.get("heads", {}))
  if layout == "torch" and (request.onnx or request.sentence_transformers or request.generator):
    raise ConfigError(
      "--onnx, --sentence_transformers and --generator need a transformers class, not "
      f"--to={layout}\n  --to=auto"
    )
  pooled = task_fields.pooling(saved.task)
  pooled_in_classes = ("cls", "mean") if config.norm_placement == "pre" else ("cls",)
  if "classification" in heads and pooled not in pooled_in_classes and layout != "torch":
    raise ConfigError(
      f"export: the classification head pools a text's vectors by {pooled}, but the classes of transformers "
      "read [CLS]; export under this project's names, or fine-tune again\n"
      "  --to=torch\n  --config.own.pooling=cls"
    )
  pad_id, activation = encoder.vocabulary.special_ids.pad, task_fields.activation(saved.task)
  if layout == "auto":
    origin = _origin(saved.meta)
    return classes.choose(config, pad_id=pad_id, heads=heads, activation=activation, origin=origin)
  if layout != "torch":
    classes.check_layout(layout, config, pad_id=pad_id, heads=heads, activation=activation)
  return classes.Choice(layout, "asked for with --to")


def _origin(facts: Mapping[str, Any]) -> str:
  """Returns the `model_type` of the import with which training began, through all runs since; '' without."""
  while facts and "source" not in facts:
    facts = facts.get("started_from", {}).get("train.init_from", {})
  return facts.get("source", {}).get("model_type", "")


def _write(folder: pathlib.Path, layout: str, saved: SavedModel, encoder: OpenedEncoder) -> Written:
  _, config, vocabulary, directory = encoder
  if layout == "torch":
    write_own(folder, saved.params, saved.meta["config"]["model"], directory, task=saved.task)
    return Written()
  made = to_stock(saved.params, config, layout=layout, special_ids=vocabulary.special_ids, task=saved.task)
  save_tensors(folder / "model.safetensors", made.state)
  save_json(folder / "config.json", made.config)
  save_tensors(folder / EXTRA, made.extra)
  write_tokenizer(directory, folder, max_length=config.max_length, pair_segments=config.pair_segments)
  return Written(made.architecture, made.head, tuple(made.extra))


def write_own(
  folder: pathlib.Path,
  params: dict,
  model: Mapping[str, Any],
  vocabulary_directory: pathlib.Path,
  *,
  task: Mapping[str, Any] | None = None,
) -> None:
  """Writes `--to=torch` into an empty folder: all parameters under this project's names, and the vocabulary.

  `model` is the checkpoint's `config.model`, which describes the encoder. `task` is `meta['task']` of a
  fine-tuned checkpoint.
  """
  save_tensors(folder / "model.safetensors", flatten(params))
  fields = task_fields.own_fields(params, task or {})
  save_json(folder / "config.json", fields | {"model_type": OWN, "model": dict(model)})
  shutil.copytree(vocabulary_directory, folder / "vocabulary")


def _write_schema(
  request: Request, folder: pathlib.Path, layout: str, saved: SavedModel, encoder: OpenedEncoder
) -> EmbeddingSchema | None:
  """Writes the files of sentence-transformers if they are asked for, or the model is an embedding model.

  Returns what they say of vectors; None without them. Layouts that the library cannot read get only
  `embedding.json`.
  """
  is_embedding = (saved.workdir / FILE).is_file()
  if layout not in classes.CLASSES:
    if is_embedding:
      shutil.copyfile(saved.workdir / FILE, folder / FILE)
    return None
  if not (is_embedding or request.sentence_transformers):
    return None
  if not request.sentence_transformers:
    logger.info(f"{FILE} of the checkpoint: the files of sentence-transformers are written too")
  schema = EmbeddingSchema.read(saved.workdir)
  embedding_files.write(folder, schema, encoder.config)
  return schema


def _check(
  request: Request,
  saved: SavedModel,
  encoder: OpenedEncoder,
  folder: pathlib.Path,
  layout: str,
  head: str,
  schema: EmbeddingSchema | None = None,
) -> str:
  """Compares the export with the JAX model, and ONNX too; logs the differences.

  Returns a sentence about them. A folder of `--to=torch` is read back, and must have every parameter's bits.
  """
  if layout == "torch":
    found, expected = read_state(folder / "model.safetensors").state, flatten(saved.params)
    if found.keys() != expected.keys() or any(
      found[path].tobytes() != expected[path].tobytes() for path in found
    ):
      raise DataError(
        "self-check: model.safetensors has other parameters than the checkpoint; export it again"
      )
    logger.info(f"self-check: {len(found)} tensors were read back, equal in every bit")
    return "When it was written, its tensors were read back, equal in every bit."
  _, config, vocabulary, _ = encoder
  cases = self_check.make_cases(
    vocabulary,
    max_length=config.max_length,
    own_rows=task_fields.first_rows(saved.workdir),
    radius=config.window // 2 if config.has_windows else 0,
    schema=schema,
  )
  cases = self_check.with_outputs(
    cases,
    saved.params,
    config,
    pad_id=vocabulary.special_ids.pad,
    head=head,
    activation=task_fields.activation(saved.task),
    pooling=task_fields.pooling(saved.task),
    schema=schema,
  )
  report = self_check.check(folder, cases, layout, tolerance=request.tolerance)
  logits = "" if report.logits is None else f", of {head} logits {report.logits:.1e} of the largest"
  vectors = "" if report.vectors is None else f", of vectors {report.vectors:.1e}"
  differences = f"of hidden states {report.hidden:.1e}{logits}{vectors}"
  logger.info(f"self-check: max |difference| {differences} ({', '.join(case.name for case in cases)})")
  if request.onnx:
    from pretrain.export import onnx_file

    limits = {"max_length": config.max_length, "tolerance": request.tolerance}
    limits["pair_segments"] = config.pair_segments
    difference = onnx_file.write(folder, cases, **limits, schema=schema)
    logger.info(f"onnx: max |difference| of its outputs {difference:.1e}")
  return (
    "When it was written, PyTorch (CPU, float32) read single sentences, pairs, padded batches and the "
    f"longest input. The largest difference from the trained JAX model was {differences} (allowed: "
    f"{request.tolerance:.0e})."
  )


def _write_generators(
  request: Request, folder: pathlib.Path, saved: SavedModel, encoder: OpenedEncoder
) -> tuple[str, ...]:
  """Writes and checks a folder for every head of the generator; returns their names."""
  names, fields = [], saved.meta["config"].get("generator", {})
  for name, params, config in generator_models(saved.params, fields, encoder.config):
    own = dataclasses.replace(saved, params=params, meta=saved.meta | {"task": {}})
    alone = dataclasses.replace(request, to="auto", onnx=False, sentence_transformers=False)
    model = own, encoder._replace(params=params["encoder"], config=config)
    layout, part = _choose(alone, *model).layout, folder / name
    part.mkdir()
    logger.info(f"{name}: {config.num_layers} layers, layout {layout}")
    _check(alone, *model, part, layout, _write(part, layout, *model).head)
    names.append(name)
  return tuple(names)


class GeneratorModel(NamedTuple):
  """A head of a generator as a model of its own."""

  name: str  # of its folder: 'generator', 'generator_layer_4', or 'generator_0' of separate ones
  params: dict  # 'encoder', and 'heads' with 'mlm'
  config: EncoderConfig


def generator_models(
  params: dict, fields: Mapping[str, Any], encoder: EncoderConfig
) -> Iterator[GeneratorModel]:
  """Yields every masked-LM head of a generator with its embeddings and its layers, from below.

  What is shared with the encoder is copied. The logits are the generator's, except that with a projection of
  the token table a number that is the same for all tokens of a position is added.

  Args:
    params: of the checkpoint, numpy arrays.
    fields: the checkpoint's `config.generator`; missing fields have their defaults.

  Raises:
    ConfigError: there is no generator.
  """
  if "generator" not in params:
    raise ConfigError("--generator: this checkpoint has no generator; export it without\n  --generator")
  given: dict[str, Any] = base.get_config().generator.to_dict() | dict(fields)
  given |= {name: tuple(each) for name, each in given.items() if isinstance(each, list)}  # JSON has lists
  settings = generator_config(GeneratorSettings(**given), encoder)
  shared, generator = params["encoder"]["embeddings"], params["generator"]
  if settings.is_separate:
    for number, config in enumerate(settings.members):
      own = _model(generator[f"member_{number}"], shared, config, config.num_layers)
      yield _named(f"generator_{number}", own, config)
    return
  (config,), layers = settings.members, settings.mlm_layers
  for depth in layers:
    name = f"generator_layer_{depth}" if len(layers) > 1 else "generator"
    own = _model(generator, shared, config, depth, layers.index(depth))
    yield _named(name, own, dataclasses.replace(config, num_layers=depth))


def _named(name: str, params: dict, config: EncoderConfig) -> GeneratorModel:
  """Returns a generator's model, whose embeddings may have another width than its layers."""
  width = params["encoder"]["embeddings"]["token"]["embedding"].shape[1]
  size = width if width != config.hidden_size else 0
  return GeneratorModel(name, params, dataclasses.replace(config, embedding_size=size))


def _model(member: dict, shared: dict, config: EncoderConfig, depth: int, index: int = 0) -> dict:
  """Returns the parameters of an encoder of `depth` layers; `index` is the head's among the inner ones."""
  embeddings = {"token": shared["token"], **member.get("embeddings", shared)}
  embeddings.pop("projection", None)  # the encoder's
  if "projection" in member:
    table, projection = embeddings["token"]["embedding"], member["projection"]
    if member["mlm_head"]["norm"]["scale"].shape != (config.hidden_size,):  # it follows the embeddings' norm
      embeddings["projection"] = projection
    else:
      embeddings["token"] = {"embedding": table @ projection["kernel"] + projection["bias"]}
  trunk = {**member["trunk"], "layers": jax.tree.map(lambda stack: stack[:depth], member["trunk"]["layers"])}
  if depth < config.num_layers and "inner_norms" in member:
    last = {
      name: np.concatenate([stack[: depth - 1], member["inner_norms"][name][index, None]])
      for name, stack in trunk["layers"]["mlp_norm"].items()
    }
    trunk["layers"] = trunk["layers"] | {"mlp_norm": last}
  return {"encoder": {"embeddings": embeddings, "trunk": trunk}, "heads": {"mlm": member["mlm_head"]}}
