"""A step as files: marks, results in order, errors that are not tried again, workers that see nothing."""

import errno
import pathlib
import shutil

import pytest

from data import errors, sources
from data.prepare import steps

NUMBERS = [3, 1, 2]
# sha256 of "1", "2" and "3".
SHA = {
  1: "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
  2: "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35",
  3: "4e07408562bedb8b60ce05c1decfe3ad16b72230967de01f640b7e4729b49fce",
}
UNSEEN = "a worker does not see"


@pytest.fixture
def work(tmp_path):
  steps.begin(tmp_path)
  return tmp_path


@pytest.fixture
def step(work):
  """Asks for the digests of three files that are not there yet."""
  return steps.publish(work, sources.content_digest, [[str(work / f"{n}.txt") for n in NUMBERS]], "read")


@pytest.fixture
def instead(monkeypatch):
  """Runs a function instead of `sources.content_digest`: for what happens during a part."""

  def replace(function):
    monkeypatch.setattr(function, "__module__", "data.sources")
    monkeypatch.setattr(sources, "content_digest", function)

  return replace


def write(work, *numbers):
  for number in numbers:
    (work / f"{number}.txt").write_text(str(number))


def test_results_come_in_order_whoever_did_them_and_however_often(work, step):
  write(work, *NUMBERS)
  for number in (1, 2, 0, 1):
    assert step.missing() == sorted({0, 1, 2} - {int(p.stem) for p in step.directory.glob("*.done")})
    assert steps.run(number, str(step.directory)) is None
  assert step.results() == [SHA[number] for number in NUMBERS]
  assert step.error() is None and step.at_work() == ""


def test_a_users_error_is_a_mark_and_ends_the_work_of_others(work, step):
  write(work, 3, 2)
  steps.run(1, str(step.directory))
  error = steps.run(0, str(step.directory))
  assert isinstance(error, errors.DataError) and str(error).startswith(f"{work}/1.txt: cannot be read")
  assert str(step.error()) == str(error) and step.missing() == [0, 1, 2]


def test_a_full_disk_is_a_mark_and_any_other_error_is_raised(work, step, instead):
  def fail(path):
    raise OSError(code, "as the system says", path)

  instead(fail)
  code = errno.EIO
  for number in range(3):
    with pytest.raises(OSError, match="as the system says"):
      steps.run(number, str(step.directory))
  assert step.error() is None
  at_work = [f"part {number} ({work}/{NUMBERS[number]}.txt) by process " for number in range(3)]
  assert [text in step.at_work() for text in at_work] == [True] * 3
  code = errno.ENOSPC
  assert isinstance(steps.run(0, str(step.directory)), errors.StorageError)


def test_a_worker_that_sees_no_directory_or_has_other_code_is_told(work, step):
  with pytest.raises(errors.StorageError, match=f"{UNSEEN} .*/nothing"):
    steps.run(0, str(work / "nothing"))
  assert not (work / "nothing").exists()
  steps.see([str(work)])
  with pytest.raises(errors.StorageError, match=f"{UNSEEN} .*/nothing.*TEXT_ENCODER_CACHE"):
    steps.see([str(work), str(work / "nothing")])
  write(work, *NUMBERS)
  path = step.directory / steps.CALL
  path.write_text(path.read_text().replace(steps.code_digest(), "0" * 64))
  assert "another version of this program" in str(steps.run(0, str(step.directory)))


def test_waiting_ends_when_all_is_done_when_one_fails_and_when_the_engine_ends(
  work, step, monkeypatch, caplog
):
  caplog.set_level("INFO", logger="data")
  write(work, 3, 2)
  steps.run(0, str(step.directory))
  step.wait(lambda: True, str)
  steps.run(1, str(step.directory))
  step.wait(lambda: False, str)
  assert step.missing() == [1, 2] and "done in" not in caplog.text
  write(work, 1)
  (step.directory / "errors" / "1.error").unlink()
  steps.run(1, str(step.directory))
  monkeypatch.setattr(steps, "SILENCE", 0.0)
  looks = iter([False, False, True])
  step.wait(lambda: next(looks), lambda: "waiting for rank 2")
  assert "read: 2 of 3 parts; waiting for rank 2" in caplog.text
  steps.run(2, str(step.directory))
  step.wait(lambda: False, str)
  assert "read: done in" in caplog.text


def test_a_part_that_outlives_its_start_leaves_no_mark_in_the_next(tmp_path, instead):
  def begin_again(folder):
    steps.begin(pathlib.Path(folder))
    if folder.endswith("error"):
      raise errors.DataError(folder)
    return folder

  made = []
  for name in ("done", "error"):
    (tmp_path / name).mkdir()
    steps.begin(tmp_path / name)
    made.append(steps.publish(tmp_path / name, sources.content_digest, [[str(tmp_path / name)]], "read"))
  instead(begin_again)
  for step in made:
    for _ in range(2):  # the second finds nothing
      with pytest.raises(errors.StorageError, match=UNSEEN):
        steps.run(0, str(step.directory))
    assert not step.is_there() and list(step.directory.parent.iterdir()) == []


def test_a_new_start_removes_the_steps_of_the_last_beside_a_worker_that_goes_on_writing(
  work, step, monkeypatch
):
  second = steps.publish(work, sources.content_digest, [["a"]], "more")
  assert steps.published(work) == [step, second]

  def keep(path, **options):
    """As if a live worker had written there again."""
    assert options == {"ignore_errors": True}

  monkeypatch.setattr(shutil, "rmtree", keep)
  steps.begin(work)
  monkeypatch.undo()
  assert steps.published(work) == [] and list((work / "steps").iterdir()) == []
  assert [path.suffix for path in work.glob("steps.*")] == [".part"]  # which every start removes
