"""All that needs TensorFlow, seqio and TFDS, in one process, because loading them takes nine CPU seconds.

`python -m tests.data.with_tensorflow DIRECTORY` writes `results.json` there, which `test_seqio_tasks.py`
compares. DIRECTORY/user is a user's folder (`feed/conftest.py`) with prepared records.
"""

import collections
import functools
import json
import pathlib
import sys
import time

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from data import errors, feed, glue, records, seqio_tasks, sources, squad, tfds_reader, vocabulary
from data.prepare import packing, pipeline
from data.rows import datasets
from data.tasks.blocks import generated_dataset
from tests.data.tasks import notebook

DIRECTORY = pathlib.Path(sys.argv[1])
TFDS, USER = DIRECTORY / "tfds", DIRECTORY / "user"
TEXT = {"text": seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)}
NLI = ["entailment", "neutral", "contradiction"]  # the order of TFDS
PAIR = ("sentence1", "sentence2")
BINARY = {  # as published: the features with text, and the names of labels 0 and 1
  "qqp": (("question1", "question2"), ["not_duplicate", "duplicate"]),
  "sst2": (("sentence",), ["negative", "positive"]),
  "mrpc": (PAIR, ["not_equivalent", "equivalent"]),
  "wnli": (PAIR, ["not_entailment", "entailment"]),
  "rte": (PAIR, ["entailment", "not_entailment"]),
}
LENGTH = notebook.LENGTH

results: dict = {}


def tried(function):
  """Returns the value of a call, or [exit code, message] of its error."""
  try:
    return function()
  except errors.UserError as error:
    return [error.exit_code, str(error)]


def register() -> None:
  """Registers Tasks that are read as text, and those that cannot be."""
  for number in range(3):
    of_file = range(number, 100, 3)
    (DIRECTORY / f"hundred{number}.txt").write_text("".join(f"line {line}\n" for line in of_file))

  def add(name, function, feature=None, splits=("train",), **options):
    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: function(), splits, **options)
    seqio.TaskRegistry.add(name, source, preprocessors=[], output_features=feature or TEXT)

  texts = tf.data.Dataset.from_tensor_slices
  ids = {"targets": seqio.Feature(seqio.PassThroughVocabulary(9))}
  files = {"train": f"{DIRECTORY}/hundred*.txt"}
  seqio_tasks.add_text_task("hundred", _Lines(files, num_input_examples={"train": 100}), "text")
  add("twenty", lambda: texts({"text": [f"two {at}" for at in range(20)]}))
  add("one_of_two", lambda: texts({"text": ["x"]}), num_input_examples={"train": 100})
  add("only_ids", lambda: texts({"targets": [[1, 2], [3, 4]]}), ids)
  add("untrained", lambda: texts({"text": ["x"]}), splits=("test",))
  absent = seqio.TfdsDataSource("wikipedia/20230601.en:1.0.0", splits=["train"])
  seqio.TaskRegistry.add("absent", absent, preprocessors=[], output_features=TEXT)
  bytes_of = seqio.Feature(seqio.ByteVocabulary())
  tokens = {**TEXT, "tokens": seqio.Feature(seqio.ByteVocabulary(), required=False)}
  by_split = {name: [f"{name} {at}" for at in range(9)] for name in ("train", "heldout", "test")}
  several = lambda split, shuffle_files, seed=None: texts({"text": by_split[split]})  # noqa: E731
  source = seqio.FunctionDataSource(several, [*by_split])
  seqio.TaskRegistry.add("evaluated", source, preprocessors=[], output_features=tokens)
  films = {"inputs": ["a film", "a mat"], "targets": ["x", "y"], "score": [0.5, 2.0]}
  seqio.TaskRegistry.add(
    "labelled",
    seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: texts(films), ["validation"]),
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={"inputs": bytes_of, "targets": bytes_of},
  )
  seqio.MixtureRegistry.add("even", [("hundred", 1.0), ("twenty", 2.0)])
  counted = lambda task: task.num_input_examples("train")  # noqa: E731
  seqio.MixtureRegistry.add("rated", [("twenty", 0.3), ("one_of_two", counted)])
  seqio.MixtureRegistry.add("zero", [("one_of_two", 0.0), ("twenty", 1.0)])


class _Lines(seqio.TextLineDataSource):
  def get_dataset(self, *arguments, **options):
    return super().get_dataset(*arguments, **options).map(lambda line: {"text": line})


def texts_of(source: str, **more):
  """Returns [the parts of the plan, the documents], or the error."""

  def read():
    request = sources.Request(source, **more)
    plan = sources.plan(request)
    parts = [[unit.part.task, unit.start, unit.part.keep] if unit.part else unit.start for unit in plan.units]
    counts = collections.Counter()
    return [parts, [d for unit in plan.units for d in sources.read_documents(unit, request, counts)]]

  return tried(read)


