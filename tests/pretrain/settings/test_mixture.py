"""What people write for a mixture, and each mistake in it."""

import pathlib
from fractions import Fraction

import pytest

from configs import base
from pretrain.command import validate
from pretrain.settings import mixture
from pretrain.settings.mixture import Source, Stage


def _stages(mixture_text="", stages=""):
  return mixture.stages({"mixture": mixture_text, "stages": stages})


@pytest.mark.parametrize(
  "text, sources",
  [
    ("a/wiki:0.7,b/books:0.3", [("a/wiki", "7/10"), ("b/books", "3/10")]),
    ("wiki:7, books:3e-1", [("wiki", "7"), ("books", "3/10")]),
    ("gs://bucket/wiki:1,s3://b/c:.5", [("gs://bucket/wiki", "1"), ("s3://b/c", "1/2")]),
    ("a:b/c:2:0.7,x,y:0.3", [("a:b/c:2", "7/10"), ("x,y", "3/10")]),  # ':' and ',' in names
    ("wiki,gs://bucket/books", [("wiki", None), ("gs://bucket/books", None)]),
    ("alone:1", [("alone", "1")]),
  ],
)
def test_sources_and_rates_are_those_that_were_written(text, sources):
  expected = [Source(directory, rate and Fraction(rate)) for directory, rate in sources]
  assert _stages(text) == [Stage(0, expected)]


def test_stages_begin_at_their_steps():
  half = Source("wiki", Fraction(1, 2))
  found = _stages(stages="0: wiki:0.5,a;b:0.5; 100000:wiki:0.5 ;200000: books")
  assert found == [
    Stage(0, [half, Source("a;b", Fraction(1, 2))]),
    Stage(100_000, [half]),
    Stage(200_000, [Source("books", None)]),
  ]
  data = {"mixture": "", "stages": "0: wiki:1,books:1; 5: pages:1,wiki:2"}
  assert mixture.directories(data) == ["wiki", "books", "pages"]


@pytest.mark.parametrize(
  "fields, line",
  [
    ({"mixture": "a:0,b:1"}, "data.mixture=a:0,b:1: the rate of 'a' is 0; expected a number above 0"),
    ({"mixture": "a:-2,b:1"}, "the rate of 'a' is -2; expected a number above 0"),
    ({"mixture": "a:nan,b:1"}, "the rate of 'a' is nan; expected a finite number above 0"),
    ({"mixture": "a:1,b:-Inf"}, "the rate of 'b' is -Inf; expected a finite number above 0"),
    ({"mixture": "a:1,b"}, "'b' has no rate; expected 'DIR:RATE,DIR:RATE', or"),
    ({"mixture": "a:1,b:x"}, "'b:x' has no rate; expected"),
    ({"mixture": "a:1,b:1e9999"}, "'b:1e9999' has no rate; expected"),
    ({"mixture": "a:1,./a:2"}, "the source 'a' is named twice"),
    ({"mixture": "a,b,a"}, "the source 'a' is named twice"),
    ({"mixture": "a,,b"}, "a source has no directory"),
    ({"mixture": ":1,b:1"}, "a source has no directory"),
    ({"mixture": "seqio:x:1,b:1"}, "a seqio Mixture must be alone in data.mixture"),
    (
      {"mixture": "seqio:x"},
      "its Tasks need one vocabulary; train one, then name it:\n  python -m data.vocabulary train --source=s",
    ),
    ({"mixture": "a:1", "directory": "b"}, "data.mixture or data.stages already names records"),
    ({"mixture": "a:1", "stages": "0: a:1"}, "data.mixture='a:1', data.stages='0: a:1': set only one"),
    (
      {"stages": "a:1"},
      "data.stages=a:1: expected 'STEP: DIR:RATE,DIR:RATE; STEP: ...', beginning with '0: '",
    ),
    ({"stages": "5: a:1"}, "the first stage is at step 5; expected step 0"),
    ({"stages": "-1: a:1"}, "the first stage is at step -1; expected step 0"),
    ({"stages": "0: a:1; 9: b:1; 9: a:1"}, "step 9 comes after step 9; expected ascending steps"),
    ({"stages": "0: a:1; 9: b:1; 3: a:1"}, "step 3 comes after step 9; expected ascending steps"),
    ({"stages": "0: a:1; 9: b:0"}, "the rate of 'b' is 0; expected a number above 0"),
    ({"stages": "0: a:1; 125000: b:1"}, "data.stages: steps 125000 are too late; train.total_steps=1250"),
    ({"mixture": f"a:1,{pathlib.Path('a').absolute()}:2"}, "the source 'a' is named twice"),
    (
      {"mixture": "a:1", "clean": "exact"},
      "data.clean='exact': a mixture reads records that are prepared al",
    ),
    ({"mixture": "a:1", "text_field": "body"}, "data.text_field='body': a mixture reads records that are"),
    ({"temperature": 2.0}, "data.temperature=2.0: it needs rates; set data.mixture or data.stages"),
    (
      {"mixture": "a:1", "temperature": 0.01},
      "data.temperature=0.01: expected 0 (off), or a number in [0.1, 100]",
    ),
    ({"mixture": "a:1", "temperature": -1.0}, "data.temperature=-1.0: expected a number in [0, 100]"),
    ({"mixture": "a:1", "temperature": float("nan")}, "data.temperature=nan: expected"),
  ],
)
def test_each_mistake_is_one_problem(fields, line):
  config = base.get_config()
  config.update_from_flattened_dict({f"data.{name}": value for name, value in fields.items()})
  config.objectives.mlm.weight = 1.0
  (found,) = validate.problems(config)
  assert line in found and len(found.splitlines()[0]) <= 160


def test_a_mixture_without_mistakes_has_no_problem():
  config = base.get_config()
  config.objectives.mlm.weight = 1.0
  config.data.mixture, config.data.temperature, config.data.source = "a:1,gs://b/c:2", 2.0, ""
  assert validate.problems(config) == []
