"""Exports a checkpoint to other libraries' formats, or imports one from them.

  python -m pretrain.export --checkpoint=runs/coco_lm_base_tiny --to=auto --output=exported
  python -m pretrain.export import --from=cocolm-base/ --output=checkpoints/cocolm-base

An export needs `pip install -r requirements-export.txt`. An import needs it only to read PyTorch's own files,
and to compare a stock model with transformers; without it a line says that the comparison was skipped.

Exit codes: see data/errors.py.
"""

import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence

from data.command import FETCHED, OPENED, Parser, run
from data.errors import ConfigError
from pretrain import pod

_NEEDED = ("torch", "transformers")
_NEEDED_FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")
_ONNX = "onnx"  # --to=onnx is --to=auto --onnx


def _require_extra(*more: str) -> None:
  missing = [name for name in (*_NEEDED, *more) if importlib.util.find_spec(name) is None]
  if missing:
    raise ConfigError(
      f"export needs packages that are not installed: {', '.join(missing)}; install them with\n"
      "  pip install -r requirements-export.txt"
    )


def export_parser() -> Parser:
  """Returns the parser of an export's flags."""
  from pretrain.export.stock.classes import CLASSES

  parser = Parser(
    prog="python -m pretrain.export",
    description="Export a checkpoint.",
    epilog="To import a checkpoint, see `python -m pretrain.export import --help`.",
  )
  parser.add_argument(
    "--checkpoint", required=True, bucket=OPENED, help="workdir of a run, or the directory of one step"
  )
  parser.add_argument("--step", type=int, help="step to export; default: the newest")
  parser.add_argument(
    "--to",
    default="auto",
    choices=("auto", *CLASSES, "torch", _ONNX),
    help="auto: the transformers class that computes the same; onnx: auto and --onnx; torch: safetensors "
    "with our own names",
  )
  parser.add_argument(
    "--output",
    required=True,
    type=pathlib.Path,
    help="folder to write; an earlier export in it is replaced",
  )
  parser.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="vocabulary directory; default: the checkpoint's own"
  )
  parser.add_argument(
    "--tolerance", type=float, default=1e-5, help="largest |difference| of hidden states, float32 on CPU"
  )
  parser.add_argument("--onnx", action="store_true", help="also write and check onnx/model.onnx")
  parser.add_argument(
    "--generator",
    action="store_true",
    help="also write each masked-LM head of the generator with its layers, in a folder of its own",
  )
  parser.add_argument(
    "--sentence_transformers",
    action="store_true",
    help="also for sentence-transformers, as in embedding.json, else with the mean over tokens; models with "
    "embedding.json always",
  )
  parser.add_argument("--name", default="", help="title of the model card; default: recipe and step")
  parser.add_argument("--license", default="", help="SPDX identifier for the card, such as apache-2.0")
  parser.add_argument("--language", default="", help="ISO 639-1 code for the card, such as en")
  return parser


def import_parser() -> Parser:
  """Returns the parser of an import's flags."""
  parser = Parser(prog="python -m pretrain.export import", description="Import a PyTorch checkpoint.")
  parser.add_argument(
    "--from", dest="source", required=True, bucket=FETCHED, help="file or folder of the checkpoint to import"
  )
  parser.add_argument("--output", required=True, help="directory to write, new or empty")
  parser.add_argument(
    "--allow_unmatched",
    action="extend",
    nargs="+",
    default=[],
    help="names of tensors, or patterns such as 'pooler.*', that the import may skip",
  )
  parser.add_argument(
    "--num_heads", type=int, help="attention heads, if the checkpoint does not have the number"
  )
  parser.add_argument(
    "--vocabulary",
    dest="vocabulary_directory",
    metavar="VOCABULARY",
    default="",
    bucket=FETCHED,
    help="vocabulary directory of this project; default: the tokenizer files of the checkpoint",
  )
  parser.add_argument(
    "--encoder_only",
    action="store_true",
    help="do not read how sentence-transformers pools and prefixes: write no embedding.json",
  )
  return parser


def _main(argv: Sequence[str]) -> None:
  pod.refuse_several(os.environ, program="an export or import")
  if argv[:1] == ["import"]:
    from pretrain.export import import_checkpoint
    from pretrain.mesh import devices

    asked = import_parser().parse_args(argv[1:])
    devices.check()  # `start` would warn about the CPU, but an import needs no accelerator
    import_checkpoint.import_checkpoint(**vars(asked))
    return
  arguments = export_parser().parse_args(argv)
  if arguments.to == _ONNX:
    arguments.to, arguments.onnx = "auto", True
  _require_extra(*(_NEEDED_FOR_ONNX if arguments.onnx else ()))
  from pretrain.export import export_checkpoint
  from pretrain.mesh import devices

  devices.check()  # `start` would warn about the CPU, but an export needs no accelerator
  export_checkpoint.export(export_checkpoint.Request(**vars(arguments)))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return run(lambda: _main(list(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
  sys.exit(main())
