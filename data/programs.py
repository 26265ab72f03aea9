"""The installed commands: what each runs, and texts that name a command as the user started it."""

import pathlib
import re
import runpy
import sys

PREFIX = "text-encoder-"
# The installed commands without the prefix, as pyproject.toml lists them; each runs a module as `python -m`.
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
_installed: dict[str, str] = {}  # {module: installed command}; empty unless such a command was started


def run_installed() -> None:
  """Runs, as `__main__`, the module of the command under whose name this process was started."""
  _installed.update({module: PREFIX + name for name, module in PROGRAMS.items()})
  name = pathlib.Path(sys.argv[0]).stem.removeprefix(PREFIX)
  runpy.run_module(PROGRAMS[name], run_name="__main__", alter_sys=True)


def as_started(text: str) -> str:
  """Returns a text for the terminal in which commands have installed names, if the user started one so.

  'python -m data.prepare --help' becomes 'text-encoder-prepare --help'; modules without an installed command
  keep `python -m`.
  """
  return re.sub(r"python -m (\w+\.\w+)", lambda found: _installed.get(found[1], found[0]), text)
