"""Pretrains a text encoder: `python -m pretrain.main --config=configs/amos_base.py`.

`--help` lists the flags. Exit codes: 0 finished, 2 config or flags, 3 data, vocabulary or checkpoint,
4 diverged, 5 storage, 75 stopped on request (the same command continues).
"""

import os
import sys
from collections.abc import Sequence

from data import command, errors
from data.errors import ConfigError
from pretrain.command import flags, kept_memory


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  argv = sys.argv[1:] if argv is None else argv
  arguments = flags.parse_arguments(argv)
  # Once the loop runs, Ctrl-C is a stop request.
  stopped = "stopped before training began; the same command starts again"
  with command.one_line_errors(stopped=stopped, debug=arguments.debug) as end:
    if arguments.plan:
      plan(argv)
      return 0
    # JAX is imported after the flags are known to be good: a typo is reported in a fraction of a second.
    import jax

    if arguments.config.train.multihost:
      _join_hosts()  # must come before any other call of JAX
    from pretrain import devices, dry_run, sharding, train
    from pretrain.command import validate

    devices.check(arguments.config.train.platform)
    validate.check(arguments.config, num_devices=jax.device_count())
    sharding.make_mesh(sharding.MeshSettings(**arguments.config.mesh.to_dict()))  # before text is prepared
    if arguments.dry_run:
      print(dry_run.dry_run(arguments.config, workdir=arguments.workdir))
      return 0
    use_compilation_cache()
    found = f"{jax.device_count()} {jax.devices()[0].device_kind}"
    print(f"{arguments.config_name} in {arguments.workdir} on {found}")
    end.code = train.train(
      arguments.config,
      arguments.workdir,
      download=arguments.download,
      ledger=arguments.ledger,
      new_phase=arguments.new_phase,
    )
  return end.code


def plan(argv: Sequence[str]) -> None:
  """Makes the plan in a process of its own, see `pretrain/plan/__main__.py`; it prints what it finds."""
  code, reason = command.run_child([sys.executable, "-m", "pretrain.plan", *argv], relay="--debug" in argv)
  if code:
    raise (ConfigError if code == ConfigError.exit_code else errors.UserError)(reason)


def _join_hosts() -> None:
  """Connects the processes of all hosts; ConfigError where JAX does not know of any."""
  import jax

  # JAX itself reads JAX_COORDINATOR_ADDRESS; launch/ sets these beside it where no cluster tells them.
  names = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
  place = {name: int(os.environ[variable]) for name, variable in names.items() if variable in os.environ}
  try:
    jax.distributed.initialize(**place)
  except (ValueError, RuntimeError) as error:
    raise ConfigError(
      f"train.multihost=True: JAX finds no cluster here ({errors.reason(error)}); start one process on each "
      f"host of a TPU pod, or under Slurm or MPI, which tell it of the others, or use "
      f"--config.train.multihost=false"
    ) from error


def use_compilation_cache() -> None:
  """A restart compiles nothing that an earlier start compiled; an existing choice of the user stands."""
  import jax

  if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    cache = os.path.join(os.path.expanduser("~"), ".cache", "text_encoder_pretraining", "jax")
    jax.config.update("jax_compilation_cache_dir", cache)


if __name__ == "__main__":
  kept_memory.keep_temporaries()
  sys.exit(main())
