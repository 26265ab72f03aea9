"""Datasets of Python generators that let the interpreter end."""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_GRACE = 0.2  # seconds, in which a generator gives its last item


def dataset(make: Callable[[], Iterator[Any]], signature: Any) -> tf.data.Dataset:
  """Returns the dataset of what `make()` yields, with elements as in `signature`.

  It ends when the interpreter does: else a thread of TensorFlow that reads ahead at the end of a program
  aborts it with exit code 134.
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
  """Returns an event that is set when the interpreter begins to end."""
  event = threading.Event()

  def end() -> None:
    event.set()
    time.sleep(_GRACE)

  atexit.register(end)
  return event
