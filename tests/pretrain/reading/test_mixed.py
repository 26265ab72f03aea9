"""The sources of a mixture: found, compared with each other, opened at their rates."""

import dataclasses
import json
import shutil
from fractions import Fraction
from unittest import mock

import pytest

from data import child, errors, manifest
from data.errors import ConfigError, DataError
from pretrain import evaluate
from pretrain.command import flags
from pretrain.logs.heldout import frequency_loss
from pretrain.plan import dry_run
from pretrain.reading import mixed, prepared
from pretrain.settings.batch_sizes import BatchSizes
from pretrain.settings.run import reading_settings
from tests.pretrain.pod.processes import ROOT
from tests.pretrain.small_run import (
  mixture_config,
  run_training,
  small_config,
)


def _rates(*texts, temperature=0.0):
  return [
    [str(rate) for rate in one.rates]
    for one in mixed.find(reading_settings(mixture_config(*texts, {"data.temperature": temperature}))).sources
  ]


def test_rates_are_exact_and_without_them_those_of_the_numbers_of_records(small_records, more_records):
  assert _rates(f"{small_records}:0.7,{more_records}:0.3") == [["7/10"], ["3/10"]]
  assert _rates(f"{small_records}:14,{more_records}:6") == [["7/10"], ["3/10"]]
  one, two = (manifest.read(path).splits["train"].records for path in (small_records, more_records))
  assert _rates(f"{small_records},{more_records}") == [
    [str(Fraction(one, one + two))],
    [str(Fraction(two, one + two))],
  ]


def test_a_temperature_takes_roots_of_rates(small_records, more_records):
  # 16 : 1 at 2 is 4 : 1.
  assert _rates(f"{small_records}:16,{more_records}:1", temperature=2.0) == [["4/5"], ["1/5"]]
  assert _rates(f"{small_records}:16,{more_records}:1", temperature=1.0) == [["16/17"], ["1/17"]]
  ((first,), _) = _rates(f"{small_records}:0.7,{more_records}:0.3", temperature=3.0)
  assert float(Fraction(first)) == pytest.approx(
    0.7 ** (1 / 3) / (0.7 ** (1 / 3) + 0.3 ** (1 / 3)), rel=1e-15
  )
  one, two = (manifest.read(path).splits["train"].records for path in (small_records, more_records))
  ((first,), _) = _rates(f"{small_records},{more_records}", temperature=2.0)
  assert float(Fraction(first)) == pytest.approx(one**0.5 / (one**0.5 + two**0.5), rel=1e-15)


def test_shares_of_the_whole_run_and_names(stages):
  found = mixed.find(reading_settings(mixture_config(stages)))
  assert [one.name for one in found.sources] == ["small", "more"]
  # Four steps at 7/10, two at 1/4, of six.
  assert [one.share for one in found.sources] == [Fraction(33, 60), Fraction(27, 60)]
  assert found.digests["mixture"][1][1][0][::2] == ["small", "1/4"]
  sizes = BatchSizes(8, 4, 2, 6)  # two updates of 2 rows, two of 4, two of 6: 12 rows in each stage
  found = mixed.find(dataclasses.replace(reading_settings(mixture_config(stages)), sizes=sizes))
  assert [one.share for one in found.sources] == [Fraction(19, 40), Fraction(21, 40)]


def _named(**sources: str) -> list[str]:
  made = {place: mock.Mock(settings={"source": source}) for place, source in sources.items()}
  return mixed._names(made)


def test_names_of_sources_are_told_apart():
  assert _named(**{"a/wiki": "x.txt", "b/books": "seqio:my.books"}) == ["wiki", "my_books"]
  found = _named(**{"a/wiki": "seqio:wiki", "b/books": "seqio:wiki", "c/wiki_1": "x.txt"})
  assert found == ["wiki_2", "wiki_3", "wiki_1"]
  assert _named(**{"a/--": "x.txt", "a/++": "x.txt", "a/wiki": "x.txt"}) == ["source_1", "source_2", "wiki"]
  assert _named(**{"a/--": "x.txt", "a/wiki": "x.txt"}) == ["source", "wiki"]


def _changed(directory, to, **changes):
  shutil.copytree(directory, to)
  manifest.write(to, dataclasses.replace(manifest.read(to), **changes))
  return to


