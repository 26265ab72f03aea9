"""Every wait of a process for another ends, and says who was waited for. Real sockets, no JAX."""

import ast
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from data.errors import PeerError
from pretrain.pod import ending, joining, meeting, peers
from pretrain.pod.link import Link
from pretrain.pod.peers import Peers
from tests.pretrain.pod.processes import ROOT, reserved_port
from tests.pretrain.pod.test_peers import connected, in_a_hurry, on_all, until

_ = in_a_hurry  # a fixture of every test here too


def _barriers() -> list[str]:
  """The name of every wait of all processes for each other in the product."""
  calls = [
    node
    for path in sorted((ROOT / "pretrain").rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if node.func.attr in ("gather", "together", "first", "compare")
    and "seconds" in {one.arg for one in node.keywords}
  ]
  names = [node.args[0] for node in calls]
  return [str(name.value) for name in names if isinstance(name, ast.Constant)] + [peers._END]


def test_every_barrier_has_a_name_of_its_own_and_ends_with_who_is_late():
  names = _barriers()
  assert len(names) >= 12 and len(set(names)) == len(names), names  # of one name two would be one
  made, ended = connected(3)
  for name in names:
    for one in made[:2]:
      threading.Thread(
        target=lambda one=one, name=name: on_all(lambda one: one.gather(name, 0, seconds=0.3), one)
      ).start()
  lines = {f"process 2 (host2) did not reach '{name}' in time; {peers.AGAIN}" for name in names}
  until(
    lambda: {(index, line) for index, _, line in ended} >= {(at, line) for at in (0, 1) for line in lines}
  )
  assert {code for _, code, _ in ended} == {6}


def test_a_stop_that_process_0_does_not_place_is_not_waited_for_without_end():
  one, hub = socket.socketpair()
  made = Peers(1, ["a", "b"], {0: Link(one)}, patience=0.4, end=lambda code, line: None)
  hub.sendall(b'{"stop": true}\n')
  until(lambda: made._is_stopping)
  with pytest.raises(PeerError, match=r"process 0 \(a\) did not send the stop's step within 0 s"):
    made.reached_stop()
  hub.close()


def test_a_process_0_that_says_nothing_is_not_waited_for_without_end():
  one, hub = socket.socketpair()
  made = Peers(1, ["a", "b"], {0: Link(one)}, patience=20, end=lambda code, line: None)
  with pytest.raises(PeerError, match=r"^process 0 \(a\) did not reach 'records' within 0 s; start all"):
    made.gather("records", 0, seconds=0.1)
  hub.close()


def test_who_is_met_and_says_nothing_is_not_waited_for_without_end(monkeypatch):
  monkeypatch.setattr(meeting, "GRACE", 0.2)
  with socket.create_server(("localhost", 0)) as silent:
    place = meeting.Rank(f"localhost:{silent.getsockname()[1]}", 2, 1)
    with pytest.raises(
      PeerError, match=r"was not reached at localhost:\d+ within 0 s \(it does not answer\)"
    ):
      meeting.meet(place, seconds=0.1, patience=20)
  with reserved_port() as taken:
    place = meeting.Rank(f"localhost:{taken.getsockname()[1]}", 2, 0)
    found = []
    thread = threading.Thread(target=lambda: found.extend(on_all(_met_within_a_second, place)))
    thread.start()
    visitor = socket.socket()
    until(lambda: visitor.connect_ex(("localhost", taken.getsockname()[1])) == 0)
    thread.join(20)
    visitor.close()
  assert isinstance(found[0], PeerError) and "missing after 1 s: process 1 of 2" in str(found[0])


def _met_within_a_second(place):
  return meeting.meet(place, seconds=1, patience=20)


def test_what_jax_does_not_end_by_itself_is_ended(monkeypatch):
  ended = []
  monkeypatch.setattr(ending, "end_process", lambda code, line: ended.append((code, line)))
  with joining._bounded(0.05, "JAX did not start its devices"):
    until(lambda: ended)
  ((code, line),) = ended
  assert code == 6 and line.startswith("JAX did not start its devices within 0 s; read the output")
  with joining._bounded(0.05, "nothing"):
    pass
  time.sleep(0.2)
  assert len(ended) == 1


def test_a_process_whose_output_nobody_reads_ends_too():
  read, written = os.pipe()
  os.close(read)
  code = "import sys; from pretrain.pod.ending import end_process; end_process(6, 'gone')"
  with os.fdopen(written, "w") as closed:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=closed, stderr=closed, timeout=60)
  assert done.returncode == 6
