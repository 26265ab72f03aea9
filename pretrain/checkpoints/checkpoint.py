"""Checkpoints under `<workdir>/checkpoints/<step>/`. The only module that imports orbax.

A step has three items: `params`, `opt_state` (the rest of the state) and `meta` (JSON). They are separate, so
that fine-tuning, export and analysis can read `params` alone.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from data import command, errors, files
from data.errors import DataError, StorageError
from data.files import make_writable
from pretrain.checkpoints import integrity
from pretrain.mesh import trees

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
DIRECTORY = "checkpoints"
ITEMS = ("params", "opt_state", "meta")
PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "numpy",
)  # versions of these change the numbers
# Orbax writes this file last, into the step and into each item.
COMMITTED = "commit_success.txt"
FOREIGN = ("model.safetensors", "pytorch_model.bin", "model.pt")  # the weights of other programs
LONG_WAIT = 1.0  # seconds that a save may wait for the previous one without a warning
TEMPORARY = "orbax-checkpoint-tmp"  # in the name of a step while it is being written

ArrayTree = Any


class Checkpoints:
  """Saves and restores one run's training state; only one process may own them. Removes incomplete saves."""

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    every: int,
    keep: int,
    keep_steps: Sequence[int] = (),
    flag: str = "--workdir",
  ) -> None:
    """Opens, and creates if needed, `<workdir>/checkpoints`; StorageError, naming `flag`, if it cannot.

    A save is due every `every` steps. The newest `keep` checkpoints are kept and older ones removed; those of
    `keep_steps` are saved too and never removed. An incomplete directory of a later step would block its
    save, so it is renamed, with a warning.
    """
    self._every = every
    self._begun, self._begun_at, self._run_id = None, 0.0, ""
    self._failure, self._handled = None, None  # exception in a save; exception during which the caller saves
    self._keep_steps = frozenset(keep_steps)
    self.directory = place(workdir) / DIRECTORY
    if jax.process_index() == 0 and not self._is_far:  # orbax makes the others wait
      make_writable(self.directory, flag=flag)
    policies = [checkpoint_managers.LatestN(keep), checkpoint_managers.CustomSteps(sorted(self._keep_steps))]
    with self._storing():
      self._clear_the_way()
      self._manager = ocp.CheckpointManager(
        self.directory,
        item_names=ITEMS,
        options=ocp.CheckpointManagerOptions(
          preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
          cleanup_tmp_directories=True,
          async_options=ocp.AsyncOptions(
            post_finalization_callback=self._seal, barrier_sync_fn=self._wait_for_others
          ),
        ),
      )

  def _clear_the_way(self) -> None:
    """Renames incomplete directories of later steps, from a stopped copy or a killed save.

    Orbax itself removes older steps whose removal was interrupted.
    """
    # The others read the steps after process 0 has made its manager. At an address orbax removes them.
    if jax.process_index() != 0 or self._is_far:
      return
    newest = self.latest_step()
    for path in sorted(self.directory.iterdir()):
      if is_step_name(path.name) and (newest is None or int(path.name) > newest):
        integrity.set_aside(path, "is an incomplete checkpoint", "incomplete")

  def _seal(self) -> None:
    """Writes the digests of the saved files; orbax calls it after all are written, before the commit."""
    if jax.process_index() == 0:
      aside = self.directory / str(self._begun)  # at an address, where nothing can be renamed at once
      if not self._is_far:
        (aside,) = self.directory.glob(f"{self._begun}.*{TEMPORARY}*")
      integrity.seal(aside, step=int(self._begun or 0), run_id=self._run_id)

  def _wait_for_others(self, *, key: str, timeout_ms: int) -> None:
    """Waits for the other processes at a barrier of orbax, unless the save has failed in this process.

    Orbax would continue to the barrier at a save's end, while the others wait at the one after the files.
    """
    failure = sys.exception()
    self._failure = None if failure is self._handled else failure
    if self._failure is not None:
      raise self._failure
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

  @property
  def _is_far(self) -> bool:
    return files.is_address(self.directory)

  def latest_step(self) -> int | None:
    """Returns the newest complete step; None if there is none."""
    return newest_step(self.directory.parent)

  def is_due(self, step: int) -> bool:
    """Returns whether `save` without `force` would save this step."""
    return (step > 0 and step % self._every == 0) or step in self._keep_steps

  def save(
    self, step: int, state: Mapping[str, ArrayTree], meta: Mapping[str, Any], *, force: bool = False
  ) -> bool:
    """Saves a checkpoint in the background; the arrays may be donated as soon as this returns.

    Args:
      step: updates done; the result is False if it is not due (without `force`) or already saved.
      state: jax arrays: 'params' and all else that `restore` returns (optimizer state, small counters).
      meta: JSON values, the same on every process: resolved config, digests. `step`, `format_version`
        and `packages` are added.
      force: save although the step is not due.

    Raises:
      StorageError: this save, or an earlier one in the background, could not be written.
    """
    if not (force or self.is_due(step)) or step == self._begun or step in saved_steps(self.directory):
      return False
    due = time.monotonic()
    self.wait()  # for the previous save, because `_seal` needs its step
    waited, between = time.monotonic() - due, due - self._begun_at
    if waited > LONG_WAIT:
      logger.warning(
        f"Saving step {self._begun:,} took {between + waited:.1f} s, the next was due after {between:.1f} s: "
        f"training waited {waited:.1f} s; raise train.checkpoint_every or use faster storage"
      )
    self._begun, self._begun_at, self._run_id = step, time.monotonic(), str(meta.get("run_id", ""))
    rest = {name: value for name, value in state.items() if name != "params"}
    meta = {**meta, "step": step, "format_version": FORMAT_VERSION, "packages": command.versions(PACKAGES)}
    items = ocp.args.Composite(
      params=ocp.args.StandardSave(state["params"]),
      opt_state=ocp.args.StandardSave(rest),
      meta=ocp.args.JsonSave(meta),
    )
    with self._storing():
      return bool(self._manager.save(step, args=items, force=True))  # is_due has decided, not orbax's policy

  def restore(
    self, abstract_state: Mapping[str, ArrayTree], step: int | None = None
  ) -> tuple[dict[str, ArrayTree], dict[str, Any]]:
    """Reads the state of a step (None: the newest), saved on any mesh, and its `meta`.

    `abstract_state` has the saved state's structure, of ShapeDtypeStructs with the shardings to restore to.
    DataError: the checkpoint is missing, unreadable, of another version, or of other names or shapes.
    """
    path = step_path(self.directory, step)
    integrity.refuse_damaged(path)
    meta = read_meta(path)
    rest = {name: value for name, value in abstract_state.items() if name != "params"}
    targets = {"params": abstract_state["params"], "opt_state": rest}
    for item, target in targets.items():
      _check_same(path / item, target)
    with _read_errors(path):
      arguments = {item: ocp.args.StandardRestore(target) for item, target in targets.items()}
      restored = self._manager.restore(int(path.name), args=ocp.args.Composite(**arguments))
      return {"params": restored["params"], **restored["opt_state"]}, meta

  def check(self) -> None:
    """Raises the StorageError of a save that has failed in the background, without waiting."""
    if self._failure is not None:
      self.wait()

  @property
  def has_committed(self) -> bool:
    """Whether this process has begun a save and the workdir has at least one complete checkpoint."""
    return self._begun is not None and self.latest_step() is not None

  def wait(self) -> None:
    """Waits until all saves are on disk; raises StorageError if one could not be written."""
    with self._storing():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits until all saves are on disk, then ends orbax's threads."""
    with self._storing():
      self._manager.close()

  def _storing(self) -> contextlib.AbstractContextManager[None]:
    """Turns errors of orbax in the block into StorageErrors."""
    self._handled, advice = sys.exception(), "check space and permissions there"
    return errors.translated(StorageError, f"cannot save to {self.directory}", advice)


