"""Requests to stop that come while compiled code runs: no handler of Python's is called before it returns."""

import signal
import subprocess
import sys
import time

import pytest

from pretrain.pod.stop import StopRequest

# A call of minutes that lets other threads run and does not look for signals.
CODE = """
import hashlib
from pretrain.pod.stop import StopRequest
with StopRequest():
  print("begun", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)
"""
TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(("first", "second"), [(TERM, TERM), (INT, TERM), (TERM, INT)])
def test_a_second_request_ends_a_long_call_into_compiled_code(first, second):
  with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as started:
    assert started.stdout is not None and started.stdout.readline() == "begun\n"
    started.send_signal(first)
    time.sleep(0.3)
    assert started.poll() is None
    started.send_signal(second)
    try:
      # The latter where the first signal came before the call.
      assert started.wait(timeout=5) in (128 + second, -second)
    except subprocess.TimeoutExpired:
      pytest.fail("the process goes on")
    finally:
      started.kill()


def test_an_ignored_signal_stays_ignored():
  before = signal.signal(INT, signal.SIG_IGN)  # as a shell starts what follows a command with &
  try:
    with StopRequest() as stop:
      signal.raise_signal(INT)
      assert not stop.is_set
      signal.raise_signal(TERM)
      assert stop.is_set and signal.getsignal(INT) == signal.SIG_IGN
  finally:
    signal.signal(INT, before)
