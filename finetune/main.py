"""Fine-tunes: `python -m finetune.main --config=configs/finetune_glue.py --config.checkpoint=DIR`.

`--help` lists the flags. Exit codes: 0 finished, 2 config or flags, 3 data, vocabulary or checkpoint,
4 diverged, 5 storage, 75 stopped on request (the same command continues).
"""

import os
import sys
from collections.abc import Sequence

from data import command
from data.errors import StorageError
from finetune import needed_files, validate
from pretrain.command import flags

HELP = """\
Fine-tunes a pretrained encoder on GLUE, SQuAD or with prompts.

  python -m finetune.main --config=FILE --config.checkpoint=DIR [--config.FIELD=VALUE ...]
                          [--workdir=DIRECTORY] [--dry_run] [--download] [--debug]

  --config=FILE         configs/finetune_glue.py, finetune_squad.py, finetune_prompt.py, finetune_demo.py or
                        your own. It is Python and runs with your rights
  --config.checkpoint   workdir of a pretraining run, or what `python -m pretrain.export import` wrote
  --config.FIELD=VALUE  changes a field: --config.tasks=cola,rte, --config.protocol=amos,
                        --config.search.learning_rates=2e-5,3e-5. The fields are listed below;
                        configs/finetune_base.py says what each means
  --workdir=DIRECTORY   results of finished cells, tables, models; a search found there is continued.
                        Default: runs/<name of the config file>
  --dry_run             prints what would be done, from the real data, and exits
  --download            allows TFDS to download what is not there; nothing is downloaded without it
  --debug               shows the traceback of an error
  --help                this text

The devices are those JAX finds; JAX_PLATFORMS=cpu keeps a run on the CPU.
A run whose outputs are not numbers scores 0, and the search goes on without it.
Exit codes: 0 finished; 2 config or flags; 3 data, vocabulary or checkpoint; 4 diverged (the best run on SQuAD
too gives no answers); 5 storage; 75 stopped on request, the same command continues.
"""
PROGRAM = flags.Program(HELP, validate.RULES, "configs/finetune_glue.py")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  arguments = flags.parse_arguments(sys.argv[1:] if argv is None else argv, PROGRAM)
  # The first Ctrl-C in a search is a polite stop request.
  stopped = "stopped; what was finished is stored, the same command continues"
  return command.exit_code(lambda: _run(arguments), stopped=stopped, debug=arguments.debug)


def _run(arguments: flags.Arguments) -> int:
  # JAX is imported after flags and data are looked at: a typo is told in a fraction of a second.
  needed_files.check(arguments.config, download=arguments.download)
  from finetune.search.loop import Stopped
  from finetune.search.session import Session
  from pretrain.main import use_compilation_cache
  from pretrain.stop import STOPPED, StopRequest

  use_compilation_cache()
  stop = StopRequest()
  session = Session(arguments.config, arguments.workdir, stop=stop, show_progress=sys.stderr.isatty())
  job = _job(session, download=arguments.download)
  for line in job.describe():
    print(line, flush=True)
  if arguments.dry_run:
    return 0
  try:
    _make_workdir(arguments.workdir)
    with stop:
      return job.run()
  except Stopped:
    print("Stopped as asked; what was finished is stored, the same command continues")
    return STOPPED


def _make_workdir(path: str) -> None:
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as error:
    raise StorageError(
      f"--workdir={path}: cannot be made ({error.strerror or error}); name a directory that can be written"
    ) from error


def _job(session, *, download: bool):
  """What the config's kind is done by: an object with `describe()` and `run()`."""
  kind = session.config.kind
  if kind == "squad":
    from finetune.squad.search import SquadSearch

    return SquadSearch(session, download=download)
  if kind == "prompt":
    from finetune.prompt.search import PromptSearch

    return PromptSearch(session, download=download)
  if kind == "docs":
    from finetune.docs.task import DocsDemo

    return DocsDemo(session, download=download)
  from finetune.glue.search import GlueSearch

  return GlueSearch(session, download=download)


if __name__ == "__main__":
  sys.exit(main())
