"""Flipped bits, cuts and exchanged files of what the product writes: the same result, or one clear error.

Indexes and unfinished preparations have tests of their own: test_damaged_index.py and test_damaged_work.py.
"""

import hashlib
import pathlib
import random
import shutil

import jax
import numpy as np
import pytest
import transformers

from data import errors, records, vocabulary
from data.prepare import __main__ as command
from pretrain.checkpoints.saved_model import open_model
from pretrain.embed.schema import FILE, EmbeddingSchema
from pretrain.export.import_checkpoint import import_checkpoint
from tests.finetune.glue import small_glue

DAMAGES = 100  # of a folder
TEXTS = ("The red fox runs over the hill.", "A new word: brontosaurus, 1998.")


def _digest(*values) -> str:
  found = hashlib.sha256()
  for leaf in jax.tree.leaves(values):
    found.update(leaf.encode() if isinstance(leaf, str) else np.asarray(leaf).tobytes())
  return found.hexdigest()


def _of_model(folder: pathlib.Path) -> str:
  """All parameters, the ids of two texts, and how a vector is made."""
  model = open_model(folder)
  encoder = model.open_encoder()
  ids = [encoder.vocabulary.encode(text) for text in TEXTS]
  return _digest(model.params, repr(encoder.config), ids, EmbeddingSchema.read(folder).as_json())


def _of_records(folder: pathlib.Path) -> str:
  """The rows of both splits, the frequencies, and the ids of two texts."""
  rows = []
  for split in ("train", "heldout"):
    of_split = records.PackedRecords(folder, split=split, length=32, seed=3)
    rows.append(of_split.batch(1, len(of_split)))
  ids = [vocabulary.load(folder / "vocabulary").encode(text) for text in TEXTS]
  return _digest(rows, records.unigram(folder), ids)


def _make_run(folder: pathlib.Path) -> None:
  small_glue.checkpoint(folder)
  (folder / FILE).write_text(EmbeddingSchema("mean", True, "query: ", "", 12, 30, (4,)).as_json())


def _make_import(folder: pathlib.Path) -> None:
  stock = folder.parent / f"stock_of_{folder.name}"
  sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "word"]
  model = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes))
  model.save_pretrained(stock)
  (stock / "vocab.txt").write_text("\n".join(words) + "\n")
  (stock / "tokenizer_config.json").write_text('{"do_lower_case": true}')
  import_checkpoint(str(stock), str(folder))


def _make_records(folder: pathlib.Path) -> None:
  text = folder.parent / f"{folder.name}.txt"
  drawn = random.Random(folder.name)
  words = ["the", "red", "fox", "runs", "over", "hill", "and", "dale"]
  lines = [" ".join(drawn.choices(words, k=25)) for _ in range(90)]
  text.write_text(".\n\n".join(lines))
  flags = ["--length=32", "--train_vocabulary_size=60", "--workers=1", "--heldout_fraction=0.2"]
  assert command.main([f"--source={text}", f"--output={folder}", *flags]) == 0


def _hurt(path: pathlib.Path, twin: pathlib.Path, drawn: random.Random) -> str:
  content = bytearray(path.read_bytes())
  kind = drawn.choice(("bit", "bit", "bit", "cut", "gone", "exchanged"))
  if kind == "bit" and content:
    place = drawn.randrange(len(content))
    content[place] ^= 1 << drawn.randrange(8)
    kind = f"bit of byte {place}"
  if kind == "gone":
    path.unlink()
  elif kind == "exchanged" and twin.is_file():
    shutil.copyfile(twin, path)
  else:
    path.write_bytes(content[: len(content) // 2] if kind == "cut" else content)
  return kind


@pytest.mark.nightly
def test_no_damage_changes_a_result_silently_or_ends_in_a_traceback(tmp_path):
  failures = []
  for name, make, use in (
    ("run", _make_run, _of_model),
    ("import", _make_import, _of_model),
    ("records", _make_records, _of_records),
  ):
    sound, other = tmp_path / name, tmp_path / f"other_{name}"
    make(sound)
    make(other)
    expected, counts = use(sound), {"same": 0, "refused": 0}
    paths = sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file())
    for number in range(DAMAGES):
      drawn, hurt = random.Random(number), tmp_path / "hurt"
      shutil.copytree(sound, hurt)
      path = paths[number % len(paths)]
      kind = f"{name}: {path}, {_hurt(hurt / path, other / path, drawn)}"
      try:
        same = use(hurt) == expected
        counts["same"] += same
        # A model without embedding.json is a sound one, whose vectors are the means over tokens.
        if not same and not kind.endswith(f"{FILE}, gone"):
          failures.append(f"{kind}: another result")
      except errors.UserError as error:
        counts["refused"] += 1
        if len(str(error).splitlines()[0]) > 500:
          failures.append(f"{kind}: {error}")
      except Exception as error:
        failures.append(f"{kind}: {type(error).__name__}: {error}")
      shutil.rmtree(hurt)
    assert counts["refused"] > DAMAGES / 4, counts  # most of the files are read
  assert not failures, "\n".join(failures)
