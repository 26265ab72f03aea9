"""A user's file: its columns, kind and labels are guessed, mended with a line, or refused."""

import json
import types

import numpy as np
import pytest

from configs import finetune_own
from data import vocabulary
from data.errors import ConfigError, DataError
from finetune.own import load as own_load
from finetune.own import spans, target_values
from finetune.own.load import Columns, load
from finetune.own.schema import FILE, TaskSchema
from finetune.search import examples
from tests.finetune.own.small_own import BIO, rows, schema, sentence


def _find(names, **given):
  return own_load.find("a.csv", names, **({"text": "", "text_pair": "", "label": ""} | given))


def test_columns_are_guessed_by_name_or_named():
  """Cases of columns, flags, and what is chosen: text, pair and label, or the error and a flag in it."""
  failures = []
  for names, given, *expected in (
    ("id Text label", {}, ("Text",), "label"),
    ("premise hypothesis gold_label id", {}, ("premise", "hypothesis"), "gold_label"),
    ("words outcome", {"label": "outcome"}, ("words",), "outcome"),
    ("tokens title tag", {}, ("title",), "tag"),
    ("a b c", {"text": "a", "text_pair": "c"}, ("a", "c"), "b"),
    ("text reply label", {"text": "reply"}, ("reply",), "label"),
    ("a b c", {}, DataError, "--config.data.text=NAME\n  --config.data.text_pair=NAME"),
    ("text class score", {}, DataError, "--config.data.label=NAME"),
    ("text", {}, DataError, "--config.data.label=NAME"),
    ("text one two", {}, DataError, "--config.data.label=NAME"),
    ("text label", {"label": "lable"}, ConfigError, "data.label='lable'"),
  ):
    try:
      found = _find(names.split(), **given)
      failures += [f"{names} {given}: {found}"] * ((found.text, found.label) != tuple(expected))
    except (ConfigError, DataError) as error:
      failures += [f"{names} {given}: {error}"] * (
        type(error) is not expected[0] or expected[1] not in str(error)
      )
  assert not failures, "\n".join(failures)


def test_the_kind_is_guessed_by_the_labels():
  failures = []
  for values, kind in (
    (["x", "y"], "classification"),
    (["0", "1", "1"], "classification"),
    ([0, 1], "classification"),
    (["0.5", "1"], "regression"),
    (list(map(str, range(20))), "classification"),
    (list(map(str, range(21))), "regression"),
    (list(map(str, range(25))) * 3, "classification"),
    ([*map(str, range(25)), *map(str, range(24)), *map(str, range(25))], "regression"),
    ([at + 0.5 for at in range(25)] * 6, "regression"),
    ([["x"], []], "multilabel"),
    (["['x', 'y']", '["y"]', "", "[]"], "multilabel"),
    (["['x', 'y']", "[other]"], "classification"),
    (["x", "1"], "classification"),
    ([[{"span1": [0, 1], "label": "x"}], []], "span_pairs"),
    (["[{'span1': [0, 1], 'label': 'x'}]"], "span_pairs"),
  ):
    made = rows(*({"text": "a cat", "label": value} for value in values))
    found, _ = own_load.guess_kind(made, Columns(("text",), "label", ()))
    failures += [f"{values}: {found}"] * (found != kind)
  assert not failures, "\n".join(failures)
  words = rows({"text": ["a", "cat"], "label": ["O", "O"]})
  assert own_load.guess_kind(words, Columns(("text",), "label", ()))[0] == "tagging"
  for cells, sign in ((["a|b", "c;d"], "|"), (["c;d"], ";"), (["c", "d,e"], ","), (["c", '["a", "b"]'], "|")):
    assert own_load.guess_separator(rows(*({"label": cell} for cell in cells)), "label") == sign


