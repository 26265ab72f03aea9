"""Windows of SQuAD questions, by hand. Run: python -m pytest tests/finetune/squad/test_windows.py"""

import numpy as np
import pytest

from data import vocabulary
from data.errors import ConfigError, DataError
from data.squad import Answer, Question
from data.vocabulary import train as vocabulary_train
from finetune.squad import windows as squad_features
from finetune.squad.windows import Document, Window, max_context
from tests import byte_level
from tests.finetune.squad import squad_case

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # such a vocabulary puts two separators
PIECES = (*"abcdefghijklmnop?().-", "who", "ann", "met", "bob", "1895", "1943", "##by", "'", "s", "9", "##9")


def unanswerable(context, question="who ?", *, name="q"):
  return Question(name, "", context, question, (), True)


def answerable(context, text, *, start=None, name="q", question="who ?"):
  start = context.index(text) if start is None else start
  return Question(name, "", context, question, (Answer(text, start, True),), False)


def make_vocabulary(directory, special):
  directory.mkdir()
  (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in (*special, *PIECES)))
  return vocabulary.write_description(directory, kind="wordpiece", cased=False)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("bert") / "v", BERT)


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("fairseq") / "v", FAIRSEQ)


def build(questions, vocabulary, *, training, **settings):
  return squad_features.build(questions, vocabulary, squad_case.settings(**settings), training=training)


def texts(features, vocabulary):
  return [" ".join(vocabulary.piece(int(i)) for i in ids) for ids in features.examples.ids]


def targets(features):
  fields = features.examples.fields
  return list(zip(fields["start"].tolist(), fields["end"].tolist()))


def test_a_window_is_question_two_separators_and_document(fairseq):
  made = build([answerable("ann met bob", "met bob")], fairseq, training=True)
  assert texts(made, fairseq) == ["<s> who ? </s> </s> ann met bob </s>"]
  assert targets(made) == [(6, 7)]
  allowed = np.flatnonzero(made.examples.token_fields["allowed"][0]).tolist()
  assert allowed == [0, 5, 6, 7]
  assert made.examples.ids[0].dtype == made.examples.fields["start"].dtype == np.int32


def test_windows_move_by_the_stride_and_stop_at_the_end(bert):
  # [CLS] who [SEP] and the last [SEP] leave 5 of 9 tokens: a-e, d-h, g-j.
  question = answerable("a b c d e f g h i j", "d e", question="who")
  made = build([question], bert, training=True, max_length=9, stride=3, max_query_length=1)
  assert texts(made, bert) == [
    "[CLS] who [SEP] a b c d e [SEP]",
    "[CLS] who [SEP] d e f g h [SEP]",
    "[CLS] who [SEP] g h i j [SEP]",
  ]
  assert targets(made) == [(6, 7), (3, 4), (0, 0)]
  assert [window[:4] for window in made.windows] == [(0, 0, 5, 3), (0, 3, 5, 3), (0, 6, 4, 3)]


def test_a_document_that_just_fits_has_one_window(bert):
  settings = {"training": True, "max_length": 9, "stride": 3, "max_query_length": 1}
  assert len(build([unanswerable("a b c d e", "who")], bert, **settings).windows) == 1
  assert len(build([unanswerable("a b c d e f", "who")], bert, **settings).windows) == 2


def test_a_stride_beyond_the_room_leaves_no_token_out(bert):
  made = build([unanswerable("a b c d e f g", "who")], bert, training=False, max_length=6, max_query_length=1)
  assert [(window.first, window.count) for window in made.windows] == [(0, 2), (2, 2), (4, 2), (6, 1)]


def test_windows_are_never_longer_than_asked_for_and_one_more_is_the_official_room(fairseq):
  question = unanswerable("a " * 1000)
  ours = build([question], fairseq, training=False, max_length=384)
  assert max(map(len, ours.examples.ids)) == 384
  official = build([question], fairseq, training=False, max_length=385)
  assert official.windows[0].count == 384 - 2 - 3


def parts(*cuts):
  """Windows of one document that differ in (first token, tokens)."""
  document, tokens = Document([], [], np.zeros(0), np.zeros(0)), np.zeros(0)
  return [Window(0, first, count, 3, document, tokens) for first, count in cuts]


def test_max_context_is_the_smaller_side_then_the_longer_window_then_the_first():
  # Tokens 0-9. Window 0 (0-4) and 1 (3-7): 3 has min(3, 1) and min(0, 4), 4 has 0 and 1.
  windows = parts((0, 5), (3, 5), (6, 4))
  # 6: min(3, 1) in window 1, 0 in window 2; 7: 0 and min(1, 2).
  found = ["".join("x" if seen else "." for seen in mask) for mask in max_context(windows)]
  assert found == ["xxxx.", ".xxx.", ".xxx"]
  equal = parts((0, 4), (2, 4))  # 2 and 3: min 1 and 0, then 0 and 1
  assert [mask.tolist() for mask in max_context(equal)] == [
    [True, True, True, False],
    [False, True, True, True],
  ]
  tied = parts((0, 3), (1, 3), (2, 2))  # 2: 0, 1, 0; 1: 1, 0
  assert [mask.tolist() for mask in max_context(tied)] == [
    [True, True, False],
    [False, True, True],
    [False, False],
  ]


