"""Index folders with flipped bits, cuts and parts of other folders, and index.json files of somebody else."""

import json
import os
import random

from pretrain.search import index
from tests.pretrain.search.test_search import _build, _run, corpus, fast_embedder  # noqa: F401 (fixtures)


def _answers(tmp_path, capsys) -> tuple[int, str]:
  capsys.readouterr()
  code = _run(tmp_path, "--query=the end.", "--top=3")
  captured = capsys.readouterr()
  return code, captured.out if not code else captured.err


def test_no_damage_of_a_file_changes_an_answer_silently(tmp_path, corpus, capsys):  # noqa: F811
  assert _build(tmp_path, "--kind=hnsw") == 0
  folder, rng, failures = tmp_path / "i", random.Random(0), []
  assert (
    _run(tmp_path, f"--input={corpus}", "--column=review", "--kind=flat", f"--index={tmp_path / 'other'}")
    == 0
  )
  sound = _answers(tmp_path, capsys)
  assert sound[0] == 0 and sound[1].count("row ") == 3
  for path in sorted(folder.iterdir()):
    whole = path.read_bytes()
    flips = [bytearray(whole) for _ in range(6)]
    for flipped in flips:
      flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    other = tmp_path / "other" / path.name
    damages = [*map(bytes, flips), whole[: len(whole) // 2], whole[:-1] + b"\xff", b""]
    damages += [other.read_bytes()[::-1]] if other.is_file() else []
    for number, damage in enumerate(damages):
      path.write_bytes(damage)
      code, said = _answers(tmp_path, capsys)
      if damage != whole and (
        code != 3 or said.splitlines()[0].count(str(folder)) == 0 or "Traceback" in said
      ):
        failures.append(f"{path.name}, damage {number}: code {code}, {said[:200]}")
    path.write_bytes(whole)
  assert not failures, "\n".join(failures)
  assert _answers(tmp_path, capsys) == sound


def test_what_somebody_else_wrote_into_an_index_is_refused_or_not_opened(tmp_path, corpus, capsys):  # noqa: F811
  assert _build(tmp_path) == 0
  path = tmp_path / "i" / "index.json"
  whole = json.loads(path.read_text())
  os.mkfifo(tmp_path / "pipe")
  source, failures = whole["input"], []
  cases = [  # value of a field, exit code: a pipe or a device is no file that could have changed
    ({"input": {**source, "path": "/dev/zero"}}, 0),
    ({"input": {**source, "path": str(tmp_path / "pipe")}}, 0),
    ({"input": {**source, "path": "a\0b"}}, 3),
    ({"input": {**source, "path": 7}}, 3),
    ({"schema": None}, 3),
    ({"size": "4"}, 3),
    ({"size": 8}, 3),
    ({"rows": 3}, 3),
    ({"column": "no such column"}, 3),
    ({"kind": "hnsw"}, 3),
    ({"files": {**whole["files"], "../in.csv": [1, "a"]}}, 3),
    ({"files": []}, 3),
  ]
  for changed, expected in cases:
    meta = whole | changed
    path.write_text(json.dumps({**meta, "sha256": index.digest(meta)}))
    code, said = _answers(tmp_path, capsys)
    if code != expected or "Traceback" in said:
      failures.append(f"{changed}: code {code}, expected {expected}: {said[:200]}")
  assert not failures, "\n".join(failures)
