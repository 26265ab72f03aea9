"""A trimmed encoder computes what it did, bit for bit, on texts whose pieces stay."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from data import vocabulary
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import train as vocabulary_train
from data.vocabulary import trim
from pretrain.checkpoints.saved_model import open_model
from pretrain.export.self_check import hidden_states
from tests import byte_level
from tests.pretrain.export.stock.test_families import write

USED = ("the people make time", "more than two people know it", "they make more than words", "")
OTHERS = tuple(byte_level.TEXTS[:3])


def hidden(folder, texts) -> list[np.ndarray]:
  """Hidden states [length, width] of each text, each alone, in float32."""
  opened = open_model(folder).open_encoder(dtype="float32")
  states = []
  for text in texts:
    ids = np.array([opened.vocabulary.with_special_ids(opened.vocabulary.encode(text))])
    mask, pad = np.ones_like(ids), opened.vocabulary.special_ids.pad
    states.append(np.asarray(hidden_states(opened.params, ids, mask, config=opened.config, pad_id=pad)))
  return states


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "XLMRobertaForMaskedLM", "DistilBertForMaskedLM"])
def test_texts_of_kept_pieces_are_cut_and_encoded_as_before(name, tmp_path, bring, export, caplog):
  write(tmp_path / "in", name)
  whole = bring(tmp_path / "in", tmp_path / "whole")
  (tmp_path / "text.txt").write_text("\n\n".join(USED))
  flags = [f"--vocabulary={whole}/vocabulary", f"--source={tmp_path}/text.txt", f"--output={tmp_path}/v"]
  assert vocabulary_command.main(["trim", *flags]) == 0
  old, new = vocabulary.load(whole / "vocabulary"), vocabulary.load(tmp_path / "v")
  assert f"{new.size:,} of {old.size:,} pieces stay" in caplog.text and "cut as before" in caplog.text
  assert new.size < old.size
  assert vars(new.special_ids).keys() == vars(old.special_ids).keys()
  pieces = [[words.piece(i) for i in words.encode(text)] for words in (old, new) for text in USED]
  assert pieces[: len(USED)] == pieces[len(USED) :]
  for text in OTHERS:  # characters stay, so nothing that had ids becomes unknown
    unknown = [words.encode(text).count(words.special_ids.unk) for words in (old, new)]
    assert unknown[0] == unknown[1], text

  trimmed = bring(tmp_path / "in", tmp_path / "trimmed", f"--vocabulary={tmp_path}/v")
  rows = open_model(trimmed).meta["config"]["model"]["vocab_size"]
  assert rows == vocabulary.table_rows(new.size)
  for one, other in zip(hidden(whole, USED), hidden(trimmed, USED), strict=True):
    np.testing.assert_array_equal(one, other)
  assert export(trimmed, tmp_path / "out") == 0
  assert (tmp_path / "out/tokenizer.json").read_bytes() == (tmp_path / "v/tokenizer.json").read_bytes()
  stock = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
  for text in USED:
    assert stock.encode(text).ids == new.with_special_ids(new.encode(text))
  pair = stock.encode(USED[0], USED[1]).ids
  assert pair == new.with_special_ids(new.encode(USED[0]), new.encode(USED[1]))


def test_rare_pieces_go_and_as_many_as_asked_stay(tmp_path):
  byte_level.imported(tmp_path)
  old = vocabulary.load(tmp_path / "v")
  used = np.zeros(old.size, int)
  several = [i for i in range(old.size) if len(old.piece(i)) > 2 and old.piece(i).isascii()][:6]
  used[several] = (9, 5, 5, 2, 1, 1)
  sizes = {}
  for count, least in ((1, 0), (2, 0), (6, 0), (1, 370), (1, old.size)):
    made = trim.trim(
      tmp_path / "v", tmp_path / f"{count}-{least}", used, min_count=count, keep_at_least=least
    )
    assert made.extends and all(made.piece(new) == old.piece(i) for new, (i,) in made.extends.pieces.items())
    sizes[count, least] = made.size
    for i in several[: 2 * (count < 6) + 1]:  # what a piece is joined from stays with it
      assert made.piece(made.encode(old.decode([i]))[0]) == old.piece(i)
    assert (several[3] in [i for (i,) in made.extends.pieces.values()]) == (count <= 2)
  assert sizes[6, 0] <= sizes[2, 0] <= sizes[1, 0] < sizes[1, 370] == 370 < sizes[1, old.size] == old.size


def test_a_sentencepiece_model_and_a_full_folder_are_refused(tmp_path, caplog):
  sentences = byte_level.sentences()
  vocabulary_train.train(sentences, tmp_path / "sp", kind="sentencepiece", cased=True, size=200)
  (tmp_path / "text.txt").write_text("words")
  common = [f"--source={tmp_path}/text.txt", f"--vocabulary={tmp_path}/sp"]
  assert vocabulary_command.main(["trim", *common, f"--output={tmp_path}/v"]) == 3
  assert not (tmp_path / "v").exists()
  assert vocabulary_command.main(["trim", *common, f"--output={tmp_path}/sp"]) == 2
