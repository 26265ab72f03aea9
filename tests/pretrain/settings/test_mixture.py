"""What people write for a mixture, and each mistake in it."""

import pathlib
from fractions import Fraction

from configs import base
from pretrain.command import validate
from pretrain.settings import mixture
from pretrain.settings.mixture import Source, Stage


def _stages(mixture_text="", stages=""):
  return mixture.stages({"mixture": mixture_text, "stages": stages})


def test_sources_and_rates_are_those_that_were_written():
  for text, sources in (
    ("a/wiki:0.7,b/books:0.3", [("a/wiki", "7/10"), ("b/books", "3/10")]),
    ("wiki:7, books:3e-1", [("wiki", "7"), ("books", "3/10")]),
    ("gs://bucket/wiki:1,s3://b/c:.5", [("gs://bucket/wiki", "1"), ("s3://b/c", "1/2")]),
    ("a:b/c:2:0.7,x,y:0.3", [("a:b/c:2", "7/10"), ("x,y", "3/10")]),  # ':' and ',' in names
    ("wiki,gs://bucket/books", [("wiki", None), ("gs://bucket/books", None)]),
    ("alone:1", [("alone", "1")]),
  ):
    expected = [Source(directory, rate and Fraction(rate)) for directory, rate in sources]
    assert _stages(text) == [Stage(0, expected)], text
  half = Source("wiki", Fraction(1, 2))
  assert _stages("wiki:0.5;") == [Stage(0, [half])]
  assert _stages(stages="0: wiki:0.5,a;b:0.5; 100000:wiki:0.5 ;200000: books;") == [
    Stage(0, [half, Source("a;b", Fraction(1, 2))]),
    Stage(100_000, [half]),
    Stage(200_000, [Source("books", None)]),
  ]
  data = {"mixture": "", "stages": "0: wiki:1,books:1; 5: pages:1,wiki:2"}
  assert mixture.directories(data) == ["wiki", "books", "pages"]
  names = {text: mixture.seqio_name({"mixture": text}) for text in ("seqio:x", "seqio:x:1", "seqio:x,y", "x")}
  assert names == {"seqio:x": "x", "seqio:x:1": "", "seqio:x,y": "", "x": ""}
  stages = [[0, [["wiki", "d", "7/10"], ["books", "e", "3/10"]]], [1_000, [["wiki", "d", "1"]]]]
  assert mixture.shown(stages) == "from step 0: wiki 0.7, books 0.3; from step 1,000: wiki 1"


# (fields of data, part of the only line)
REFUSED = [
  ({"mixture": "a:0,b:1"}, "rate of 'a' is 0"),
  ({"mixture": "a:-2,b:1"}, "rate of 'a' is -2"),
  ({"mixture": "a:70%,b:30%"}, "the rate of 'a' is 70%; expected a number"),
  ({"stages": "0: a:70%,b:30%"}, "the rate of 'a' is 70%; expected a number"),
  ({"mixture": "a:1,b:-Inf"}, "'b:-Inf' has no rate"),
  ({"mixture": "a:1,b"}, "'b' has no rate"),
  ({"mixture": "a:1,b:x"}, "'b:x' has no rate"),
  ({"mixture": "a:1,b:1e9999"}, "'b:1e9999' has no rate"),
  ({"mixture": "a:1,./a:2"}, "'a' is named twice"),
  ({"mixture": "a,b,a"}, "'a' is named twice"),
  ({"mixture": f"a:1,{pathlib.Path('a').absolute()}:2"}, "'a' is named twice"),
  ({"mixture": "a,,b"}, "no directory"),
  ({"mixture": ":1,b:1"}, "no directory"),
  ({"mixture": "seqio:x:1,b:1"}, "seqio Mixture"),
  ({"mixture": "seqio:x"}, "\n  python -m data.vocabulary train --source=seqio:x --module=FILE"),
  ({"mixture": "a:1", "directory": "b"}, "data.directory='b'"),
  ({"mixture": "a:1", "stages": "0: a:1"}, "data.mixture='a:1', data.stages='0: a:1'"),
  ({"stages": "a:1"}, "data.stages=a:1: expected 'STEP: DIR:RATE"),
  ({"stages": "5: a:1"}, "at step 5; expected step 0"),
  ({"stages": "-1: a:1"}, "at step -1; expected step 0"),
  ({"stages": "0: a:1; 9: b:1; 9: a:1"}, "step 9 comes after step 9"),
  ({"stages": "0: a:1; 9: b:1; 3: a:1"}, "step 3 comes after step 9"),
  ({"stages": "0: a:1; 9: b:0"}, "rate of 'b' is 0"),
  ({"stages": "0: a:1; 125000: b:1"}, "steps 125000 are too late"),
  ({"mixture": "a:1", "clean": "exact"}, "data.clean='exact'"),
  ({"mixture": "a:1", "text_field": "body"}, "data.text_field='body'"),
  ({"temperature": 2.0}, "data.temperature=2.0: it needs rates"),
  ({"mixture": "a:1", "temperature": 0.09}, "[0.1, 100]"),
  ({"mixture": "a:1", "temperature": -1.0}, "[0, 100]"),
  ({"mixture": "a:1", "temperature": float("nan")}, "data.temperature=nan"),
  # A feed.
  ({"feed": "seqio"}, "data.source='installed_docs': expected the name of a Task"),
  ({"feed": "seqio", "source": "seqio:"}, "\n  --config.data.source=seqio:NAME"),
  *(
    (
      {"feed": "seqio", "source": "seqio:x", name: value},
      f"data.{name}={value!r}: data.{name} needs prepared",
    )
    for name, value in (("clean", "exact"), ("directory", "d"), ("fraction", 0.5))
  ),
]
GOOD = [
  {"mixture": "a:1,gs://b/c:2", "temperature": 0.1, "source": ""},
  {"stages": "0: a:1; 124999: b:1"},
  {"mixture": "seqio:x", "vocabulary": "words", "module": "tasks.py"},
  {"feed": "seqio", "source": "seqio:x"},
]


def _problems(changes):
  config = base.get_config()
  config.update_from_flattened_dict({f"data.{name}": value for name, value in changes.items()})
  config.objectives.mlm.weight = 1.0
  return validate.problems(config)


def test_each_mistake_is_one_problem_and_its_neighbour_none():
  failures = []
  for changes, part in REFUSED:
    found = _problems(changes)
    if len(found) != 1 or part not in found[0] or len(found[0].splitlines()[0]) > 160:
      failures.append(f"{changes}: expected {part!r}, found {found}")
  failures += [f"{changes}: {found}" for changes in GOOD if (found := _problems(changes))]
  assert not failures, "\n".join(failures)
