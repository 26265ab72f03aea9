"""Tasks as a user of T5X writes them, in a file of their own; it is copied beside the files that it reads."""

import functools
import pathlib

import seqio
import tensorflow as tf

import data.tasks

HERE = pathlib.Path(__file__).parent
WORDS = data.tasks.DirectoryVocabulary(HERE / "words")
TEXT = {"text": seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)}
IDS = {"inputs": seqio.Feature(WORDS, add_eos=False)}
print("a module may print")


def lines(split, shuffle_files=False, seed=None, *, name):
  """Returns the lines of a file."""
  del shuffle_files, seed
  path = str(HERE / f"{name}_{split}.txt")
  return tf.data.TextLineDataset(path).map(lambda line: {"text": line})


@seqio.map_over_dataset
def lower(example):
  """Makes text lower case."""
  return {"text": tf.strings.lower(example["text"])}


def tokenize(dataset):
  """Replaces text by ids."""
  return dataset.map(lambda example: {"inputs": WORDS.encode_tf(example["text"])})


def take(dataset):
  """Keeps two examples."""
  return dataset.take(2)


def stop(dataset):
  """Fails at every example."""

  def failing(example):
    return {"text": tf.ensure_shape(tf.py_function(fail, [example["text"]], tf.string), [])}

  return dataset.map(failing)


def fail(text):
  """Fails."""
  raise KeyError("no such column")


def add(name, *preprocessors, features, splits=("train", "validation"), lines_of="one"):
  """Registers a Task over the lines of a file."""
  source = seqio.FunctionDataSource(functools.partial(lines, name=lines_of), splits=splits)
  seqio.TaskRegistry.add(name, source, preprocessors=[*preprocessors], output_features=features)


add("one", lower, features=TEXT)
add("two", lower, features=TEXT, lines_of="two")
seqio.MixtureRegistry.add("both", [("one", 0.7), ("two", 0.3)])
add("ids", lower, tokenize, features=IDS)
add("untested", lower, features=TEXT, splits=("train",))
add("short", lower, seqio.CacheDatasetPlaceholder(), take, features=TEXT)
add("broken", stop, features=TEXT)
data.tasks.register_packed("packed", f"{HERE}/two_train.txt", HERE / "words", length=32)
if (HERE / "records").exists():
  data.tasks.register_prepared("prepared", HERE / "records")
