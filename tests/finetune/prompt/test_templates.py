"""LM-BFF's templates, label words and demonstrations."""

import numpy as np
import pytest

from data.errors import ConfigError, DataError
from data.glue import kshot
from data.glue.tasks import TASKS
from data.vocabulary import train as vocabulary_train
from finetune import validate
from finetune.prompt import templates as prompt_templates
from finetune.prompt.templates import (
  TEMPLATES,
  PromptWriter,
  TrainingFeed,
  draw,
  make_evaluation_set,
  make_pool,
)
from tests import byte_level
from tests.data.conftest import SHARED
from tests.finetune.prompt.prompt_case import LETTERS, Split, make_vocabulary, pieces_of


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("words"), ("correct", "incorrect"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
  """Has '▁?' and '?', '▁,' and ',', and the words of inference as pieces."""
  text = [
    "yes yes, no no, maybe maybe, the dog the cat",
    "yes ? no ? maybe ? dog? cat? what ? is it?",
    "the dog , the cat , dog, cat,",
  ]
  directory = tmp_path_factory.mktemp("vocabulary") / "small"
  made = vocabulary_train.train(text * 50, directory, kind="sentencepiece", cased=False, size=58)
  assert made.encode("?") != made.encode("dog?")[1:]  # otherwise the tests say nothing
  return made


def written(words, task, sentences, **options):
  """The pieces of a prompt, and the piece at its gap."""
  prompt = PromptWriter(TEMPLATES[task], words).write(sentences, **options)
  return pieces_of(words, prompt.ids), words.piece(int(prompt.ids[prompt.position]))


def test_templates_are_those_of_the_paper(words):
  """Inference asks after the first sentence without its last character."""
  expected = {
    "mnli": (("a b.", "C d."), "a b ? [MASK] , c d . [SEP]"),
    "snli": (("a b.", "c"), "a b ? [MASK] , c [SEP]"),
    "sst2": (("a b .",), "a b . it was [MASK] . [SEP]"),
    "cola": (("a b.",), "a b . this is [MASK] . [SEP]"),
    "mrpc": (("a b.", "C"), "a b . [MASK] , c [SEP]"),
    "qqp": (("a?", "B?"), "a ? [MASK] , b ? [SEP]"),
    "stsb": (("a.", "B."), "a . [MASK] , b . [SEP]"),
    "qnli": (("a b?", "C d."), "a b ? [MASK] , c d . [SEP]"),
    "rte": (("a.", "B."), "a ? [MASK] , b . [SEP]"),
  }
  found = {task: (given, written(words, task, given)[0]) for task, (given, _) in expected.items()}
  assert found == expected and set(TEMPLATES) == set(expected) == set(validate.PROMPT_TASKS)
  word_id = PromptWriter(TEMPLATES["mnli"], words).word_ids[1]  # of a demonstration
  assert written(words, "mnli", ("a b.", "C d."), word_id=word_id) == ("a b ? yes , c d . [SEP]", "yes")
  sizes = {task: (template.max_length, template.num_samples) for task, template in TEMPLATES.items()}
  assert sizes == dict.fromkeys(TEMPLATES, (128, 16)) | {
    "mnli": (256, 4), "snli": (256, 4), "qqp": (128, 4), "rte": (256, 16),
  }  # fmt: skip
  assert [task for task, template in TEMPLATES.items() if template.is_regression] == ["stsb"]


def test_the_second_sentence_goes_on_in_lower_case_and_no_more_than_its_first_letter(tmp_path):
  words = make_vocabulary(tmp_path, ("A", "B", "No", "Yes", "Maybe"), cased=True)
  assert written(words, "mnli", ("A B.", "A B"))[0] == "A B ? [MASK] , a B [SEP]"


def test_what_stands_behind_a_word_has_the_pieces_of_running_text(sentencepiece):
  found, at_gap = written(sentencepiece, "mnli", ("the dog.", "The cat"))
  gap = sentencepiece.special_ids.mask
  assert at_gap == "[MASK]"
  running = sentencepiece.encode("the dog? yes, the cat")
  yes = PromptWriter(TEMPLATES["mnli"], sentencepiece).word_ids[1]
  assert yes in running
  replaced = [gap if i == yes else i for i in running]
  assert found == pieces_of(sentencepiece, [*replaced, sentencepiece.special_ids.sep])


def test_a_byte_level_vocabulary_gets_the_ids_of_running_text(tmp_path):
  text = ["Yes No Maybe yes no maybe", "the people make? Yes, the time is. It was great terrible"] * 50
  made = byte_level.imported(tmp_path, byte_level.tokenizer(text=text))
  writer = PromptWriter(TEMPLATES["mnli"], made)
  assert [made.piece(i) for i in writer.word_ids] == ["ĠNo", "ĠYes", "ĠMaybe"]
  prompt = writer.write(("The people.", "The time is."), word_id=writer.word_ids[1])
  assert prompt.ids.tolist() == [*made.encode("The people? Yes, the time is."), made.special_ids.sep]
  writer = PromptWriter(TEMPLATES["sst2"], made)
  prompt = writer.write(("The people.",), word_id=writer.word_ids[1])
  assert prompt.ids.tolist() == [*made.encode("The people. It was great."), made.special_ids.sep]


def test_what_is_too_long_is_cut_from_the_sentences_and_never_the_gap(words):
  writer = PromptWriter(TEMPLATES["mnli"], words)
  for room in range(4, 16):
    prompt = writer.write(("a b c d e f.", "g h i j"), room=room)
    found = pieces_of(words, prompt.ids).split()
    assert len(found) == min(room, 14)
    assert found[prompt.position - 1 : prompt.position + 2] == ["?", "[MASK]", ","] and found[-1] == "[SEP]"
    kept = "".join(found[: prompt.position - 1]), "".join(found[prompt.position + 2 : -1])
    assert "abcdef".startswith(kept[0]) and "ghij".startswith(kept[1])
    assert room >= 14 or abs(len(kept[0]) - len(kept[1])) <= 1 or kept[1] == "ghij"
  with pytest.raises(ConfigError, match=r"3 tokens .* alone has 4;.*\n  --config.prompt.max_length=128"):
    writer.write(("a.", "b"), room=3)


def test_words_stand_for_the_labels_that_the_data_side_reads_as_these_classes(words, sentencepiece):
  inference = {"contradiction": "No", "entailment": "Yes", "neutral": "Maybe"}
  entailment, same = {"entailment": "Yes", "not_entailment": "No"}, {"0": "No", "1": "Yes"}
  expected = {"mnli": inference, "snli": inference, "qnli": entailment, "rte": entailment}
  expected |= {"mrpc": same, "qqp": same, "stsb": {}}
  expected |= {"sst2": {"0": "terrible", "1": "great"}, "cola": {"0": "incorrect", "1": "correct"}}
  assert {task: dict(zip(TASKS[task].labels, TEMPLATES[task].words)) for task in TEMPLATES} == expected
  assert TEMPLATES["stsb"].words == ("No", "Yes")
  for task, template in TEMPLATES.items():
    found = pieces_of(words, PromptWriter(template, words).word_ids)
    assert found == " ".join(template.words).lower(), task
  ids = prompt_templates.check_words(sentencepiece, ("No", "Yes", "Maybe"))
  assert pieces_of(sentencepiece, ids) == "▁no ▁yes ▁maybe"


def test_label_words_are_different_pieces_of_the_vocabulary_one_per_class(words):
  for given, phrase in (
    (("no", "unsure"), r"'unsure' .* is un ##sure; .*\n  --config\.prompt\.words="),
    (("中", "no"), r"'中' .* is \[UNK\]"),
    (("No", "no"), "'No' and 'no' are the same piece no"),
  ):
    with pytest.raises(ConfigError, match=phrase):
      prompt_templates.check_words(words, given)
  template = TEMPLATES["mnli"]
  assert prompt_templates.choose_words(template) == ("No", "Yes", "Maybe")
  assert prompt_templates.choose_words(template, "a, b ,c") == ("a", "b", "c")
  for given in ("a,b", "a,,c"):
    with pytest.raises(ConfigError, match=r"2 words, expected 3.*\n.*=No,Yes,Maybe"):
      prompt_templates.choose_words(template, given)


LENGTH = 48
SHOTS = 4


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
  """Returns the first letters of the query and of each demonstration, and the words that fill their gaps."""
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
