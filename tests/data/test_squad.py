"""SQuAD files: both versions, and what is refused or marked."""

import gzip
import json

import pytest

from data import squad
from tests.data.conftest import SHARED, refused

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


def test_an_id_may_be_a_whole_number_and_half_an_emoji_is_replaced_and_counted(tmp_path, caplog):
  path = write(tmp_path / "dev.json", question("1 \ud83d", ("France", 42)) | {"id": 40001})
  (found,) = squad.read(path).questions
  assert (found.id, found.question) == ("40001", "Where 1 \ufffd?")
  assert f"{path}: lone surrogates (halves of characters) replaced by U+FFFD: 1" in caplog.text


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
PLACE = "article 1, paragraph 1, question 2"
BAD = [
  # The second question of a file, and words of the message.
  ({**GOOD, "id": None}, f"{PLACE}: 'id' is a NoneType"),
  ({"id": "x", "answers": GOOD["answers"]}, f"{PLACE}: no 'question'"),
  ({"id": "x", "question": "?"}, f"{PLACE}: no 'answers'"),
  (question(2, ("France", "42")), f"{PLACE}, answer 1: 'answer_start' is a str"),
  (question(2, ("France", True)), f"{PLACE}, answer 1: 'answer_start' is a bool"),
  (GOOD, "id 'q1' twice"),
  (question(2), f"{PLACE}: no answer"),
  (question(2, ("France", 42), is_impossible=True), f"{PLACE}: 1 answer"),
  (question(2, is_impossible="yes"), f"{PLACE}: 'is_impossible' is a str"),
  ("Where?", f"{PLACE}: a str"),
]
OTHERS = [
  # A whole file, and words of the message.
  (b'{"data": [\n{"title": }]}', "train.json:2: not JSON"),
  (b"[1, 2]", "a list"),
  (b'{"version": "v2.0"}', "no 'data'"),
  (b'{"data": []}', "no questions"),
  (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "article 1, paragraph 1: no 'context'"),
  (b"\xff\xfe{}", "not UTF-8"),
]


def test_a_bad_question_or_file_is_refused_with_its_place(tmp_path):
  failures = []
  for content, words in [*BAD, *OTHERS]:
    path = tmp_path / "train.json"
    path.write_bytes(content) if isinstance(content, bytes) else write(path, GOOD, content)
    code, message = refused(lambda path=path: squad.read(path))
    if code != 3 or words not in message:
      failures.append(f"{content}: {code} {message}, expected {words}")
  assert not failures, "\n".join(failures)
  for function, code, words in (
    (lambda: squad.read(tmp_path / "gone.json"), 3, "gone.json"),
    (lambda: squad.read_tfds(str(tmp_path), "2.0", "dev"), 3, "\n  --download"),
    (lambda: squad.read_tfds(str(tmp_path), "2.1", "dev"), 2, "'2.1'"),
  ):
    found, message = refused(function)
    assert found == code and words in message


@pytest.mark.skipif(not FILES.is_dir(), reason="needs ../shared/datasets/squad2")
def test_real_files_have_the_known_numbers_of_questions():
  for name, version, questions, impossible in (
    ("cs224n_dev-v2.0", "2.0", 6078, 3168),
    ("train-v2.0_first10articles", "2.0", 4719, 348),
    ("xquad.en", "1.1", 1190, 0),
  ):
    file = squad.read(FILES / f"{name}.json.gz")
    assert (file.version, len(file.questions)) == (version, questions), name
    assert all(answer.is_located for question in file.questions for answer in question.answers)
    assert sum(q.is_impossible for q in file.questions) == impossible
