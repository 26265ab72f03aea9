"""SQuAD files: both versions, and what is refused or marked."""

import gzip
import json

import pytest

from data import squad
from data.errors import ConfigError, DataError
from tests.data.conftest import SHARED

FILES = SHARED / "datasets" / "squad2"
CONTEXT = "The Normans were in Normandy, a region in France."


def question(number, *answers, **more):
  given = [{"text": text, "answer_start": start} for text, start in answers]
  return {"id": f"q{number}", "question": f"Where {number}?", "answers": given, **more}


def write(path, *questions, **more):
  article = {"title": "Normans", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}
  path.write_text(json.dumps({"version": "v2.0", "data": [article]} | more))
  return path


def test_a_file_of_2_0_has_answers_and_impossible_questions(tmp_path):
  path = write(
    tmp_path / "dev.json",
    question(1, ("France", 42), ("in France", 39), is_impossible=False),
    question(2, is_impossible=True, plausible_answers=[{"text": "France", "answer_start": 42}]),
  )
  file = squad.read(path)
  assert file.version == "2.0"
  first, second = file.questions
  assert (first.id, first.title, first.context, first.question) == ("q1", "Normans", CONTEXT, "Where 1?")
  assert first.answers == (squad.Answer("France", 42, True), squad.Answer("in France", 39, True))
  assert (second.is_impossible, second.answers) == (True, ())


def test_an_id_may_be_a_whole_number(tmp_path):
  path = write(tmp_path / "dev.json", question(1, ("France", 42)) | {"id": 40001})
  assert squad.read(path).questions[0].id == "40001"


def test_half_an_emoji_is_replaced_and_counted(tmp_path, caplog):
  path = write(tmp_path / "dev.json", question("1 \ud83d", ("France", 42)))
  assert squad.read(path).questions[0].question == "Where 1 \ufffd?"
  assert f"{path}: lone surrogates (halves of characters) replaced by U+FFFD: 2" in caplog.text


def test_a_file_of_1_1_is_known_by_its_questions_and_may_be_gzipped(tmp_path):
  plain = write(tmp_path / "dev.json", question(1, ("France", 42)), version="1.1")
  (tmp_path / "dev.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
  file = squad.read(tmp_path / "dev.json.gz")
  assert (file.version, file.questions[0].is_impossible) == ("1.1", False)


def test_answers_that_are_not_in_their_place_are_kept_marked_and_counted(tmp_path):
  path = write(
    tmp_path / "train.json",
    question(1, ("France", 41)),
    question(2, ("Normandy", 20), ("France", -7)),
    question(3, ("France", 4000)),
  )
  file = squad.read(path)
  assert [[answer.is_located for answer in q.answers] for q in file.questions] == [
    [False],
    [True, False],
    [False],
  ]


GOOD = question(1, ("France", 42))
BAD = {
  "no_id": ({**GOOD, "id": None}, r"article 1, paragraph 1, question 2: 'id' is a NoneType, expected a str"),
  "no_question": ({"id": "x", "answers": GOOD["answers"]}, r"question 2: no 'question', expected a str"),
  "no_answers": ({"id": "x", "question": "?"}, r"question 2: no 'answers', expected a list"),
  "text_for_start": (question(2, ("France", "42")), r"question 2, answer 1: 'answer_start' is a str"),
  "true_for_start": (question(2, ("France", True)), r"question 2, answer 1: 'answer_start' is a bool"),
  "same_id": (GOOD, r"id 'q1' twice"),
  "nothing_to_answer": (question(2), r"question 2: no answer, expected at least one for an answerable"),
  "impossible": (question(2, ("France", 42), is_impossible=True), r"question 2: 1 answer, expected none"),
  "text_for_flag": (question(2, is_impossible="yes"), r"question 2: 'is_impossible' is a str"),
  "no_object": ("Where?", r"question 2: a str, expected an object"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_question_is_refused_with_its_place(tmp_path, case):
  bad, message = BAD[case]
  with pytest.raises(DataError, match=message):
    squad.read(write(tmp_path / "train.json", GOOD, bad))


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b'{"data": [\n{"title": }]}', r"train\.json:2: not JSON .*expected SQuAD's form, {'data'"),
    (b"[1, 2]", r"train\.json: a list, expected an object"),
    (b'{"version": "v2.0"}', r"no 'data', expected a list"),
    (b'{"data": []}', r"no questions"),
    (b'{"data": [{"paragraphs": [{"qas": []}]}]}', r"article 1, paragraph 1: no 'context'"),
    (b"\xff\xfe{}", r"not UTF-8"),
  ],
)
def test_a_file_of_another_layout_is_refused(tmp_path, content, message):
  (tmp_path / "train.json").write_bytes(content)
  with pytest.raises(DataError, match=message):
    squad.read(tmp_path / "train.json")


def test_missing_files_and_data_sets_say_what_to_get(tmp_path):
  with pytest.raises(DataError, match=r"gone\.json does not exist; get train-v2\.0\.json"):
    squad.read(tmp_path / "gone.json")
  with pytest.raises(DataError, match=r"no TFDS data set squad/v2\.0 in .*; name .*\n  --download$"):
    squad.read_tfds(str(tmp_path), "2.0", "dev")
  with pytest.raises(ConfigError, match=r"no SQuAD '2\.1' 'dev'; versions are 1\.1, 2\.0"):
    squad.read_tfds(str(tmp_path), "2.1", "dev")


@pytest.mark.skipif(not FILES.is_dir(), reason="needs ../shared/datasets/squad2")
@pytest.mark.parametrize(
  ("name", "version", "questions", "impossible"),
  [
    ("cs224n_dev-v2.0", "2.0", 6078, 3168),
    ("train-v2.0_first10articles", "2.0", 4719, 348),
    ("xquad.en", "1.1", 1190, 0),
  ],
)
def test_real_files_have_the_known_numbers_of_questions(name, version, questions, impossible):
  file = squad.read(FILES / f"{name}.json.gz")
  assert (file.version, len(file.questions)) == (version, questions)
  assert all(answer.is_located for question in file.questions for answer in question.answers)
  assert sum(q.is_impossible for q in file.questions) == impossible
