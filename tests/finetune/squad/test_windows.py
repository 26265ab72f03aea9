"""SQuAD's files as windows of tokens, the problem's outputs and loss, and scores through any model."""

import dataclasses
import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data import squad as squad_data
from data import vocabulary
from data.errors import ConfigError, DataError
from data.squad import Answer, Question
from data.vocabulary import train as vocabulary_train
from finetune.search.examples import Examples, pad
from finetune.squad import search as squad
from finetune.squad import windows as squad_features
from finetune.squad.search import make_problem
from finetune.squad.windows import Document, Window, max_context
from pretrain.models import encoder
from pretrain.models.layers import EncoderConfig
from tests import byte_level
from tests.finetune.squad import squad_case
from tests.finetune.squad.squad_case import contexts, make_vocabulary, write

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # such a vocabulary puts two separators
PIECES = (*"abcdefghijklmnop?().-", "who", "ann", "met", "bob", "1895", "1943", "##by", "'", "s", "9", "##9")


def unanswerable(context, question="who ?", *, name="q"):
  return Question(name, "", context, question, (), True)


def answerable(context, text, *, start=None, name="q", question="who ?"):
  start = context.index(text) if start is None else start
  return Question(name, "", context, question, (Answer(text, start, True),), False)


def words_of(directory, special):
  directory.mkdir()
  (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in (*special, *PIECES)))
  return vocabulary.write_description(directory, kind="wordpiece", cased=False)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  return words_of(tmp_path_factory.mktemp("words") / "bert", BERT)


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory):
  return words_of(tmp_path_factory.mktemp("words") / "fairseq", FAIRSEQ)


def build(questions, vocabulary, *, training, **settings):
  return squad_features.build(questions, vocabulary, squad_case.settings(**settings), training=training)


def texts(features, vocabulary):
  return [" ".join(vocabulary.piece(int(i)) for i in ids) for ids in features.examples.ids]


def targets(features):
  fields = features.examples.fields
  return list(zip(fields["start"].tolist(), fields["end"].tolist()))


def test_windows_are_question_separators_and_parts_of_the_document(fairseq, bert):
  made = build([answerable("ann met bob", "met bob")], fairseq, training=True)
  assert texts(made, fairseq) == ["<s> who ? </s> </s> ann met bob </s>"] and targets(made) == [(6, 7)]
  assert np.flatnonzero(made.examples.token_fields["allowed"][0]).tolist() == [0, 5, 6, 7]
  assert made.examples.ids[0].dtype == made.examples.fields["start"].dtype == np.int32
  # [CLS] who [SEP] and the last [SEP] leave 5 of 9 tokens: a-e, d-h, g-j.
  question = answerable("a b c d e f g h i j", "d e", question="who")
  made = build([question], bert, training=True, max_length=9, stride=3, max_query_length=1)
  parts = ("a b c d e", "d e f g h", "g h i j")
  assert texts(made, bert) == [f"[CLS] who [SEP] {part} [SEP]" for part in parts]
  assert targets(made) == [(6, 7), (3, 4), (0, 0)]
  assert [window[:4] for window in made.windows] == [(0, 0, 5, 3), (0, 3, 5, 3), (0, 6, 4, 3)]


def test_a_window_is_as_long_as_asked_for_and_no_token_is_left_out(bert, fairseq):
  settings = {"training": True, "max_length": 9, "stride": 3, "max_query_length": 1}
  assert len(build([unanswerable("a b c d e", "who")], bert, **settings).windows) == 1
  assert len(build([unanswerable("a b c d e f", "who")], bert, **settings).windows) == 2
  # A stride beyond the room.
  made = build([unanswerable("a b c d e f g", "who")], bert, training=False, max_length=6, max_query_length=1)
  assert [(window.first, window.count) for window in made.windows] == [(0, 2), (2, 2), (4, 2), (6, 1)]
  question = unanswerable("a " * 1000)
  ours = build([question], fairseq, training=False, max_length=384)
  assert max(map(len, ours.examples.ids)) == 384
  official = build([question], fairseq, training=False, max_length=385)  # the official code's room
  assert official.windows[0].count == 384 - 2 - 3
  long = build([unanswerable("bob", question="a " * 100)], bert, training=False, max_query_length=3)
  assert texts(long, bert) == ["[CLS] a a a [SEP] bob [SEP]"]


