"""TFDS and seqio sources. TensorFlow lives in subprocesses, so that the suite's own process stays without."""

import json
import shutil
import subprocess
import sys

import pytest

from data import errors, manifest, sources, tfds_reader
from data.corpora import CORPORA
from tests.data.conftest import ROOT

MODULE = """
import seqio
import tensorflow as tf

PATH = {path!r}
TEXT = seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)


def lines(split, shuffle_files=False, seed=None):
  del split, shuffle_files, seed
  return tf.data.TextLineDataset(PATH).map(lambda line: dict(text=line))


def other(split, shuffle_files=False, seed=None):
  return lines(split).take(20).map(lambda x: dict(text=tf.strings.join(["two ", x["text"]])))


def ids(split, shuffle_files=False, seed=None):
  del split, shuffle_files, seed
  return tf.data.Dataset.from_tensor_slices(dict(targets=[[1, 2], [3, 4]]))


def add(name, function, feature, number):
  source = seqio.FunctionDataSource(function, splits=["train"], num_input_examples=dict(train=number))
  seqio.TaskRegistry.add(name, source, preprocessors=[], output_features=feature)


add("one", lines, dict(text=TEXT), 100)
add("two", other, dict(text=TEXT), 20)

def nested(split, shuffle_files=False, seed=None):
  return ids(split).map(lambda x: dict(x, more=dict(x)))


def broken(split, shuffle_files=False, seed=None):
  return lines(split).map(lambda x: x["content"])


add("nested", nested, dict(targets=seqio.Feature(seqio.PassThroughVocabulary(9))), 2)
add("broken", broken, dict(text=TEXT), 100)
seqio.TaskRegistry.add(
  "empty",
  seqio.TextLineDataSource(dict(train=PATH + ".none*"), num_input_examples=dict(train=3)),
  preprocessors=[],
  output_features=dict(text=TEXT),
)
add("only_ids", ids, dict(targets=seqio.Feature(seqio.PassThroughVocabulary(9))), 2)
seqio.TaskRegistry.add(
  "untrained",
  seqio.FunctionDataSource(lines, splits=["test"]),
  preprocessors=[],
  output_features=dict(text=TEXT),
)
seqio.TaskRegistry.add(
  "absent",
  seqio.TfdsDataSource("wikipedia/20230601.en:1.0.0", splits=["train"]),
  preprocessors=[],
  output_features=dict(text=TEXT),
)
BYTES = seqio.Feature(seqio.ByteVocabulary())


def films(split, shuffle_files=False, seed=None):
  del split, shuffle_files, seed
  return tf.data.Dataset.from_tensor_slices(dict(inputs=["a film", "a mat"], targets=["x", "y"]))


seqio.TaskRegistry.add(
  "labelled",
  seqio.FunctionDataSource(films, splits=["validation"]),
  preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
  output_features=dict(inputs=BYTES, targets=BYTES),
)
seqio.MixtureRegistry.add("both", [("one", 1.0), ("two", 1.0)])
seqio.MixtureRegistry.add("rated", [("two", 0.3), ("one", lambda task: task.num_input_examples("train"))])
seqio.MixtureRegistry.add("zero", [("one", 0.0), ("two", 1.0)])
"""

