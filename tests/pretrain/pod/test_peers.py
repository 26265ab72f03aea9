"""Processes that meet, agree and end together, as threads of this one: real sockets, no JAX."""

import functools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from data.errors import ConfigError, DataError, PeerError, StorageError
from pretrain.pod import joining, meeting, peers
from pretrain.pod.link import Link
from pretrain.pod.peers import Peers
from tests.pretrain.pod.processes import reserved_port


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
  monkeypatch.setattr(peers, "BEAT", 0.1)
  monkeypatch.setattr(peers, "LEAVING", 1e6)  # the thread that would end this process
  monkeypatch.setattr(peers, "end_process", lambda code, line: None)


def connected(number: int, *, patience: float = 20.0) -> tuple[list[Peers], list[tuple]]:
  """Peers of `number` processes, and what ended each: (process, exit code, line)."""
  pairs = {index: socket.socketpair() for index in range(1, number)}
  ended: list[tuple] = []

  def ending(index: int):
    return lambda code, line: ended.append((index, code, line))

  hosts = [f"host{index}" for index in range(number)]
  links = [{index: Link(pair[0]) for index, pair in pairs.items()}]
  links += [{0: Link(pair[1])} for pair in pairs.values()]
  made = [Peers(at, hosts, links[at], patience=patience, end=ending(at)) for at in range(number)]
  return made, ended


def on_all(work, *arguments):
  """`work` of every argument at the same time: results, or the errors that were raised."""

  def kept(argument):
    try:
      return work(argument)
    except Exception as error:
      return error

  with ThreadPoolExecutor(len(arguments)) as pool:
    return list(pool.map(kept, arguments))


def until(condition, seconds: float = 10.0) -> None:
  last = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < last
    time.sleep(0.01)


def meet(number: int, *places, seconds: float = 20.0) -> list:
  """What `meet` gives processes at `places`, (index, or (index, number)), of `number`."""
  with reserved_port() as taken:
    address = f"localhost:{taken.getsockname()[1]}"

    def one(at):
      index, of = at if isinstance(at, tuple) else (at, number)
      return meeting.meet(meeting.Rank(address, of, index), seconds=seconds, patience=20)

    return on_all(one, *places)


def test_processes_meet_and_hear_each_other():
  three = meet(3, 2, 1, 0)
  assert all(isinstance(one, Peers) for one in three), three
  assert [one.index for one in three] == [2, 1, 0]
  heard = on_all(lambda one: one.gather("numbers", one.index**2, seconds=5), *three)
  assert heard == [[0, 1, 4]] * 3
  assert on_all(lambda one: one.first("of one", lambda: one.index + 7, seconds=5), *three) == [7] * 3


def test_missing_processes_are_named_when_the_time_is_over():
  errors = meet(4, 0, 2, seconds=0.5)
  assert all(isinstance(error, PeerError) for error in errors)
  assert all("missing after 0 s: process 1, 3 of 4 (joined: 0 (" in str(error) for error in errors), errors


def test_a_process_without_process_0_says_where_it_looked():
  (error,) = meet(2, 1, seconds=0.5)
  assert isinstance(error, PeerError) and str(error).startswith("process 0 was not reached at localhost:")


def test_processes_that_do_not_agree_on_their_number_are_refused():
  errors = meet(2, 0, (1, 3), seconds=5)
  assert [type(error) for error in errors] == [ConfigError] * 2
  assert all("was started as one of 3, process 0 as one of 2" in str(error) for error in errors)


def test_a_port_of_another_run_is_left_to_it(monkeypatch):
  monkeypatch.setattr(time, "sleep", lambda seconds: None)
  with meeting.listen() as other:
    port = other.getsockname()[1]
    with pytest.raises(ConfigError, match=f"listens on port {port} of this host; use another port"):
      meeting.listen(port)
  meeting.listen(port).close()


def test_two_processes_of_one_number_are_refused():
  errors = meet(3, 0, 1, 1, seconds=5)
  assert [type(error) for error in errors] == [ConfigError] * 3, errors
  assert all("two processes have --process_id=1" in str(error) for error in errors)


def test_strangers_at_the_port_do_not_matter():
  with reserved_port() as taken, ThreadPoolExecutor(2) as pool:
    address = f"localhost:{taken.getsockname()[1]}"
    places = [meeting.Rank(address, 2, index) for index in (0, 1)]
    first = pool.submit(meeting.meet, places[0], seconds=10, patience=20)
    for word in (b"GET / HTTP/1.1\r\n\r\n", b'{"hello": "you"}\n', b"[]\n"):
      until(functools.partial(_connects, address, word))
    assert meeting.meet(places[1], seconds=10, patience=20).index == 1
    assert first.result().index == 0


def _connects(address: str, word: bytes) -> bool:
  host, _, port = address.partition(":")
  try:
    with socket.create_connection((host, int(port))) as link:
      link.sendall(word)
  except OSError:
    return False
  return True


def test_an_error_of_one_process_is_raised_by_all():
  made, ended = connected(3)

  def work(one):
    def open_records():
      if one.index == 1:
        raise DataError("no records")
      return one.index

    return one.together("records", open_records, seconds=5)

  errors = on_all(work, *made)
  assert [type(error) for error in errors] == [DataError] * 3
  assert [str(error) for error in errors] == ["process 1 (host1): no records", "no records"] + [
    "process 1 (host1): no records"
  ]
  assert not ended


