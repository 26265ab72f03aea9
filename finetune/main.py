"""Fine-tunes a pretrained encoder: `python -m finetune.main --config=FILE --config.checkpoint=DIR`.

`--help` lists the flags. Exit codes: 0 finished, 2 config or flags, 3 data, vocabulary or checkpoint,
4 diverged, 5 storage, 75 stopped on request (the same command resumes).
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict, FrozenConfigDict

from data import command, fetched, files, progress
from finetune import validate
from pretrain import pod
from pretrain.command import Arguments, Program, keep_temporaries, parse_arguments

if TYPE_CHECKING:
  from finetune.search import search

logger = logging.getLogger(__name__)

HELP = """\
Fine-tunes a pretrained encoder on a file of your own, for embeddings, on GLUE, SQuAD or with prompts.

  python -m finetune.main --config=FILE --config.checkpoint=DIR [--config.FIELD=VALUE ...]
                          [--workdir=DIRECTORY] [--dry_run] [--download] [--quiet | --verbose] [--debug]

  --config=FILE         configs/finetune_own.py or finetune_embedding.py (with
                        --config.data.train_file=FILE), finetune_glue.py, finetune_squad.py,
                        finetune_prompt.py or your own file. The file is Python code and runs with your rights
  --config.checkpoint   workdir of a pretraining run, or output of `python -m pretrain.export import`
  --config.FIELD=VALUE  changes a field: --config.tasks=cola,rte, --config.protocol=amos,
                        --config.search.learning_rates=2e-5,3e-5. The fields are listed below;
                        configs/finetune_base.py says what each means
  --workdir=DIRECTORY   results of finished runs, tables, models; an unfinished search there is resumed.
                        Default: runs/<name of the config file>
  --dry_run             reads checkpoint and data, prints the planned runs, and exits
  --download            allows TFDS to download missing data sets; without it nothing is downloaded
  --quiet               shows warnings and errors only
  --verbose             shows more, also the logs of libraries
  --debug               shows the traceback of an error
  --help                this text

Runs use the devices that JAX finds; JAX_PLATFORMS=cpu keeps a run on the CPU.
A run whose outputs are not finite scores 0, and the search continues.
Exit codes: 0 finished; 2 config or flags; 3 data, vocabulary or checkpoint; 4 diverged (on SQuAD even
the best run's outputs are not finite); 5 storage; 75 stopped on request, the same command resumes.
"""
PROGRAM = Program(HELP, validate.SCHEMA, "configs/finetune_glue.py")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  arguments = parse_arguments(sys.argv[1:] if argv is None else argv, PROGRAM)
  # The first Ctrl-C in a search is a polite stop request.
  stopped = "stopped; finished runs are stored; run the same command again to resume"
  levels = {"quiet": arguments.quiet, "verbose": arguments.verbose}
  with command.one_line_errors(stopped=stopped, debug=arguments.debug, **levels) as end:
    pod.refuse_several(os.environ, program="fine-tuning")
    kind = _kind(arguments)
    show = print if arguments.dry_run else logger.info
    for line in kind.describe():
      show(line)
    if not arguments.dry_run:
      from finetune.search import search

      with kind.session.stop:
        end.code = search.run(kind)
  return end.code


def _kind(arguments: Arguments) -> "search.Kind":
  """Reads a config's checkpoint and data; returns the `search.Kind` (GLUE, SQuAD, ...) that uses them."""
  # JAX is imported after flags and data are checked: a typo is reported in a fraction of a second.
  config = _with_kind(_fetched(arguments.config))
  from finetune.search.session import Session
  from pretrain.mesh import devices
  from pretrain.stop import StopRequest

  devices.start()
  watched = progress.is_watched()
  session = Session(config, arguments.workdir, stop=StopRequest(), show_progress=watched)
  room, name = validate.KINDS[str(config.kind)]
  return getattr(importlib.import_module(room), name)(session, download=arguments.download)


def _fetched(config: Any) -> Any:
  """Returns the config with paths of local copies instead of addresses of data."""
  changed = {
    name: fetched.local(config[group][field], flag=f"--config.{name}")
    for name in validate.DATA
    for group, field in [name.split(".")]
    if files.is_address(config[group][field])
  }
  if not changed:
    return config
  made = ConfigDict(config)  # a copy that is not frozen
  made.update_from_flattened_dict(changed)
  return FrozenConfigDict(made)


def _with_kind(config: Any) -> Any:
  """Returns the config; a user's files of questions become kind 'squad', because they have its format."""
  if (config.kind, config.own.task) != ("own", "question_answering"):
    return config
  changed = ConfigDict(config)  # a copy that is not frozen
  named = {f"squad.{name}": config.data[name] for name in ("train_file", "dev_file")}
  changed.update_from_flattened_dict({"kind": "squad", **named})
  return FrozenConfigDict(changed)


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
