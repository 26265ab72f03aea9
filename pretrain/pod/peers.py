"""Exchanges values between the processes of a run, and ends all of them when one is lost.

Process 0 has a TCP connection to every other process, because JAX reports a lost process with a stack trace,
after minutes, or never. Imports no JAX.
"""

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from data import errors
from data.command import STOPPED
from data.errors import ConfigError, PeerError, StorageError, UserError
from pretrain.pod.ending import end_later, end_process, outcome
from pretrain.pod.link import Link

T = TypeVar("T")

BEAT = 2.0  # seconds between heartbeats
PATIENCE = 30.0  # seconds without a heartbeat until a process counts as lost; a killed one counts at once
LOOKING = 600.0  # seconds until a process that reads files is late
PREPARING = 72 * 3600.0  # seconds that process 0 may take to prepare text
COMPARING = 60.0  # seconds until a process is late at a comparison
LEAVING = 10.0  # seconds that a process has for its cleanup after its own error
ENDING = 600.0  # seconds until a process is late after the first one has finished
_STOP, _END = "the step of the stop", "the end of the run"
AGAIN = "start all processes again: the same command resumes"


class Peers:
  """One process's part in a run: exchanges values with the others, and ends when one of them is lost."""

  def __init__(
    self,
    index: int,
    hosts: list[str],
    links: Mapping[int, Link],
    *,
    patience: float = PATIENCE,
    end: Callable[[int, str], Any] | None = None,
  ) -> None:
    """Starts a thread for each link that reads its messages, and a thread that sends heartbeats.

    Args:
      index: number of this process.
      hosts: the host name of each process.
      links: {process: connection}; process 0 has all others, each of the others has process 0.
      patience: seconds without a heartbeat until a process counts as lost.
      end: ends this process with an exit code and a line.
    """
    self.index, self.number, self._hosts = index, len(hosts), hosts
    self._links, self._patience, self._end = dict(links), patience, end or end_process
    self._hub, self._state, self._is_asked = threading.RLock(), threading.Condition(), threading.Event()
    self._results: dict[str, list] = {}
    self._meetings: dict[str, tuple[float, dict[int, Any]]] = {}  # in process 0: deadline, values so far
    self._tick = 0  # calls of `reached_stop`
    self._is_stopping = self._is_over = self._is_leaving = False
    works = [functools.partial(self._listen, other) for other in links]
    for work in [*works, self._beat] if links else []:
      threading.Thread(target=work, name="peers", daemon=True).start()

  def name(self, index: int) -> str:
    """Returns the name of a process for messages, 'process 1 (host)'."""
    return f"process {index} ({self._hosts[index]})"

  def gather(self, what: str, value: T, *, seconds: float) -> list[T]:
    """Returns the `value` of every process, in order, after all have called this with the same `what`.

    PeerError: some did not call it within `seconds`; the message names them.
    """
    self._post({"at": what, "value": value, "seconds": seconds})
    with self._state:
      # Process 0 reports late processes; without its report, it is late itself.
      if not self._state.wait_for(lambda: what in self._results, seconds + 2 * BEAT):
        raise PeerError(f"{self.name(0)} did not reach '{what}' within {seconds:.0f} s; {AGAIN}")
      return self._results.pop(what)

  def together(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    """Runs `work` on every process and returns this process's result after all have finished.

    A UserError of one process is raised on all processes, with the name of that process.
    """
    own, result = None, None
    try:
      result = work()
    except UserError as error:
      own = error
    problems = self.gather(what, own and (own.exit_code, str(own)), seconds=seconds)
    if own is not None:
      raise own
    for index, problem in enumerate(problems):
      if problem:
        raise errors.of_code(problem[0], f"{self.name(index)}: {problem[1]}")
    return result  # type: ignore[return-value]

  def first(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    """Runs `work` on process 0 only; all return its result, a JSON value. Raises errors like `together`."""
    result = self.together(what, work if self.index == 0 else lambda: None, seconds=seconds)
    return self.gather(f"{what}: the result", result, seconds=seconds)[0]  # type: ignore[return-value]

  def compare(
    self,
    what: str,
    facts: Mapping[str, Any],
    advice: str,
    *,
    seconds: float,
    kind: type[UserError] = ConfigError,
  ) -> None:
    """Raises an error of type `kind` on all processes if the facts of any differ from those of process 0."""
    as_sent = json.loads(json.dumps(dict(facts)))  # JSON turns tuples into lists, also in others' facts
    first, *others = self.gather(what, as_sent, seconds=seconds)
    for index, facts in enumerate(others, 1):
      lines = [
        f"{name} {facts.get(name)} instead of {first.get(name)}"
        for name in sorted({*facts, *first})
        if facts.get(name) != first.get(name)
      ]
      if lines:
        where = f"{self.name(index)} and {self.name(0)} differ in {what}"
        raise kind(f"{where}: {'; '.join(lines[:5])}; {advice}")

  def ask_to_stop(self) -> None:
    """Requests a stop of all processes: a later call of `reached_stop`, the same on all, returns True."""
    self._is_asked.set()  # a signal handler calls this, so the heartbeat thread sends the request

  def reached_stop(self) -> bool:
    """Returns whether to stop here; all processes must call it at the same points of the program."""
    with self._state:
      # After a request all wait until the position of the furthest process is known, and stop behind it.
      if not self._state.wait_for(lambda: not self._is_stopping or _STOP in self._results, self._patience):
        raise PeerError(f"{self.name(0)} did not send the stop's step within {self._patience:.0f} s; {AGAIN}")
      self._tick += 1
      return self._is_stopping and self._tick > max(self._results[_STOP])

  @contextlib.contextmanager
  def ending_together(self) -> Iterator[None]:
    """Ends the other processes too if an error leaves the block, else waits until all have finished it."""
    try:
      yield
    except BaseException as error:
      code, line = outcome(error)
      # The cause may be another process that ended: its message ends this process during the sleep.
      # Errors about inputs that all have read occur on all at that time: each process reports its own.
      self._is_leaving = isinstance(error, UserError) and not isinstance(error, StorageError | PeerError)
      time.sleep(0 if isinstance(error, KeyboardInterrupt) else BEAT / 2)
      self._post({"bye": [code, line]})
      end_later(LEAVING, code, line)  # cleanup may wait for processes that have ended
      raise
    self.gather(_END, None, seconds=ENDING)

  # The methods below also run on the listening threads.

  def _post(self, message: dict) -> None:
    """Sends a message of this process to process 0, which may be this one."""
    if self.index == 0:
      self._arrange(0, message)
    else:
      self._links[0].send(message)

  def _tell(self, message: dict, *, but: int = -1) -> None:
    for index, link in self._links.items():
      if index != but:
        link.send(message)
    if self.index != but:
      self._hear(message)

  def _arrange(self, sender: int, message: dict) -> None:
    """Handles a message to process 0: collects values, and announces stops and ends to all."""
    with self._hub:
      if "at" in message:
        what, last = message["at"], time.monotonic() + message["seconds"]
        _, values = self._meetings.setdefault(what, (last, {}))
        values[sender] = message["value"]
        if len(values) == self.number:
          del self._meetings[what]
          self._is_over = what == _END  # a connection that closes later is no error
          self._tell({"all": what, "values": [values[index] for index in range(self.number)]})
        elif what == _STOP and len(values) == 1:
          self._tell({"stop": True})
      elif "bye" in message:
        code, line = message["bye"]
        line = f"{self.name(sender)} ended with exit code {code}: {line}"
        self._tell({"over": line, "code": code if code == STOPPED else PeerError.exit_code}, but=sender)

  def _hear(self, message: dict) -> None:
    """Handles a message from process 0 in any process, itself included."""
    if "all" in message:
      self._is_over = message["all"] == _END
      with self._state:
        self._results[message["all"]] = message["values"]
        self._state.notify_all()
    elif "stop" in message:
      self._stop()
    elif "over" in message and not (self._is_over or self._is_leaving):
      self._end(message["code"], message["over"])

  def _stop(self) -> None:
    """Announces, once, how often this process called `reached_stop`, so that all stop at the same call."""
    with self._state:
      is_new, self._is_stopping, tick = not self._is_stopping, True, self._tick
    if is_new:
      self._post({"at": _STOP, "value": tick, "seconds": self._patience})

  def _listen(self, other: int) -> None:
    while not self._is_over:
      try:
        message = self._links[other].receive(self._patience)
      except TimeoutError:
        return self._lose(other, f"no heartbeat for {self._patience:.0f} s")
      if message is None:
        return self._lose(other, "its connection was closed")
      self._arrange(other, message) if self.index == 0 else self._hear(message)
    return None

  def _lose(self, other: int, why: str) -> None:
    with self._hub:  # of two processes lost at once only one is named: `_tell` ends this process
      if not (self._is_over or self._is_leaving):
        line = f"{self.name(other)} is gone: {why}; {AGAIN}, with any number of processes"
        self._tell({"over": line, "code": PeerError.exit_code})

  def _beat(self) -> None:
    """Sends heartbeats and stop requests, and reports late processes."""
    while not self._is_over:
      for link in self._links.values():
        link.send({})
      if self._is_asked.wait(BEAT):
        self._is_asked.clear()
        self._stop()
      with self._hub:
        for what, (last, values) in self._meetings.items():
          if time.monotonic() > last:
            late = ", ".join(self.name(index) for index in range(self.number) if index not in values)
            self._tell({"over": f"{late} did not reach '{what}' in time; {AGAIN}", "code": 6})


ALONE = Peers(0, ["this host"], {})
_here = ALONE


def here() -> Peers:
  """Returns the `Peers` of the run that this process belongs to; `ALONE` without others."""
  return _here


@contextlib.contextmanager
def among(peers: Peers) -> Iterator[None]:
  """Makes `here` return `peers` within the block."""
  global _here
  _here = peers
  try:
    yield
  finally:
    _here = ALONE
