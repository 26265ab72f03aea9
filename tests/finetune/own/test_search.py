"""Every field of one's own task reaches what it is there for; nothing is trained, losses are made by hand."""

import types

import numpy as np
import pytest

from configs import finetune_own
from data.rows import Row
from finetune.own import search
from finetune.own.schema import TaskSchema
from finetune.own.search import Own, read_often
from finetune.papers import protocols
from finetune.search import examples
from finetune.search.session import Session
from pretrain.stop import StopRequest


@pytest.fixture
def own(small_encoder_run, tmp_path):
  """Makes the task of a file with this content; double underscores in names of fields are dots."""

  def make(content, **fields) -> Own:
    for name in ("train.csv", "dev.csv"):
      (tmp_path / name).write_text(content)
    config = finetune_own.get_config()
    given = {"checkpoint": str(small_encoder_run), "data__train_file": str(tmp_path / "train.csv")}
    given |= {"data__dev_file": str(tmp_path / "dev.csv")} | fields
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in given.items()})
    return Own(Session(config, str(tmp_path / "out"), stop=StopRequest()), download=False)

  return make


# Three rows of x, one of y: balanced, a row of x counts 4 / (2 * 3), one of y 4 / (2 * 1).
CLASSES = "text,label\na good film,x\na bad film,x\nthe cat sat,x\nthe mat,y\n"
LOG_X, LOG_Y = np.log([0.25, 0.75])


def test_the_loss_of_classes_is_smoothed_and_weighted_as_asked(own):
  smoothed, weighted = {"own__label_smoothing": 0.2}, {"own__class_weights": "balanced"}
  of_x, of_y = -0.9 * LOG_X - 0.1 * LOG_Y, -0.1 * LOG_X - 0.9 * LOG_Y
  logits, weights = np.asarray([[LOG_X, LOG_Y, -1e9]], np.float32), np.ones(1, np.float32)
  for fields, expected in (
    ({}, (-LOG_X, -LOG_Y)),
    (smoothed, (of_x, of_y)),
    (weighted, (-2 / 3 * LOG_X, -2 * LOG_Y)),
    (weighted | smoothed, (2 / 3 * of_x, 2 * of_y)),
    (weighted | {"data__labels": "x,y,z"}, (-2 / 3 * LOG_X, -2 * LOG_Y)),  # no row has z
  ):
    (plan,) = own(CLASSES, **fields).plans
    given = logits[:, : 3 if "data__labels" in fields else 2]
    losses = [plan.problem.loss(given, {"labels": np.asarray([at]), "weights": weights})[0] for at in (0, 1)]
    assert list(map(float, losses)) == pytest.approx(expected, rel=1e-5), fields


# Two rows have both labels, three have b alone, and none is without b.
SEVERAL = "text,label\na good film,a|b\na bad film,a|b\nthe cat sat,b\nthe mat,b\nthe film,b\n"


def test_the_loss_of_several_labels_is_smoothed_and_weighted_as_asked(own):
  fields = {"own__task": "multilabel", "own__class_weights": "balanced", "own__label_smoothing": 0.2}
  (plan,) = own(SEVERAL, **fields).plans
  batch = {"labels": np.asarray([[1, 0]], np.float32), "weights": np.ones(1, np.float32)}
  chance = np.asarray([0.25, 0.75])  # of a, which 3 rows are without and 2 with: 1.5; of b, which counts 1
  logits = np.asarray([np.log(chance / (1 - chance))], np.float32)
  by_label = [1.5, 1] * (np.asarray([-0.9, -0.1]) * np.log(chance) - [0.1, 0.9] * np.log(1 - chance))
  assert float(plan.problem.loss(logits, batch)[0]) == pytest.approx(by_label.mean(), rel=1e-5)


def test_a_tagger_learns_from_the_first_piece_of_every_word_alone():
  schema = TaskSchema("tagging", ("text",), "label", ("O", "B-X"), "cls", 8)
  targets = [np.zeros(2, np.int64), np.zeros(4, np.int64)]  # three words on average
  problem = search.make(schema, None, None, pad_id=0, targets=targets, balanced=False, smoothing=0.0)
  batch = {
    "ids": np.asarray([[2, 7, 8, 9, 3, 0]] * 2),  # [CLS], a word of two pieces, one of one, [SEP]
    "word": np.asarray([[0, 1, 0, 2, 0, 0]] * 2),
    "labels": np.asarray([[0, 1, 0, 0, 0, 0]] * 2),
    "weights": np.asarray([1.0, 0.0], np.float32),
  }
  logits = np.random.default_rng(0).standard_normal((2, 6, 2)).astype(np.float32)
  log_chances = logits[0] - np.log(np.exp(logits[0]).sum(-1, keepdims=True))
  expected = -(log_chances[1, 1] + log_chances[3, 0]) / 3
  loss, metrics = problem.loss(logits, batch)
  assert float(loss) == pytest.approx(expected, rel=1e-5) and float(metrics["task_loss"][1]) == 2


