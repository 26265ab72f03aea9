"""The other processes of a run: what each sends is heard by all, and all end when one is gone.

Process 0 holds a TCP connection to each of the others, beside those of JAX, which ends a process that lost
another with a stack trace, after minutes, or never. Imports no JAX.
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

BEAT = 2.0  # seconds between signs of life
PATIENCE = 30.0  # seconds without one until a process counts as gone; a killed one is noticed at once
LOOKING = 600.0  # seconds until a process that looks at files is late
PREPARING = 72 * 3600.0  # seconds that process 0 may take to prepare text
COMPARING = 60.0  # seconds that a process may be behind where all say what they have
LEAVING = 10.0  # seconds that a process with an error of its own has to clean up
ENDING = 600.0  # seconds that the others may write their last after the first has finished
_STOP, _END = "where to stop", "the end"
AGAIN = "start all processes again: the same command continues from the newest checkpoint"


class Peers:
  """All processes of a run, as one of them sees them; a process alone has no links and waits for nobody."""

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
      hosts: the name of each process's host.
      links: connections by process: of process 0 to all others, of the others to process 0.
      patience: seconds without a sign of life until a process counts as gone.
      end: ends this process with an exit code and a line.
    """
    self.index, self.number, self._hosts = index, len(hosts), hosts
    self._links, self._patience, self._end = dict(links), patience, end or end_process
    self._hub, self._state, self._is_asked = threading.RLock(), threading.Condition(), threading.Event()
    self._results: dict[str, list] = {}
    self._meetings: dict[str, tuple[float, dict[int, Any]]] = {}  # the hub's: deadline, values so far
    self._tick = 0  # points of the program that were passed by `reached_stop`
    self._is_stopping = self._is_over = self._is_leaving = False
    works = [functools.partial(self._listen, other) for other in links]
    for work in [*works, self._beat] if links else []:
      threading.Thread(target=work, name="peers", daemon=True).start()

  def name(self, index: int) -> str:
    """'process 1 (host)'."""
    return f"process {index} ({self._hosts[index]})"

  def gather(self, what: str, value: T, *, seconds: float) -> list[T]:
    """Returns the `value` of every process, in order, when all have come to this point; `what` names it.

    PeerError: some did not come within `seconds`; the line names them.
    """
    self._post({"at": what, "value": value, "seconds": seconds})
    with self._state:
      # The hub says who is late; if it says nothing, it is the one.
      if not self._state.wait_for(lambda: what in self._results, seconds + 2 * BEAT):
        raise PeerError(f"{self.name(0)} did not come to '{what}' within {seconds:.0f} s; {AGAIN}")
      return self._results.pop(what)

  def together(self, what: str, work: Callable[[], T], *, seconds: float) -> T:
    """Does `work` on every process and returns its own result once all are done.

    A UserError of any process is raised on all of them, with the process that had it.
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
    """Does `work` on process 0 alone; all return its result, a JSON value. Errors are those of `together`."""
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
    """Raises a `kind`, on all processes the same, where the facts of one are not those of process 0."""
    as_sent = json.loads(json.dumps(dict(facts)))  # a tuple is a list, as in the facts of others
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
    """Asks all processes to stop: some later `reached_stop`, the same on all, is true."""
    self._is_asked.set()  # a signal's handler calls this: the thread of signs of life sends it

  def reached_stop(self) -> bool:
    """Whether to stop here. All processes call it at the same points of the program."""
    with self._state:
      # Once a stop is asked for nobody goes on until it is known where the one that is furthest is.
      if not self._state.wait_for(lambda: not self._is_stopping or _STOP in self._results, self._patience):
        raise PeerError(f"{self.name(0)} did not say where to stop within {self._patience:.0f} s; {AGAIN}")
      self._tick += 1
      return self._is_stopping and self._tick > max(self._results[_STOP])

  @contextlib.contextmanager
  def ending_together(self) -> Iterator[None]:
    """Within the block an error of this process ends the others too."""
    try:
      yield
    except BaseException as error:
      code, line = outcome(error)
      # What failed here may have failed because another process went: then that ends this one, in a moment.
      # Errors about what all have read are raised by all in that moment, and each ends by its own.
      self._is_leaving = isinstance(error, UserError) and not isinstance(error, StorageError | PeerError)
      time.sleep(0 if isinstance(error, KeyboardInterrupt) else BEAT / 2)
      self._post({"bye": [code, line]})
      end_later(LEAVING, code, line)  # cleaning up may wait for the others, who are gone by now
      raise
    self.gather(_END, None, seconds=ENDING)

  # Everything below runs on the threads that listen too.

  def _post(self, message: dict) -> None:
    """Gives a message of this process to the hub, which is process 0."""
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
    """Handles a message in process 0."""
    with self._hub:
      if "at" in message:
        what, last = message["at"], time.monotonic() + message["seconds"]
        _, values = self._meetings.setdefault(what, (last, {}))
        values[sender] = message["value"]
        if len(values) == self.number:
          del self._meetings[what]
          self._is_over = what == _END  # whose connection closes from here on is not lost
          self._tell({"all": what, "values": [values[index] for index in range(self.number)]})
        elif what == _STOP and len(values) == 1:
          self._tell({"stop": True})
      elif "bye" in message:
        code, line = message["bye"]
        line = f"{self.name(sender)} ended with exit code {code}: {line}"
        self._tell({"over": line, "code": code if code == STOPPED else PeerError.exit_code}, but=sender)

  def _hear(self, message: dict) -> None:
    """Handles a message from process 0, in any process."""
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
    """Says, once, how many points this process has passed; it passes no other until all have said it."""
    with self._state:
      is_new, self._is_stopping, tick = not self._is_stopping, True, self._tick
    if is_new:
      self._post({"at": _STOP, "value": tick, "seconds": self._patience})

  def _listen(self, other: int) -> None:
    while not self._is_over:
      try:
        message = self._links[other].receive(self._patience)
      except TimeoutError:
        return self._lose(other, f"not heard of for {self._patience:.0f} s")
      if message is None:
        return self._lose(other, "its connection was closed")
      self._arrange(other, message) if self.index == 0 else self._hear(message)
    return None

  def _lose(self, other: int, why: str) -> None:
    with self._hub:  # of two that go at once one is named: nobody gets here again before the end
      if not (self._is_over or self._is_leaving):
        line = f"{self.name(other)} is gone: {why}; {AGAIN}, with any number of processes"
        self._tell({"over": line, "code": PeerError.exit_code})

  def _beat(self) -> None:
    """Gives signs of life, asks for a stop, and names who is late."""
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
            self._tell({"over": f"{late} did not come to '{what}' in time; {AGAIN}", "code": 6})


ALONE = Peers(0, ["this host"], {})
_here = ALONE


def here() -> Peers:
  """Returns the processes of the run that this one is a part of."""
  return _here


@contextlib.contextmanager
def among(peers: Peers) -> Iterator[None]:
  """Within the block `here` returns these."""
  global _here
  _here = peers
  try:
    yield
  finally:
    _here = ALONE
