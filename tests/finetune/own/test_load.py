"""Files as people have them, read for one's own task: what is mended with a line, and what is refused."""

import json

import numpy as np
import pytest

from configs import finetune_own
from data import vocabulary
from data.errors import DataError
from finetune.own.load import load
from finetune.own.schema import FILE, TaskSchema
from finetune.search import examples

WORDS = ["a", "good", "film", "bad", "plot", "the", "cat", "sat", "on", "mat", "very", "not"]


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


@pytest.fixture
def read(tmp_path, words):
  """Loads a file with this content as a config says; fields are those of `config.data`, but for `task`."""

  def load_file(name, content, dev=None, *, task="auto", **fields):
    config = finetune_own.get_config()
    config.own.task = task
    config.data.update({"train_file": str(tmp_path / name), **fields})
    (tmp_path / name).write_text(content, encoding="utf-8")
    if dev is not None:
      config.data.dev_file = str(tmp_path / f"dev_{name}")
      (tmp_path / f"dev_{name}").write_text(dev, encoding="utf-8")
    return load(config, words, max_length=24)

  return load_file


def texts(count):
  return [f"{WORDS[at % 12]} {WORDS[at // 12 % 12]} {at}" for at in range(count)]


def json_lines(*rows):
  return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_nul_does_not_cut_a_text_into_two(read):
  rows = [{"text": f"{text}\0{text}", "label": "xy"[at % 2]} for at, text in enumerate(texts(200))]
  assert all(len(row) == 1 for row in read("a.jsonl", json_lines(*rows)).first)


def test_rows_with_the_only_examples_of_a_label_stay_in_training(read):
  rows = [{"text": text, "label": "xy"[at % 2]} for at, text in enumerate(texts(200))]
  before = read("a.jsonl", json_lines(*rows))
  rare = {text for (text,) in before.first[:3]}
  rows = [row | {"label": f"rare {row['text']}"} if row["text"] in rare else row for row in rows]
  task = read("a.jsonl", json_lines(*rows))
  assert len(task.schema.labels) == 5 and len(task.dev.targets) == len(before.dev.targets) - 3
  assert "own: 3 rows kept in training: no other training row has the label" in task.lines
  alike = [row | {"label": "rare"} if row["text"] in rare else row for row in rows]
  assert len(read("a.jsonl", json_lines(*alike)).dev.targets) == len(before.dev.targets) - 1  # of three
  for kind, several in (("multilabel", lambda label: [label]), ("tagging", lambda label: [label, "x"])):
    text = (lambda text: text.split()[:2]) if kind == "tagging" else str
    made = [{"text": text(row["text"]), "label": several(row["label"])} for row in rows]
    assert len(read("a.jsonl", json_lines(*made), task=kind).schema.labels) >= 5


def test_equal_texts_are_on_one_side_though_one_has_a_rare_label(read):
  rows = [{"text": text, "label": "xy"[at % 2]} for at, text in enumerate(texts(200))]
  twin = read("a.jsonl", json_lines(*rows)).first[0][0]  # of a row that is held out
  task = read("a.jsonl", json_lines(*rows, {"text": twin, "label": "z"}))
  assert [twin] not in task.first and len(task.train.targets) + len(task.dev.targets) == 201


def test_the_kind_is_that_of_all_rows(read):
  rows = [{"text": text, "label": at % 1_000} for at, text in enumerate(texts(3_000))]
  assert read("a.jsonl", json_lines(*rows), task="auto").schema.kind == "classification"
  rows[-1]["label"] = 0.5
  assert read("a.jsonl", json_lines(*rows), task="auto").schema.kind == "regression"


def test_equal_targets_are_refused_though_their_deviation_is_rounded(read):
  rows = [{"text": text, "label": 0.7} for text in texts(100)]
  with pytest.raises(DataError, match=r"0\.7"):
    read("a.jsonl", json_lines(*rows), task="regression")


def test_a_label_that_no_drawn_row_has_is_known_still(read):
  rows = [{"text": text, "label": "xy"[at % 2]} for at, text in enumerate(texts(200))]
  content = json_lines(*rows, {"text": "rare", "label": "z"})
  task = read("a.jsonl", content, content, train_rows=20)
  assert sorted(task.schema.labels) == ["x", "y", "z"] and len(task.train.targets) == 20


def test_rows_without_a_text_are_counted_and_named_or_left_out(read):
  rows = [{"text": text, "label": "xy"[at % 2]} for at, text in enumerate(texts(200))]
  for at in range(3, 200, 30):
    rows[at]["text"] = (" ", None, "")[at % 3]
  content = json_lines(*rows)
  with pytest.raises(
    DataError, match=r"line 4: .*7 of 200 \(line 4, 34, 64, (.|\n)*--config.data.empty=skip"
  ):
    read("a.jsonl", content)
  task = read("a.jsonl", content, content, empty="skip")
  assert len(task.train.targets) == len(task.dev.targets) == 193
  assert sum("skipped rows with an empty text: 7 of 200 (line 4, " in line for line in task.lines) == 2


def test_numbers_are_scaled_by_those_of_the_training_rows(read):
  numbers = np.random.default_rng(0).normal(3, 2, 50)
  train = [{"text": text, "label": number} for text, number in zip(texts(50), numbers)]
  dev = [row | {"label": 10 * row["label"] + 7} for row in train]
  task = read("a.jsonl", json_lines(*train), json_lines(*dev))
  assert (task.scale, task.shift) == pytest.approx((np.std(numbers), np.mean(numbers)))
  wanted = (10 * numbers + 7 - np.mean(numbers)) / np.std(numbers)
  labels = task.dev.examples(scale=task.scale, shift=task.shift).fields["labels"]
  np.testing.assert_allclose(labels, wanted, rtol=1e-5)


def test_equal_texts_are_held_out_together_and_the_share_is_kept():
  held_out = [examples.is_held_out(f"text {number}", 0.25) for number in range(2_000)]
  assert 400 < sum(held_out) < 600
  assert held_out == [examples.is_held_out(f"text {number}", 0.25) for number in range(2_000)]
  more = [examples.is_held_out(f"text {number}", 0.5) for number in range(2_000)]
  assert all(one <= other for one, other in zip(held_out, more))


def test_a_schema_comes_back_as_it_was_and_another_is_refused(tmp_path):
  schema = TaskSchema("classification", ("text", "reply"), "label", ("spam", "ham"), "mean", 128, "windows")
  with pytest.raises(DataError, match=r"task\.json"):
    TaskSchema.read(tmp_path)
  (tmp_path / FILE).write_text(schema.as_json())
  assert TaskSchema.read(tmp_path) == schema
  assert (schema.problem_type, schema.num_outputs) == ("single_label_classification", 2)
  values = json.loads(schema.as_json())
  for change in ({"version": 2}, {"kind": "clasification"}, {"labels": []}, {"kind": "regression"}):
    (tmp_path / FILE).write_text(json.dumps(values | change))
    with pytest.raises(DataError):
      TaskSchema.read(tmp_path)
  (tmp_path / FILE).write_text(schema.as_json()[:40])
  with pytest.raises(DataError, match="damaged"):
    TaskSchema.read(tmp_path)
