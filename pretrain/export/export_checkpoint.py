"""An export from end to end: read, choose a layout, write aside, check in a fresh process, rename."""

import dataclasses
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from ml_collections import ConfigDict

from data import errors, files
from data.errors import ConfigError, DataError
from data.vocabulary import Vocabulary
from pretrain.build import encoder_config
from pretrain.checkpoints.saved_model import open_model
from pretrain.export import folders, layouts, task_fields
from pretrain.export.card import card
from pretrain.export.check import reference as self_check
from pretrain.export.official.fit import check_official
from pretrain.export.official.write import write_official
from pretrain.export.stock import choose
from pretrain.export.stock.write import to_stock
from pretrain.export.tokenizer.convert import write_tokenizer
from pretrain.mesh import trees
from pretrain.models.config import EncoderConfig

DIGESTS = "sha256.txt"


@dataclasses.dataclass(frozen=True)
class Request:
  """What the command line asked for; fields as its flags."""

  checkpoint: str
  output: pathlib.Path
  to: str = "auto"
  step: int | None = None
  vocabulary: str = ""
  tolerance: float = 1e-5
  onnx: bool = False
  sentence_transformers: bool = False
  name: str = ""
  license: str = ""
  language: str = ""


@dataclasses.dataclass(frozen=True)
class Model:
  """A checkpoint read for export."""

  params: dict
  meta: dict
  workdir: pathlib.Path  # of the run, for its metrics
  config: EncoderConfig  # float32
  vocabulary_directory: pathlib.Path
  vocabulary: Vocabulary

  @property
  def heads(self) -> set[str]:
    """Names of the heads on the encoder."""
    return set(self.params.get("heads", {}))

  @property
  def task(self) -> dict:
    """What a fine-tuned checkpoint says of its task: 'labels', 'problem_type', 'activation'; else {}."""
    return self.meta.get("task") or {}

  @property
  def activation(self) -> str:
    """The activation of the classification head, 'tanh' or 'gelu'."""
    return task_fields.activation(self.task)


def read_model(request: Request) -> Model:
  """Reads parameters, config and vocabulary; a DataError refuses parameters that are not finite."""
  saved = open_model(request.checkpoint, request.step)
  for path, array in trees.by_path(saved.params).items():
    if not np.isfinite(array).all():
      raise DataError(
        f"checkpoint {saved.path}: {path} has values that are not finite; export an earlier step"
      )
  directory, vocabulary = saved.load_vocabulary(request.vocabulary, flag="--vocabulary")
  config = encoder_config(ConfigDict(saved.meta["config"]))
  config = dataclasses.replace(config, dtype="float32", attention="plain", remat="none")
  return Model(saved.params, saved.meta, saved.workdir, config, directory, vocabulary)


def export(request: Request) -> None:
  """Exports a checkpoint. Nothing appears under the final name before it has been checked."""
  if not 0 < request.tolerance < float("inf"):
    raise ConfigError(f"--tolerance={request.tolerance} must be above 0; 1e-5 suits float32")
  files.refuse_others(request.output, maker="export", mark=DIGESTS)
  model = read_model(request)
  choice = _choose(request, model)
  print(f"layout {choice.layout}: {choice.reason}", flush=True)
  with (
    errors.writing(f"--output={request.output}"),
    files.whole_directory(request.output, replace=True) as folder,
  ):
    architecture, head, extra = _write(folder, choice.layout, model)
    if request.sentence_transformers:
      folders.write_sentence_transformers(folder, model.config)
    if (model.workdir / task_fields.TASK).is_file():
      shutil.copyfile(model.workdir / task_fields.TASK, folder / task_fields.TASK)
    report = _check(request, model, folder, choice.layout, head)
    facts = card.Facts(
      name=request.name or f"{model.meta['config']['recipe']}, step {model.meta['step']:,}",
      layout=choice.layout,
      reason=choice.reason,
      architecture=architecture,
      extra=extra,
      pretokenization=model.vocabulary.pretokenization,
      hidden_difference=report.hidden,
      logits_difference=report.logits,
      tolerance=request.tolerance,
      license=request.license,
      language=request.language,
      sentence_transformers=request.sentence_transformers,
      onnx=request.onnx,
      folder=request.output.absolute().name,
    )
    text = card.write(facts, model.params, model.meta, model.workdir)
    (folder / "README.md").write_text(text, encoding="utf-8")
    write_digests(folder)
  print(f"{request.output}: {', '.join(sorted(entry.name for entry in request.output.iterdir()))}")


