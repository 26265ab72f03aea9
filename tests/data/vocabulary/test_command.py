"""`python -m data.vocabulary`: what an import says."""

import json

import pytest
import sentencepiece

from data import vocabulary
from data.vocabulary import __main__ as vocabulary_command
from tests.data.conftest import make_documents, write_text


def test_an_import_warns_of_what_cannot_be_exported(tmp_path, capsys):
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([line for document in make_documents(100, seed=9) for line in document]),
    model_prefix=str(tmp_path / "sp"),
    model_type="unigram",
    vocab_size=120,
    bos_piece="[CLS]",
    eos_piece="[SEP]",
    unk_piece="[UNK]",
    pad_id=3,
    pad_piece="[PAD]",
    control_symbols=["[MASK]"],
    hard_vocab_limit=False,
    minloglevel=2,
  )
  flags = ["import", f"--sp_model={tmp_path}/sp.model", f"--output={tmp_path}/v"]
  assert vocabulary_command.main(flags) == 0
  assert "warning: models with this vocabulary cannot be exported" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["vocab_txt", "dict"])
def test_a_file_of_more_lines_than_any_vocabulary_is_refused(tmp_path, vocabulary_directory, capsys, flag):
  path = tmp_path / "corpus.txt"
  path.write_bytes(b"a 1\n" * ((1 << 20) + 1))
  flags = [f"--{flag}={path}", f"--output={tmp_path}/v"]
  flags += [f"--sp_model={vocabulary_directory}/sp.model"] * (flag == "dict")
  assert vocabulary_command.main(["import", *flags]) == 3
  said = capsys.readouterr().err
  assert f"{path}: 1,048,577 lines, a vocabulary has at most 1,048,576 pieces" in said
  assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("flag", ["vocab_txt", "sp_model"])
def test_a_file_larger_than_any_vocabulary_is_not_read(tmp_path, capsys, flag):
  path = tmp_path / "model"
  with path.open("wb") as file:
    file.truncate((1 << 28) + 1)
  assert vocabulary_command.main(["import", f"--{flag}={path}", f"--output={tmp_path}/v"]) == 3
  assert f"{path}: 268,435,457 bytes, a vocabulary file has at most 268,435,456" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--rate=1"], "--rate is given 1 times and --source 2 times; give one for each source"),
    (["--rate=1", "--rate=0"], "--rate=0 of --source={folder}/b.jsonl: expected a number above 0"),
    (["--rate=-1", "--rate=2"], "--rate=-1 of --source={folder}/a.txt: expected a number above 0"),
    (["--rate=nan", "--rate=2"], "--rate=nan of"),
    (["--rate=1", "--rate=inf"], "--rate=inf of"),
    (["--text_field=a", "--text_field=b", "--text_field=c"], "--text_field is given 3 times and --source 2"),
    (["--heldout_fraction=1"], "--heldout_fraction=1.0 is outside [0, 1)"),
  ],
)
def test_rates_and_fields_that_fit_no_source_are_refused(tmp_path, flags, message, capsys):
  sources = [f"--source={tmp_path}/{name}" for name in ("a.txt", "b.jsonl")]
  assert vocabulary_command.main(["train", *sources, *flags, f"--output={tmp_path}/v"]) == 2
  assert message.format(folder=tmp_path) in capsys.readouterr().err


def test_a_vocabulary_of_two_sources_reads_the_field_of_each_and_keeps_their_rates(tmp_path, capsys):
  write_text(tmp_path / "a.txt", make_documents(300, seed=1))
  rows = [json.dumps({"body": "xylophone quiz jazz " * 20}) for _ in range(40)]
  (tmp_path / "b.jsonl").write_text("\n".join(f'{row[:-3]} {n}"}}' for n, row in enumerate(rows)))
  flags = ["train", "--size=150", "--workers=1", f"--source={tmp_path}/a.txt", f"--source={tmp_path}/b.jsonl"]
  flags += ["--text_field=text", "--text_field=body", f"--output={tmp_path}/v"]
  assert vocabulary_command.main([*flags, "--rate=3", "--rate=1"]) == 0
  assert "xylophone" in {vocabulary.load(tmp_path / "v").piece(i).strip("▁") for i in range(150)}
  said = capsys.readouterr().err
  assert (
    "a.txt: a vocabulary is trained on 1" in said or "b.jsonl: a vocabulary is trained on 100.00%" in said
  )


def test_an_output_that_exists_is_refused_before_anything_is_read(tmp_path, vocabulary_directory, capsys):
  flags = ["train", f"--source={tmp_path}/a.txt", f"--output={vocabulary_directory}"]
  (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00\x00")
  assert vocabulary_command.main(flags) != 0
  assert "UTF-16" not in capsys.readouterr().err
