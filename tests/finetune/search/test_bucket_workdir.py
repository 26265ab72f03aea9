"""The workdir of a search in a bucket: what goes up, in which order, what goes there and what does not."""

import logging
import pathlib
import time

import pytest

from data.buckets.place import Address
from data.errors import DataError, StorageError
from finetune.search.search import IN_BUCKET
from pretrain.checkpoints import bucket_workdir, checkpoint
from tests import buckets, lines

MARK = checkpoint.COMMITTED
pytestmark = pytest.mark.usefixtures("here")


def _opened(address: str):
  return bucket_workdir.opened(address, None, IN_BUCKET)


def _write(workdir: str, *names: str) -> None:
  for name in names:
    path = pathlib.Path(workdir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)


def _wait(address: str, *names: str) -> None:
  deadline = time.monotonic() + 20
  while not {*names} <= buckets.names(address):
    assert time.monotonic() < deadline, buckets.names(address)
    time.sleep(0.05)


def test_weights_go_up_before_their_marks_and_results_after_both(monkeypatch):
  address, sent, send = "memory://order/search", [], Address.send
  monkeypatch.setattr(Address, "send", lambda self, given: (sent.append({*given}), send(self, given)))
  with _opened(address) as workdir:
    weights = "sst2/weights/c_seed0/checkpoints/3/params"
    unwanted = (".hidden", "lock", "sst2/c.json.7.part", "sst2/.model.a.part/x", "sst2/.model.a.old/x")
    _write(
      workdir, "results.md", "sst2/c.json", f"{weights}/{MARK}", f"{weights}/a", "sst2/logs/c/e", *unwanted
    )
  assert sent == [{f"{weights}/a", "sst2/logs/c/e"}, {f"{weights}/{MARK}"}, {"results.md", "sst2/c.json"}]
  assert buckets.names(address) == set.union(*sent)


def test_what_is_finished_is_sent_while_the_search_goes_on_but_not_for_logs_alone():
  address = "memory://during/search"
  with _opened(address) as workdir:
    _write(workdir, "sst2/logs/c/e")
    time.sleep(1.2)  # two looks
    assert "sst2/logs/c/e" not in buckets.names(address)
    _write(workdir, "sst2/c.json", "sst2/weights/c_seed0/a")
    _wait(address, "sst2/logs/c/e", "sst2/c.json", "sst2/weights/c_seed0/a")
    pathlib.Path(workdir, "sst2/weights/c_seed0/a").unlink()  # beaten
    _write(workdir, "sst2/d.json")
    _wait(address, "sst2/d.json")
  assert buckets.names(address) == {"sst2/logs/c/e", "sst2/c.json", "sst2/d.json"}


def test_a_machine_that_had_an_older_copy_gets_what_the_bucket_has():
  address, said = "memory://truth/search", []
  with lines.heard(said.append), _opened(address) as workdir:
    _write(workdir, "sst2/c.json", "sst2/d.json")
    logging.getLogger("finetune").info(f"model is in {workdir}/sst2/model")
  buckets.remove(f"{address}/sst2/d.json")
  of_users = {".gitkeep": b"", "sst2/notes.old": b"mine"}
  buckets.put(address, {"sst2/c.json": b"newer", "sst2/e.json": b"e", **of_users})
  with lines.heard(said.append), _opened(address) as workdir:
    assert {path.name for path in pathlib.Path(workdir).rglob("*.json")} == {"c.json", "e.json"}
    assert pathlib.Path(workdir, "sst2/c.json").read_text() == "newer"
    with (
      pytest.raises(DataError, match=r"^another process on this machine is active in memory:"),
      _opened(address),
    ):
      pass
  assert said[0] == f"model is in {address}/sst2/model"
  assert buckets.names(address) == {"sst2/c.json", "sst2/e.json", *of_users}


def test_weights_that_go_while_they_are_sent_are_no_error(monkeypatch):
  address, send = "memory://gone/search", Address.send

  def removing(self, given):
    for path in given.values():
      if path.name == "beaten":
        path.unlink()
        raise StorageError("gone")
    send(self, given)

  monkeypatch.setattr(Address, "send", removing)
  monkeypatch.setattr("os.kill", lambda *_: pytest.fail("the search was asked to stop"))
  with _opened(address) as workdir:
    _write(workdir, "sst2/weights/c_seed0/beaten")
    _write(workdir, "sst2/d.json")
    _wait(address, "sst2/d.json")
  assert buckets.names(address) == {"sst2/d.json"}


def test_a_bucket_that_cannot_be_written_stops_the_search_and_says_why(monkeypatch):
  def fail(self, _):
    raise StorageError(f"{self} cannot be written (no rights)")

  monkeypatch.setattr(Address, "send", fail)
  asked = []
  monkeypatch.setattr("os.kill", lambda *what: asked.append(what))
  line = "^--workdir=memory://full/search cannot be written"
  with (
    pytest.raises(StorageError, match=line),
    _opened("memory://full/search") as workdir,
  ):
    _write(workdir, "sst2/c.json")
    deadline = time.monotonic() + 20
    while not asked and time.monotonic() < deadline:
      time.sleep(0.05)
  assert len(asked) == 1
