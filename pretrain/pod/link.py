"""A connection that carries JSON values between two processes of a run. Imports no JAX."""

import contextlib
import json
import socket
import threading
from typing import Any

_LONGEST = 1 << 26  # bytes of a message; ours are shorter


class Link:
  """Sends and receives JSON values over a socket, one per line; only one thread may receive."""

  def __init__(self, connection: socket.socket) -> None:
    self._connection, self._lines = connection, connection.makefile("rb")
    self._sending = threading.Lock()

  def send(self, message: Any) -> None:
    """Sends a JSON value; ignores a closed connection, which `receive` reports."""
    line = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(OSError), self._sending:
      self._connection.sendall(line)

  def receive(self, seconds: float) -> Any:
    """Returns the next value, or None if the connection is closed or carries something else.

    TimeoutError: no value arrived within `seconds`; the link cannot receive again.
    """
    try:
      self._connection.settimeout(seconds)
      line = self._lines.readline(_LONGEST)
      return json.loads(line) if line.endswith(b"\n") else None
    except TimeoutError:
      raise
    except (OSError, ValueError):
      return None

  def close(self) -> None:
    """Closes the connection for both sides."""
    with contextlib.suppress(OSError):
      self._connection.shutdown(socket.SHUT_RDWR)
