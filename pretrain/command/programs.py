"""The installed commands, such as `text-encoder-pretrain`; each runs a module as `python -m` does.

pyproject.toml lists them; `PROGRAMS` has their names without the prefix.
"""

import pathlib
import runpy
import sys

PREFIX = "text-encoder-"
PROGRAMS = {
  "pretrain": "pretrain.main",
  "finetune": "finetune.main",
  "predict": "finetune.predict",
  "evaluate": "finetune.evaluate",
  "mine": "finetune.mine",
  "prepare": "data.prepare",
  "inspect": "data.inspect",
  "vocabulary": "data.vocabulary",
  "embed": "pretrain.embed",
  "search": "pretrain.search",
  "probe": "pretrain.probe",
  "analysis": "pretrain.analysis",
  "ablations": "pretrain.ablations",
  "report": "pretrain.report",
  "export": "pretrain.export",
  "checkpoints": "pretrain.checkpoints",
  "demo": "pretrain.demo",
}


def main() -> None:
  """Runs, as `__main__`, the module of the command under whose name this process was started."""
  name = pathlib.Path(sys.argv[0]).stem.removeprefix(PREFIX)
  runpy.run_module(PROGRAMS[name], run_name="__main__", alter_sys=True)