def _check(request: Request, model: Model, folder: pathlib.Path, layout: str, head: str) -> self_check.Report:
  """The self-check in a fresh process, and ONNX with the same sentences; prints what was found."""
  with tempfile.TemporaryDirectory() as scratch:
    reference = pathlib.Path(scratch) / "reference.npz"
    own_rows = task_fields.first_rows(model.workdir)
    cases = self_check.make_cases(model.vocabulary, max_length=model.config.max_length, own_rows=own_rows)
    pad_id = model.vocabulary.special_ids.pad
    self_check.write_reference(
      reference, model.params, model.config, cases, pad_id=pad_id, head=head, activation=model.activation
    )
    report = self_check.check(folder, reference, layout, tolerance=request.tolerance)
    logits = "" if report.logits is None else f", of {head} logits {report.logits:.1e} of the largest"
    names = ", ".join(case.name for case in cases)
    print(f"self-check: max |difference| of hidden states {report.hidden:.1e}{logits} ({names})", flush=True)
    if request.onnx:
      from pretrain.export import onnx_file

      difference = onnx_file.write(
        folder, reference, max_length=model.config.max_length, tolerance=request.tolerance
      )
      print(f"onnx: max |difference| of hidden states and logits {difference:.1e}", flush=True)
  return report


def _choose(request: Request, model: Model) -> choose.Choice:
  layout, activation = request.to, model.activation
  needs = {"pad_id": model.vocabulary.special_ids.pad, "heads": model.heads, "activation": activation}
  if (request.onnx or request.sentence_transformers) and layout not in ("auto", *layouts.STOCK):
    raise ConfigError(f"--onnx and --sentence_transformers need a stock layout, not --to={layout}")
  pooled = task_fields.pooling(model.task)
  if "classification" in model.heads and pooled != "cls" and layout != "torch":
    raise ConfigError(
      f"export: the classification head reads the {pooled} of a text's vectors, and the classes of "
      "transformers that hold it read [CLS]; fine-tune with --config.own.pooling=cls, or use --to=torch"
    )
  if layout == "auto":
    return choose.choose(model.config, **needs)
  if layout in layouts.STOCK:
    choose.check_layout(layout, model.config, **needs)
  elif layout in layouts.OFFICIAL:
    check_official(model.config, model.vocabulary, layout, model.params, activation=activation)
  return choose.Choice(layout, "asked for with --to")


def _write(folder: pathlib.Path, layout: str, model: Model) -> tuple[str, str, tuple[str, ...]]:
  """Writes a layout; returns the class in config.json, the head it computes, and what lies in extra."""
  if layout == "torch":
    fields = model.meta["config"]["model"]
    folders.write_own(folder, model.params, fields, model.vocabulary_directory, task=model.task)
    return "", "", ()
  if layout in layouts.OFFICIAL:
    extra = write_official(
      folder,
      model.params,
      model.config,
      model.vocabulary_directory,
      model.vocabulary,
      layout=layout,
      task=model.task,
    )
    return "", "", extra
  made = to_stock(
    jax.tree.map(np.asarray, model.params),
    model.config,
    layout=layout,
    special_ids=model.vocabulary.special_ids,
    task=model.task,
  )
  folders.save_tensors(folder / "model.safetensors", made.state)
  folders.save_json(folder / "config.json", made.config)
  folders.save_tensors(folder / folders.EXTRA, made.extra)
  write_tokenizer(model.vocabulary_directory, folder, max_length=model.config.max_length)
  return made.architecture, made.head, tuple(made.extra)


def write_digests(folder: pathlib.Path) -> None:
  """Writes sha256.txt: `<hex>  <name>` of every file, as sha256sum has it."""
  paths = sorted(path for path in folder.rglob("*") if path.is_file())
  lines = [f"{files.sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
  (folder / DIGESTS).write_text("".join(lines), encoding="utf-8")