def test_max_context_is_the_smaller_side_then_the_longer_window_then_the_first():
  def masks(*cuts):
    """Of windows of one document that differ in (first token, tokens)."""
    document, tokens = Document([], [], np.zeros(0), np.zeros(0)), np.zeros(0)
    windows = [Window(0, first, count, 3, document, tokens) for first, count in cuts]
    return ["".join("x" if seen else "." for seen in mask) for mask in max_context(windows)]

  # Tokens 0-9. Window 0 (0-4) and 1 (3-7): 3 has min(3, 1) and min(0, 4), 4 has 0 and 1.
  # 6: min(3, 1) in window 1, 0 in window 2; 7: 0 and min(1, 2).
  assert masks((0, 5), (3, 5), (6, 4)) == ["xxxx.", ".xxx.", ".xxx"]
  assert masks((0, 4), (2, 4)) == ["xxx.", ".xxx"]  # 2 and 3: min 1 and 0, then 0 and 1
  assert masks((0, 3), (1, 3), (2, 2)) == ["xx.", ".xx", ".."]  # 2: 0, 1, 0; 1: 1, 0
  assert masks((0, 3), (2, 4)) == ["xx.", "xxxx"]  # 2: 0 and 0, the second is longer
  assert masks((0, 4), (3, 4)) == ["xxxx", ".xxx"]  # 3: 0 and 0, equally long


def test_words_are_split_at_five_characters_only_and_a_context_may_have_no_token(bert):
  (document,) = squad_features.tokenise(["a  b\tc\rd\ne\u202ff\u00a0g"], bert)
  assert document.words == ["a", "b", "c", "d", "e", "f\u00a0g"]
  assert document.word_of.tolist() == [0, 1, 2, 3, 4, 5, 5] and document.starts == [0, 3, 5, 7, 9, 11]
  for context in ("", " \t\n", "\u200b"):
    made = build([unanswerable(context), unanswerable("ann", " ", name="r")], bert, training=False)
    assert made.empty == {"q": "the context has no token", "r": "the question has no token"}
    assert made.windows == made.examples.ids == [] and made.examples.fields["start"].shape == (0,)


def test_the_answer_is_found_in_its_words(bert):
  for question, span in (
    # [CLS] who ? [SEP] ann ( 1895 - 1943 ) . [SEP]
    (answerable("ann (1895-1943).", "1895"), (6, 6)),
    (answerable("ann (1895-1943).", "1943)"), (8, 9)),
    (answerable("ann met bobby", "met bob"), (5, 6)),
    (answerable("ann met bobby", "met bobb"), (5, 7)),  # no run of tokens: its whole words
    (answerable("ann bobby met", "y "), (5, 6)),  # a space belongs to the word before
    (answerable("ann bobby", " b"), (4, 6)),
    (
      Question("q", "", "ann met bob", "who ?", (Answer("bob", 8, True), Answer("ann", 0, True)), False),
      (6, 6),
    ),
    (Question("q", "", "ann met bob", "who ?", (Answer("ann", 0, True),), True), (0, 0)),  # unanswerable
  ):
    made = build([question], bert, training=True)
    assert targets(made) == [span] and not made.dropped, question


def test_a_sentencepiece_answer_inside_a_word_is_found_by_its_letters(tmp_path):
  sentences = ["( 1 1 8 5 – 1 2 2 6 ) , a b", "good year"] * 20
  pieces = vocabulary_train.train(sentences, tmp_path / "v", kind="sentencepiece", cased=False, size=30)
  years = "good (1185–1226), year"
  for context, text in ((years, "1185"), (years, "1226"), ("b (a)", "a")):
    made = build([answerable(context, text)], pieces, training=True)
    ((start, end),) = targets(made)
    assert pieces.decode(made.examples.ids[0][start : end + 1].tolist()) == text


