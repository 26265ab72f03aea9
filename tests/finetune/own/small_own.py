"""Rows and schemas of one's own task, for tests."""

from data.rows import Row
from finetune.own import answers
from finetune.own.schema import TaskSchema

BIO = ("O", "B-PER", "I-PER", "B-LOC")


def rows(*fields):
  """Rows of these fields in a file 'a.csv'."""
  return [Row(one, number, "a.csv") for number, one in enumerate(fields, 1)]


def schema(kind="classification", labels=("x", "y"), text=("text",), **more):
  """A schema for texts of 8 tokens."""
  values = {"pooling": "cls", "max_length": 8} | more
  return TaskSchema(kind, text, "label", labels, **values)


def sentence(words, tags=None):
  """The fields of a row of tagged words."""
  return {"text": words.split()} | ({} if tags is None else {"label": tags.split()})


def predicted(of, outputs):
  """The answers without their probabilities."""
  return [one["predicted"] for one in answers.answers(of, outputs)]
