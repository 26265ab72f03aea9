"""Pretrains a text encoder: `python -m pretrain.main --config=configs/amos_base.py`.

`--help` lists the flags. Exit codes: 0 finished, 2 config or flags, 3 data, vocabulary or checkpoint,
4 diverged, 5 storage, 6 another process failed, 75 stopped on request (the same command resumes).
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Sequence

from data import command, progress
from pretrain import pod
from pretrain.command import Arguments, keep_temporaries, parse_arguments
from pretrain.settings import fields

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  is_last = argv is None  # a caller that passes arguments continues after the command
  argv = sys.argv[1:] if argv is None else argv
  arguments = parse_arguments(argv)
  # This line is for a stop before the loop; once the loop runs, Ctrl-C asks it to save and stop.
  stopped = "stopped before training began; the same command starts again"
  levels = {"quiet": arguments.quiet, "verbose": arguments.verbose}
  ending = command.one_line_errors(stopped=stopped, debug=arguments.debug, is_last=is_last, **levels)
  with ending as end, _joined(arguments) as index:
    # JAX is imported only now, so that a typo in the flags is reported in a fraction of a second.
    if arguments.plan:
      from pretrain.plan import compile_ahead

      compile_ahead.start_on_cpus(arguments.plan)
      compile_ahead.print_plan(arguments.config, arguments.plan, name=arguments.config_name)
      return 0
    import jax

    from pretrain import train
    from pretrain.mesh import devices
    from pretrain.plan import dry_run

    is_shown = index == 0 or arguments.debug or arguments.verbose
    if not is_shown:
      progress.choose(quiet=True)
    devices.start(arguments.config.train.platform, cache=not arguments.dry_run)
    if arguments.dry_run:
      described = dry_run.dry_run(arguments.config, workdir=arguments.workdir)
      if is_shown:
        print(described)
      return 0
    found = f"{jax.device_count()} {jax.devices()[0].device_kind}"
    logger.info(f"{arguments.config_name} in {arguments.workdir} on {found}")
    end.code = train.train(
      arguments.config, arguments.workdir, download=arguments.download, settle=end.settle
    )
  return end.code


def _joined(arguments: Arguments) -> contextlib.AbstractContextManager[int]:
  """Connects to the other processes of the run, if any, before any other call of JAX; yields its index."""
  if arguments.plan or not (arguments.config.train.multihost or any(arguments.place.values())):
    return contextlib.nullcontext(0)
  config = fields.flatten(arguments.config) | {"--workdir": arguments.workdir}
  return pod.joined(config, arguments.place)


if __name__ == "__main__":
  keep_temporaries()
  try:
    code = main()
  except Exception:
    traceback.print_exc()
    code = 1
  if pod.has_joined():  # threads may be waiting for other processes
    pod.end_now(code)
  sys.exit(code)