def test_answers_that_cannot_be_located_are_not_trained_on_and_named(bert):
  other, failures = answerable("ann met bob", "bob", name="other"), []
  for question, reason in (
    (answerable("ann met bob", "bob", start=0), "where the context has 'ann'"),
    (answerable("ann met\u00a0bob", "met\u00a0bob"), "where the context has 'met\\xa0bob'"),
    (answerable("ann met bob", "bob", start=9), "outside the context"),
    (answerable("ann met bob", "ann", start=-1), "outside the context"),
    (answerable("ann met bob", " ", start=3), "empty"),
    (answerable(" ann", " ann", start=0), "where the context has ''"),
    (answerable("ann \u200b bob", "\u200b"), "no token"),
    (Question("q", "", "ann", "who ?", (), False), "has no answer"),
  ):
    made, kept = (build([question, other], bert, training=training) for training in (True, False))
    found = [[window.question for window in part.windows] for part in (made, kept)]
    is_right = list(made.dropped) == ["q"] and reason in made.dropped["q"] and found == [[1], [0, 1]]
    failures += [f"{question}: {made.dropped}"] * (not is_right or targets(kept) != [(0, 0), (6, 6)])
  assert not failures, "\n".join(failures)


def test_settings_without_room_and_files_without_questions_are_refused(bert, fairseq):
  question = [unanswerable("ann")]
  with pytest.raises(ConfigError, match=r"\n  --config.data.max_length=69\n.*_length=63$"):
    build(question, fairseq, training=True, max_length=68)
  build(question, fairseq, training=True, max_length=69)
  for field in ("stride", "max_query_length"):
    with pytest.raises(ConfigError, match=f"squad.{field}=0"):
      build(question, bert, training=True, **{field: 0})
  with pytest.raises(DataError, match="no question"):
    build([], bert, training=True)


def test_a_context_has_the_ids_of_running_text_and_answers_are_found_in_it(tmp_path):
  words, context = byte_level.imported(tmp_path), "The people make (1895-1943) é is-not time-out."
  for text, begins in (
    ("people make", " "),
    ("The", ""),
    ("1895", ""),
    ("not", ""),
    ("é", ""),
    ("time", " "),
  ):
    made = build([answerable(context, text)], words, training=True, max_length=128)
    (ids,), ((start, end),) = made.examples.ids, targets(made)
    assert ids.tolist() == words.with_special_ids(words.encode("who ?"), words.encode(context))
    assert words.decode(ids[start : end + 1]) == begins + text


PAD = 1
CONFIG = EncoderConfig(
  vocab_size=12, hidden_size=8, num_layers=1, num_heads=2, mlp_size=16, max_length=16, init_stddev=0.5
)
EXAMPLES = Examples(
  [np.asarray([0, 7, 2, 2, 8, 9, 2], np.int32)],
  {"start": np.asarray([4], np.int32), "end": np.asarray([5], np.int32)},
  {"allowed": [np.isin(np.arange(7), [0, 4, 5])]},
)


def batch(length=7, batch_size=1):
  return pad(EXAMPLES, [0], length=length, batch_size=batch_size, pad_id=PAD)


def test_answers_may_be_where_allowed_and_padding_and_filled_up_rows_change_nothing():
  for use_mask, there in ((True, [0, 4, 5]), (False, [*range(7)])):
    problem = make_problem(CONFIG, pad_id=PAD, use_mask=use_mask)

    @jax.jit
    def run(params, data, problem=problem):
      def loss(params):
        logits = problem.outputs(params, data, None)
        total, metrics = problem.loss(logits, data)
        return total, (logits, metrics)

      return jax.value_and_grad(loss, has_aux=True)(params)

    def params(problem=problem):
      keys = jax.random.split(jax.random.key(0), 2)
      made = encoder.init_encoder(keys[0], CONFIG, pad_id=PAD)
      return {"encoder": made, "heads": problem.init_heads(keys[1])}

    given = jax.jit(params)()
    (alone, (logits, expected)), slopes = jax.device_get(run(given, batch(length=9)))
    for each in logits:
      assert each.dtype == jnp.float32 and np.flatnonzero(np.isfinite(each[0])).tolist() == there
      assert np.isneginf(np.delete(each[0], there)).all()
    (padded, (_, metrics)), gradients = jax.device_get(run(given, batch(length=12, batch_size=3)))
    np.testing.assert_allclose(padded, alone, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradients, slopes)
    assert float(metrics["exact_spans"][0]) == float(expected["exact_spans"][0])
    assert float(metrics["task_loss"][1]) == float(metrics["exact_spans"][1]) == 1.0
    assert np.abs(gradients["heads"]["question_answering"]["kernel"]).max() > 0