def place(directory: str | os.PathLike) -> Path:
  """Returns the absolute path of a local directory, or the epath of one at gs://, which Path resembles."""
  if not files.is_address(directory):
    return Path(directory).absolute()
  return cast(Path, epath.Path(directory))


def newest_step(workdir: str | os.PathLike) -> int | None:
  """Returns the newest complete step of a workdir, which need not exist; None if there is none."""
  return max(saved_steps(place(workdir) / DIRECTORY), default=None)


def saved_steps(directory: Path) -> list[int]:
  """Returns the complete steps in order; other entries are ignored, and `directory` need not exist."""
  if not directory.is_dir():
    return []
  return sorted(int(entry.name) for entry in directory.iterdir() if _is_whole(entry))


def is_step_name(name: str) -> bool:
  """Returns whether a directory of that name is a step's."""
  return name.isdecimal() and name == str(int(name))


def _is_whole(path: Path) -> bool:
  # Orbax's own list would include an empty directory whose name is a number.
  marks = [path / COMMITTED, *(path / item / COMMITTED for item in ITEMS)]
  return is_step_name(path.name) and all(mark.exists() for mark in marks)


def step_path(directory: str | os.PathLike, step: int | None = None) -> Path:
  """Returns the directory of one step (None: the newest); DataError if there is no such checkpoint.

  `directory` is a workdir, its `checkpoints` or, without `step`, the directory of a step itself; at gs:// it
  is read in place.
  """
  directory = place(directory)
  if step is None and _is_whole(directory):
    return directory
  if (directory / DIRECTORY).is_dir():
    directory = directory / DIRECTORY
  steps = saved_steps(directory)
  if not steps:
    advice = "expected a workdir with a saved checkpoint"
    if any((directory / name).is_file() for name in FOREIGN):
      advice = f"import it first\n  python -m pretrain.export import --from={directory} --output=NEW"
    raise DataError(f"no checkpoint in {directory}; {advice}")
  if step is not None and step not in steps:
    raise DataError(f"no checkpoint of step {step} in {directory}; there are {', '.join(map(str, steps))}")
  return directory / str(steps[-1] if step is None else step)


