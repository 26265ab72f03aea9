"""The ledger of a run: what a line says, and what is cut back at a start."""

import hashlib
import json

import numpy as np

from pretrain.reading.ledger import FILE_NAME, Ledger, entry_of


def test_a_line_has_the_records_and_the_digest_of_what_was_read():
  entry = entry_of([7, 3], np.array([[1, 2], [3, 70_000]], np.int64))
  numbers = b"\1\0\0\0\2\0\0\0\3\0\0\0\x70\x11\1\0"
  assert entry == {"examples": [7, 3], "sha256": hashlib.sha256(numbers).hexdigest()}


def _steps(path):
  return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_what_came_after_the_checkpoint_and_a_line_cut_by_a_kill_go(tmp_path):
  path = tmp_path / FILE_NAME
  ledger = Ledger(tmp_path, step=-1, is_kept=True)
  for step in (1, 2, 3, 4):
    ledger.write(step, {"examples": [step], "sha256": ""})
  ledger.close()
  with path.open("a") as file:
    file.write('{"step": 5, "exam')
  ledger = Ledger(tmp_path, step=3, is_kept=True)
  assert _steps(path) == [1, 2, 3]
  ledger.write(4, {"examples": [], "sha256": ""})
  assert _steps(path) == [1, 2, 3, 4]  # at once: a kill loses no line of a step that is saved later
  ledger.close()
  Ledger(tmp_path, step=2, is_kept=False)  # a start without the flag cuts too
  assert _steps(path) == [1, 2]


def test_steps_are_compared_as_numbers(tmp_path):
  path = tmp_path / FILE_NAME
  line = '{"step": %d, "examples": [3, 1], "sha256": "ab"}\n'
  path.write_text("".join(line % step for step in (1, 2, 10, 11)) + '{"step": 12, "exa')
  Ledger(tmp_path, step=10, is_kept=False).close()
  assert path.read_text() == "".join(line % step for step in (1, 2, 10))
  kept = Ledger(tmp_path, step=2, is_kept=True)
  kept.write(3, {"examples": [3, 1], "sha256": "ab"})
  kept.close()
  assert path.read_text() == "".join(line % step for step in (1, 2, 3))


def _started(path, step):
  said = []
  Ledger(path, step=step, is_kept=False, log=said.append).close()
  return said


def test_a_ledger_that_lost_lines_says_of_which_steps(tmp_path):
  path = tmp_path / FILE_NAME
  line = '{"step": %d, "examples": [3, 1], "sha256": "ab"}\n'
  lines = [line % step for step in range(1, 9)]
  path.write_text("".join(lines) + line[:12])
  assert not _started(tmp_path, 8) and not _started(tmp_path, 6)
  path.write_text("".join(lines[:2] + lines[4:]))
  (said,) = _started(tmp_path, 8)
  assert str(path) in said and "steps 3 to 4 are missing or damaged" in said
  for bad in (lines[2].replace("examples", "exanples"), lines[2].replace("3, 1", "3; 1"), lines[2][:20]):
    path.write_text("".join([*lines[:2], bad, *lines[3:]]))
    (said,) = _started(tmp_path, 7)
    assert "steps 3 to 7 are" in said
    assert _steps(path) == [1, 2]
  path.write_text("".join(lines[1:2] + lines[3:4] + lines[5:6] + lines[7:]))
  (said,) = _started(tmp_path, 9)
  assert "steps 1 to 1, 3 to 3, 5 to 5 and 2 more gaps are" in said
