"""Demonstrations in training and evaluation."""

import numpy as np
import pytest

from data.errors import DataError
from data.glue import kshot
from finetune.prompt.demonstrations import TrainingFeed, draw, make_evaluation_set, make_pool
from finetune.prompt.templates import TEMPLATES, PromptWriter
from tests.data.conftest import SHARED
from tests.finetune.prompt.prompt_case import LETTERS, Split, make_vocabulary, pieces_of

LENGTH = 48
SHOTS = 4


@pytest.fixture
def words(tmp_path):
  return make_vocabulary(tmp_path)


@pytest.fixture
def writer(words):
  return PromptWriter(TEMPLATES["mnli"], words)


def make_split(count=3 * SHOTS, offset=0):
  """Example i has letter i as its first sentence and class i mod 3."""
  firsts = [f"{LETTERS[offset + i]}." for i in range(count)]
  return Split(firsts, ["z"] * count, np.arange(count, dtype=np.int32) % 3)


def make_feed(writer, seeds=(13,), batch_size=4, max_length=LENGTH):
  pools = {seed: make_pool(writer, make_split(), max_length=max_length) for seed in seeds}
  pad_id = writer.vocabulary.special_ids.pad
  return TrainingFeed(pools, seeds, batch_size=batch_size, max_length=max_length, pad_id=pad_id)


def parts_of(words, ids):
  """The first letters of the query and of each demonstration, and what stands in the gaps."""
  parts = pieces_of(words, ids).replace("[CLS] ", "").split(" [SEP]")[:-1]
  return [part.split()[0] for part in parts], [part.split()[2] for part in parts]


def test_a_query_is_followed_by_one_solved_example_per_class_in_class_order(words, writer):
  split = Split(["a.", "c.", "e."] * 2, ["B.", "D.", "F."] * 2, np.tile(np.arange(3, dtype=np.int32), 2))
  pool = make_pool(writer, split, max_length=LENGTH)
  query = Split(["x y."], ["Z."], None)
  made = make_evaluation_set(writer, query, pool, seed=13, num_samples=1, max_length=LENGTH).examples
  expected = "[CLS] x y ? [MASK] , z . [SEP] a ? no , b . [SEP] c ? yes , d . [SEP] e ? maybe , f . [SEP]"
  assert pieces_of(words, made.ids[0]) == expected
  assert made.ids[0].dtype == np.int32 and made.fields["mask_position"].tolist() == [4]


def test_single_sentences_have_demonstrations_too(words):
  writer = PromptWriter(TEMPLATES["sst2"], words)
  pool = make_pool(writer, Split(["a", "b"] * 2, None, np.array([0, 1, 0, 1])), max_length=LENGTH)
  made = make_evaluation_set(
    writer, Split(["c"], None, None), pool, seed=0, num_samples=1, max_length=LENGTH
  ).examples
  expected = "[CLS] c it was [MASK] . [SEP] a it was terrible . [SEP] b it was great . [SEP]"
  assert pieces_of(words, made.ids[0]) == expected


def test_a_query_is_never_its_own_demonstration_and_every_other_example_is(writer):
  pool = make_pool(writer, make_split(), max_length=LENGTH)
  generator = np.random.default_rng(0)
  for query in range(3 * SHOTS):
    drawn = np.array([draw(pool, generator, query) for _ in range(100)])
    for number in range(3):
      assert set(drawn[:, number]) == {i for i in range(3 * SHOTS) if i % 3 == number and i != query}


def test_no_batch_shows_a_query_its_own_label(words, writer):
  feed = make_feed(writer)
  for step in range(30):
    for ids in feed(step)["ids"][0]:
      (query, *shown), gaps = parts_of(words, ids)
      assert query not in shown and gaps == ["[MASK]", "no", "yes", "maybe"]
      assert [LETTERS.index(letter) % 3 for letter in shown] == [0, 1, 2]


def test_a_batch_has_the_labels_and_gaps_of_its_queries(words, writer):
  batch = make_feed(writer)(0)
  assert {name: array.shape for name, array in batch.items()} == {
    "ids": (1, 4, LENGTH),
    "weights": (1, 4),
    "labels": (1, 4),
    "mask_position": (1, 4),
  }
  for ids, label, position in zip(batch["ids"][0], batch["labels"][0], batch["mask_position"][0]):
    assert ids[position] == words.special_ids.mask
    assert LETTERS.index(parts_of(words, ids)[0][0]) % 3 == label


def test_batches_are_the_same_when_asked_again_and_new_at_every_step(words, writer):
  feed, again = make_feed(writer), make_feed(writer)
  forward = [feed(step)["ids"] for step in range(6)]
  backward = [again(step)["ids"] for step in reversed(range(6))][::-1]
  assert all(np.array_equal(a, b) for a, b in zip(forward, backward))
  shown = [parts_of(words, feed(step)["ids"][0, 0])[0] for step in range(30)]
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
      for ids, weight in zip(batch["ids"][0], batch["weights"][0])
      if weight
    ]
    assert sorted(queries) == LETTERS[: 3 * SHOTS]


