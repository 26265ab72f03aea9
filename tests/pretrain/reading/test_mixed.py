"""A mixture: its rates by value, sources that do not belong together, a run that goes on and is changed."""

import dataclasses
import json
import shutil
import signal
from fractions import Fraction

import numpy as np
import pytest

from data import manifest, seqio_tasks
from data.command import STOPPED
from data.errors import ConfigError, DataError
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.saved_model import open_run
from pretrain.export import card
from pretrain.plan import dry_run
from pretrain.reading import mixed, prepare, prepared
from pretrain.report import runs
from pretrain.settings.run import BatchSizes, reading_settings
from tests.pretrain.processes import running
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  mixture_config,
  run_training,
  saved_params,
  small_config,
)


def _found(text, **data):
  return mixed.find(
    reading_settings(mixture_config(text, {f"data.{name}": value for name, value in data.items()}))
  )


def test_rates_are_exact_and_a_temperature_takes_their_roots(small_records, more_records):
  one, two = (manifest.read(path).splits["train"].records for path in (small_records, more_records))
  for rates, temperature, expected in (
    ((":0.7", ":0.3"), 0.0, Fraction(7, 10)),
    ((":14", ":6"), 0.0, Fraction(7, 10)),
    (("", ""), 0.0, Fraction(one, one + two)),
    ((":16", ":1"), 2.0, Fraction(4, 5)),  # 16 : 1 at 2 is 4 : 1
    ((":16", ":1"), 1.0, Fraction(16, 17)),
    ((":0.7", ":0.3"), 3.0, 0.7 ** (1 / 3) / (0.7 ** (1 / 3) + 0.3 ** (1 / 3))),
    (("", ""), 2.0, one**0.5 / (one**0.5 + two**0.5)),
  ):
    text = f"{small_records}{rates[0]},{more_records}{rates[1]}"
    (first,), (second,) = (source.rates for source in _found(text, temperature=temperature).sources)
    is_exact = isinstance(expected, Fraction)
    assert first == expected if is_exact else float(first) == pytest.approx(expected, rel=1e-15), text
    assert first + second == 1


def test_shares_of_the_whole_run_and_the_steps_of_its_stages(stages, small_records, more_records):
  settings = reading_settings(mixture_config(stages))
  found = mixed.find(settings)
  assert [one.name for one in found.sources] == ["small", "more"]
  # Four steps at 7/10, two at 1/4, of six.
  assert [one.share for one in found.sources] == [Fraction(33, 60), Fraction(27, 60)]
  assert found.digests["mixture"][1][1][0][::2] == ["small", "1/4"]
  small = manifest.read(small_records).splits["train"].records
  # Held-out rows have the shares of the run, not the rates of a stage: of 20 there are 9.
  heldout, other = found.heldout(settings), prepared.open(reading_settings(small_config("mlm", more_records)))
  others = {row.tobytes() for row in other.heldout.rows(0, len(other.heldout))}
  assert abs(sum(row.tobytes() in others for row in heldout.rows(0, 20)) - 9) < 1
  # Two updates of 2 rows, two of 4, two of 6: 12 rows in each stage, the second from row 12 on.
  sizes = BatchSizes(8, 4, 2, 6)
  settings = dataclasses.replace(reading_settings(mixture_config(stages)), sizes=sizes)
  assert [one.share for one in mixed.find(settings).sources] == [Fraction(19, 40), Fraction(21, 40)]
  text = f"0: {small_records}:1; 4: {more_records}:1"
  settings = dataclasses.replace(reading_settings(mixture_config(text)), sizes=sizes)
  numbers = mixed.find(settings).train(settings).examples(0, 0, rows=range(24))
  assert [number >= small for number in numbers] == [False] * 12 + [True] * 12


def _changed(directory, to, **changes):
  """A copy of records whose manifest says something else."""
  shutil.copytree(directory, to)
  manifest.write(to, dataclasses.replace(manifest.read(to), **changes))
  return to


