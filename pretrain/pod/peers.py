"""The other processes of a run: what each says is heard by all, and all end when one is gone.

Process 0 holds a TCP connection to each of the others, beside those of JAX, which ends a process that lost
another with a stack trace, after minutes, or never. Messages are lines of JSON. Imports no JAX.
"""

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from data import errors
from data.command import STOPPED
from data.errors import DataError, PeerError, StorageError, UserError
from pretrain.pod.ending import end_process, outcome

T = TypeVar("T")

BEAT = 2.0  # seconds between signs of life
PATIENCE = 30.0  # seconds without one until a process counts as gone; a killed one is noticed at once
LOOKING = 600.0  # seconds until a process that looks at files is late
PREPARING = 72 * 3600.0  # seconds that process 0 may take to prepare text
COMPARING = 60.0  # seconds that a process may be behind where all say what they have
LEAVING = 10.0  # seconds that a process with an error of its own has to clean up
ENDING = 600.0  # seconds that the others may write their last after the first has finished
_END = "the end"
AGAIN = "start all processes again: the same command continues from the newest checkpoint"


class Alone:
  """The peers of a run of one process: nobody to wait for."""

  index, number = 0, 1

  def name(self, index: int) -> str:
    """'process 1 (host)'."""
    return f"process {index}"

  def gather(self, what: str, value: T, *, seconds: float) -> list[T]:
    """The `value` of every process, in order, when all have come to this point; `what` names it.

    PeerError: some did not come within `seconds`; the line names them.
    """
    del what, seconds
    return [value]

  def together(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    """Does `work` on every process and returns its own result once all are done.

    A UserError of any process is raised on all of them, with the process that had it.
    """
    del what, seconds
    return work()

  def first(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    """Does `work` on process 0 alone; all return its result, a JSON value. Errors are those of `together`."""
    del what, seconds
    return work()

  def ask_to_stop(self) -> None:
    """Asks all processes to stop: some later `reached_stop`, the same on all, is true."""

  def reached_stop(self) -> bool:
    """Whether to stop here. All processes call it at the same points of the program."""
    return False

  @contextlib.contextmanager
  def ending_together(self) -> Iterator[None]:
    """Within the block an error of this process ends the others too."""
    yield


ALONE = Alone()
_here = ALONE


def here() -> Alone:
  """The other processes of the run that this one is a part of."""
  return _here


@contextlib.contextmanager
def among(peers: Alone) -> Iterator[None]:
  """Within the block `here` returns these."""
  global _here
  _here = peers
  try:
    yield
  finally:
    _here = ALONE


class Peers(Alone):
  """The peers of a process among several."""

  def __init__(
    self,
    index: int,
    hosts: list[str],
    links: Mapping[int, socket.socket],
    *,
    patience: float = PATIENCE,
    end: Callable[[int, str], Any] | None = None,
  ) -> None:
    """Begins to listen.

    Args:
      index: number of this process.
      hosts: the name of each process's host.
      links: connections by process: of process 0 to all others, of the others to process 0.
      patience: seconds without a sign of life until a process counts as gone.
      end: ends this process with an exit code and a line.
    """
    self.index, self.number, self._hosts = index, len(hosts), hosts
    self._links, self._patience, self._end = dict(links), patience, end or end_process
    self._hub, self._sending, self._state = threading.RLock(), threading.RLock(), threading.Condition()
    self._results: dict[str, list] = {}
    self._meetings: dict[str, tuple[float, dict[int, Any]]] = {}  # the hub's: deadline, values so far
    self._ticks: dict[int, int] = {}  # the hub's: how many points of stopping each process has passed
    self._tick, self._is_proposed, self._stop_at = 0, False, None
    self._wants_stop = self._has_asked = self._is_over = self._is_leaving = False
    threading.Thread(target=self._listen, name="peers", daemon=True).start()

  def name(self, index: int) -> str:
    return f"process {index} ({self._hosts[index]})"

  def gather(self, what: str, value: T, *, seconds: float) -> list[T]:
    self._post({"at": what, "value": value, "seconds": seconds})
    with self._state:
      # The hub says who is late; if it says nothing, it is the one.
      if not self._state.wait_for(lambda: what in self._results, seconds + 2 * BEAT):
        raise PeerError(f"{self.name(0)} did not come to '{what}' within {seconds:.0f} s; {AGAIN}")
      return self._results.pop(what)

  def together(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    own, result = None, None
    try:
      result = work()
    except UserError as error:
      own = error
    problems = self.gather(what, own and [own.exit_code, str(own)], seconds=seconds)
    if own is not None:
      raise own
    for index, problem in enumerate(problems):
      if problem:
        raise errors.of_code(problem[0], f"{self.name(index)}: {problem[1]}")
    return result  # type: ignore[return-value]

  def first(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    result = self.together(what, work if self.index == 0 else lambda: None, seconds=seconds)
    return self.gather(f"{what}: the result", result, seconds=seconds)[0]  # type: ignore[return-value]

  def ask_to_stop(self) -> None:
    self._wants_stop = True  # a signal's handler calls this: the listening thread sends it

  def reached_stop(self) -> bool:
    with self._state:
      # Once a stop is proposed nobody goes on until it is known where the one that is furthest is.
      if not self._state.wait_for(lambda: not self._is_proposed or self._stop_at is not None, self._patience):
        raise PeerError(f"{self.name(0)} did not say where to stop within {self._patience:.0f} s; {AGAIN}")
      self._tick += 1
      return self._stop_at is not None and self._tick >= self._stop_at

  @contextlib.contextmanager
  def ending_together(self) -> Iterator[None]:
    try:
      yield
    except BaseException as error:
      code, line = outcome(error)
      # What failed here may have failed because another process went: then that ends this one, in a moment.
      # Errors about what all have read are raised by all in that moment, and each ends by its own.
      self._is_leaving = isinstance(error, UserError) and not isinstance(error, StorageError | PeerError)
      time.sleep(0 if isinstance(error, KeyboardInterrupt) else BEAT / 2)
      with contextlib.suppress(OSError):
        self._post({"bye": [code, line]})
      # Cleaning up may wait for the others, who are gone by now.
      threading.Thread(target=lambda: (time.sleep(LEAVING), end_process(code, line)), daemon=True).start()
      raise
    self.gather(_END, None, seconds=ENDING)

  # Everything below runs on the listening thread too.

  def _post(self, message: dict) -> None:
    """Gives a message of this process to the hub."""
    if self.index == 0:
      self._arrange(0, message)
    else:
      self._send(0, message)

  def _send(self, index: int, message: dict) -> None:
    try:
      with self._sending:
        self._links[index].sendall(json.dumps(message).encode() + b"\n")
    except OSError:
      pass  # the listening thread finds out

  def _tell(self, message: dict, *, but: int = -1) -> None:
    for index in self._links:
      if index != but:
        self._send(index, message)
    if self.index != but:
      self._hear(message)

  def _arrange(self, sender: int, message: dict) -> None:
    """What the hub, in process 0, does with a message."""
    with self._hub:
      if "at" in message:
        what, last = message["at"], time.monotonic() + message["seconds"]
        _, values = self._meetings.setdefault(what, (last, {}))
        values[sender] = message["value"]
        if len(values) == self.number:
          del self._meetings[what]
          self._is_over = what == _END  # whose connection closes from here on is not lost
          self._tell({"all": what, "values": [values[index] for index in range(self.number)]})
      elif "stop" in message and not self._has_asked:
        self._has_asked = True
        self._tell({"propose": True})
      elif "tick" in message:
        self._ticks[sender] = message["tick"]
        if len(self._ticks) == self.number:
          self._tell({"stop_at": max(self._ticks.values()) + 1})
      elif "bye" in message:
        code, line = message["bye"]
        line = f"{self.name(sender)} ended with exit code {code}: {line}"
        self._tell({"over": line, "code": code if code == STOPPED else PeerError.exit_code}, but=sender)

  def _hear(self, message: dict) -> None:
    """What any process does with a message of the hub."""
    if "all" in message:
      self._is_over = message["all"] == _END
      with self._state:
        self._results[message["all"]] = message["values"]
        self._state.notify_all()
    elif "propose" in message:
      with self._state:
        self._is_proposed, tick = True, self._tick
      self._post({"tick": tick})
    elif "stop_at" in message:
      with self._state:
        self._stop_at = message["stop_at"]
        self._state.notify_all()
    elif "over" in message and not (self._is_over or self._is_leaving):
      self._end(message["code"], message["over"])

  def _listen(self) -> None:
    heard = {index: time.monotonic() for index in self._links}
    rests = dict.fromkeys(self._links, b"")
    sent = 0.0
    while not self._is_over:
      if time.monotonic() - sent > BEAT:
        sent = time.monotonic()
        for index in self._links:
          self._send(index, {})
      if self._wants_stop:
        self._wants_stop = False
        self._post({"stop": True})
      for link in select.select(list(self._links.values()), [], [], 0.1)[0]:
        index = next(index for index, other in self._links.items() if other is link)
        heard[index] = time.monotonic()
        lines = self._read(index, rests)
        if lines is None:
          self._lose(f"{self.name(index)} is gone: its connection was closed")
          return
        for line in lines:
          message = json.loads(line)
          self._arrange(index, message) if self.index == 0 else self._hear(message)
      for index, last in heard.items():
        if time.monotonic() - last > self._patience:
          self._lose(f"{self.name(index)} is gone: not heard of for {self._patience:.0f} s")
          return
      self._look_for_late()

  def _read(self, index: int, rests: dict[int, bytes]) -> list[bytes] | None:
    """The whole lines that have come; None: the connection is closed."""
    try:
      part = self._links[index].recv(1 << 20)
    except OSError:
      part = b""
    if not part:
      return None
    *lines, rests[index] = (rests[index] + part).split(b"\n")
    return lines

  def _lose(self, what: str) -> None:
    if not (self._is_over or self._is_leaving):
      line = f"{what}; {AGAIN}, with any number of processes"
      self._tell({"over": line, "code": PeerError.exit_code})

  def _look_for_late(self) -> None:
    with self._hub:
      for what, (last, values) in list(self._meetings.items()):
        if time.monotonic() > last:
          late = ", ".join(self.name(index) for index in range(self.number) if index not in values)
          self._tell({"over": f"{late} did not come to '{what}' in time; {AGAIN}", "code": 6})


def compare_records(peers: Alone, digests: Mapping[str, str], directory: str) -> None:
  """Raises a DataError, on all processes the same, where a process has opened other prepared records."""
  reports = peers.gather("the prepared records", dict(digests), seconds=COMPARING)
  for index, found in enumerate(reports):
    if found != reports[0]:
      raise DataError(
        f"{peers.name(index)} has other records in {directory} than {peers.name(0)}; prepare them once, and "
        "copy them to every host or put them on a file system that all share"
      )
