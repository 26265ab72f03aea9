"""Files of people who prepare text: many small files, vocabularies with own markers, arrays of JSON."""

import dataclasses
import json

from data import manifest, sources
from data.prepare import command as prepare
from data.prepare import packing, summary
from tests.data.conftest import make_documents, write_text


def prepared_at(output, source, vocabulary, *more) -> int:
  """Returns the exit code of a preparation of `source` by one process."""
  flags = [f"--source={source}", f"--vocabulary={vocabulary}", f"--output={output}", "--workers=1"]
  return prepare.main([*flags, *more])


def test_texts_of_small_files_share_records_as_those_of_one_file(vocabulary_directory, tmp_path):
  documents = make_documents(60, seed=4)
  write_text(tmp_path / "one.txt", documents)
  (tmp_path / "many").mkdir()
  for number, document in enumerate(documents):
    write_text(tmp_path / "many" / f"{number:02}.txt", [document])
  for mode in packing.MODES:
    made = []
    for name, source in (("one", "one.txt"), ("many", "many/*.txt")):
      output = tmp_path / mode / name
      flags = [f"--packing={mode}", "--length=256"]
      assert prepared_at(output, tmp_path / source, vocabulary_directory, *flags) == 0
      made.append(manifest.read(output))
    assert made[0].splits == made[1].splits and made[0].counts == made[1].counts
    assert made[1].counts["documents_found"] == 60


def test_units_are_small_files_in_the_order_of_names_beside_parts_of_large_ones(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MIN_UNIT_BYTES", 100)
  for name, size in (("a", 40), ("b", 60), ("c", 4), ("d", 252), ("e", 100), ("f", 0), ("g", 4)):
    (tmp_path / f"{name}.txt").write_text("xx\n\n" * (size // 4))
  units = sources.plan(sources.Request(f"{tmp_path}/*.txt")).units
  names = [[part.name[-5] for part in unit.parts] for unit in units]
  assert names == [["a", "b"], ["c"], ["d"], ["d"], ["d"], ["e", "f"], ["g"]]


def test_files_of_one_unit_have_their_own_repairs_and_dropped_documents(vocabulary_directory, tmp_path):
  for number in range(5):
    write_text(tmp_path / f"{number}.txt", make_documents(4, seed=number))
  (tmp_path / "1.txt").write_bytes(b"Bad \xff bytes are here.\n\n" * 2)
  (tmp_path / "3.txt").write_text("")
  flags = ["--clean=exact", "--length=32"]
  assert prepared_at(tmp_path / "o", tmp_path / "*.txt", vocabulary_directory, *flags) == 0
  paths = [f"{tmp_path}/{number}.txt" for number in (1, 3)]
  found = manifest.read(tmp_path / "o").damaged_files
  assert found == {paths[0]: {"invalid_characters": 1}, paths[1]: {manifest.NO_DOCUMENTS: 1}}
  (dropped,) = map(json.loads, (tmp_path / "o" / "dropped.jsonl").read_text().splitlines())
  assert [dropped["source"], dropped["document"]] == [paths[0], 2]
  assert dropped["reason"] == f"duplicate of document 1 of {paths[0]}"


def test_a_text_below_one_record_and_records_that_are_hardly_full_are_named(
  prepared, vocabulary_directory, tmp_path, capsys
):
  path = write_text(tmp_path / "a.txt", make_documents(3, seed=6))
  assert prepared_at(tmp_path / "o", path, vocabulary_directory, "--packing=concat", "--length=4096") == 3
  said = capsys.readouterr().err
  assert "--length=4096" in said and "without: 0" not in said and not (tmp_path / "o").exists()
  made = manifest.read(prepared)
  for filled, mode, is_said in ((0.6, "complete", False), (0.4, "complete", True), (0.4, "eos", False)):
    train = dataclasses.replace(made.splits["train"], tokens=int(made.splits["train"].records * 32 * filled))
    changed = dataclasses.replace(made, packing=mode, splits=made.splits | {"train": train})
    assert ("half full" in summary.of(changed)) == is_said
