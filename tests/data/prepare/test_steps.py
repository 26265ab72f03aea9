"""A step as files: marks, results in order, errors that are not tried again, workers that see nothing."""

import contextlib
import errno
import shutil

import pytest

from data import errors, sources
from data.prepare import steps

NUMBERS = [3, 1, 2]


@pytest.fixture
def work(tmp_path):
  steps.begin(tmp_path)
  return tmp_path


@pytest.fixture
def step(work):
  """Asks for the digests of three files that are not there yet."""
  return steps.publish(work, sources.content_digest, [[str(work / f"{n}.txt") for n in NUMBERS]], "read")


def write(work, *numbers):
  for number in numbers:
    (work / f"{number}.txt").write_text(str(number))


# sha256 of "1", "2" and "3".
SHA = {
  1: "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
  2: "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35",
  3: "4e07408562bedb8b60ce05c1decfe3ad16b72230967de01f640b7e4729b49fce",
}


def test_results_come_in_order_whoever_did_them_and_however_often(work, step):
  write(work, *NUMBERS)
  for number in (1, 2, 0, 1):
    assert step.missing() == sorted({0, 1, 2} - {int(p.stem) for p in step.directory.glob("*.done")})
    steps.run(number, str(step.directory))
  assert step.results() == [SHA[number] for number in NUMBERS]
  assert step.error() is None and step.at_work() == ""


def test_a_users_error_is_a_mark_and_ends_the_work_of_others(work, step):
  write(work, 3, 2)
  steps.run(1, str(step.directory))
  assert isinstance(step.error(), errors.DataError)
  assert str(step.error()).startswith(f"{work}/1.txt: cannot be read")
  steps.run(0, str(step.directory))
  assert step.missing() == [0, 1, 2]


def test_a_full_disk_is_a_mark_and_any_other_error_is_raised(work, step, monkeypatch):
  def fail(path):
    raise OSError(code, "as the system says", path)

  monkeypatch.setattr(sources, "content_digest", fail)
  monkeypatch.setattr(fail, "__module__", "data.sources")
  code = errno.EIO
  with pytest.raises(OSError, match="as the system says"):
    steps.run(0, str(step.directory))
  assert step.error() is None
  assert step.at_work().startswith(f"part 0 ({work}/3.txt) by process ")
  code = errno.ENOSPC
  with contextlib.suppress(OSError):
    steps.run(0, str(step.directory))
  assert isinstance(step.error(), errors.StorageError)


def test_a_worker_that_sees_no_directory_raises(tmp_path):
  with pytest.raises(errors.StorageError, match=r"a worker does not see .*/nothing"):
    steps.run(0, str(tmp_path / "nothing"))
  assert not (tmp_path / "nothing").exists()
  steps.see([str(tmp_path)])
  with pytest.raises(errors.StorageError, match=r"a worker does not see .*/nothing.*TEXT_ENCODER_CACHE"):
    steps.see([str(tmp_path), str(tmp_path / "nothing")])


def test_a_worker_with_other_code_is_refused(work, step):
  write(work, *NUMBERS)
  path = step.directory / steps.CALL
  path.write_text(path.read_text().replace(steps.code_digest(), "0" * 64))
  steps.run(0, str(step.directory))
  assert "another version of this program" in str(step.error())


def test_waiting_ends_when_all_is_done_when_one_fails_and_when_the_engine_ends(work, step, caplog):
  caplog.set_level("INFO", logger="data")
  write(work, 3, 2)
  steps.run(0, str(step.directory))
  step.wait(lambda: True, str)
  assert step.missing() == [1, 2]
  assert "done in" not in caplog.text
  steps.run(1, str(step.directory))
  step.wait(lambda: False, str)
  write(work, 1)
  (step.directory / "errors" / "1.error").unlink()
  for number in (1, 2):
    steps.run(number, str(step.directory))
  step.wait(lambda: False, str)
  assert "read: done in" in caplog.text


def test_silence_is_answered_by_who_is_waited_for(step, monkeypatch, caplog):
  caplog.set_level("INFO", logger="data")
  monkeypatch.setattr(steps, "SILENCE", 0.0)
  looks = iter([False, False, True])
  step.wait(lambda: next(looks), lambda: "waiting for rank 2")
  assert "read: 0 of 3 parts; waiting for rank 2" in caplog.text


def test_a_part_that_outlives_its_start_leaves_no_mark_in_the_next(work, step, monkeypatch):
  def begin_again(path):
    steps.begin(work)
    return path

  monkeypatch.setattr(sources, "content_digest", begin_again)
  monkeypatch.setattr(begin_again, "__module__", "data.sources")
  with pytest.raises(errors.StorageError, match="a worker does not see"):
    steps.run(0, str(step.directory))
  assert not step.is_there() and list((work / "steps").iterdir()) == []
  with pytest.raises(errors.StorageError, match="a worker does not see"):
    steps.run(1, str(step.directory))


def test_an_error_after_the_next_start_has_begun_is_no_error_of_it(work, step, monkeypatch):
  def fail(path):
    steps.begin(work)
    raise errors.DataError(path)

  monkeypatch.setattr(sources, "content_digest", fail)
  monkeypatch.setattr(fail, "__module__", "data.sources")
  with pytest.raises(errors.StorageError, match="a worker does not see"):
    steps.run(0, str(step.directory))


def test_steps_are_removed_beside_a_worker_that_goes_on_writing(work, step, monkeypatch):
  real = shutil.rmtree

  def write_and_remove(path, **options):
    with contextlib.suppress(FileNotFoundError):
      (step.directory / "0.begun").write_text("a live worker")
    (path / "kept").write_text("a file that cannot be removed yet")
    assert options == {"ignore_errors": True}

  monkeypatch.setattr(shutil, "rmtree", write_and_remove)
  try:
    steps.begin(work)
  except FileExistsError:
    pytest.fail("a live worker ended a new start")
  assert list((work / "steps").iterdir()) == []
  monkeypatch.setattr(shutil, "rmtree", real)
  assert [path.suffix for path in work.glob("steps.*")] == [".part"]  # which every start removes


def test_a_call_is_decoded_once_in_a_process(step, monkeypatch):
  reads = []
  real = steps._read
  monkeypatch.setattr(steps, "_read", lambda path: reads.append(path.name) or real(path))
  for _ in range(3):
    assert steps.Step(step.directory).call.name == "read"
  assert reads == ["call"]


def test_a_new_start_removes_the_steps_of_the_last(work, step):
  assert [one.directory for one in steps.published(work)] == [step.directory]
  second = steps.publish(work, sources.content_digest, [["a"]], "more")
  assert steps.published(work) == [step, second]
  steps.begin(work)
  assert steps.published(work) == []
