"""Files of a search: finished runs, other settings, damage, shared programs, a bucket, the saved model."""

import json
import pathlib
import types

import numpy as np
import pytest

from data.buckets.place import Address
from data.errors import DataError
from finetune.papers.spaces import Cell
from finetune.search import save_model, sharing
from finetune.search.results import Results
from finetune.search.search import IN_BUCKET
from finetune.search.summary import Evaluation, Record
from pretrain.checkpoints import bucket_workdir, checkpoint
from pretrain.checkpoints.checkpoint import read_meta, step_path
from tests import buckets

CELL = Cell(32, 2e-5, 3, 0.0625)
FINGERPRINT = {"checkpoint": "a" * 64, "settings": {"length": 128, "rates": (0.1, 0.2)}}


def record(seeds=(0, 1), *, cell: Cell = CELL):
  run = [Evaluation(5, 0.5, {"accuracy": 0.5}, 3), Evaluation(10, 1.0, {"accuracy": 0.25})]
  return Record("rte", cell, "accuracy", dict.fromkeys(seeds, run))


def test_what_was_saved_is_finished_and_seeds_can_join(tmp_path):
  for cell in (CELL, Cell(2, 3e-6, num_steps=1000)):
    results = Results(tmp_path, "rte", FINGERPRINT)
    assert results.finished(cell, [0, 1]) is None
    results.save(record(seeds=[3, 1], cell=cell))
    assert results.missing(cell, [1, 2, 3]) == [2]
    results.save(record(seeds=[2], cell=cell))
    again = Results(tmp_path, "rte", json.loads(json.dumps(FINGERPRINT)))
    assert again.finished(cell, [1, 2, 3]) == record(seeds=[1, 2, 3], cell=cell)
    assert again.finished(cell._replace(batch_size=3), [1]) is None
    again.forget(cell, 2)
    assert results.missing(cell, [1, 2, 3]) == [2]
  value = json.loads((tmp_path / "rte" / "bs32_lr2e-05_ep3_wu0.0625_seed3.json").read_text())
  assert value["best"] == {"step": 5, "metrics": {"accuracy": 0.5}} and value["seed"] == 3


def test_other_settings_and_damaged_files_are_refused(tmp_path):
  results = Results(tmp_path, "rte", FINGERPRINT)
  results.save(record())
  other = {"checkpoint": "b" * 64, "settings": {"length": 64, "rates": [0.1, 0.2]}, "data": "x"}
  with pytest.raises(DataError, match=r"\n  --workdir=NEW") as error:
    Results(tmp_path, "rte", other).finished(CELL, [0])
  assert all(name in str(error.value) for name in ("checkpoint", "settings.length: 128 -> 64", "data"))
  assert "rates" not in str(error.value)
  path = results.path(CELL, 0)
  content = path.read_bytes()
  for damaged in (
    content[:99],
    content.replace(b'"accuracy": 0.5', b'"accuracy": 0.9'),
    b"[]",
    b"\xff" + content,
  ):
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="rte/bs32"):
      results.finished(CELL, [0])


def test_runs_are_shared_out_alike_before_and_after_an_interruption():
  cells, seeds = [Cell(16, (place + 1) * 1e-5, 3, 0.1) for place in range(8)], (0, 1, 2, 3, 4)
  whole = dict.fromkeys(cells, seeds)
  sizes = {most: [sum(len(part) for _, part in program) for program in sharing.programs(whole, seeds, most)]
           for most in (15, 100)}  # fmt: skip
  assert sizes == {15: [10] * 4, 100: [40]}  # not 15, 15, 10: two compilations
  for by_seed in (False, True):
    one = sharing.programs(dict.fromkeys(cells[:5], seeds), seeds, 3, by_seed=by_seed)
    assert sorted((cell, seed) for part in one for cell, of_cell in part for seed in of_cell) == [
      (cell, seed) for cell in cells[:5] for seed in seeds
    ]
    for done in range(1, len(one)):
      finished = [(cell, seed) for part in one[:done] for cell, of_cell in part for seed in of_cell]
      left = {cell: [seed for seed in seeds if (cell, seed) not in finished] for cell in cells[:5]}
      assert sharing.programs(left, seeds, 3, by_seed=by_seed) == one[done:]


def test_weights_go_up_before_their_marks_and_results_after_both(here, monkeypatch):
  address, sent, send = "memory://order/search", [], Address.send
  monkeypatch.setattr(Address, "send", lambda self, given: (sent.append({*given}), send(self, given)))
  weights, mark = "sst2/weights/c_seed0/checkpoints/3/params", checkpoint.COMMITTED
  unwanted = (".hidden", "lock", "sst2/c.json.7.part", "sst2/.model.a.part/x", "sst2/.model.a.old/x")
  names = ("results.md", "sst2/c.json", f"{weights}/{mark}", f"{weights}/a", "sst2/logs/c/e", *unwanted)
  with bucket_workdir.opened(address, None, IN_BUCKET) as workdir:
    for name in names:
      pathlib.Path(workdir, name).parent.mkdir(parents=True, exist_ok=True)
      pathlib.Path(workdir, name).write_text(name)
  assert sent == [{f"{weights}/a", "sst2/logs/c/e"}, {f"{weights}/{mark}"}, {"results.md", "sst2/c.json"}]
  assert buckets.names(address) == set.union(*sent)


def test_what_the_pretraining_said_of_itself_goes_along_and_its_own_state_does_not(tmp_path):
  (tmp_path / "vocabulary").mkdir()
  kept = {
    "source": {"path": "cocolm-base"},
    "records": {"source": "/a/*.txt"},
    "started_from": {"train.init_from": {"step": 3}},
    "devices": "1 x cpu",
  }
  start = types.SimpleNamespace(
    digest="a",
    meta={"config": {"recipe": "tiny"}, "step": 7, "interval_sums": {"loss": [1.0, 1.0]}, **kept},
    encoder=types.SimpleNamespace(
      vocabulary=types.SimpleNamespace(digest="d" * 64), vocabulary_directory=tmp_path / "vocabulary"
    ),
  )
  params = {"encoder": {"a": np.zeros(1, np.float32)}}
  save_model.save(
    tmp_path / "model", params, start, task={"name": "rte"}, step=2, recipe="tiny-rte", texts={}
  )  # pyright: ignore
  meta = read_meta(step_path(tmp_path / "model"))
  assert {name: meta.get(name) for name in kept} == kept
  assert (meta["config"]["recipe"], meta["pretraining_step"]) == ("tiny-rte", 7)
  assert "interval_sums" not in meta
  start.digest = "from scratch"  # the weights are of no pretraining
  save_model.save(tmp_path / "fresh", params, start, task={}, step=2, recipe="scratch-rte", texts={})  # pyright: ignore
  meta = read_meta(step_path(tmp_path / "fresh"))
  assert meta["pretraining_step"] == 0 and not kept.keys() & meta.keys()


def test_a_saved_head_gives_numbers_on_the_scale_of_the_file():
  output = {"kernel": np.asarray([[2.0]], np.float32), "bias": np.asarray([0.5], np.float32)}
  params = {"encoder": {"x": 1}, "heads": {"classification": {"dense": {"y": 2}, "output": output}}}
  assert save_model.scale_outputs(params, 1.0) is params
  made = save_model.scale_outputs(params, 3.0, 7.0)
  head = made["heads"]["classification"]
  assert head["output"] == {"kernel": 2.0 * 3, "bias": 0.5 * 3 + 7} and head["dense"] == {"y": 2}
  assert made["encoder"] == {"x": 1} and {leaf.dtype.name for leaf in head["output"].values()} == {"float32"}
