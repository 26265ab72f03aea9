"""A preparation that cannot be: one line, an exit code, and nothing left behind."""

import json
import os
import re
import shutil

import pytest

from data import files, manifest, sources, tfds_reader
from data.prepare import command as prepare
from data.prepare import preparation, shards, workers
from tests.data.conftest import arguments, make_documents, write_text


def refused(capsys, *flags):
  """Runs `data.prepare` and returns its exit code and the one error that it prints, from its start."""
  code = prepare.main(list(flags))
  said = capsys.readouterr().err
  assert len(re.findall("^error: ", said, re.MULTILINE)) == 1
  return code, said[said.index("error: ") :]


def test_another_setting_in_the_same_directory_is_refused(prepared, corpus, vocabulary_directory, capsys):
  flags = arguments(corpus, vocabulary_directory, prepared, "--length=64", "--packing=none")
  code, line = refused(capsys, *flags)
  assert code == 2
  assert "length: 32 there, 64 asked" in line
  assert "packing: 'complete' there, 'none' asked" in line


def test_a_second_preparation_at_work_in_the_directory_is_refused(
  corpus, vocabulary_directory, tmp_path, capsys
):
  (tmp_path / "work").mkdir()
  with files.locked(tmp_path / "work" / "lock", busy="", advice=""):
    code, line = refused(capsys, *arguments(corpus, vocabulary_directory, tmp_path))
  assert code == 3
  assert f"another data.prepare is active in {tmp_path} (process {os.getpid()} on " in line


def test_a_changed_input_is_not_mixed_into_an_unfinished_preparation(
  corpus, vocabulary_directory, tmp_path, capsys, monkeypatch
):
  shutil.copytree(corpus, tmp_path / "corpus")
  flags = arguments(tmp_path / "corpus", vocabulary_directory, tmp_path / "output")
  with monkeypatch.context() as patch:

    def stop(*_, **__):
      raise KeyboardInterrupt

    patch.setattr(shards, "write_shard", stop)
    assert prepare.main(flags) == 130
  write_text(tmp_path / "corpus" / "part3.txt", make_documents(3, seed=5))
  code, line = refused(capsys, *flags)
  assert code == 3
  assert "the input changed" in line


def test_files_that_changed_since_a_finished_preparation_are_told(
  prepared, corpus, vocabulary_directory, tmp_path, capsys
):
  shutil.copytree(corpus, tmp_path / "corpus")
  source = f"--source={tmp_path}/corpus/*.txt"
  shutil.copytree(prepared, tmp_path / "o")
  made = manifest.read(tmp_path / "o")
  made.settings["source"] = source.removeprefix("--source=")
  manifest.write(tmp_path / "o", made)
  flags = [*arguments(corpus, vocabulary_directory, tmp_path / "o")[1:], source]
  assert prepare.main(flags) == 0
  part = tmp_path / "corpus" / "part0.txt"
  for after in (part.read_text().swapcase(), part.read_text() + "More text.\n"):  # the first is as long
    part.write_text(after)
    code, line = refused(capsys, *flags)
    assert code == 3
    assert "changed (names, sizes or content)" in line and f"rm -r {tmp_path / 'o'}" in line
  shutil.rmtree(tmp_path / "corpus")  # records can be used where the text is not
  assert prepare.main(flags) == 0