def test_names_of_sources_are_told_apart(small_records, more_records, tmp_path):
  one, two = shutil.copytree(small_records, tmp_path / "--"), shutil.copytree(more_records, tmp_path / "++")
  task = _changed(small_records, tmp_path / "task", settings={"source": "seqio:my.books"})
  other = _changed(more_records, tmp_path / "my_books", settings={"source": "x.txt"})
  for sources, expected in (
    ((one, two), ["source", "source_2"]),
    ((task, other), ["my_books", "my_books_2"]),
    ((task, two), ["my_books", "source"]),
  ):
    assert [source.name for source in _found(",".join(map(str, sources))).sources] == expected


def test_sources_that_do_not_belong_together_are_refused(small_records, more_records, tmp_path):
  made, none = manifest.read(more_records), manifest.Split(0, 0, ())
  changes = [
    ({"vocabulary": dataclasses.replace(made.vocabulary, digest="f" * 64)}, "\n  --vocabulary="),
    ({"length": 16}, "\n  --length=32"),
    ({"packing": "concat"}, "\n  --packing=complete"),
    ({"splits": {**made.splits, "train": none}}, "no training records"),
    ({"splits": {**made.splits, "heldout": none}}, "train.eval_batches=0"),
  ]
  cases = [(_changed(more_records, tmp_path / part[-6:], **fields), part, {}) for fields, part in changes]
  (tmp_path / "vocabulary.json").write_text('{"digest": "e"}')
  cases += [
    (shutil.copytree(small_records, tmp_path / "again"), "have the same records", {}),
    (tmp_path / "gone", "gone has no manifest.json", {}),
    (more_records, "\n  --config.data.vocabulary=", {"data.vocabulary": str(tmp_path)}),
  ]
  failures = []
  for other, part, fields in cases:
    with pytest.raises(DataError) as refused:
      prepared.open(reading_settings(mixture_config(f"{small_records}:1,{other}:1", fields)))
    if part not in str(refused.value):
      failures.append(f"{other}: expected {part!r}, found {refused.value}")
  assert not failures, "\n".join(failures)
  without = mixture_config(f"{small_records}:1,{cases[4][0]}:1", {"train.eval_batches": 0})
  assert prepared.open(reading_settings(without)).heldout is None
  with pytest.raises(ConfigError, match="wrong"):
    mixed.find(reading_settings(small_config("mlm", "", {"data.stages": "wrong"})))


