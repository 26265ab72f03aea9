"""Unfinished preparations whose files are damaged, as by a crash, end with the same records."""

import random
import shutil

from data import errors
from data.prepare import __main__ as command
from data.prepare import preparation

WORDS = ["the", "red", "fox", "runs", "over", "hill", "and", "dale", "with", "small", "green", "birds"]


def _text(number: int) -> str:
  return " ".join(random.Random(number).choices(WORDS, k=30)).capitalize() + "."


def _files(folder) -> dict[str, bytes]:
  return {
    path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


def _stopped(*args):
  raise errors.StorageError("the disk is full")


def test_no_damage_to_unfinished_work_changes_the_records(tmp_path, monkeypatch, capsys):
  (tmp_path / "text.txt").write_text("\n\n".join(_text(number % 50) for number in range(60)))
  rng, failures = random.Random(0), []

  def run(output) -> int:
    flags = ["--length=32", "--train_vocabulary_size=100", "--workers=1", "--clean=near"]
    return command.main([f"--source={tmp_path / 'text.txt'}", f"--output={output}", *flags])

  assert run(tmp_path / "whole") == 0
  expected = _files(tmp_path / "whole")
  for step, number in (("_vocabulary", 6), ("_damaged_files", 10)):  # cleaned; packed
    with monkeypatch.context() as patch:
      patch.setattr(preparation, step, _stopped)
      assert run(tmp_path / step) == 5
    work = tmp_path / step / "work"
    names = [
      path.relative_to(work) for path in sorted(work.rglob("*")) if path.is_file() and path.name != "lock"
    ]
    assert len(names) >= number, names
    for name in names:
      content = (work / name).read_bytes()
      flipped = bytearray(content or b"x")
      flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
      for damage in (bytes(flipped), content[: len(content) // 2]):
        output = tmp_path / "damaged"
        shutil.copytree(tmp_path / step, output)
        (output / "work" / name).write_bytes(damage)
        capsys.readouterr()
        code = run(output)
        said = capsys.readouterr().err
        is_refused = code in (2, 3) and "Traceback" not in said and f"rm -r {output}" in said
        if not is_refused and (code or _files(output) != expected):
          failures.append(f"{name}: code {code}: {said[-300:]}")
        shutil.rmtree(output)
  assert not failures, "\n".join(failures)