def texts() -> None:
  names = ("hundred", "even", "only_ids", "untrained", "zero", "hundre")
  for name in names:
    results[f"seqio:{name}"] = texts_of(f"seqio:{name}")
  request = sources.Request("seqio:evaluated")
  for fraction in (0.5, 0.0):
    job = pipeline.Job(request, "", 16, "complete", 0, heldout_fraction=fraction, fraction=1.0)
    units = [unit for unit in sources.plan(request).units if fraction or not unit.is_heldout]
    results[f"evaluated {fraction}"] = [
      each for unit in units for each in pipeline.documents(job, unit, collections.Counter())
    ]
  results["seqio:absent"] = texts_of("seqio:absent", tfds_directory=str(TFDS))
  results["no module"] = texts_of("seqio:hundred", module="no_such_module")
  options = {"module": "", "tfds_directory": "", "download": False}
  for name in ("rated", "zero", "twenty", "rate"):
    results[f"rates {name}"] = tried(functools.partial(seqio_tasks.rates, name, **options))
  options = {"directory": "", "module": "", "download": False}
  rows = datasets.read("seqio:labelled#validation", "train", **options)
  results["rows of a Task"] = [[row.fields, row.number, row.place] for row in rows]
  options = {"module": "", "tfds_directory": "", "download": False}
  for name in ("labelled", "even"):
    of_task = functools.partial(datasets.task_examples, name, "train", **options)
    results[f"rows {name}"] = tried(lambda of_task=of_task: [*of_task()])


def store(name: str, features: dict, splits: dict, version: str = "2.0.0", shards: int = 1, **more) -> None:
  """Stores a TFDS data set as its own program would."""
  tfds.dataset_builders.store_as_tfds_dataset(
    name=name, version=version, data_dir=str(TFDS), features=tfds.features.FeaturesDict(features),
    split_datasets={split: [*enumerate(rows)] for split, rows in splits.items()},
    download_config=tfds.download.DownloadConfig(num_shards=shards), **more,
  )  # fmt: skip


def tfds_sets() -> None:
  text, label = tfds.features.Text(), tfds.features.ClassLabel(names=["O", "B-X"])
  features = {"body": text, "tags": tfds.features.Sequence(label)}
  rows = [
    {"body": f"text {at}\n\nmore", "tags": [1, 0][at % 3 :], "spans": {"label": [1]}} for at in range(30)
  ]
  features["spans"] = tfds.features.Sequence({"label": label})
  store("tiny", features, {"train": rows}, version="1.2.0", shards=3)
  place = {"tfds_directory": str(TFDS)}
  results["tfds"] = texts_of("tfds:tiny", text_field="body", **place)
  results["tfds without the feature"] = texts_of("tfds:tiny", **place)
  options = {"directory": str(TFDS), "module": "", "download": False}
  results["rows of TFDS"] = [row.fields for row in datasets.read("tfds:tiny", "train", **options)]
  results["no split"] = tried(lambda: datasets.read("tfds:tiny#test", "train", **options))
  nli = {"premise": text, "hypothesis": text, "idx": np.int32, "label": tfds.features.ClassLabel(names=NLI)}
  rows = [
    {"premise": f"first {at}", "hypothesis": f"sécond {at}", "idx": at, "label": at % 3} for at in range(7)
  ]
  unlabelled = [{"premise": "a", "hypothesis": "b", "idx": 0, "label": -1}]
  store("glue", nli, {"train": rows[::-1], "test_matched": unlabelled}, config="mnli")
  del nli["idx"]
  agreed = [{**row, "label": at % 2 - 1} for at, row in enumerate(rows)]  # -1: the annotators did not agree
  for row in agreed:
    del row["idx"]
  store("snli", nli, {"validation": agreed}, version="1.1.0")
  wanted = [("mnli", "train"), ("mnli", "test_matched"), ("snli", "dev")]
  for task, (texts_of_task, names) in BINARY.items():
    label = tfds.features.ClassLabel(names=names)
    one = {**dict.fromkeys(texts_of_task, "a"), "idx": 0, "label": 1}
    features = {**dict.fromkeys(texts_of_task, text), "idx": np.int32, "label": label}
    store("glue", features, {"validation": [one]}, config=task)
    wanted.append((task, "dev"))
  results["glue of TFDS"] = [as_lists(split) for split in glue.read_all(str(TFDS), wanted)]
  sequence = {"text": text, "answer_start": np.int32}
  features = {**dict.fromkeys(("id", "title", "context", "question"), text), "is_impossible": np.bool_}
  example = {"id": "a", "title": "T", "context": "It is in France.", "question": "Where?"}
  answers = {"text": ["France", "in France"], "answer_start": [9, 6]}
  questions = [
    {**example, "is_impossible": False, "answers": answers},
    {**example, "id": "b", "is_impossible": True, "answers": {"text": [], "answer_start": []}},
  ]
  features["answers"] = tfds.features.Sequence(sequence)
  store("squad", features, {"validation": questions}, "3.0.0", config="v2.0")
  found = squad.read_tfds(str(TFDS), "2.0", "dev").questions
  results["squad"] = {
    q.id: [q.question, [[a.text, a.start, a.is_located] for a in q.answers], q.is_impossible] for q in found
  }


def as_lists(split: glue.Split) -> list:
  labels = None if split.labels is None else [str(split.labels.dtype), split.labels.tolist()]
  return [split.first, split.second, split.ids, labels, split.dropped, split.is_official]


