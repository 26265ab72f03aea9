"""What a pretraining config decides, facet by facet, as text that can be compared. Nothing is compiled.

`test_field_sensitivity.py` changes fields and looks which facets change:

  start      the program that makes the first state
  step       the program of a training step
  eval       the program of an evaluation
  layout     where the arrays of the state lie on eight devices
  prepare    the command that makes the records, and where
  from       the checkpoints that a new run takes values from
"""

import dataclasses
import functools
import hashlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from ml_collections import ConfigDict

from data import vocabulary
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.saved_model import tokens_of
from pretrain.reading import prepare, prepared
from pretrain.run import Run, make_run
from pretrain.settings.run import reading_settings

TRACED = ("start", "eval", "step")  # in the order of their cost
FACETS = (*TRACED, "layout", "prepare", "from")


class Facets:
  """The facets of one config; each is made when it is asked for."""

  def __init__(self, config: ConfigDict, records: pathlib.Path) -> None:
    """Takes a config and a directory of prepared records, whose vocabulary is used."""
    self._config, self._records = config, records
    with config.unlocked():  # the name that the table has for records which it cannot know
      for name in ("mixture", "stages"):
        config.data[name] = config.data[name].replace("RECORDS", str(records))

  @functools.cached_property
  def _run(self) -> Run:
    words = vocabulary.load_cached(str(self._records / "vocabulary"))
    return make_run(self._config, dataclasses.replace(tokens_of(words), word_starts=words.word_starts))

  def text(self, name: str) -> str:
    """One of `FACETS` as text."""
    if name == "prepare":
      with mock.patch.object(prepare, "run_child", return_value=(0, "")) as child:
        prepared.ensure_records(reading_settings(self._config), download=False)
      return str(child.call_args)
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
