"""A preparation that cannot be: one line, an exit code, and nothing left behind; damage that is counted."""

import gzip
import json
import os
import random
import re
import shutil

import pytest

from data import errors, files, manifest, sources, tfds_reader
from data.prepare import __main__ as command
from data.prepare import __main__ as prepare
from data.prepare import engine, output_directory, pipeline
from tests.data.conftest import arguments, make_documents, write_text
from tests.data.prepare.test_prepare import stop


def refused(capsys, *flags):
  """Runs `data.prepare` and returns its exit code and the one error that it prints, from its start."""
  code = prepare.main(list(flags))
  said = capsys.readouterr().err
  assert len(re.findall("^error: ", said, re.MULTILINE)) == 1
  return code, said[said.index("error: ") :]


WRONG = [  # flags, exit code, what the error must contain
  (["--source=nothing*.txt"], 3, "nothing*.txt"),
  (["--source=tfds:wikipedia/20230601.en:1.0.0"], 3, "\n  --download\n"),
  (["--source=seqio:wikipedia_books"], 3, "\n  --download\n"),
  (["--source=seqio:"], 2, "seqio:NAME"),
  (["--source="], 2, "--source"),
  (["--source=a", "--lenght=3"], 2, "'--length'"),
  (["--source=a", "--packing=all"], 2, "complete_doc"),
  (["--source=a", "--length=many"], 2, "many"),
  (["--source=a", "--length=7", "--fraction=0"], 2, "--fraction=0.0"),
  (["--source=a", "--length=7"], 2, "--length=7"),
  (["--source=a", "--fraction=1.5"], 2, "--fraction=1.5"),
  (["--source=a", "--heldout_fraction=1"], 2, "[0, 1)"),
  (["--source=a", "--heldout_fraction=-0.1"], 2, "[0, 1)"),
  (["--source=a", "--workers=-1"], 2, "--workers"),
  (["--source=a", "--limit=-1"], 2, "--limit"),
  (["--source=a", "--seed=-1"], 2, "--seed"),
  (["--source=a", f"--seed={2**63}"], 2, "--seed"),
  (["--source=a", "--train_vocabulary_size=-1"], 2, "--train_vocabulary_size"),
  (["--source=a", "--clean=exakt"], 2, "'exact'"),
  (["--source=installed_docs", "--vocabulary=nowhere"], 3, "nowhere"),
]


def test_wrong_flags_and_sources_are_one_line_at_once(tmp_path, capsys, monkeypatch):
  for module, slow in ((tfds_reader, "import_tfds"), (sources, "plan"), (engine, "pool")):
    monkeypatch.setattr(module, slow, lambda *_, slow=slow: pytest.fail(f"{slow} takes seconds"))
  failures = []
  for flags, code, word in WRONG:
    found, line = refused(capsys, f"--output={tmp_path}/o", f"--tfds_directory={tmp_path}", *flags)
    if found != code or word not in line or (tmp_path / "o").exists():
      failures.append(f"{flags}: {found} {line}")
  assert not failures, "\n".join(failures)
  limits = ["--length=8", "--fraction=1", "--heldout_fraction=0", f"--seed={2**63 - 1}", "--limit=0"]
  args = prepare.parse(["--source=a", "--output=o", *limits, "--train_vocabulary_cased"])
  assert (args.length, args.seed, args.train_vocabulary_size) == (8, 2**63 - 1, 64_000)


def test_unusable_text_is_refused_and_leaves_nothing(tmp_path, capsys, vocabulary_directory):
  cases = [
    ("empty.txt", b"", "no usable text"),
    ("controls.txt", b"\x00\x01\n", "no usable text"),
    ("a.jsonl", b'{"text": ""}\n', "no usable text"),
    ("b.jsonl", b'{"body": "a"}\n', "b.jsonl, line 1: no text in the field 'text'"),
    ("a.txt.gz", b"not gzip", "a.txt.gz: cannot be read"),
  ]
  failures = []
  for name, content, message in cases:
    for vocabulary in ("", vocabulary_directory):
      (tmp_path / name).write_bytes(content)
      flags = [f"--source={tmp_path}/{name}", f"--output={tmp_path}/a/o", "--workers=1"]
      code, line = refused(capsys, *flags, f"--vocabulary={vocabulary}")
      if code != 3 or message not in line or [path.name for path in tmp_path.iterdir()] != [name]:
        failures.append(f"{name}: {code} {line}")
    (tmp_path / name).unlink()
  assert not failures, "\n".join(failures)