@pytest.mark.parametrize(
  ("flags", "code", "message"),
  [
    (["--source=nothing*.txt"], 3, "--source=nothing*.txt matches no file"),
    (["--source=tfds:wikipedia/20230601.en:1.0.0"], 3, "\n  --download\n"),
    (["--source=seqio:wikipedia_books"], 3, "\n  --download\n"),
    (["--source=seqio:"], 2, "expected seqio:NAME"),
    (["--source="], 2, "--source is empty"),
    (["--source=installed_docs", "--lenght=3"], 2, "did you mean '--length'?"),
    (["--source=installed_docs", "--packing=all"], 2, "'complete_doc'"),
    (["--source=installed_docs", "--length=many"], 2, "invalid int value"),
    (["--source=installed_docs", "--length=4", "--fraction=0"], 2, "below 8 tokens; --fraction=0.0"),
    (["--source=installed_docs", "--heldout_fraction=1"], 2, "outside [0, 1)"),
    (["--source=installed_docs", "--vocabulary=nowhere"], 3, "nowhere holds no vocabulary"),
  ],
)
def test_wrong_flags_and_sources_are_one_line_at_once(tmp_path, capsys, monkeypatch, flags, code, message):
  for module, slow in ((tfds_reader, "import_tfds"), (sources, "plan"), (workers, "pool")):
    monkeypatch.setattr(module, slow, lambda *_, slow=slow: pytest.fail(f"{slow} takes seconds"))
  found, line = refused(capsys, f"--output={tmp_path}/o", f"--tfds_directory={tmp_path}", *flags)
  assert found == code
  assert message in line
  assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("empty.txt", b"", "no usable text"),
    ("blank.txt", b" \n\n\t\n", "no usable text"),
    ("controls.txt", b"\x00\x01\n", "no usable text"),
    ("a.jsonl", b'{"text": ""}\n', "no usable text"),
    ("a.jsonl", b'{"body": "a"}\n', "a.jsonl: line 1 is no text in the field 'text'"),
    ("a.txt.gz", b"not gzip", "a.txt.gz: cannot be read"),
  ],
)
@pytest.mark.parametrize("train", [False, True], ids=["given vocabulary", "trained vocabulary"])
def test_unusable_text_is_refused_and_leaves_nothing(
  tmp_path, capsys, vocabulary_directory, name, content, message, train
):
  (tmp_path / name).write_bytes(content)
  flags = [f"--source={tmp_path}/{name}", f"--output={tmp_path}/a/o", "--workers=1"]
  if not train:
    flags.append(f"--vocabulary={vocabulary_directory}")
  code, line = refused(capsys, *flags)
  assert code == 3
  assert message in line
  assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_vocabulary_too_large_for_the_text_leaves_nothing(corpus, tmp_path, capsys):
  code, line = refused(capsys, f"--source={corpus}/*.txt", f"--output={tmp_path}/o", "--workers=1")
  assert code == 3
  assert "32768 pieces is too large" in line and "\n  --train_vocabulary_size=" in line
  assert not (tmp_path / "o").exists()


def test_a_failure_takes_nothing_away_that_was_there_before(vocabulary_directory, tmp_path, capsys):
  output = tmp_path / "o"
  (tmp_path / "a.txt").touch()
  flags = [f"--source={tmp_path}/a.txt", f"--output={output}", f"--vocabulary={vocabulary_directory}"]
  output.mkdir()
  assert refused(capsys, *flags, "--workers=1")[0] == 3
  assert list(output.iterdir()) == []
  # Of a start that was killed after its vocabulary.
  (output / "work").mkdir()
  settings = preparation.settings_of(prepare.parse(flags))
  (output / "work" / "settings.json").write_text(json.dumps(settings))
  shutil.copytree(vocabulary_directory, output / "vocabulary")
  assert refused(capsys, *flags, "--workers=1")[0] == 3
  assert {path.name for path in output.iterdir()} == {"work", "vocabulary"}
  assert [path.name for path in (output / "work").iterdir()] == ["settings.json"]


def test_a_foreign_directory_is_refused(corpus, vocabulary_directory, capsys):
  code, line = refused(capsys, *arguments(corpus, vocabulary_directory, corpus))
  assert code == 2
  assert "holds files that no preparation made" in line


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a place where nobody may write")
def test_an_output_that_cannot_be_made_is_a_storage_error(corpus, vocabulary_directory, capsys):
  code, line = refused(capsys, *arguments(corpus, vocabulary_directory, "/proc/nowhere"))
  assert code == 5
  assert "/proc/nowhere" in line
