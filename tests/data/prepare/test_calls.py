"""Calls and results as JSON: what is restored, and what is not run."""

import functools
import json
import os

import pytest

from data import errors, manifest, seqio_tasks, sources
from data.prepare import calls, pipeline

IDS = seqio_tasks.Tokenised("targets", "words", "ab", 64, "complete")
JOB = pipeline.Job(sources.Request("a/*.txt"), "out", 128, "complete", 3, 0.1, 1.0)
VALUES = [
  [1, -(2**70), 0.1, "ä", True, None],
  ("a", ("b", [1])),
  {"documents": 3, 4: ("x",)},
  {"tuple": [1], "function": "os:system"},
  JOB,
  sources.Unit("file", "a.txt", 5, -1),
  sources.Unit("seqio", "ids", 3, 4, seqio_tasks.Part("ids", 4, 0.5, IDS)),
  manifest.Shard("train-0", 3, 17, "ab"),
]


def through_json(value):
  return calls.decode(json.loads(json.dumps(calls.encode(value))))


def test_a_value_comes_back_as_it_was():
  for value in VALUES:
    restored = through_json(value)
    assert restored == value and type(restored) is type(value)
  call = through_json(functools.partial(pipeline.pack_unit, JOB, number=4))
  assert (call.func, call.args, call.keywords) == (pipeline.pack_unit, (JOB,), {"number": 4})


def test_names_that_no_step_calls_are_refused():
  for name in (
    "os:system",
    "data.command:run_child",
    "data.prepare.steps:os",
    "data.sources:errors",
    "data:errors",
  ):
    calling = {"partial": name, "arguments": {"tuple": ["true"]}, "keywords": {"dict": []}}
    for value in ({"function": name}, {"object": name, "fields": {"dict": []}}, calling):
      with pytest.raises(ValueError, match=r"is in none of|is not defined there"):
        calls.decode(value)


def test_a_value_that_could_not_be_restored_is_refused_when_it_is_sent():
  for value in (lambda: 0, object(), b"bytes", os.environ, {1}, os.getpid, errors.did_you_mean):
    with pytest.raises(TypeError, match="cannot be sent"):
      calls.encode(value)