def test_a_vocabulary_too_large_for_the_text_leaves_nothing(corpus, tmp_path, capsys):
  code, line = refused(capsys, f"--source={corpus}/*.txt", f"--output={tmp_path}/o", "--workers=1")
  assert code == 3 and "\n  --train_vocabulary_size=" in line
  assert not (tmp_path / "o").exists()


def test_a_directory_of_others_is_refused(corpus, vocabulary_directory, tmp_path, capsys):
  code, line = refused(capsys, *arguments(corpus, vocabulary_directory, corpus))
  assert code == 2 and "holds files that no preparation made" in line
  (tmp_path / "work").mkdir()
  with files.locked(tmp_path / "work" / "lock", busy="", advice=""):
    code, line = refused(capsys, *arguments(corpus, vocabulary_directory, tmp_path))
  assert code == 3 and f"active in {tmp_path} (process {os.getpid()} on " in line
  if os.path.isdir("/proc"):  # a place where nobody may write
    code, line = refused(capsys, *arguments(corpus, vocabulary_directory, "/proc/nowhere"))
    assert code == 5 and "/proc/nowhere" in line


def test_an_unfinished_preparation_of_other_input_or_of_an_older_version_is_refused(
  corpus, vocabulary_directory, tmp_path, capsys, monkeypatch
):
  shutil.copytree(corpus, tmp_path / "corpus")
  flags = arguments(tmp_path / "corpus", vocabulary_directory, tmp_path / "output")
  with monkeypatch.context() as patch:
    patch.setattr(pipeline, "finished_shards", stop)
    assert prepare.main(flags) == 130
  write_text(tmp_path / "corpus" / "part3.txt", make_documents(3, seed=5))
  code, line = refused(capsys, *flags)
  assert code == 3 and "the input changed" in line and f"\n  rm -r {tmp_path / 'output'}" in line
  (tmp_path / "corpus" / "part3.txt").unlink()
  path = tmp_path / "output" / "work" / "settings.json"
  settings = json.loads(path.read_text())
  assert settings.pop("format") == 4
  path.write_text(json.dumps(settings))
  code, line = refused(capsys, *flags)
  assert code == 3 and f"older version; remove it and start again:\n  rm -r {tmp_path / 'output'}" in line
  assert settings.pop("clean") == ""  # which records of before did not have
  path.write_text(json.dumps(settings | {"format": 4}))
  assert prepare.main(flags) == 0


def test_records_of_another_format_are_refused(prepared, tmp_path):
  made = json.loads((prepared / manifest.NAME).read_text())
  for number in (1, 3):
    (tmp_path / manifest.NAME).write_text(json.dumps(made | {"format": number}))
    with pytest.raises(errors.DataError, match=f"format {number}, expected 2"):
      manifest.read(tmp_path)


def test_files_that_changed_since_a_finished_preparation_are_told(
  prepared, corpus, vocabulary_directory, tmp_path, capsys
):
  shutil.copytree(corpus, tmp_path / "corpus")
  shutil.copytree(prepared, tmp_path / "o")
  made = manifest.read(tmp_path / "o")
  made.settings["source"] = f"{tmp_path}/corpus/*.txt"
  manifest.write(tmp_path / "o", made)
  flags = arguments(tmp_path / "corpus", vocabulary_directory, tmp_path / "o")
  assert prepare.main(flags) == 0
  part = tmp_path / "corpus" / "part0.txt"
  for after in (part.read_text().swapcase(), part.read_text() + "More text.\n"):  # the first is as long
    part.write_text(after)
    code, line = refused(capsys, *flags)
    assert code == 3 and "changed" in line and f"rm -r {tmp_path / 'o'}" in line
  shutil.rmtree(tmp_path / "corpus")  # records can be used where the text is not
  assert prepare.main(flags) == 0