@pytest.mark.parametrize(
  ("what", "own", "other", "line"),
  [
    ("the config", {"seed": 0}, {"seed": 1}, "the config: seed 1 instead of 0; advice"),
    ("the config", {"seed": 0}, {"seed": 0, "size": 1}, "the config: size 1 instead of None; advice"),
    ("the program", {"jax": "1", "code": "a"}, {"jax": "1", "code": "b"}, "the program: code b instead of a"),
  ],
)
def test_what_differs_between_processes_is_named_by_all(what, own, other, line):
  made, _ = connected(3)

  def compare(one):
    one.compare("the same", {"tuple": (1, 2)}, "", seconds=5)
    one.compare(what, other if one.index == 2 else own, "advice", seconds=5, kind=DataError)

  for error in on_all(compare, *made):
    assert isinstance(error, DataError)
    assert str(error).startswith(f"process 2 (host2) and process 0 (host0) differ in {line}")


def test_the_digest_of_the_code_is_of_all_that_trains(tmp_path, monkeypatch):
  monkeypatch.setattr(joining, "_ROOT", tmp_path)
  files = [tmp_path / name for name in ("data/a.py", "pretrain/b.py", "pretrain/inner/c.py", "tests/d.py")]
  digests = []
  for changed in (None, *files):
    for path in files:
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text("x = 2" if path == changed else "x = 1")
    digests.append(joining._program()["code"])
  assert len(set(digests)) == 4 and digests[0] == digests[-1]  # tests are no part of it


@pytest.mark.parametrize("late", [0, 1])
def test_who_does_not_come_is_named_and_nobody_waits_longer(late):
  made, ended = connected(3)
  threads = [
    threading.Thread(target=lambda one=one: on_all(lambda one: one.gather("records", 0, seconds=0.3), one))
    for one in made
    if one.index != late
  ]
  for thread in threads:
    thread.start()
  until(lambda: len(ended) >= 2)
  assert {code for _, code, _ in ended} == {6}
  assert all(f"process {late} (host{late}) did not reach 'records' in time" in line for *_, line in ended)
  for thread in threads:
    thread.join(5)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_process_whose_connections_close_ends_the_others_by_name(gone):
  made, ended = connected(3)
  with made[gone]._hub:  # all close at once: process 0 tells nobody in between which link closed first
    for link in made[gone]._links.values():
      link.close()
  until(lambda: {index for index, *_ in ended} >= {0, 1, 2} - {gone})
  lines = [line for index, _, line in ended if index != gone]
  assert all(
    line.startswith(f"process {gone} (host{gone}) is gone: its connection was closed") for line in lines
  )
  assert {code for index, code, _ in ended if index != gone} == {6}


def test_two_that_go_at_once_end_a_process_with_one_line():
  pairs, ended = {index: socket.socketpair() for index in (1, 2)}, []
  links = {index: Link(pair[0]) for index, pair in pairs.items()}

  def end(code, line):
    ended.append((code, line))
    time.sleep(2)  # the real one does not return

  Peers(0, ["a", "b", "c"], links, end=end)
  for _, other in pairs.values():
    other.close()
  until(lambda: ended)
  time.sleep(0.3)
  assert len(ended) == 1


def test_a_process_that_says_nothing_counts_as_gone():
  one, other = socket.socketpair()
  ended = []
  Peers(0, ["a", "b"], {1: Link(one)}, patience=0.4, end=lambda code, line: ended.append((code, line)))
  until(lambda: ended)
  code, line = ended[0]
  assert code == 6 and line.startswith("process 1 (b) is gone: no heartbeat for 0 s"), line
  other.close()


@pytest.mark.parametrize("asked", [0, 2])
def test_all_stop_at_the_same_point_however_far_each_is(asked):
  made, ended = connected(3)
  stops = {}

  def loop(one):
    for point in range(1, 100_000):
      if one.reached_stop():
        stops[one.index] = point
        return
      time.sleep(0.001 * (1 + one.index))  # the first is furthest
      if point == 20 and one.index == asked:
        one.ask_to_stop()

  on_all(loop, *made)
  assert len(set(stops.values())) == 1 and stops[0] > 20, stops
  assert not ended


def test_a_stop_that_is_asked_for_behind_the_last_point_stops_nobody():
  made, ended = connected(3)

  def loop(one):
    stops = []
    for _ in range(20):
      stops.append(one.reached_stop())
      time.sleep(0.004 * one.index)  # the first is there when the others are not
    if one.index == 0:
      one.ask_to_stop()
    with one.ending_together():
      return any(stops)

  assert on_all(loop, *made) == [False] * 3
  assert not ended


def test_a_failure_of_one_process_ends_the_others_with_its_line():
  made, ended = connected(2)

  def work(one):
    with one.ending_together():
      raise StorageError("disk full")

  (error,) = on_all(work, made[1])
  assert isinstance(error, StorageError)
  until(lambda: ended)
  assert ended[0] == (0, 6, "process 1 (host1) ended with exit code 5: disk full")


def test_a_process_that_is_stopped_before_the_loop_stops_the_others():
  made, ended = connected(2)
  with pytest.raises(KeyboardInterrupt), made[1].ending_together():
    raise KeyboardInterrupt
  until(lambda: ended)
  assert ended[0] == (0, 75, "process 1 (host1) ended with exit code 75: stopped before training began")


def test_after_the_end_nobody_is_missed():
  made, ended = connected(3)

  def work(one):
    with one.ending_together():
      pass
    for link in one._links.values():
      link.close()

  on_all(work, *made)
  time.sleep(0.3)
  assert not ended