def test_words_are_split_at_five_characters_only(bert):
  (document,) = squad_features.tokenise(["a  b\tc\rd\ne\u202ff\u00a0g"], bert)
  assert document.words == ["a", "b", "c", "d", "e", "f\u00a0g"]
  assert document.word_of.tolist() == [0, 1, 2, 3, 4, 5, 5]
  assert document.starts == [0, 3, 5, 7, 9, 11]


def test_the_answer_is_found_inside_its_word(bert):
  made = build(
    [answerable("ann (1895-1943).", "1895"), answerable("ann (1895-1943).", "1943)")], bert, training=True
  )
  # [CLS] who ? [SEP] ann ( 1895 - 1943 ) . [SEP]
  assert targets(made) == [(6, 6), (8, 9)]


def test_an_answer_that_is_no_run_of_tokens_is_its_whole_words(bert):
  made = build(
    [answerable("ann met bobby", "met bob"), answerable("ann met bobby", "met bobb")], bert, training=True
  )
  assert targets(made) == [(5, 6), (5, 7)]


def test_a_sentencepiece_answer_inside_a_word_is_found_by_its_letters(tmp_path):
  sentences = ["( 1 1 8 5 – 1 2 2 6 ) , a b", "good year"] * 20
  pieces = vocabulary_train.train(sentences, tmp_path / "v", kind="sentencepiece", cased=False, size=30)
  for context, text in (
    ("good (1185–1226), year", "1185"),
    ("good (1185–1226), year", "1226"),
    ("b (a)", "a"),
  ):
    made = build([answerable(context, text)], pieces, training=True)
    ((start, end),) = targets(made)
    assert pieces.decode(made.examples.ids[0][start : end + 1].tolist()) == text


def test_unanswerable_questions_point_at_cls(bert):
  question = Question("q", "", "ann met bob", "who ?", (Answer("ann", 0, True),), True)
  made = build([question], bert, training=True)
  assert targets(made) == [(0, 0)]
  assert not made.dropped


@pytest.mark.parametrize(
  ("question", "reason"),
  [
    (answerable("ann met bob", "bob", start=0), "where the context has 'ann'"),
    (answerable("ann met\u00a0bob", "met\u00a0bob"), "where the context has 'met\\xa0bob'"),
    (answerable("ann met bob", "bob", start=9), "outside the context"),
    (answerable("ann met bob", "ann", start=-1), "outside the context"),
    (answerable("ann met bob", " ", start=3), "empty"),
    (answerable(" ann", " ann", start=0), "where the context has ''"),
    (answerable("ann \u200b bob", "\u200b"), "no token"),
    (Question("q", "", "ann", "who ?", (), False), "has no answer"),
  ],
)
def test_answers_that_cannot_be_located_are_not_trained_on_and_named(bert, question, reason):
  other = answerable("ann met bob", "bob", name="other")
  made = build([question, other], bert, training=True)
  assert list(made.dropped) == ["q"]
  assert reason in made.dropped["q"]
  assert [window.question for window in made.windows] == [1]
  kept = build([question, other], bert, training=False)
  assert [window.question for window in kept.windows] == [0, 1]
  assert targets(kept) == [(0, 0), (6, 6)]


def test_spaces_at_an_answer_s_ends_belong_to_the_word_before(bert):
  assert targets(build([answerable("ann bobby met", "y ")], bert, training=True)) == [(5, 6)]
  assert targets(build([answerable("ann bobby", " b")], bert, training=True)) == [(4, 6)]


@pytest.mark.parametrize("context", ["", " \t\n", "\u200b"])
def test_a_context_without_tokens_has_no_window_and_is_named(bert, context):
  made = build([unanswerable(context), unanswerable("ann", " ", name="r")], bert, training=False)
  assert made.empty == {"q": "the context has no token", "r": "the question has no token"}
  assert made.windows == made.examples.ids == []
  assert made.examples.fields["start"].shape == (0,)


def test_a_question_is_cut(bert):
  made = build([unanswerable("bob", question="a " * 100)], bert, training=False, max_query_length=3)
  assert texts(made, bert) == ["[CLS] a a a [SEP] bob [SEP]"]


def test_settings_without_room_and_files_without_questions_are_refused(bert, fairseq):
  question = [unanswerable("ann")]
  with pytest.raises(ConfigError, match=r"at least 69, .*\n  --config.data.max_length=69\n.*_length=63$"):
    build(question, fairseq, training=True, max_length=68)
  build(question, fairseq, training=True, max_length=69)
  with pytest.raises(ConfigError, match=r"squad.stride=0, squad.max_query_length=64: expected 1"):
    build(question, bert, training=True, stride=0)
  with pytest.raises(DataError, match="found no question"):
    build([], bert, training=True)


@pytest.fixture(scope="module")
def byte_level_words(tmp_path_factory):
  return byte_level.imported(tmp_path_factory.mktemp("byte_level"))


@pytest.mark.parametrize(
  ("text", "found"),
  [
    ("people make", " people make"),
    ("The", "The"),
    ("1895", "1895"),
    ("not", "not"),
    ("é", "é"),
    ("time", " time"),
  ],
)
def test_a_context_has_the_ids_of_running_text_and_answers_are_found_in_it(byte_level_words, text, found):
  context = "The people make (1895-1943) é is-not time-out."
  made = build([answerable(context, text)], byte_level_words, training=True, max_length=128)
  (ids,), ((start, end),) = made.examples.ids, targets(made)
  query = byte_level_words.encode("who ?")
  assert ids.tolist() == byte_level_words.with_special_ids(query, byte_level_words.encode(context))
  assert byte_level_words.decode(ids[start : end + 1]) == found