def test_sources_that_do_not_belong_together_are_refused(small_records, more_records, tmp_path):
  made = manifest.read(more_records)
  words = dataclasses.replace(made.vocabulary, digest="f" * 64)
  empty = {**made.splits, "train": manifest.Split(0, 0, ())}
  cases = {
    "words": ({"vocabulary": words}, r"prepare it again with\n  --vocabulary=.*small/vocabulary"),
    "short": ({"length": 16}, "was prepared with another length than .*small .16, 32.; .*\n  --length=32"),
    "packed": (
      {"packing": "concat"},
      "another packing than .*small .concat, complete.; .*\n  --packing=complete",
    ),
    "empty": ({"splits": empty}, "has no training records; prepare it again from more text, or leave it out"),
  }
  for name, (changes, line) in cases.items():
    other = _changed(more_records, tmp_path / name, **changes)
    with pytest.raises(DataError, match=line):
      prepared.open(reading_settings(mixture_config(f"{small_records}:1,{other}:1")))
  again = shutil.copytree(small_records, tmp_path / "again")
  with pytest.raises(DataError, match=r"again and .*small have the same records; use one of them"):
    prepared.open(reading_settings(mixture_config(f"{small_records}:1,{again}:1")))
  with pytest.raises(DataError, match=r"gone has no manifest.json"):
    prepared.open(reading_settings(mixture_config(f"{small_records}:1,{tmp_path}/gone:1")))
  nothing = {**made.splits, "heldout": manifest.Split(0, 0, ())}
  other = _changed(more_records, tmp_path / "nothing", splits=nothing)
  with pytest.raises(DataError, match=r"(?s)nothing has no heldout records; .*train.eval_batches=0"):
    prepared.open(reading_settings(mixture_config(f"{small_records}:1,{other}:1")))
  prepared.open(reading_settings(mixture_config(f"{small_records}:1,{other}:1", {"train.eval_batches": 0})))
  files_of = tmp_path / "named"
  files_of.mkdir()
  (files_of / "vocabulary.json").write_text('{"digest": "e"}')
  with pytest.raises(DataError, match=r"was prepared with another vocabulary than data.vocabulary="):
    prepared.open(reading_settings(mixture_config(f"{small_records}:1", {"data.vocabulary": str(files_of)})))
  with pytest.raises(ConfigError, match=r"expected 'STEP: DIR:RATE"):
    mixed.find(reading_settings(small_config("mlm", "", {"data.stages": "wrong"})))


def _refusal(*changes):
  config = f"--config={ROOT / 'tests/pretrain/small_run.py'}:mlm"
  with pytest.raises(ConfigError) as caught:
    flags.read_arguments([config, *(f"--config.data.{change}" for change in changes)])
  return str(caught.value)


def test_sources_that_are_not_there_are_refused_before_jax_is_asked(small_records, tmp_path):
  near = str(small_records).replace("small", "smal")
  line = _refusal(f"mixture={small_records}:1,{near}:1")
  assert f"--config.data.mixture: no prepared records in {near}; did you mean '{small_records}'?" in line
  line = _refusal(f"mixture={small_records}:x,{small_records}:1")
  assert "; 'x' is not a rate, a number such as 0.7; prepare them" in line
  assert "--config.data.stages: no prepared records in nowhere; prepare" in _refusal("stages=0: nowhere:1")
  line = _refusal(f"mixture={small_records}:1", "source=text.txt")
  assert line == "data.source=text.txt: a mixture reads prepared records; leave this field out"


def test_held_out_losses_are_those_of_each_source_and_of_its_frequencies(small_records, more_records):
  config = mixture_config(f"{small_records}:7,{more_records}:3")
  records = prepared.open(reading_settings(config))
  run = mock.Mock(config=config)
  run.recipe.tokens.special = records.tokens.special
  counts = records.heldout.unigram()
  alone = [
    frequency_loss(one.rows(0, 16), counts, records.tokens.special)
    for one in records.heldout.sources.values()
  ]
  assert evaluate.trivial_loss(run, records.heldout) == pytest.approx(0.7 * alone[0] + 0.3 * alone[1])


def test_a_seqio_mixture_is_its_tasks_at_its_rates(small_records, more_records, tmp_path, monkeypatch):
  pairs = {"wiki": small_records, "books": more_records}
  asked = []

  def made(config, *, download):
    asked.append((config.data.source, config.data.mixture, download))
    return str(pairs[config.data.source.removeprefix("seqio:")])

  monkeypatch.setattr(child, "call", lambda function, **_: [("wiki", 0.7), ("books", 0.3)])
  monkeypatch.setattr(
    prepared,
    "ensure_records",
    lambda config, **options: made(config, **options) if config.data.mixture == "" else "",
  )
  config = mixture_config("seqio:mine", {"data.vocabulary": str(small_records / "vocabulary")})
  assert run_training(config, tmp_path / "run") == 0
  assert asked == [("seqio:wiki", "", False), ("seqio:books", "", False)]
  saved = json.loads((tmp_path / "run" / "config.json").read_text())["data"]["mixture"]
  assert saved == f"{small_records}:0.7,{more_records}:0.3"
  assert "of the Tasks of seqio:mine" in dry_run.dry_run(config, workdir="none")


def test_what_a_child_refuses_is_raised_with_the_fields_of_the_config(monkeypatch):
  def refuse(function, *, name, **_):
    raise errors.DataError(f"--mixture=seqio:{name}: unknown; --module=FILE imports a file")

  monkeypatch.setattr(child, "call", refuse)
  with pytest.raises(
    DataError, match=r"^--config.data.mixture=seqio:mine: unknown; --config.data.module=FILE"
  ):
    prepared.ensure_tasks(reading_settings(mixture_config("seqio:mine")), download=False)
