"""Demonstrations in training and evaluation."""

import numpy as np
import pytest

from data.errors import DataError
from data.glue import kshot
from finetune.prompt.templates import (
  TEMPLATES,
  PromptWriter,
  TrainingFeed,
  draw,
  make_evaluation_set,
  make_pool,
)
from tests.data.conftest import SHARED
from tests.finetune.prompt.prompt_case import LETTERS, Split, make_vocabulary, pieces_of

LENGTH = 48
SHOTS = 4


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("words"), ("correct", "incorrect"))


@pytest.fixture(scope="module")
def writer(words):
  return PromptWriter(TEMPLATES["mnli"], words)


def make_split(count=3 * SHOTS, offset=0):
  """Example i has letter i as its first sentence and class i mod 3."""
  firsts = [f"{LETTERS[offset + i]}." for i in range(count)]
  return Split(firsts, ["z"] * count, np.arange(count, dtype=np.int32) % 3)


def make_feed(writer, seed=13, batch_size=4):
  pool, pad_id = make_pool(writer, make_split(), max_length=LENGTH), writer.vocabulary.special_ids.pad
  return TrainingFeed(pool, seed, batch_size=batch_size, max_length=LENGTH, pad_id=pad_id)


def evaluation(writer, split, pool, max_length=LENGTH, seed=13, num_samples=1):
  made = make_evaluation_set(writer, split, pool, seed=seed, num_samples=num_samples, max_length=max_length)
  return made.examples


def parts_of(words, ids):
  """The first letters of the query and of each demonstration, and what stands in the gaps."""
  parts = pieces_of(words, ids).replace("[CLS] ", "").split(" [SEP]")[:-1]
  return [part.split()[0] for part in parts], [part.split()[2] for part in parts]


def test_a_query_is_followed_by_one_solved_example_per_class_in_class_order(words, writer):
  split = Split(["a.", "c.", "e."] * 2, ["B.", "D.", "F."] * 2, np.tile(np.arange(3, dtype=np.int32), 2))
  made = evaluation(writer, Split(["x y."], ["Z."], None), make_pool(writer, split, max_length=LENGTH))
  expected = "[CLS] x y ? [MASK] , z . [SEP] a ? no , b . [SEP] c ? yes , d . [SEP] e ? maybe , f . [SEP]"
  assert pieces_of(words, made.ids[0]) == expected
  assert made.ids[0].dtype == np.int32 and made.fields["mask_position"].tolist() == [4]
  writer = PromptWriter(TEMPLATES["sst2"], words)  # single sentences
  pool = make_pool(writer, Split(["a", "b"] * 2, None, np.array([0, 1, 0, 1])), max_length=LENGTH)
  made = evaluation(writer, Split(["c"], None, None), pool)
  expected = "[CLS] c it was [MASK] . [SEP] a it was terrible . [SEP] b it was great . [SEP]"
  assert pieces_of(words, made.ids[0]) == expected


def test_a_query_is_never_its_own_demonstration_and_every_other_example_is(words, writer):
  pool = make_pool(writer, make_split(), max_length=LENGTH)
  generator = np.random.default_rng(0)
  for query in range(3 * SHOTS):
    drawn = np.array([draw(pool, generator, query) for _ in range(100)])
    for number in range(3):
      assert set(drawn[:, number]) == {i for i in range(3 * SHOTS) if i % 3 == number and i != query}
  feed = make_feed(writer)
  for step in range(30):
    batch = feed(step)
    for row, ids in enumerate(batch["ids"]):
      (query, *shown), gaps = parts_of(words, ids)
      assert query not in shown and gaps == ["[MASK]", "no", "yes", "maybe"]
      assert [LETTERS.index(letter) % 3 for letter in shown] == [0, 1, 2]
      assert ids[batch["mask_position"][row]] == words.special_ids.mask
      assert LETTERS.index(query) % 3 == batch["labels"][row]
  assert {name: array.shape for name, array in batch.items()} == {
    "ids": (4, LENGTH), "weights": (4,), "labels": (4,), "mask_position": (4,),
  }  # fmt: skip


def test_batches_depend_on_seed_and_step_alone_and_are_new_at_every_step(words, writer):
  feed, other = make_feed(writer), make_feed(writer, seed=21)
  forward, backward = ([feed(step) for step in steps] for steps in (range(6), reversed(range(6))))
  for step, (one, again) in enumerate(zip(forward, backward[::-1])):
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["ids"], other(step)["ids"])
  shown = [parts_of(words, feed(step)["ids"][0])[0] for step in range(30)]
  # At one place of the batch; where the query is of the class, its own exclusion would change the draw.
  of_class_0 = {first for query, first, *_ in shown if LETTERS.index(query) % 3 != 0}
  assert len(of_class_0) == SHOTS


