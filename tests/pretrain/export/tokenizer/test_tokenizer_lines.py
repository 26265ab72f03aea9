"""The program that holds tokenizer.json against our vocabularies line by line."""

import gzip

import pytest

from pretrain.export.tokenizer import convert
from tests import tokenizer_lines


@pytest.fixture
def texts(tmp_path):
  """A folder with a plain and a compressed file, five lines in all."""
  (tmp_path / "more").mkdir()
  (tmp_path / "a.txt").write_bytes("Éa e\u0301\r\n\n[MASK] no\u2028line\xa0end\n".encode())
  with gzip.open(tmp_path / "more" / "b.tsv.gz", "wb") as file:
    file.write(b"a\tb\n\xff bad bytes, no newline")
  return tmp_path


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_every_line_of_every_file_is_compared(kind, vocabularies, texts, capsys, monkeypatch):
  monkeypatch.setattr(tokenizer_lines, "BATCH", 2)
  assert tokenizer_lines.main([f"--vocabulary={vocabularies[kind]}", str(texts)]) == 0
  printed = capsys.readouterr().out
  assert "a.txt: 3 lines, 0 differences" in printed and "b.tsv.gz: 2 lines, 0 differences" in printed
  assert printed.endswith("5 lines of 2 files: 0 differences\n")


def test_a_line_with_other_ids_is_shown_and_fails(vocabularies, texts, capsys, monkeypatch):
  build = convert.build_tokenizer

  def without_normalizer(directory, words):
    from tokenizers import normalizers

    tokenizer = build(directory, words)
    tokenizer.normalizer = normalizers.Sequence([])
    return tokenizer

  monkeypatch.setattr(convert, "build_tokenizer", without_normalizer)
  flag = f"--vocabulary={vocabularies['sentencepiece']}"
  assert tokenizer_lines.main([flag, str(texts / "a.txt")]) == 1
  assert "  'Éa e\u0301\\r': [" in capsys.readouterr().out