def test_seeds_begin_with_the_one_that_is_asked_for(own):
  session = own(CLASSES, seed=3, search__num_seeds=2, search__num_test_seeds=4).session
  assert session.seeds == [3, 4] and session.test_seeds == [3, 4, 5, 6]


def test_answers_and_the_saved_head_are_on_the_scale_of_the_file(own):
  task = own("text,label\na good film,1\na bad film,3\nthe cat sat,8\n", own__task="regression")
  mean, deviation = np.mean([1, 3, 8]), np.std([1, 3, 8])
  ones = lambda batch: np.ones((len(batch["ids"]), 1), np.float32)  # noqa: E731
  np.testing.assert_allclose(task.dev_outputs(ones), np.full((3, 1), mean + deviation))
  saved = []
  of_search = types.SimpleNamespace(
    choose=lambda records: types.SimpleNamespace(cell=None, seed=0),
    save_model=lambda chosen, about, **more: saved.append(more),
    trained=lambda cell, seed: types.SimpleNamespace(outputs_of=ones),
  )
  task.finish(of_search, [])
  assert (saved[0]["output_scale"], saved[0]["output_shift"]) == pytest.approx((deviation, mean))


def test_every_field_of_the_columns_reaches_what_it_is_for(own):
  header, rows = "text,label,p,q,r", [f"t {row},z,good {row},bad {row},u+v" for row in range(40)]
  fields = {"text": "p", "text_pair": "q", "label": "r", "labels": "w,v,u", "separator": "+"}
  fields |= {"long": "windows", "dev_fraction": 0.5, "dev_file": ""}
  changed = {f"data__{name}": value for name, value in fields.items()}
  task = own("\n".join([header, *rows]) + "\n", **changed, own__task="multilabel", own__pooling="max").task
  schema = task.schema
  assert (schema.kind, schema.pooling, schema.long) == ("multilabel", "max", "windows")
  assert (schema.text, schema.label, schema.labels) == (("p", "q"), "r", ("w", "v", "u"))
  assert (schema.separator, task.train.targets[0].tolist()) == ("+", [0, 1, 1])
  assert 10 < len(task.dev.targets) < 30  # half of them, chosen by their texts


def test_a_label_that_no_row_has_makes_another_search(own):
  three, two = (own(CLASSES, data__labels=labels).plans[0].fingerprint for labels in ("x,y,z", "x,y"))
  assert three != two and "labels" not in two


def test_a_data_set_is_looked_for_in_the_folder_and_the_module_that_are_named(own, monkeypatch):
  asked = []

  def read(name, split, **options):
    asked.append((name, split, options))
    return [Row({"text": "a film", "label": label}, 1, name) for label in "xy"]

  stand_in = types.SimpleNamespace(
    kind_of=lambda name: name.startswith("seqio:"), read=read, digest=lambda rows: "digest"
  )
  monkeypatch.setattr(examples, "datasets", stand_in)
  fields = {"train_file": "seqio:mine", "dev_file": "seqio:other", "module": "tasks.py", "directory": "here"}
  own("", **{f"data__{name}": value for name, value in fields.items()})
  options = {"directory": "here", "module": "tasks.py", "download": False}
  assert asked == [("seqio:mine", "train", options), ("seqio:other", "validation", options)]


def test_a_small_file_is_read_more_often_and_wider_encoders_take_smaller_rates():
  cell = protocols.one(384)
  for steps_per_epoch, epochs in ((1_000, 5), (60, 5), (59, 6), (30, 10), (4, 30)):
    assert read_often(cell, steps_per_epoch) == cell._replace(epochs=epochs)
  rates = [protocols.one(width).learning_rate for width in (128, 256, 384, 768, 1024)]
  assert rates == sorted(rates, reverse=True) and len(set(rates)) == 5