def test_an_epoch_takes_every_example_once(words, writer):
  feed = make_feed(writer, batch_size=5)  # 5 + 5 + 2
  for epoch in range(2):
    batches = [feed(3 * epoch + step) for step in range(3)]
    queries = [
      parts_of(words, ids)[0][0]
      for batch in batches
      for ids, weight in zip(batch["ids"], batch["weights"])
      if weight
    ]
    assert sorted(queries) == LETTERS[: 3 * SHOTS]


def test_evaluation_samples_demonstrations_for_every_example_fixed_by_the_seed(words, writer):
  pool, split = make_pool(writer, make_split(), max_length=LENGTH), make_split(6, offset=13)
  made, again, other = (evaluation(writer, split, pool, seed=seed, num_samples=4) for seed in (13, 13, 21))
  assert all(np.array_equal(a, b) for a, b in zip(made.ids, again.ids))
  assert not all(np.array_equal(a, b) for a, b in zip(made.ids, other.ids))
  assert made.fields["labels"].tolist() == [0, 1, 2, 0, 1, 2] * 4
  shown = [parts_of(words, ids)[0] for ids in made.ids]
  assert [query for query, *_ in shown] == LETTERS[13:19] * 4
  assert all(len({tuple(shown[row + 6 * sample]) for sample in range(4)}) > 1 for row in range(6))
  assert len({tuple(parts[1:]) for parts in shown[:6]}) > 1


def test_the_end_of_demonstrations_is_cut_and_never_the_gap_of_a_query(words, writer):
  pool = make_pool(writer, make_split(), max_length=20)
  made = evaluation(writer, make_split(3, offset=13), pool, max_length=20, num_samples=2)
  assert [len(ids) for ids in made.ids] == [20] * 6  # of 7, and 6 for each demonstration
  assert pieces_of(words, made.ids[0]).startswith("[CLS] n ? [MASK] , z [SEP]")
  pool = make_pool(writer, make_split(), max_length=12)
  query = Split([" ".join("abcdefghijkl") + "."], ["m n o"], np.array([1]))
  made = evaluation(writer, query, pool, max_length=12)
  assert pieces_of(words, made.ids[0]) == "[CLS] a b c d ? [MASK] , m n o [SEP]"
  assert made.fields["mask_position"][0] == 6
  long = make_pool(writer, Split(query.first * 6, query.second * 6, np.arange(6) % 3), max_length=12)
  assert pieces_of(words, long.demonstrations[1]) == "a b c d ? yes , m n o [SEP]"  # 11 and [CLS]


def test_scores_up_to_the_middle_demonstrate_the_low_word(words):
  writer = PromptWriter(TEMPLATES["stsb"], words)
  labels = np.array([0.0, 2.5, 2.6, 5.0], np.float32)
  pool = make_pool(writer, Split(["a", "b", "c", "d"], ["e"] * 4, labels), max_length=LENGTH)
  assert [rows.tolist() for rows in pool.members] == [[0, 1], [2, 3]]
  assert pool.labels.dtype == np.float32 and pool.labels.tolist() == pytest.approx(labels.tolist())
  assert pieces_of(words, pool.demonstrations[2]) == "c yes , e [SEP]"


def test_sets_that_cannot_demonstrate_are_refused(writer):
  for split, message in (
    (Split(["a."] * 5, ["b"] * 5, np.array([0, 0, 1, 2, 2])), "1 example of class 1"),
    (Split(["a."] * 2, ["b"] * 2, None), "no labels"),
    (Split(["a."] * 3, ["b"] * 3, np.array([0, 3, 1])), "label 3 of example 1, expected 0 to 2"),
    (Split(["a."] * 3, ["b"] * 3, np.array([0, 1, -1])), "label -1 of example 2"),
    (Split(["a."] * 2, None, np.array([0, 1])), "2 examples of 1 sentence each"),
    (Split([], [], np.array([])), "0 examples"),
  ):
    with pytest.raises(DataError, match=f"kshot/train.tsv: {message}"):
      make_pool(writer, split, max_length=LENGTH)


def test_published_draws_become_prompts(words):
  directory = SHARED / "datasets" / "kshot_lmbff"
  if not directory.is_dir():
    pytest.skip(f"needs LM-BFF's draws in {directory}")
  for task, template in TEMPLATES.items():
    writer = PromptWriter(template, words)
    train, dev = kshot.read(directory, task, seed=13)
    pool = make_pool(writer, train, max_length=template.max_length)
    assert len(pool.members) == len(template.words) and all(len(rows) > 1 for rows in pool.members), task
    made = evaluation(writer, dev, pool, max_length=template.max_length)
    gaps = [int(ids[at]) for ids, at in zip(made.ids, made.fields["mask_position"])]
    assert set(gaps) == {words.special_ids.mask} and len(gaps) == len(dev), task
