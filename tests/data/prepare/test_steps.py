"""A step as files: calls as JSON, marks, results in order, errors that are not tried again, blind workers."""

import errno
import functools
import hashlib
import json
import os

import pytest

from data import errors, manifest, seqio_tasks, sources
from data.prepare import pipeline, steps

NUMBERS = ["3", "1", "2"]  # names of files, and what is in them


@pytest.fixture
def step(tmp_path):
  """Asks for the digests of three files that are not there yet."""
  steps.begin(tmp_path)
  return steps.publish(tmp_path, sources.content_digest, [[str(tmp_path / n) for n in NUMBERS]], "read")


def write(folder, *numbers):
  for number in numbers:
    (folder / number).write_text(number)


def test_results_come_in_order_whoever_did_them_and_however_often(step, tmp_path):
  write(tmp_path, *NUMBERS)
  for number, missing in ((1, [0, 1, 2]), (2, [0, 2]), (0, [0]), (1, [])):
    assert step.missing() == missing
    assert steps.run(number, str(step.directory)) is None
  assert step.results() == [hashlib.sha256(n.encode()).hexdigest() for n in NUMBERS]
  assert step.error() is None and step.at_work() == ""
  steps.begin(tmp_path)
  assert not step.is_there()


def test_a_users_error_and_a_full_disk_are_marks_and_any_other_error_is_raised(step, tmp_path, monkeypatch):
  write(tmp_path, "3", "2")
  steps.run(1, str(step.directory))
  error = steps.run(0, str(step.directory))  # of the part that failed
  assert isinstance(error, errors.DataError) and str(error).startswith(f"{tmp_path}/1: cannot be read")
  assert str(step.error()) == str(error) and step.missing() == [0, 1, 2]
  step = steps.publish(tmp_path, sources.content_digest, [["a"]], "more")

  def fail(path):
    raise OSError(code, "as the system says", path)

  monkeypatch.setattr(sources, "content_digest", fail)
  monkeypatch.setattr(fail, "__module__", "data.sources")
  code = errno.EIO
  with pytest.raises(OSError, match="as the system says"):
    steps.run(0, str(step.directory))
  assert step.error() is None and step.at_work().startswith("part 0 (a) by process ")
  code = errno.ENOSPC
  assert isinstance(steps.run(0, str(step.directory)), errors.StorageError)


def test_a_worker_that_sees_no_directory_or_has_other_code_is_told(step, tmp_path):
  steps.see([str(tmp_path)])
  with pytest.raises(errors.StorageError, match=r"does not see .*/nothing.*TEXT_ENCODER_CACHE"):
    steps.see([str(tmp_path), str(tmp_path / "nothing")])
  path = step.directory / steps.CALL
  path.write_text(path.read_text().replace(steps.code_digest(), "0" * 64))
  write(tmp_path, *NUMBERS)
  assert "another version of this program" in str(steps.run(0, str(step.directory)))
  steps.begin(tmp_path)  # a new start while a worker of the last one is at work
  with pytest.raises(errors.StorageError, match="a worker does not see"):
    steps.run(0, str(step.directory))


def test_waiting_ends_when_all_is_done_when_one_fails_and_when_the_engine_ends(step, tmp_path, caplog):
  caplog.set_level("INFO", logger="data")
  write(tmp_path, "3", "2")
  steps.run(0, str(step.directory))
  step.wait(lambda: True, str)
  steps.run(1, str(step.directory))
  step.wait(lambda: False, str)
  assert step.missing() == [1, 2] and "done in" not in caplog.text
  write(tmp_path, "1")
  (step.directory / "errors" / "1.error").unlink()
  for number in (1, 2):
    steps.run(number, str(step.directory))
  step.wait(lambda: False, str)
  assert "read: done in" in caplog.text


IDS = seqio_tasks.Tokenised("targets", "words", "ab", 64, "complete")
JOB = pipeline.Job(sources.Request("a/*.txt"), "out", 128, "complete", 3, 0.1, 1.0)
VALUES = [
  [1, -(2**70), 0.1, "ä", True, None],
  ("a", ("b", [1])),
  {"documents": 3, 4: ("x",)},
  {"tuple": [1], "function": "os:system"},
  JOB,
  sources.Unit("file", "a.txt", 5, -1),
  sources.Unit("seqio", "ids", 3, 4, seqio_tasks.Part("ids", 4, 0.5, IDS)),
  manifest.Shard("train-0", 3, 17, "ab"),
]


def through_json(value):
  return steps.decode(json.loads(json.dumps(steps.encode(value))))


def test_a_value_comes_back_as_it_was():
  for value in VALUES:
    restored = through_json(value)
    assert restored == value and type(restored) is type(value)
  call = through_json(functools.partial(pipeline.pack_unit, JOB, number=4))
  assert (call.func, call.args, call.keywords) == (pipeline.pack_unit, (JOB,), {"number": 4})


def test_names_that_no_step_calls_are_refused():
  for name in (
    "os:system",
    "data.command:run_child",
    "data.prepare.steps:os",
    "data.sources:errors",
    "data:errors",
  ):
    calling = {"partial": name, "arguments": {"tuple": ["true"]}, "keywords": {"dict": []}}
    for value in ({"function": name}, {"object": name, "fields": {"dict": []}}, calling):
      with pytest.raises(ValueError, match=r"is in none of|is not defined there"):
        steps.decode(value)


def test_a_value_that_could_not_be_restored_is_refused_when_it_is_sent():
  for value in (lambda: 0, object(), b"bytes", os.environ, {1}, os.getpid, errors.did_you_mean):
    with pytest.raises(TypeError, match="cannot be sent"):
      steps.encode(value)
