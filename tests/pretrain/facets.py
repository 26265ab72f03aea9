"""What a pretraining config decides, facet by facet, as text that can be compared. Nothing is compiled.

`test_field_sensitivity.py` changes one field at a time and looks which facets change:

  start      the program that makes the first state
  step       the program of a training step
  eval       the program of an evaluation
  layout     where the arrays of the state lie on eight devices
  batches    the ids that the training step gets
  heldout    the ids and the progress that the evaluation gets
  log        steps and names of what is logged, and how the run ends
  saves      how often is saved, and the steps whose checkpoints are there at the end
  prepare    the command that makes the records, and where
  from       the checkpoints that a new run takes values from
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from ml_collections import ConfigDict

from data import manifest, vocabulary
from data.errors import DivergedError
from data.feed.client import FedRecords, HeldoutBlocks
from pretrain import train
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.opened import tokens_of
from pretrain.reading import feed, prepared
from pretrain.reading.opened import Prepared
from pretrain.run import Run, make_run
from pretrain.settings.run import ReadingSettings, reading_settings

TRACED = ("start", "step", "eval")
LOOP = ("batches", "heldout", "log", "saves")
FACETS = (*TRACED, "layout", *LOOP, "prepare", "from")
_SAVE = Checkpoints.save
_SPEED = {"blocks_per_second": 1.0, "read": 0}
_TERM = "masked_lm_loss"  # the facets of the loop are those of masked-LM runs


class Facets:
  """The facets of one config; each is made when it is asked for."""

  def __init__(self, config: ConfigDict, records: pathlib.Path) -> None:
    """Takes a config and a directory of prepared records, which the facets of the loop are read from."""
    self._config, self._records = config, records
    with config.unlocked():  # the name that the table has for records which it cannot know
      for name in ("mixture", "stages"):
        config.data[name] = config.data[name].replace("RECORDS", str(records))

  @functools.cached_property
  def _run(self) -> Run:
    words = vocabulary.load_cached(str(self._records / "vocabulary"))
    return make_run(self._config, dataclasses.replace(tokens_of(words), word_starts=words.word_starts))

  @functools.cached_property
  def _loop(self) -> dict[str, str]:
    return _facets_of_the_loop(self._config, self._records)

  def text(self, name: str) -> str:
    """One of `FACETS` as text."""
    if name in LOOP:
      return self._loop[name]
    if name == "prepare":
      with mock.patch.object(prepared, "run_child", return_value=(0, "")) as child:
        directory = prepared.ensure_records(reading_settings(self._config), download=False)
      return f"{directory} {child.call_args}"
    if name == "from":
      return str(warm_start.origins(self._config.to_dict()).named)
    if name == "layout":
      return str(jax.tree.map(lambda leaf: str(leaf.sharding), self._run.abstract_state))
    return digest(_traced(name, self._run))


def _traced(name: str, run: Run) -> core.ClosedJaxpr:
  ids = jax.ShapeDtypeStruct((run.config.train.batch_size, run.config.data.length), jnp.int32)
  with jax.set_mesh(run.mesh):
    if name == "start":
      made = jax.make_jaxpr(run._initial)()
      # flax traces the whole encoder to find its shapes; what comes of it is not a part of the state.
      live, _ = partial_eval.dce_jaxpr(made.jaxpr, [True] * len(made.jaxpr.outvars), instantiate=True)
      return core.ClosedJaxpr(live, made.consts)
    if name == "step":
      return run.compile_train_step().trace(run.abstract_state, ids).jaxpr
    params, place = run.abstract_state.params, (jnp.int32(0), jnp.float32(0))
    return run.compile_eval_step().trace(params, ids, *place).jaxpr


def digest(jaxpr: core.ClosedJaxpr, known: dict[int, str] | None = None) -> str:
  """A digest of a program: its operations with their settings, its literals and its constants."""
  known = {} if known is None else known  # of inner programs, which several operations may share
  if id(jaxpr) not in known:
    closed = jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())
    names: dict = {}
    lines = [_names(closed.jaxpr.invars, names)]
    for equation in closed.jaxpr.eqns:
      settings = sorted(f"{name}={_setting(value, known)}" for name, value in equation.params.items())
      arrays = [_names(equation.invars, names), _names(equation.outvars, names)]
      lines.append(" ".join([str(equation.primitive), *arrays, *settings]))
    lines.append(_names(closed.jaxpr.outvars, names))
    content = hashlib.sha256("\n".join(lines).encode())
    for constant in closed.consts:
      content.update(np.asarray(constant).tobytes())
    known[id(jaxpr)] = content.hexdigest()
  return known[id(jaxpr)]


def _names(variables: Sequence, names: dict) -> str:
  """Variables by number and type, literals by value: programs that differ in names alone are the same."""
  return ",".join(
    f"{one.val}:{one.aval}"
    if isinstance(one, core.Literal)
    else f"v{names.setdefault(one, len(names))}:{one.aval}"
    for one in variables
  )


def _setting(value: Any, known: dict[int, str]) -> str:
  if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
    return digest(value, known)
  if isinstance(value, tuple | list):
    return f"({','.join(_setting(one, known) for one in value)})"
  return re.sub(r"0x[0-9a-f]+|<function [^>]*>|jaxpr=.*", "", str(value))


def _fed(records: pathlib.Path, settings: ReadingSettings) -> Prepared:
  """Stands in for a feed, whose child would import TensorFlow: rows of [CLS] alone."""
  words, size = manifest.read(records).vocabulary, settings.batch_size
  rows = np.zeros((size, settings.data.length), np.int32)
  sent = (({"number": number, "before": "", "sha256": ""}, rows) for number in itertools.count())
  child = mock.Mock(facts={"records": "f" * 64}, receive=lambda: next(sent), begin=lambda batch: _SPEED)
  return Prepared(
    directory="",
    train=FedRecords(child, batch_size=size, words=words),
    heldout=HeldoutBlocks(rows, words),
    vocabulary=str(records / "vocabulary"),
    digests={"vocabulary_digest": words.digest, "feed": child.facts},
    description={},
  )


def _facets_of_the_loop(config: ConfigDict, records: pathlib.Path) -> dict[str, str]:
  """The facets of `train.train`, whose programs are stood in for by functions that note what they get."""
  batches, heldout, said = [], [], []

  def train_step(state, ids):
    batches.append(np.asarray(ids).tolist())
    values = dict.fromkeys(("loss", _TERM, "grad_norm", "learning_rate", "skipped_updates"), 1.0)
    values |= {"skipped_in_a_row": float(len(batches) - 1)}  # only the first update is finite
    return state._replace(step=state.step + 1), {name: (value, 1.0) for name, value in values.items()}

  def eval_step(params, ids, index, progress):
    del params
    heldout.append((int(index), round(float(progress), 4), np.asarray(ids).tolist()))
    return {_TERM: (1.0, 1.0)}

  def init_state(run: Run):
    return jax.tree.map(
      lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), run.abstract_state
    )

  def save(checkpoints: Checkpoints, at: int, state: dict, *arguments, **options):
    little = {name: {"step": state["step"]} for name in state}  # that is quick
    return _SAVE(checkpoints, at, little, *arguments, **options)

  config = config.copy_and_resolve_references()
  config.data.directory = str(records)
  with contextlib.ExitStack() as stack:
    workdir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    stack.enter_context(mock.patch("pretrain.logs.metrics.EventsWriter"))
    stack.enter_context(mock.patch("pretrain.watching.diagnosis.write", return_value=""))
    tracker = mock.Mock(id="a", address="")
    stack.enter_context(mock.patch("lab.analysis.probing.find", return_value=[]))
    stack.enter_context(mock.patch("pretrain.logs.trackers.check"))
    # One field alone is another, which may make no sense.
    stack.enter_context(mock.patch.object(train.validate, "check", lambda config, **_: config))
    # Records of another source than the config's are refused; here they stand in for those it would make.
    stack.enter_context(mock.patch.object(prepared, "refuse_other_text"))
    stack.enter_context(mock.patch.dict("pretrain.logs.trackers._MAKERS", wandb=lambda tracked: tracker))
    stack.enter_context(mock.patch.object(feed, "open", functools.partial(_fed, records)))
    stack.enter_context(mock.patch.object(Checkpoints, "save", save))
    stack.enter_context(mock.patch.object(Run, "init_state", init_state))
    stack.enter_context(mock.patch.object(Run, "compile_train_step", lambda run: train_step))
    stack.enter_context(mock.patch.object(Run, "compile_eval_step", lambda run: eval_step))
    try:
      said.append(str(train.train(config, str(workdir))))
    except DivergedError as error:
      said.append(str(error).partition(";")[0])
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    said += [f"{line['step']} {' '.join(sorted(line))}" for line in lines]
    saves = sorted(path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
  return {"batches": str(batches), "heldout": str(heldout), "log": "\n".join(said), "saves": " ".join(saves)}
