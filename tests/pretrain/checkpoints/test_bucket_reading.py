"""Records, checkpoints and vocabularies of a bucket: fetched, checked, and what is missing in one line."""

import json

import pytest

from data.buckets import copies
from data.errors import DataError
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints import bucket_steps, checkpoint, warm_start
from pretrain.checkpoints.saved_model import open_model
from pretrain.mesh import trees
from pretrain.reading import prepared
from pretrain.settings.run import TrainFields, reading_settings
from pretrain.start import preflight
from tests import buckets
from tests.pretrain import small_run


def test_records_are_held_against_their_digests(here, small_records, moved):
  address = "memory://prepared/small"
  buckets.put_folder(address, small_records)
  found = copies.records(address, flag="data.directory")
  assert (found / "manifest.json").read_bytes() == (small_records / "manifest.json").read_bytes()
  shard = json.loads((found / "manifest.json").read_text())["splits"]["train"]["shards"][0]["name"]
  moved.clear()
  buckets.put(address, {shard: b"?" * (small_records / shard).stat().st_size})
  for _ in range(2):  # nothing damaged counts as fetched
    with pytest.raises(DataError, match=f"^data.directory={address}: files there are not those"):
      copies.records(address, flag="data.directory")
  assert moved == [shard] * 4
  buckets.put(address, {shard: (small_records / shard).read_bytes()})
  assert (copies.records(address, flag="data.directory") / shard).read_bytes() != b""
  with pytest.raises(
    DataError, match=r"no prepared records there; to make them:\n  .* --output=memory://prepared$"
  ):
    copies.records("memory://prepared", flag="data.directory")


def test_a_run_reads_its_records_from_a_bucket(here, small_records):
  address = "memory://prepared/of_run"
  buckets.put_folder(address, small_records)
  config = small_run.small_config("mlm", address)
  settings, local = reading_settings(config), small_run.small_config("mlm", small_records)
  assert prepared.ensure_records(settings, download=False) == prepared.records_directory(settings)
  here, there = prepared.open(settings), prepared.open(reading_settings(local))
  assert here.digests == there.digests
  assert (here.train.batch(3, 8) == there.train.batch(3, 8)).all()


def test_a_mixture_reads_its_sources_from_buckets(here, small_records, more_records):
  names = ["memory://prepared/one:a", "memory://prepared/other"]
  for address, directory in zip(names, (small_records, more_records)):
    buckets.put_folder(address, directory)
  config = small_run.small_config("mlm", "", {"data.mixture": f"{names[0]}:7,{names[1]}:3"})
  local = small_run.small_config("mlm", "", {"data.mixture": f"{small_records}:7,{more_records}:3"})
  here, there = prepared.open(reading_settings(config)), prepared.open(reading_settings(local))
  assert list(here.train.sources) == ["one_a", "other"]
  assert (here.train.batch(3, 8) == there.train.batch(3, 8)).all()  # the place of a source changes nothing
  config.data.mixture = "memory://prepared/none:1"
  with pytest.raises(DataError, match=r"^data.mixture=memory://prepared/none: no prepared records there"):
    prepared.open(reading_settings(config))


def test_a_checkpoint_is_fetched_alone_and_checked(here, finished, moved):
  address = "memory://runs/finished"
  buckets.put_folder(address, finished)
  saved = open_model(address)
  assert saved.path.name == "6" and not {name for name in moved if name.startswith("checkpoints/1/")}
  assert {"config.json", "metrics.jsonl", "vocabulary/vocabulary.json"} <= set(moved)
  found = {"params": saved.params}
  small_run.assert_same_params(trees.by_path(found), trees.by_path({"params": open_model(finished).params}))
  assert saved.load_vocabulary("", flag="--vocabulary")[0] == saved.workdir / "vocabulary"
  assert saved.load_vocabulary(f"{address}/vocabulary", flag="--vocabulary")[1].digest
  for given, step in ((f"{address}/checkpoints", 1), (f"{address}/checkpoints/1", None)):
    assert bucket_steps.step_path(given, step).name == "1"
  with pytest.raises(DataError, match=f"^no checkpoint of step 5 in {address}; there are 1, .*6$"):
    bucket_steps.step_path(address, 5)
  config = small_run.small_config("mlm", finished, {"train.init_from": "memory://runs/nothing"})
  origins = warm_start.origins(config.to_dict())
  with pytest.raises(DataError, match=r"^train.init_from=memory://runs/nothing: no checkpoint in memory"):
    preflight.check(origins, TrainFields(**config.train), str(finished), is_new=True)
  name = next(name for name in moved if name.startswith("checkpoints/6/params/d/"))
  buckets.put(address, {name: b"?"})
  with pytest.raises(DataError, match=f"^checkpoint={address}: files there are not those that were written"):
    open_model(address)
  buckets.remove(f"{address}/checkpoints/6/{checkpoint.COMMITTED}")
  assert sorted(bucket_steps.by_step(buckets.names(address))) == [1, 4]
  assert bucket_steps.step_path(address).name == "4"


def test_checkpoints_by_hand(here, finished, capsys):
  address = "memory://runs/by_hand"
  buckets.put_folder(address, finished)
  assert checkpoints.main(["verify", address]) == 0
  assert "step 6: sound" in capsys.readouterr().out
  output = "memory://runs/mean"
  assert checkpoints.main(["average", address, "--last=2", f"--output={output}"]) == 0
  assert open_model(output).meta["averaged"][-1] == 6
  step, output = finished / "checkpoints" / "4", "memory://runs/merged"
  arguments = [str(step), f"--of={address}", "--across_runs", f"--output={output}"]
  assert checkpoints.main(["average", *arguments]) == 0
  assert open_model(output).meta["averaged"] == [4, 6]
