"""Text with damage, files without documents, letters that no piece has: counted by file and printed."""

import gzip

from data import manifest
from data.prepare import command as prepare


def test_repairs_are_counted_by_file(vocabulary_directory, tmp_path):
  (tmp_path / "bad.txt").write_bytes(
    b"the \xff people\n\n\x00\n\nit is\x07 the time\n" * 50 + b"of the time " * 300
  )
  flags = [f"--source={tmp_path}/*.txt", f"--vocabulary={vocabulary_directory}", f"--output={tmp_path}/o"]
  assert prepare.main([*flags, "--length=16", "--workers=1"]) == 0
  made = manifest.read(tmp_path / "o")
  assert made.counts["invalid_characters"] == 50
  assert made.counts["control_characters"] == 100
  assert made.counts["empty_documents"] == 50
  assert made.damaged_files == {
    str(tmp_path / "bad.txt"): {"invalid_characters": 50, "control_characters": 100}
  }


def test_a_file_without_documents_among_others_is_named(corpus, vocabulary_directory, tmp_path, capsys):
  names = ["empty.txt", "blank.txt", "header.csv", "blank.jsonl", "empty.txt.gz"]
  for name in names:
    content = {"blank.txt": b" \n\n \n", "header.csv": b"id,text\n", "blank.jsonl": b"\n", "empty.txt": b""}
    (tmp_path / name).write_bytes(content.get(name, gzip.compress(b"")))
  sources = ",".join([f"{corpus}/*.txt", *(str(tmp_path / name) for name in names)])
  flags = [f"--source={sources}", f"--vocabulary={vocabulary_directory}", f"--output={tmp_path}/o"]
  assert prepare.main([*flags, "--length=32", "--workers=1"]) == 0
  made = manifest.read(tmp_path / "o")
  assert made.counts.get("files_without_documents") == 5
  assert made.damaged_files == {
    str(tmp_path / name): {"files_without_documents": 1} for name in sorted(names)
  }
  lines = capsys.readouterr().err.split("\n")
  assert f"  files       {tmp_path}/blank.jsonl: no documents" in lines
  assert "              and 2 more: 'damaged_files' in manifest.json" in lines
  assert any("files without documents: 5" in line for line in lines)


def test_the_files_with_the_most_repairs_are_named(vocabulary_directory, tmp_path, capsys):
  for name, number in (("a", 1), ("b", 3), ("c", 0), ("d", 2), ("e", 4)):
    (tmp_path / f"{name}.txt").write_bytes(b"of the time\n\n" * 50 + b"the p\xff the\x00\n" * number)
  flags = [f"--source={tmp_path}/*.txt", f"--vocabulary={vocabulary_directory}", f"--output={tmp_path}/o"]
  assert prepare.main([*flags, "--length=32", "--workers=1"]) == 0
  lines = capsys.readouterr().err.split("\n")
  assert [line for line in lines if ".txt: " in line] == [
    f"{label:13} {tmp_path}/{name}.txt: invalid characters: {number}, control characters: {number}"
    for label, name, number in (("  files", "e", 4), ("", "b", 3), ("", "d", 2))
  ]
  assert "              and 1 more: 'damaged_files' in manifest.json" in lines
  assert any("iconv -f ENCODING -t UTF-8" in line for line in lines)


def test_a_text_in_letters_that_the_vocabulary_lacks_is_warned_of(vocabulary_directory, tmp_path, capsys):
  (tmp_path / "thai.txt").write_text("กขฃคฅฆงจฉชซฌญฎฏฐฑฒณ" * 2_000 + "\n\nthe time\n", encoding="utf-8")
  flags = [f"--source={tmp_path}/*.txt", f"--vocabulary={vocabulary_directory}", f"--output={tmp_path}/o"]
  assert prepare.main([*flags, "--length=32", "--workers=1"]) == 0
  assert "of the tokens are unknown" in capsys.readouterr().err
  assert manifest.read(tmp_path / "o").counts["long_sentences_cut"] == 1