def test_a_seqio_mixture_is_its_tasks_at_its_rates(small_records, more_records, monkeypatch):
  # Patched: the Mixture's rates need TensorFlow, and records of Tasks are prepared in a child process.
  pairs, asked = {"seqio:wiki": small_records, "seqio:books": more_records}, []
  monkeypatch.setattr(seqio_tasks, "rates", lambda name, **_: [("wiki", 0.7), ("books", 0.3)])
  monkeypatch.setattr(
    prepare,
    "ensure",
    lambda settings, *, download: (
      asked.append((settings.data.mixture, download)) or pairs[settings.data.source]
    ),
  )
  settings = reading_settings(mixture_config("seqio:mine"))
  assert prepare.ensure_tasks(settings, download=True) == f"{small_records}:0.7,{more_records}:0.3"
  assert asked == [("", True)] * 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory, stages):
  """The workdir of a finished run on `stages`."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  assert run_training(mixture_config(stages, {"train.checkpoint_steps": (2,)}), workdir) == 0
  return workdir


@pytest.fixture
def examples(capsys):
  """The records of each of the six steps of a run."""

  def read(workdir) -> list[list[int]]:
    capsys.readouterr()
    assert checkpoints.main(["examples", str(workdir), "--steps=1:6"]) == 0
    return [json.loads(line)["records"] for line in capsys.readouterr().out.splitlines()]

  return read


def test_a_run_takes_rows_at_its_rates_and_its_losses_are_of_its_sources(
  whole, stages, small_records, more_records, examples
):
  sizes = [manifest.read(path).splits["train"].records for path in (small_records, more_records)]
  numbers = [number for step in examples(whole) for number in step]
  counts = np.cumsum([number >= sizes[0] for number in numbers])
  for taken, more in enumerate(counts, 1):
    due = 0.3 * taken if taken <= 32 else counts[31] + 0.75 * (taken - 32)  # each stage counts anew
    assert abs(more - due) < 1
  assert len(numbers) == 48
  for line in (line for line in metric_lines(whole) if "eval/loss" in line):
    expected = 0.55 * line["eval/source_loss/small"] + 0.45 * line["eval/source_loss/more"]
    assert line["eval/loss"] == pytest.approx(expected, rel=1e-12)
    assert line["eval/source_loss/small"] != line["eval/source_loss/more"]
  meta = checkpoint.read_meta(checkpoint.step_path(whole))
  digests = [manifest.records_digest(manifest.read(path)) for path in (small_records, more_records)]
  assert meta["mixture"] == [
    [0, [["small", digests[0], "7/10"], ["more", digests[1], "3/10"]]],
    [4, [["small", digests[0], "1/4"], ["more", digests[1], "3/4"]]],
  ]
  assert meta["records"]["records"] == sum(sizes)
  # A report, a card, a dry run and an opened run know the sources.
  assert runs.environment(runs.read([str(whole)])[0])["text more"].startswith("45.00% of the rows, from ")
  text = "\n".join(card.training(meta | {"packages": {}}, 0.0))
  assert "a mixture of 55.00% `small` (own files `text.txt`; records " in text
  text = dry_run.dry_run(mixture_config(stages), workdir="none")
  assert "records more   30.0000% from step 0, 75.0000% from step 4" in text
  opened, settings = open_run(whole, rows=8), reading_settings(mixture_config(stages))
  np.testing.assert_array_equal(opened.heldout.rows(0, 8), prepared.open(settings).heldout.rows(0, 8))


def test_a_run_goes_on_bit_for_bit_and_only_stages_that_begin_later_may_change(
  whole, stages, small_records, more_records, tmp_path, examples
):
  first = f"{small_records}:0.7,{more_records}:0.3"  # as it was, in another scale

  def continues(text, step):
    """A start from a step: its exit code."""
    to = tmp_path / "try"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(whole, to)
    for later in {4, 6} - {step}:
      shutil.rmtree(to / "checkpoints" / str(later))
    fields = {"train.checkpoint_steps": (2,)}
    config = mixture_config(text, fields) if text else small_config("mlm", small_records, fields)
    return run_training(config, to)

  for text, part in [
    (f"0: {small_records}:1,{more_records}:1; 4: {small_records}:1,{more_records}:3", "small 0.5, more 0.5"),
    (f"0: {more_records}:3,{small_records}:7", "more 0.3, small 0.7"),  # another order of rows
    (f"0: {first}; 3: {small_records}:1", "from step 3: small 1"),
    (f"0: {small_records}:1", "only stages from step 4 on"),
    ("", "one directory of records is given"),
  ]:
    with pytest.raises(ConfigError) as refused:
      continues(text, 4)
    assert part in str(refused.value)
  assert continues(f"0: {first}; 4: {more_records}:1", 4) == 0
  small = manifest.read(small_records).splits["train"].records
  changed = examples(tmp_path / "try")
  assert changed[:4] == examples(whole)[:4] and all(
    number >= small for step in changed[4:] for number in step
  )
  # From the first stage into the second; the same records in another place are the same run.
  moved = shutil.copytree(small_records, tmp_path / "moved" / "small")
  assert continues(stages.replace(str(small_records), str(moved)), 2) == 0
  assert metric_lines(tmp_path / "try") == metric_lines(whole)
  assert_same_params(saved_params(tmp_path / "try"), saved_params(whole))


@pytest.mark.nightly
def test_two_processes_and_one_train_on_the_same_mixture(whole, stages, tmp_path):
  """Two hosts stopped in the first stage; one goes on with two devices, into the second."""
  workdir, named = tmp_path / "run", [f"--config.data.stages={stages}"]
  with running(2, workdir, *named, "--config.train.total_steps=6") as two:
    two.wait_for_step(1)
    two.send(0, signal.SIGTERM)
    assert set(two.codes()) <= {0, STOPPED}
  assert run_training(mixture_config(stages), workdir, number=2) == 0
  for line, wanted in zip(metric_lines(workdir), metric_lines(whole), strict=True):
    names = [name for name in wanted if "loss" in name]
    assert [line[name] for name in names] == pytest.approx([wanted[name] for name in names], rel=1e-5)