def read_meta(path: Path) -> dict[str, Any]:
  """Reads `meta` of the step at `path` (see `step_path`); DataError for another format version."""
  with _read_errors(path):
    meta = ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(path / "meta", args=ocp.args.JsonRestore())
    version = meta.get("format_version")
  if version != FORMAT_VERSION:
    raise DataError(
      f"checkpoint {path} has format version {version}; expected {FORMAT_VERSION}; use the program that "
      f"saved it (packages: {meta.get('packages')})"
    )
  return meta


def load_params(directory: str | os.PathLike, step: int | None = None) -> tuple[dict, dict[str, Any]]:
  """Reads only the parameters, as a nested dict of numpy arrays, and `meta`.

  `directory` and `step` are as in `step_path`. DataError: no checkpoint, unreadable, or another version.
  """
  path = step_path(directory, step)
  integrity.refuse_damaged(path, ("params", "meta"))
  meta = read_meta(path)
  with _read_errors(path):
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
      _saved_tree(path / "params"),
      is_leaf=lambda leaf: hasattr(leaf, "dtype"),
    )
    args = ocp.args.PyTreeRestore(restore_args=as_numpy)
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(path / "params", args=args), meta


def _saved_tree(path: Path) -> ArrayTree:
  metadata = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).metadata(path).item_metadata
  assert metadata is not None  # a PyTree's handler gives it
  return metadata.tree


def _check_same(path: Path, target: ArrayTree) -> None:
  with _read_errors(path):
    problems = trees.differences(target, _saved_tree(path))
  if problems:
    raise DataError(
      f"checkpoint {path} has another model or optimizer: {trees.first_lines(problems)}; use the config of "
      "that run, or a new workdir"
    )


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
  """Turns orbax's errors in the block into DataErrors; orbax's warnings are not printed."""

  def is_news(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname

  advice, logger = "to use an older one, move its directory away", logging.getLogger("absl")
  logger.addFilter(is_news)
  try:
    with errors.translated(DataError, f"checkpoint {path} cannot be read", advice):
      yield
  finally:
    logger.removeFilter(is_news)
