"""`python -m data.vocabulary`: what an import says."""

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
