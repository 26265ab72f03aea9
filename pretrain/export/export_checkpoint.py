"""Exports a checkpoint: choose a layout, write a temporary folder, check it in a fresh process, rename it."""

import dataclasses
import logging
import pathlib
import shutil
import tempfile

import numpy as np

from data import errors, files
from data.errors import ConfigError, DataError
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel, open_model
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export import embedding_files, folders, task_fields
from pretrain.export.card import card
from pretrain.export.check import reference as self_check
from pretrain.export.generator_models import generator_models
from pretrain.export.official.fit import check_official
from pretrain.export.official.write import write_official
from pretrain.export.stock import choose
from pretrain.export.stock.write import to_stock
from pretrain.export.tokenizer.convert import write_tokenizer
from pretrain.mesh import trees

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
    report = _check(request, *model, folder, choice.layout, written.head, schema)
    generators = _write_generators(request, folder, *model) if request.generator else ()
    facts = card.Facts(
      name=request.name or f"{saved.meta['config']['recipe']}, step {saved.meta['step']:,}",
      layout=choice.layout,
      reason=choice.reason,
      architecture=written.architecture,
      extra=written.extra,
      pretokenization=encoder.vocabulary.pretokenization,
      hidden_difference=report.hidden,
      logits_difference=report.logits,
      vectors_difference=report.vectors,
      tolerance=request.tolerance,
      license=request.license,
      language=request.language,
      schema=schema,
      onnx=request.onnx,
      reads_space=encoder.vocabulary.reads_space,
      head=written.head,
      generators=generators,
      folder=request.output.absolute().name,
    )
    text = card.write(facts, saved.params, saved.meta, saved.workdir)
    (folder / "README.md").write_text(text, encoding="utf-8")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{files.sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / DIGESTS).write_text("".join(lines), encoding="utf-8")  # format of sha256sum
  logger.info(f"{request.output}: {', '.join(sorted(entry.name for entry in request.output.iterdir()))}")


def _write_schema(
  request: Request, folder: pathlib.Path, layout: str, saved: SavedModel, encoder: OpenedEncoder
) -> EmbeddingSchema | None:
  """Writes the files of sentence-transformers if they are asked for, or the model is an embedding model.

  Returns what they say of vectors; None without them. Layouts that the library cannot read get only
  `embedding.json`.
  """
  is_embedding = (saved.workdir / FILE).is_file()
  if layout not in folders.STOCK:
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
) -> self_check.Report:
  """Compares the export with the JAX model in a fresh process, and ONNX too; logs the differences."""
  _, config, vocabulary, _ = encoder
  with tempfile.TemporaryDirectory() as scratch:
    reference = pathlib.Path(scratch) / "reference.npz"
    own_rows = task_fields.first_rows(saved.workdir)
    cases = self_check.make_cases(
      vocabulary,
      max_length=config.max_length,
      own_rows=own_rows,
      radius=config.window // 2 if config.has_windows else 0,
      schema=schema,
    )
    self_check.write_reference(
      reference,
      saved.params,
      config,
      cases,
      pad_id=vocabulary.special_ids.pad,
      head=head,
      activation=task_fields.activation(saved.task),
      pooling=task_fields.pooling(saved.task),
      schema=schema,
    )
    report = self_check.check(folder, reference, layout, tolerance=request.tolerance)
    logits = "" if report.logits is None else f", of {head} logits {report.logits:.1e} of the largest"
    vectors = "" if report.vectors is None else f", of vectors {report.vectors:.1e}"
    names = ", ".join(case.name for case in cases)
    logger.info(
      f"self-check: max |difference| of hidden states {report.hidden:.1e}{logits}{vectors} ({names})"
    )
    if request.onnx:
      from pretrain.export import onnx_file

      difference = onnx_file.write(
        folder, reference, max_length=config.max_length, tolerance=request.tolerance, schema=schema
      )
      logger.info(f"onnx: max |difference| of its outputs {difference:.1e}")
  return report


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


def _choose(request: Request, saved: SavedModel, encoder: OpenedEncoder) -> choose.Choice:
  layout, activation = request.to, task_fields.activation(saved.task)
  params, (_, config, vocabulary, _) = saved.params, encoder
  heads = set(params.get("heads", {}))
  if layout not in ("auto", *folders.STOCK) and (
    request.onnx or request.sentence_transformers or request.generator
  ):
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
  needs = {"pad_id": vocabulary.special_ids.pad, "heads": heads, "activation": activation}
  if layout == "auto":
    return choose.choose(config, **needs)
  if layout in folders.STOCK:
    choose.check_layout(layout, config, **needs)
  elif layout in folders.OFFICIAL:
    check_official(config, vocabulary, layout, params, activation=activation)
  return choose.Choice(layout, "asked for with --to")


def _write(folder: pathlib.Path, layout: str, saved: SavedModel, encoder: OpenedEncoder) -> folders.Written:
  params, (_, config, vocabulary, directory) = saved.params, encoder
  if layout == "torch":
    fields = saved.meta["config"]["model"]
    return folders.write_own(folder, params, fields, directory, task=saved.task)
  if layout in folders.OFFICIAL:
    return write_official(folder, params, config, directory, vocabulary, layout=layout, task=saved.task)
  made = to_stock(params, config, layout=layout, special_ids=vocabulary.special_ids, task=saved.task)
  folders.save_tensors(folder / "model.safetensors", made.state)
  folders.save_json(folder / "config.json", made.config)
  folders.save_tensors(folder / folders.EXTRA, made.extra)
  write_tokenizer(directory, folder, max_length=config.max_length)
  return folders.Written(made.architecture, made.head, tuple(made.extra))
