"""The child process of `python -m pretrain.main --dry_run --plan=MACHINE`, with the same arguments.

Compiling for another machine needs environment variables that are set before JAX starts, and must not occupy
the devices of this machine. A failing compiler may also end its process.
"""

import os
import re
import sys
import time
from collections.abc import Sequence

from data import command
from pretrain.command import flags
from pretrain.mesh import chips


def main(argv: Sequence[str]) -> int:
  """Prints the plan, one line for each program while it works; returns the exit code."""
  arguments = flags.parse_arguments(argv)
  levels = {"quiet": arguments.quiet, "verbose": arguments.verbose}
  with command.one_line_errors(stopped="the plan was stopped", debug=arguments.debug, **levels) as end:
    spec = chips.parse(arguments.plan)
    set_environment(spec)
    from pretrain.plan import make  # imports JAX

    started = time.monotonic()
    make.print_plan(arguments.config, spec, name=arguments.config_name)
    print(f"\nplanned in {time.monotonic() - started:.0f} s; nothing was run or written")
  return end.code


def set_environment(spec: chips.Spec) -> None:
  """Sets the variables that JAX reads when it starts: CPU only, with as many fake devices as planned."""
  flag = "--xla_force_host_platform_device_count"
  own = re.sub(rf"{flag}=\d+", "", os.environ.get("XLA_FLAGS", ""))
  on_cpus = spec.platform == "cpu" or not chips.is_installed(spec.platform)
  flags_here = f"{own} {flag}={spec.devices}".strip() if on_cpus else ""  # other compilers reject this flag
  os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags_here, "TF_CPP_MIN_LOG_LEVEL": "3"}


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