def test_loss_and_hits_of_given_logits():
  problem = make_problem(CONFIG, pad_id=PAD)
  inf = -jnp.inf
  start = jnp.array([[0.0, inf, inf, inf, jnp.log(3.0), inf, inf]])
  end = jnp.array([[jnp.log(3.0), inf, inf, inf, inf, 0.0, inf]])
  total, metrics = problem.loss((start, end), batch())
  np.testing.assert_allclose(total, 0.5 * (np.log(4 / 3) + np.log(4)), rtol=1e-6)
  assert float(metrics["task_loss"][0]) == float(total)
  moved = start[:, [0, 1, 2, 3, 5, 4, 6]]
  for logits, hits in (((start, end), 0), ((moved, moved), 0), ((start, moved), 1)):  # one alone is no hit
    assert float(problem.loss(logits, batch())[1]["exact_spans"][0]) == hits


SETTINGS = squad_case.settings(max_length=16, stride=6, max_query_length=2, num_buckets=2, multiple=4)
PADDING = 0


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """{version: file}; the later contexts need two windows."""
  folder = tmp_path_factory.mktemp("files")
  return {
    version: squad_data.read(write(folder / version, contexts(12), version=version))
    for version in ("2.0", "1.1")
  }


@pytest.fixture(scope="module")
def data(files, words):
  return squad.load(files["2.0"], files["2.0"], words, SETTINGS)


def oracle(windows, *, says=None):
  """A model that points at the targets of the window with the same ids, or at `says` in every window."""
  examples = windows.features.examples
  targets = {
    ids.tobytes(): (start, end)
    for ids, start, end in zip(examples.ids, examples.fields["start"], examples.fields["end"])
  }
  seen = []

  def outputs(batch):
    found = np.zeros((2, *batch["ids"].shape), np.float32)
    for row, ids in enumerate(batch["ids"]):
      if not batch["weights"][row]:
        found[:, row] = np.nan  # nobody may read it
        continue
      seen.append(ids[ids != PADDING].tobytes())
      for side, target in enumerate(says or targets[seen[-1]]):
        found[side, row, target] = 9.0
    return found[0], found[1]

  return outputs, seen


def test_every_window_counts_once(data, files, words):
  assert len(data.dev.features.windows) > 36 and len(data.dev.buckets.lengths) == 2
  ids = [ids.tobytes() for ids in data.dev.features.examples.ids]
  for batch_size, says, expected in ((1, None, 1.0), (5, None, 1.0), (64, None, 1.0), (8, (0, 0), 1 / 3)):
    outputs, seen = oracle(data.dev, says=says)
    found = squad.evaluate(data, outputs, batch_size=batch_size, pad_id=PADDING)
    assert sorted(seen) == sorted(ids)
    assert found == pytest.approx(dict.fromkeys(squad.METRICS["2.0"], expected))
  assert data.unanswerable == pytest.approx(1 / 3)

  def broken(batch):
    start, end = outputs(batch)
    return start, end * np.nan

  assert squad.evaluate(data, broken, batch_size=8, pad_id=PADDING) == dict.fromkeys(
    squad.METRICS["2.0"], 0.0
  )
  version_1 = squad.load(files["1.1"], files["1.1"], words, SETTINGS)
  for says, is_right in ((None, True), ((0, 0), False)):
    found = squad.evaluate(version_1, oracle(version_1.dev, says=says)[0], batch_size=8, pad_id=PADDING)
    assert (found == {"f1": 1.0, "exact": 1.0}) == is_right


def test_scores_of_best_texts_are_those_of_whole_lists(data):
  random = np.random.default_rng(0)
  for n_best in (1, 2, 20):
    changed = dataclasses.replace(data, settings=dataclasses.replace(SETTINGS, n_best=n_best))
    sizes = data.dev.features.examples.sizes
    logits = tuple([random.normal(size=size).astype(np.float32) for size in sizes] for _ in range(2))
    whole, best = (squad.decode(changed, logits, best_only=best_only) for best_only in (False, True))
    assert all(best[name][:2] == whole[name][:2] for name in whole)
    if n_best == 20:
      assert any(best[name].n_best != whole[name].n_best for name in whole)