def test_columns_of_conll_are_guessed_by_what_is_in_them():
  given = types.SimpleNamespace(text="", label="")
  made = rows({"1": ["1", "2"], "2": ["EU", "rejects"], "3": ["B-ORG", "O"], "4": ["-", "ann"]})
  assert own_load.of_conll(made, given) == ("2", "3")
  made = rows({"1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["B-ORG", "O"]})
  assert own_load.of_conll(made, given) == ("1", "3")
  made = rows({"1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["_", "-"]})
  assert own_load.of_conll(made, given) == ("1", "2")
  made = rows({str(number): ["_"] for number in range(1, 11)} | {"1": ["1"], "2": ["EU"], "4": ["PROPN"]})
  assert own_load.of_conll(made, given) == ("2", "4")
  assert own_load.of_conll(made, types.SimpleNamespace(text="3", label="5")) == ("3", "5")


_OF_A, _OF_BOTH = [[1.0, 0.0], [True, False], "[1 0]", "[1, 0]"], [[1, 1], "[1. 1.]"]


def test_labels_are_those_of_the_file_in_the_order_they_appear():
  made = rows(*({"label": value} for value in ("b", " a", 3, "b", True)))
  assert target_values.find_labels(made, schema(labels=()), given=()) == ("b", "a", "3", "True")
  assert target_values.targets(made, schema(labels=("b", "a", "3", "True"))).tolist() == [0, 1, 2, 0, 3]
  several = rows({"label": "b|a"}, {"label": ""}, {"label": ["c", "a"]})
  unnamed = schema("multilabel", (), separator="|")
  assert target_values.find_labels(several, unnamed, given=()) == ("b", "a", "c")
  wanted = target_values.targets(several, schema("multilabel", ("b", "a", "c"), separator="|"))
  np.testing.assert_array_equal(wanted, [[1, 1, 0], [0, 0, 0], [0, 1, 1]])
  numbers = rows({"label": "1.5"}, {"label": -2})
  assert target_values.targets(numbers, schema("regression", ())).tolist() == [1.5, -2]


def test_zeros_and_ones_are_labels_in_the_order_in_which_they_are_named():
  made = rows(*({"label": value} for value in (*_OF_A, *_OF_BOTH, [0, 0])))
  named = schema("multilabel", ("a", "b"), separator="|")
  assert target_values.find_labels(made, named, given=("a", "b")) == ("a", "b")
  expected = [[1, 0]] * len(_OF_A) + [[1, 1]] * len(_OF_BOTH) + [[0, 0]]
  np.testing.assert_array_equal(target_values.targets(made, named), expected)
  for given, names in ((made, "labels=name1,name2$"), (rows({"label": [0, 1] * 50}), r"name10,\.\.\.$")):
    with pytest.raises(DataError, match=rf"a\.csv, row 1: [^$]*{names}"):
      target_values.refuse_multi_hot(given, schema("multilabel", ()))
  for lists in ([["1", "0"], ["0", "0"]], [[1, 0], [0]], [[1], [0]], [[0, 2], [1, 3]]):  # labels by name
    target_values.refuse_multi_hot(rows(*({"label": value} for value in lists)), schema("multilabel", ()))
  assert target_values.labels_of(rows({"label": [0, 1]})[0], schema("multilabel", ("0", "1"))) == ["0", "1"]
  with pytest.raises(DataError, match=r"not in data\.labels") as caught:
    target_values.find_labels(rows({"label": "x" * 10_000}), schema("classification", ()), given=["a", "b"])
  assert len(str(caught.value)) < 200


def test_lists_as_pandas_and_numpy_write_them_are_lists():
  cells = ("['food', 'price']", "['food' 'price']", '["food", "price"]', "food|price")
  made = rows(*({"label": cell} for cell in cells), {"label": "[]"})
  named = schema("multilabel", ("food", "price"), separator="|")
  np.testing.assert_array_equal(target_values.targets(made, named), [[1, 1]] * 4 + [[0, 0]])
  assert own_load.guess_separator(made[:3], "label") == "|"
  row = rows({"text": "['EU', 'rejects']", "label": "['B-ORG' 'O']"})[0]
  assert target_values.tags_of(row, schema("tagging")) == ["B-ORG", "O"]
  for words in ([], ["EU", " "], "EU", [3]):
    with pytest.raises(DataError, match="'text'"):
      target_values.words_of(rows({"text": words})[0], "text")
  edges = rows({"text": "['a', 'cat']", "label": "[{'span1': [0, 1], 'label': 'x'}]"})[0]
  assert spans.labels_of(edges, schema("span_pairs")) == ["x"]


def test_labels_that_look_alike_are_named():
  same = [["1", "1.0"], ["caf\u00e9", "cafe\u0301"], ["x", "x\u200b", "X "], ["true", "True"]]
  others = ["2", "cafe", "xy", "false", "[", "++", "+"]
  assert target_values.alike([*others, *(label for group in same for label in group)]) == same
  assert target_values.alike(others) == []


def test_the_order_of_tags_is_checked():
  """Cases of labels, tags, and the expected class numbers, or a part of the error."""
  bioes, failures = ("O", "B-X", "I-X", "E-X", "S-X"), []
  for labels, tags, expected in (
    (BIO, "B-PER I-PER O B-LOC", [1, 2, 0, 3]),
    (BIO, "O I-PER O O", "'I-PER' at word 2 follows 'O'"),
    (BIO, "B-LOC I-PER O O", "'I-PER' at word 2 follows 'B-LOC'"),
    (BIO, "O O O", "3 tags for 4 words"),
    (BIO, "O O O B-ORG", "'B-ORG'"),
    (bioes, "B-X E-X S-X O", [1, 3, 4, 0]),
    (bioes, "B-X I-X E-X B-X", "'B-X' at word 4"),
    (bioes, "B-X O O O", "'B-X' at word 1"),
    (bioes, "O E-X O O", "'E-X' at word 2"),
    (bioes, "B-X I-X E-X I-X", "'I-X' at word 4"),
    (("O", "I-PER", "I-LOC"), "I-PER I-PER O I-LOC", [1, 1, 0, 2]),  # IOB1 in which no two spans touch
  ):
    made = rows(sentence("a good film plot", tags))
    try:
      found = target_values.targets(made, schema("tagging", labels))[0].tolist()
      failures += [f"{tags}: {found}"] * (found != expected)
    except DataError as error:
      failures += [f"{tags}: {error}"] * (
        "a.csv, row 1: " not in str(error) or str(expected) not in str(error)
      )
  assert not failures, "\n".join(failures)
  assert not target_values.is_entities(["I-PER", "X"]) and not target_values.is_entities(["O"])


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
  rows = [{"text": "a", "label": 0.5}, {"text": "b", "label": "x"}]
  with pytest.raises(DataError, match="line 2: "):  # rather than that no row is held out
    read("a.jsonl", json_lines(*rows), task="regression", dev_fraction=1e-9)


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
  rows[0]["text"], rows[1]["text"] = " ".join(WORDS * 3), "half \ud83d"
  task = read("a.jsonl", json_lines(*rows), json_lines(*rows[:150]), empty="skip")
  assert (len(task.train.targets), len(task.dev.targets)) == (193, 145)
  said, first = "\n".join(task.lines), "(line 4, 34, 64, 94, 124"
  for count, shown in (("7 of 200", f"{first}, ...)"), ("5 of 150", f"{first})")):
    assert f"skipped rows with an empty text: {count} {shown}" in said
  assert "/a.jsonl: lone surrogates (halves of characters) replaced by U+FFFD: 1" in said
  whole = "texts (--config.data.long=windows reads the whole texts)"
  for count in ("193 train", "145 dev"):
    assert f"own: truncated to 24 tokens: 1 of {count} {whole}" in said


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