# Each line of its output: what reading one source gave, or the error it raised.
PROGRAM = """
import collections, json, sys
from data import errors, sources
for flags in json.loads(sys.argv[1]):
  request = sources.Request(**flags)
  try:
    plan = sources.plan(request)
    texts = [d for u in plan.units for d in sources.read_documents(u, request, collections.Counter())]
    print(json.dumps([len(plan.units), texts]))
  except errors.UserError as error:
    print(json.dumps([error.exit_code, str(error)]))
from data import tfds_reader
from data import child, seqio_tasks
for name in ("rated", "zero", "one", "bth"):
  try:
    print(json.dumps([0, seqio_tasks.rates(name, module=sys.argv[5], tfds_directory="", download=False)]))
  except errors.UserError as error:
    print(json.dumps([error.exit_code, str(error)]))
for arguments in json.loads(sys.argv[4]):
  print(json.dumps([child.main(arguments)]))
import pathlib
(shard,) = pathlib.Path(sys.argv[2], "tiny").rglob("*.tfrecord*")
content = bytearray(shard.read_bytes())
content[len(content) // 2] ^= 1
shard.write_bytes(content)
try:
  print(json.dumps([0, [*tfds_reader.train_texts(str(shard.parent), "body", start=0, stop=1)]]))
except errors.UserError as error:
  print(json.dumps([error.exit_code, str(error)]))
from data.prepare import command
print(json.dumps([command.main(json.loads(sys.argv[3]))]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory, vocabulary_directory):
  """Reads all sources of this file in one process with TensorFlow: it takes seconds to start."""
  directory = tmp_path_factory.mktemp("seqio")
  path = directory / "lines.txt"
  path.write_text("".join(f"line {i}\n" for i in range(100)))
  module = directory / "my_tasks.py"
  module.write_text(MODULE.format(path=str(path)))
  store = (
    "import sys\nimport tensorflow_datasets as tfds\n"
    "tfds.dataset_builders.store_as_tfds_dataset(name='tiny', version='1.2.0', data_dir=sys.argv[2],\n"
    "  features=tfds.features.FeaturesDict({'body': tfds.features.Text(), 'tags':\n"
    "    tfds.features.Sequence(tfds.features.ClassLabel(names=['O', 'B-X'])), 'spans':\n"
    "    tfds.features.Sequence({'label': tfds.features.ClassLabel(names=['O', 'B-X'])})}),\n"
    "  split_datasets={'train': [(i, {'body': f'text {i}\\n\\nmore', 'tags': [1, 0][i % 3:],\n"
    "    'spans': {'label': [1]}}) for i in range(30)]})\n"
  )
  names = ["seqio:one", "seqio:both", "seqio:only_ids", "seqio:untrained", "seqio:zero", "seqio:onne"]
  names += ["seqio:absent", "seqio:nested", "seqio:broken", "seqio:empty"]
  requests = [{"source": name, "module": str(module), "tfds_directory": str(directory)} for name in names]
  tfds = {"source": "tfds:tiny", "tfds_directory": str(directory / "tfds")}
  requests += [{**tfds, "text_field": "body"}, tfds, {"source": "seqio:one", "module": "no_such_module"}]
  flags = ["--source=seqio:one", f"--module={module}", f"--vocabulary={vocabulary_directory}"]
  flags += [f"--output={directory / 'prepared'}", "--length=16", "--workers=1"]
  command = [sys.executable, "-c", store + PROGRAM, json.dumps(requests), str(directory / "tfds")]
  command.append(json.dumps(flags))
  of_task = {"name": "labelled", "module": str(module), "tfds_directory": "", "download": False}
  of_set = {"directory": str(directory / "tfds"), "wanted": [("tiny", "train")], "download": False}
  calls = [
    ("data.seqio_tasks", "rates", "rates", {**of_task, "name": "rated"}),
    ("data.rows.datasets", "task_examples", "none", {**of_task, "split": "train"}),
    ("data.rows.datasets", "task_examples", "task", {**of_task, "split": "validation"}),
    ("data.tfds_reader", "examples", "rows", of_set),
  ]
  given = [[room, name, str(directory / key), json.dumps(each)] for room, name, key, each in calls]
  command += [json.dumps(given), str(module)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  lines = [json.loads(line) for line in done.stdout.split("\n") if line.startswith("[")]
  rates = ["rates", "a rate of zero", "a Task for a Mixture", "an unknown Mixture", "rates of a child"]
  keys = [
    *names,
    "tfds",
    "tfds without the feature",
    "no module",
    *rates,
    "task#train",
    "task",
    "rows",
    "damaged",
  ]
  keys.append("prepare")
  lines[-1].append(directory / "prepared")
  made = dict(zip(keys, lines, strict=True)) | {"stderr": done.stderr}
  for key, path in (("rates of a child", "rates"), ("task", "task"), ("rows", "rows")):
    made[key] += [json.loads(line) for line in (directory / path).read_text().splitlines()]
  return made


def test_the_tasks_of_a_mixture_and_their_rates(results):
  assert results["rates"] == [0, [["one", 100.0], ["two", 0.3]]]
  assert results["rates of a child"] == [0, ["one", 100.0], ["two", 0.3]]
  code, line = results["a rate of zero"]
  assert code == 2 and "'zero': the rate of its Task 'one' is 0.0; expected a finite number above 0" in line
  code, line = results["a Task for a Mixture"]
  assert code == 3 and line.startswith("seqio:one is a Task, not a Mixture; to train on it alone:")
  code, line = results["an unknown Mixture"]
  assert code == 3 and line.startswith(
    "--mixture=seqio:bth: unknown Task or Mixture 'bth'; did you mean 'both'?"
  )


def test_examples_of_a_task_are_rows_with_texts_for_what_it_tokenises(results):
  assert results["task"] == [0, {"inputs": "a film", "targets": "x"}, {"inputs": "a mat", "targets": "y"}]
  assert results["task#train"] == [3]
  assert "'labelled' has no split 'train'; its splits are validation; name one as seqio:" in results["stderr"]


def test_labels_in_lists_of_a_tfds_data_set_are_names(results):
  code, *pairs = results["rows"]
  rows = [row for number, row in pairs if number == 0]
  assert code == 0 and len(rows) == 30
  tags = {tuple(row["tags"]) for row in rows}
  assert tags == {("B-X", "O"), ("O",), ()} and rows[0]["body"].endswith("more")
  assert rows[0]["spans"] == {"label": ["B-X"]}


def test_a_damaged_data_set_is_one_line(results):
  code, message = results["damaged"]
  assert code == 3 and message.startswith("TFDS data set /") and "corrupted record" in message
  assert message.endswith("build it again, or take another copy") and "\n" not in message


def test_a_registered_task_is_read_in_order(results):
  units, texts = results["seqio:one"]
  assert units == 1
  assert texts == [[f"line {i}"] for i in range(100)]


def test_a_mixture_keeps_its_rates_without_repeating(results):
  units, texts = results["seqio:both"]
  assert units == 2
  two = [text for text in texts if text[0].startswith("two")]
  assert len(two) == 20  # the smaller one is used up ...
  assert 8 <= len(texts) - len(two) <= 36  # ... and 20 % of the other: 20, within 4 standard deviations
  assert len({text[0] for text in texts}) == len(texts)


def test_a_task_without_text_is_refused(results):
  code, message = results["seqio:only_ids"]
  assert code == 3
  assert "no text feature 'text'; it has targets (int32)" in message


@pytest.mark.parametrize(
  ("name", "told"),
  [
    ("nested", "it has targets (int32), more (dict); set --text_field"),
    ("broken", "; correct the Task"),
    ("empty", "'empty': its split 'train' has no file; correct the Task"),
  ],
)
def test_a_task_that_cannot_be_read_is_one_line(results, name, told):
  code, message = results[f"seqio:{name}"]
  assert code == 3 and told in message


def test_a_task_without_a_training_split_is_refused(results):
  assert results["seqio:untrained"] == [
    3,
    "seqio Task 'untrained' has no split 'train'; its splits are test",
  ]


def test_a_task_whose_tfds_data_is_not_there_is_refused_with_what_to_do(results):
  code, message = results["seqio:absent"]
  assert code == 3
  assert "'wikipedia/20230601.en:1.0.0' is not in" in message and "\n  --download" in message


def test_a_rate_of_zero_is_refused(results):
  code, message = results["seqio:zero"]
  assert code == 2
  assert "'one' has rate 0.0" in message


def test_an_unknown_task_is_refused_with_the_nearest_name(results):
  code, message = results["seqio:onne"]
  assert code == 3
  assert "unknown Task or Mixture 'onne'; did you mean 'one'? Known: " in message


def test_a_module_that_cannot_be_imported_is_refused(results):
  code, message = results["no module"]
  assert code == 2
  assert "--module=no_such_module cannot be imported" in message


def test_a_prepared_tfds_data_set_is_read(results):
  units, texts = results["tfds"]
  assert units == 1
  assert sorted(texts) == sorted([f"text {i}", "more"] for i in range(30))  # stored in an order of its own


def test_a_tfds_data_set_without_the_feature_is_refused(results):
  code, message = results["tfds without the feature"]
  assert code == 3
  assert "no feature 'text'; it has body" in message


@pytest.mark.parametrize("name", sorted(CORPORA))
def test_missing_corpora_are_refused_at_once_with_what_to_do(tmp_path, name, monkeypatch):
  monkeypatch.setattr(tfds_reader, "import_tfds", lambda: pytest.fail("ten seconds of importing"))
  with pytest.raises(errors.DataError, match="\n  --download\n") as caught:
    sources.check(sources.Request(f"seqio:{name}", tfds_directory=str(tmp_path)))
  assert "--source=installed_docs" in str(caught.value)


def test_the_newest_version_of_a_tfds_data_set_is_found(tmp_path):
  for place in ("c4/en/3.1.0", "c4/en/3.10.0", "c4/en/3.2.0", "pg19/0.1.1"):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "dataset_info.json").write_text("{}")
  assert tfds_reader.find(str(tmp_path), "c4/en") == tmp_path / "c4/en/3.10.0"
  assert tfds_reader.find(str(tmp_path), "c4/en:3.1.0") == tmp_path / "c4/en/3.1.0"
  assert tfds_reader.find(str(tmp_path), "c4") == tmp_path / "c4/en/3.10.0"
  assert tfds_reader.find(str(tmp_path), "pg19:0.1.1") == tmp_path / "pg19/0.1.1"
  assert tfds_reader.find(str(tmp_path), "c4/en:9.0.0") is None
  shutil.copytree(tmp_path / "c4/en", tmp_path / "c4/de")
  with pytest.raises(errors.DataError, match=r"^c4: several configs .*\(de, en\); name one, as c4/de$"):
    tfds_reader.find(str(tmp_path), "c4")
  with pytest.raises(errors.DataError, match=r"'c4/en:9\.0\.0' is not in"):
    tfds_reader.find_or_download(str(tmp_path), "c4/en:9.0.0", download=False)


def test_a_seqio_task_is_prepared_by_the_command(results):
  code, output = results["prepare"]
  assert code == 0
  assert manifest.read(output).counts["documents"] == 100