def test_training_drops_and_counts_answers_that_are_not_there(files, words):
  questions = list(files["2.0"].questions)
  questions[0] = dataclasses.replace(questions[0], answers=(Answer("Zoe", 0, False),))
  lost = dataclasses.replace(files["2.0"], questions=questions)
  found = squad.load(lost, lost, words, SETTINGS)
  assert list(found.train.features.dropped) == [questions[0].id]
  assert {window.question for window in found.train.features.windows} == set(range(1, 36))
  assert {window.question for window in found.dev.features.windows} == set(range(36))
  assert any("skipped 1 question whose answer" in line for line in found.lines)


def test_training_rows_are_drawn_and_smaller_draws_are_parts_of_larger(files, words):
  def names(rows, seed=0):
    made = squad.load(files["2.0"], files["2.0"], words, SETTINGS, train_rows=rows, seed=seed)
    assert len(made.dev.file.questions) == 36
    return [question.id for question in made.train.file.questions]

  assert len(names(10)) == 10 and set(names(5)) < set(names(10)) and names(5) != names(5, seed=1)
  assert names(0) == names(36) == [question.id for question in files["2.0"].questions]
  with pytest.raises(ConfigError, match=r"--config.data.train_rows=0"):
    names(37)


def test_the_digest_is_of_everything_that_scores_depend_on(files, words, data):
  file, questions = files["2.0"], list(files["2.0"].questions)
  questions[1] = dataclasses.replace(questions[1], answers=(*questions[1].answers, Answer("in", 12, True)))
  gold = dataclasses.replace(file, questions=questions)
  given = [(file, SETTINGS, 0), (gold, SETTINGS, 0), (file, SETTINGS, 35)]
  for changed in ({"n_best": 19}, {"max_answer_length": 29}, {"stride": 5}, {"max_length": 15}):
    given.append((file, dataclasses.replace(SETTINGS, **changed), 0))
  digests = [squad.load(file, dev, words, of, train_rows=rows).digest for dev, of, rows in given]
  assert len(set(digests)) == 7 and digests[0] == data.digest


def test_files_are_found_in_the_folder_before_a_path_and_zipped(tmp_path, monkeypatch):
  train = write(tmp_path / "data" / "train-v2.0.json", contexts(3))
  zipped = tmp_path / "data" / "dev-v2.0.json.gz"
  zipped.write_bytes(gzip.compress(write(tmp_path / "dev-v2.0.json", contexts(2)).read_bytes()))
  monkeypatch.chdir(tmp_path)
  found = squad_data.read_pair("train-v2.0.json", "dev-v2.0.json", "data")
  assert [len(file.questions) for file in found] == [9, 6]
  assert [file.source for file in found] == ["data/train-v2.0.json", "data/dev-v2.0.json.gz"]
  assert squad_data.read_pair(str(train), "dev-v2.0.json", "")[1].source == "dev-v2.0.json"


def test_what_is_missing_or_mixed_is_told(tmp_path):
  write(tmp_path / "train.json", contexts(2))
  write(tmp_path / "old.json", contexts(2), version="1.1")
  (tmp_path / "none.json").write_text(json.dumps({"data": []}))
  failures = []
  for train, dev, group, phrase in (
    (
      "train.json",
      "dev-v2.0.json",
      "squad",
      ["squad.dev_file", f"{tmp_path}/dev-v2.0.json", "\n  --download"],
    ),
    ("mine.json", "dev-v2.0.json", "squad", ["squad.train_file='mine.json'"]),
    ("train.json", "b.json", "data", ["\n  --config.data.dev_file=FILE"]),
    ("train.json", "old.json", "squad", ["train.json is SQuAD 2.0", "old.json is SQuAD 1.1"]),
    ("train.json", "none.json", "squad", ["none.json: no questions"]),
  ):
    with pytest.raises(DataError) as caught:
      squad_data.read_pair(train, dev, str(tmp_path), group=group)
    failures += [f"{train} {dev}: {caught.value}" for part in phrase if part not in str(caught.value)]
  assert not failures, "\n".join(failures)
