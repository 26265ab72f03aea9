"""Datasets from Python generators that do not crash the interpreter at exit."""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_GRACE = 0.2  # seconds for a generator to yield its last item


def dataset(make: Callable[[], Iterator[Any]], signature: Any) -> tf.data.Dataset:
  """Returns a dataset of the items of `make()`, with elements as in `signature`.

  The dataset ends when the interpreter exits. Otherwise a TensorFlow thread that reads ahead would abort the
  program with exit code 134.
  """
  ending = _ending()

  def items() -> Iterator[Any]:
    for item in make():
      if ending.is_set():
        return
      yield item

  return tf.data.Dataset.from_generator(items, output_signature=signature)


@functools.cache
def _ending() -> threading.Event:
  """Returns an event that is set when the interpreter begins to exit."""
  event = threading.Event()

  def end() -> None:
    event.set()
    time.sleep(_GRACE)

  atexit.register(end)
  return event