def damaged() -> None:
  place = TFDS / "tiny" / "1.2.0"
  first = sorted(place.glob("*tfrecord*"))[0]
  content = bytearray(first.read_bytes())
  content[len(content) // 2] ^= 1
  first.write_bytes(content)
  results["damaged"] = tried(lambda: [*tfds_reader.train_texts(str(place), "body", start=0, stop=1)])
  (place / "dataset_info.json").write_text("{")
  results["damaged description"] = tried(lambda: tfds_reader.split_sizes(place))


# Streams of a feed.


def opened(name: str, *, seed: int = 0, packing: str = "eos", words: bool = True) -> feed.Stream:
  vocabulary_of = f"{USER}/words" if words else ""
  return feed.Stream(
    feed.Asked(f"seqio:{name}", LENGTH, seed, packing, vocabulary_of, f"{USER}/user_tasks.py")
  )


def blocks(name: str, number: int, **options) -> list[list[int]]:
  """Returns the first training blocks of a Task."""
  _, chunks = opened(name, **options).chunks()
  return np.concatenate([*feed._first(chunks, number)]).tolist()


def chunk(name: str, **options) -> list[list[int]]:
  return next(opened(name, **options).chunks()[1]).tolist()


def streams() -> None:
  feed.CHUNK_CHARACTERS, feed.CHUNK_IDS, feed.CHUNK_BLOCKS = 2_000, 600, 8
  words = vocabulary.load(USER / "words")
  results["special"] = vars(words.special_ids)
  for name in ("one_train", "one_validation", "two_train"):  # a block for each line, without TensorFlow
    lines = (USER / f"{name}.txt").read_text().lower().splitlines()
    results[name] = [words.encode(line) for line in lines]
  found = {
    "lines": blocks("one", 400),
    "again": blocks("one", 400),
    "segments": blocks("one", 100, packing="segments"),
    "chunks": [sorted(chunk("one", seed=seed)) for seed in (0, 1)],
    "held out": [opened("one").heldout(number).tolist() for number in (5, 500)],
    "none held out": [opened("untested").splits[0], len(opened("untested").heldout(5))],
    "both": blocks("both", 1_000),
    "of ids": blocks("ids", 300, words=False),
    "facts": [opened("one").facts(), opened("prepared", packing="complete").facts()["records"]],
  }
  results.update(found)
  number, chunks = opened("prepared", packing="complete").chunks(24)
  own = records.PackedRecords(USER / "records", length=LENGTH, seed=0)
  results["prepared from step 3"] = [number, np.concatenate([*feed._first(chunks, 80)]).tolist()]
  results["the trainer's"] = np.concatenate([own.batch(step, 8) for step in range(3, 13)]).tolist()
  # A long text: the blocks of a document do not follow each other; a packed Task's are left as they come.
  ids = np.repeat(np.arange(10, 30), LENGTH - 2).astype(np.int32)  # as many as a chunk has
  lines = "".join((USER / f"{name}_train.txt").read_text() for name in ("one", "two"))
  feature = seqio.get_mixture_or_task("ids").output_features["inputs"]
  for name, example, features in (("long_ids", ids, {"inputs": feature}), ("long_text", lines, TEXT)):
    rows = tf.data.Dataset.from_tensors({next(iter(features)): tf.constant(example)})
    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None, rows=rows: rows, ["train"])
    seqio.TaskRegistry.add(name, source, preprocessors=[], output_features=features)
    results[name] = chunk(name, seed=3)
  counts = collections.Counter()
  document = [text for line in lines.split("\n") for text in packing.split_sentences(line, counts)]
  options = {"length": LENGTH, "mode": "eos", "counts": collections.Counter()}
  in_order = pipeline.pack_documents(words, [document], **options)
  results["long_text in order"] = [block.tolist() for block in in_order]
  results["packed"] = chunk("packed", packing="complete")
  task = seqio.get_mixture_or_task("packed")
  dataset = task.get_dataset(None, "train", shuffle=True, seed=0, num_epochs=None)
  results["packed by seqio"] = [block.tolist() for block in notebook.ids(dataset.take(9))]
  for name, of_stream in {
    "stream no vocabulary": lambda: opened("one", words=False),
    "stream packing": lambda: opened("packed", packing="none"),
    "stream short": lambda: blocks("short", 10),
    "stream broken": lambda: blocks("broken", 10),
  }.items():
    results[name] = tried(lambda of_stream=of_stream: len(of_stream()))


if __name__ == "__main__":
  # Several chunks, though the files are small.
  pipeline.CHUNK_CHARACTERS = notebook.CHUNK_CHARACTERS
  register()
  for section in (texts, tfds_sets, damaged, streams):
    section()
  results.update(notebook.results_of(DIRECTORY / "notebook"))
  (DIRECTORY / "results.json").write_text(json.dumps(results))
  # The program ends while a generator is at work.
  slowly = (time.sleep(0.05) or 1 for _ in iter(int, 1))
  ahead = generated_dataset(lambda: slowly, tf.TensorSpec([], tf.int32)).prefetch(99).as_numpy_iterator()
  next(ahead)
