"""`python -m data.vocabulary`: what an import says."""

import pytest
import sentencepiece

from data.vocabulary import __main__ as vocabulary_command
from tests.data.conftest import make_documents


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