def test_runs_of_one_seed_share_their_batches_and_seeds_differ_alone_as_together(writer):
  batch = make_feed(writer, seeds=(13, 21, 13))(2)
  assert np.array_equal(batch["ids"][0], batch["ids"][2])
  assert not np.array_equal(batch["ids"][0], batch["ids"][1])
  alone = make_feed(writer, seeds=(21,))(2)
  assert all(np.array_equal(batch[name][1], alone[name][0]) for name in batch)


def test_evaluation_samples_demonstrations_for_every_example_fixed_by_the_seed(words, writer):
  pool = make_pool(writer, make_split(), max_length=LENGTH)

  def make(seed):
    return make_evaluation_set(
      writer, make_split(6, offset=13), pool, seed=seed, num_samples=4, max_length=LENGTH
    ).examples

  made, again, other = make(13), make(13), make(21)
  assert all(np.array_equal(a, b) for a, b in zip(made.ids, again.ids))
  assert not all(np.array_equal(a, b) for a, b in zip(made.ids, other.ids))
  assert made.fields["labels"].tolist() == [0, 1, 2, 0, 1, 2] * 4
  shown = [parts_of(words, ids)[0] for ids in made.ids]
  assert [query for query, *_ in shown] == LETTERS[13:19] * 4
  assert all(len({tuple(shown[row + 6 * sample]) for sample in range(4)}) > 1 for row in range(6))
  assert len({tuple(parts[1:]) for parts in shown[:6]}) > 1


def test_the_end_of_demonstrations_is_cut(words, writer):
  whole = "[CLS] n ? [MASK] , z [SEP]"  # 7, and 6 for each demonstration
  pool = make_pool(writer, make_split(), max_length=20)
  made = make_evaluation_set(writer, make_split(3, offset=13), pool, seed=0, num_samples=2, max_length=20)
  assert all(len(ids) == 20 for ids in made.examples.ids)
  assert pieces_of(words, made.examples.ids[0]).startswith(whole)


def test_a_query_longer_than_the_length_keeps_its_gap(words, writer):
  pool = make_pool(writer, make_split(), max_length=12)
  query = Split([" ".join("abcdefghijkl") + "."], ["m n o"], np.array([1]))
  made = make_evaluation_set(writer, query, pool, seed=0, num_samples=1, max_length=12).examples
  assert pieces_of(words, made.ids[0]) == "[CLS] a b c d ? [MASK] , m n o [SEP]"
  assert made.fields["mask_position"][0] == 6


def test_scores_up_to_the_middle_demonstrate_the_low_word(words):
  writer = PromptWriter(TEMPLATES["stsb"], words)
  labels = np.array([0.0, 2.5, 2.6, 5.0], np.float32)
  pool = make_pool(writer, Split(["a", "b", "c", "d"], ["e"] * 4, labels), max_length=LENGTH)
  assert [rows.tolist() for rows in pool.members] == [[0, 1], [2, 3]]
  assert pool.labels.dtype == np.float32 and pool.labels.tolist() == pytest.approx(labels.tolist())
  assert pieces_of(words, pool.demonstrations[2]) == "c yes , e [SEP]"


@pytest.mark.parametrize(
  ("split", "message"),
  [
    (Split(["a."] * 5, ["b"] * 5, np.array([0, 0, 1, 2, 2])), "1 example of class 1, expected 2 or more"),
    (Split(["a."] * 2, ["b"] * 2, None), "no labels, but demonstrations"),
    (Split(["a."] * 3, ["b"] * 3, np.array([0, 3, 1])), "label 3 of example 1, expected 0 to 2"),
    (Split(["a."] * 2, None, np.array([0, 1])), "2 examples of 1 sentence each, expected .* of 2;"),
    (Split([], [], np.array([])), "0 examples"),
  ],
)
def test_sets_that_cannot_demonstrate_are_refused(writer, split, message):
  with pytest.raises(DataError, match=f"kshot/train.tsv: {message}"):
    make_pool(writer, split, max_length=LENGTH)


@pytest.mark.parametrize("task", TEMPLATES)
def test_published_draws_become_prompts(tmp_path, task):
  directory = SHARED / "datasets" / "kshot_lmbff"
  if not directory.is_dir():
    pytest.skip(f"needs LM-BFF's draws in {directory}")
  template = TEMPLATES[task]
  writer = PromptWriter(template, make_vocabulary(tmp_path, ("correct", "incorrect")))
  train, dev = kshot.read(directory, task, seed=13)
  options = {"max_length": template.max_length}
  pool = make_pool(writer, train, **options)
  assert len(pool.members) == len(template.words) and all(len(rows) > 1 for rows in pool.members)
  made = make_evaluation_set(writer, dev, pool, seed=13, num_samples=1, **options).examples
  gaps = [int(ids[at]) for ids, at in zip(made.ids, made.fields["mask_position"])]
  assert set(gaps) == {writer.vocabulary.special_ids.mask} and len(gaps) == len(dev)
