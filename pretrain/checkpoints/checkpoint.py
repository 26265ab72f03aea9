"""Checkpoints under `<workdir>/checkpoints/<step>/`. The only module that imports orbax.

A step has three items: `params`, `opt_state` (the rest of the state) and `meta` (JSON). They are separate, so
that fine-tuning, export and analysis can read `params` alone. Digests of all files are stored just before a
step is committed: flipped bits, lost pages, interrupted copies, and exchanged items or steps are found before
anything is read.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import sys
import threading
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
from pretrain.mesh import trees

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
DIRECTORY = "checkpoints"
ITEMS = ("params", "opt_state", "meta")
DIGESTS = "sha256.json"  # file of a step: the digests of all others, written just before the commit
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")  # their versions change numbers
COMMITTED = "commit_success.txt"  # orbax writes it last, into the step and into each item
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
    self._failure: BaseException | None = None  # of a save in the background
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
        set_aside(path, "is an incomplete checkpoint", "incomplete")

  def _seal(self) -> None:
    """Writes the digests of the saved files; orbax calls it after all are written, before the commit."""
    if jax.process_index() == 0:
      aside = self.directory / str(self._begun)  # at an address, where nothing can be renamed at once
      if not self._is_far:
        (aside,) = self.directory.glob(f"{self._begun}.*{TEMPORARY}*")
      seal(aside, step=int(self._begun or 0), run_id=self._run_id)

  def _wait_for_others(self, *, key: str, timeout_ms: int) -> None:
    """Waits at a barrier of orbax; a thread of orbax whose save has failed here raises its error again.

    It would wait in a `finally`, while the other processes wait at an earlier barrier, for many minutes.
    """
    if threading.current_thread() is not threading.main_thread() and (failure := sys.exception()):
      self._failure = failure
      raise failure
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
    refuse_damaged(path)
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
    return errors.translated(
      StorageError, f"cannot save to {self.directory}", "check space and permissions there"
    )


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
  refuse_damaged(path, ("params", "meta"))
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


def _read_errors(path: Path) -> contextlib.AbstractContextManager[None]:
  """Turns orbax's errors in the block into DataErrors."""
  advice = "to use an older one, move its directory away"
  return errors.translated(DataError, f"checkpoint {path} cannot be read", advice)


def seal(directory: Path, *, step: int, run_id: str) -> None:
  """Writes the digests of all files of a step's items, just before the step is committed."""
  found = {
    path.relative_to(directory).as_posix(): _sha256(path)
    for path in files_of(directory)
    if path.parent != directory  # files of the commit are not in items
  }
  content = {"step": step, "run_id": run_id, "files": found}
  content["list"] = files.digest_json(content)
  if files.is_address(directory):
    (directory / DIGESTS).write_text(json.dumps(content, indent=1))  # an object appears whole
  else:
    files.write_atomically(directory / DIGESTS, json.dumps(content, indent=1))


def files_of(directory: Path) -> Iterator[Path]:
  """Yields all files below a directory, here or at an address, in the order of their names."""
  for entry in sorted(directory.iterdir()):
    if entry.is_dir():
      yield from files_of(entry)
    else:
      yield entry


def _sha256(path: Path) -> str:
  with path.open("rb") as file:  # not `open`, which knows no address
    return hashlib.file_digest(file, "sha256").hexdigest()


def _read_digests(path: Path) -> dict[str, Any]:
  """Reads the list of file digests of the checkpoint at `path`; {} if it is damaged or missing."""
  try:
    content = json.loads((path / DIGESTS).read_text())
    itself = content.pop("list", None)
  except (OSError, ValueError, AttributeError):
    return {}
  is_sound = {"step", "run_id", "files"} <= content.keys() and isinstance(content["files"], dict)
  return content if is_sound and itself == files.digest_json(content) else {}


def run_id(path: Path) -> str:
  """Returns the id of the run that saved the step at `path`; '' if unknown."""
  return str(_read_digests(path).get("run_id", ""))


def digests(path: Path) -> dict[str, str]:
  """Returns {name: sha256} of the files of the step at `path`; {} if its list is damaged or missing."""
  return _read_digests(path).get("files", {})


def problem(path: Path, items: Sequence[str] = ()) -> str | None:
  """Describes the first damaged file of the checkpoint at `path`; None if no damage is found.

  With `items`, such as 'params', only the files of these items are read.
  """
  if not (path / DIGESTS).is_file():
    return f"{DIGESTS} is gone"
  if not (content := _read_digests(path)):
    return f"{DIGESTS} is damaged"
  if str(content["step"]) != path.name:
    return f"it was saved as step {content['step']}"
  for name, digest in content["files"].items():
    if items and name.split("/")[0] not in items:
      continue
    try:
      is_same = _sha256(path / name) == digest
    except OSError as error:
      return f"{name} cannot be read ({errors.reason(error)})"
    if not is_same:
      return f"{name} is not as it was saved (its sha256 differs)"
  return None


def refuse_damaged(path: Path, items: Sequence[str] = ()) -> None:
  """Raises DataError if the files of a step are not those that were saved."""
  if wrong := problem(path, items):
    raise DataError(f"checkpoint {path} is damaged: {wrong}; to use an older one, move its directory away")


def set_aside(path: Path, what: str, ending: str) -> None:
  """Renames the directory of an unusable step, never removes it, and logs a warning."""
  names = (path.with_name(f"{path.name}.{ending}_{number}") for number in itertools.count(1))
  aside = path.rename(next(name for name in names if not name.exists()))
  logger.warning(f"{path} {what} and was renamed to {aside.name}; remove it if it is not needed")