def test_a_failure_takes_nothing_away_that_was_there_before(vocabulary_directory, tmp_path, capsys):
  output = tmp_path / "o"
  (tmp_path / "a.txt").touch()
  flags = [f"--source={tmp_path}/a.txt", f"--output={output}", f"--vocabulary={vocabulary_directory}"]
  output.mkdir()
  assert refused(capsys, *flags, "--workers=1")[0] == 3
  assert list(output.iterdir()) == []
  # Of a start that was killed after its vocabulary.
  (output / "work").mkdir()
  settings = prepare.settings_of(prepare.parse(flags))
  (output / "work" / "settings.json").write_text(json.dumps(settings | {"format": 4}))
  shutil.copytree(vocabulary_directory, output / "vocabulary")
  assert refused(capsys, *flags, "--workers=1")[0] == 3
  assert {path.name for path in output.iterdir()} == {"work", "vocabulary"}
  assert [path.name for path in (output / "work").iterdir()] == ["settings.json"]


def test_what_was_made_stays_where_the_same_command_goes_on(tmp_path):
  for error, stays in ((errors.ResumableError, True), (errors.StorageError, True), (errors.DataError, False)):
    output = tmp_path / error.__name__
    (output / "work").mkdir(parents=True)
    with pytest.raises(error), output_directory.removed_on_failure(output, []):
      (output / "vocabulary").mkdir()  # after hours
      raise error("a worker process died")
    assert (output / "vocabulary").is_dir() == stays, error


def test_repairs_and_files_without_documents_are_counted_and_the_worst_files_named(
  vocabulary_directory, tmp_path, capsys
):
  for name, number in (("a", 1), ("b", 3), ("c", 0), ("d", 2), ("e", 4)):
    (tmp_path / f"{name}.txt").write_bytes(b"of the time\n\n" * 400 + b"the p\xff the\x00 a\x00\n" * number)
  empty = {"f.txt": b"", "g.txt": b" \n\n \n", "h.csv": b"id,text\n", "i.txt.gz": gzip.compress(b"")}
  for name, content in empty.items():
    (tmp_path / name).write_bytes(content)
  (tmp_path / "j.txt").write_bytes("กขฃค 学生\n\n\x07\n\n".encode() + b"of the time " * 900)
  flags = [f"--source={tmp_path}/*", f"--vocabulary={vocabulary_directory}", f"--output={tmp_path}/o/o"]
  assert prepare.main([*flags, "--length=32", "--workers=1"]) == 0
  made = manifest.read(tmp_path / "o" / "o")
  counts = {"invalid_characters": 10, "control_characters": 21, "files_without_documents": 4}
  counts |= {"empty_documents": 1, "long_sentences_cut": 1, "documents": 5 * 400 + 4 + 2, "unknown_tokens": 2}
  assert {name: made.counts.get(name) for name in counts} == counts
  bad = {
    name: {"invalid_characters": n, "control_characters": 2 * n} for name, n in zip("abde", (1, 3, 2, 4))
  }
  assert made.damaged_files == {
    **{f"{tmp_path}/{name}.txt": found for name, found in bad.items()},
    **{f"{tmp_path}/{name}": {"files_without_documents": 1} for name in empty},
    f"{tmp_path}/j.txt": {"control_characters": 1, "long_sentences_cut": 1},
  }
  said = capsys.readouterr().err
  named = [line.split(": ")[0].split("/")[-1] for line in said.split("\n") if f"{tmp_path}/" in line]
  assert [name for name in named if name.endswith(".txt")] == ["e.txt", "b.txt", "d.txt"]
  assert "and 6 more" in said and "iconv -f ENCODING -t UTF-8" in said


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
      patch.setattr(prepare, step, _stopped)
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
