"""`python -m data.inspect` on tiny directories whose numbers are known."""

import re
import shutil

import numpy as np
import pytest

from data import inspect, records
from data.prepare import __main__ as prepare
from data.vocabulary import train as vocabulary_train

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "日", "本", "unused", "<", "b")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  """A WordPiece vocabulary of PIECES."""
  folder = tmp_path_factory.mktemp("words")
  (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  vocabulary_train.import_files(
    folder / "words", vocab_txt=str(folder / "vocab.txt"), sp_model="", dictionary="", cased=False,
    pretokenization="none",
  )  # fmt: skip
  return folder / "words"


@pytest.fixture(scope="module")
def made(tmp_path_factory, words):
  """A record for each sentence: ten documents of 'the cats' and of 1 to 10 times 'cat'; one in Japanese."""
  folder = tmp_path_factory.mktemp("made")
  documents = ["the cats\n" + " ".join(["cat"] * number) for number in range(1, 11)]
  (folder / "text.txt").write_text("\n\n".join([*documents, "日本 日 x\x07"]))
  flags = [f"--source={folder / 'text.txt'}", f"--vocabulary={words}", f"--output={folder / 'made'}"]
  flags += ["--length=12", "--packing=eos", "--heldout_fraction=0.4", "--seed=2", "--workers=1"]
  assert prepare.main(flags) == 0
  return folder / "made"


def lines(text: str, title: str) -> dict[str, list[str]]:
  """{first cell: others} of the table under a title."""
  table = text.partition(f"\n{title}\n\n")[2].partition("\n\n")[0]
  return {row[0].strip(): row[1:] for row in (re.split(r" {2,}", line.strip()) for line in table.split("\n"))}


def seen(capsys, *arguments) -> str:
  assert inspect.main([*map(str, arguments)]) == 0
  return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide(monkeypatch):
  monkeypatch.setenv("COLUMNS", "300")


def test_sizes_copies_leaks_and_lengths_are_those_of_the_text(made, capsys):
  text = seen(capsys, made, "--blocks=2", "--records=0")
  found = lines(text, "Records")
  held = int(found["held-out records"][0])
  assert 2 < held < 18  # some of the ten documents, two sentences each
  pairs = held // 2
  assert found["documents"] == ["11"] and found["sentences"] == ["21"]
  assert found["training records"] == found["training records read"] == [str(21 - held)]
  assert found["held-out records read"] == [str(held)]
  # 'the cats' is in all ten documents: those in training are copies but for one, those held out are leaks.
  assert found["copies among them"][0].startswith(f"{10 - pairs - 1} (")
  assert found["of these also in training"] == [str(pairs)]
  # [CLS] 日 本 日 [UNK] [SEP]
  tokens = records.unigram(made).sum()
  assert found["unknown pieces"] == [f"1 ({1 / tokens:.2%})"]
  assert found["pieces never used"] == ["3 (23.08%)"]  # 'unused', '<', 'b' of 13
  assert found["fill of training records"] == [f"{tokens / (21 - held) / 12:.2%}"]
  train = records.PackedRecords(made, length=12, seed=0)
  sizes = np.sort((train.rows(0, 99) != train.pad).sum(axis=1))
  found = lines(text, "Tokens in a training record")
  assert found["minimum"] == [str(sizes[0])] and found["maximum"] == [str(sizes[-1])] == ["12"]
  assert found["median"] == [str(sizes[(sizes.size - 1) // 2])]
  assert found["mean"] == [f"{sizes.mean():.1f}"]
  assert found["full"] == [f"{(sizes == 12).mean():.2%}"]
  assert lines(text, "Repairs and skipped text")["control characters"] == ["1"]
  assert text.partition("First training records")[2].count("[CLS]") == 2


def test_words_are_counted_by_script(made, capsys):
  text = seen(capsys, made)
  found = lines(text, "Pieces per word and character, by script")
  # 日 本 日: three pieces of three characters; BERT's rules split them, so there are no words.
  assert found["Han"][1:] == ["-", "1.000"]
  ids = records.PackedRecords(made, length=12, seed=0).rows(0, 99)
  number = {piece: int((ids == PIECES.index(piece)).sum()) for piece in PIECES}
  cats = number["##s"]
  whole = number["the"] + number["cat"]
  letters = 3 * whole + number["##s"]
  assert found["Latin"][1:] == [f"{(whole + cats) / whole:.3f}", f"{(whole + cats) / letters:.3f}"]
  assert found["[UNK]"][1:] == ["-", "-"]


def test_segments_are_counted(made, words, tmp_path, capsys):
  flags = [f"--source={made.parent / 'text.txt'}", f"--vocabulary={words}", f"--output={tmp_path / 'rows'}"]
  flags += ["--length=20", "--packing=segments", "--heldout_fraction=0", "--workers=1"]
  assert prepare.main(flags) == 0
  found = lines(seen(capsys, tmp_path / "rows"), "Records")
  train = records.PackedRecords(tmp_path / "rows", length=20, seed=0)
  begins = (train.rows(0, len(train)) == PIECES.index("[CLS]")).sum(axis=1)
  assert begins.sum() == 11 and begins.max() > 1
  assert found["segments in a training record"] == [f"{begins.mean():.1f}"]
  assert found["most segments in a record"] == [str(begins.max())]


def test_a_sample_is_that_of_its_seed_and_no_record_is_in_it_twice(prepared, capsys):
  means = []
  for seed in (3, 4):
    text = seen(capsys, prepared, "--records=7", f"--seed={seed}")
    assert lines(text, "Records")["training records read"] == ["7"]
    train = records.PackedRecords(prepared, length=32, seed=seed)
    means.append([f"{(train.batch(0, 7) != train.pad).sum(axis=1).mean():.1f}"])
    assert lines(text, "Tokens in a training record")["mean"] == means[-1]
  assert means[0] != means[1]
  assert len(train) > inspect._BATCH  # more than one batch
  everything = [row.tobytes() for row in inspect._rows(train, len(train))]
  whole = [train._source[at] for at in range(len(train))]
  assert sorted(everything) == sorted(np.frombuffer(r, "<u2").astype(np.int32).tobytes() for r in whole)


def test_a_vocabulary_and_what_it_makes_of_a_text(words, tmp_path, capsys):
  (tmp_path / "text.txt").write_text("The cats the.\n\nzz 日日 é日\n")
  alone = seen(capsys, words)
  found = lines(alone, "Vocabulary")
  assert found["kind"] == ["wordpiece"] and found["pieces"] == ["13"]
  assert found["ids of cls, pad, sep, unk, mask"] == ["2, 0, 3, 1, 4"]
  assert found["characters of a piece: maximum"] == ["6"]
  text = seen(capsys, words, f"--source={tmp_path}/*.txt")
  found = lines(text, "Vocabulary")
  assert found["documents read"] == ["2"] and found["characters read"] == ["21"]
  # the cat ##s the [UNK]; [UNK] 日 日 [UNK] 日
  assert found["pieces of this text"] == ["10"] and found["unknown pieces"] == ["3 (30.00%)"]
  assert found["pieces never used"] == ["4 (30.77%)"]  # 本 unused < b
  scripts = lines(text, "Pieces per word and character, by script")
  assert scripts["Latin"] == ["40.00%", "1.333", "0.400"]  # 4 pieces, 3 words, 10 letters
  assert scripts["Han"] == ["30.00%", "-", "1.000"]
  unknown = lines(text, "Characters that become [UNK]")
  assert unknown["z U+007A"] == ["2"] and unknown[". U+002E"] == ["1"] and "日 U+65E5" not in unknown
  (tmp_path / "marks.txt").write_text("the\u200b cat\u200b\n")
  marks = seen(capsys, words, f"--source={tmp_path}/marks.txt")
  assert lines(marks, "Characters that are left out or read as a space")["\u200b U+200B"] == ["2"]
  (tmp_path / "marks.txt").unlink()
  one = lines(seen(capsys, words, f"--source={tmp_path}/*.txt", "--records=1"), "Vocabulary")
  assert one["documents read"] == ["1"] and one["pieces of this text"] == ["5"]


def test_bad_input_is_one_line(made, tmp_path, capsys):
  damaged = shutil.copytree(made, tmp_path / "damaged")
  (shard,) = damaged.glob("train-*")
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  unfinished = tmp_path / "unfinished"
  (unfinished / "work").mkdir(parents=True)
  failures = []
  for arguments, code, words in (
    (["{made}/nowhere"], 3, "nowhere"),
    (["{made}/.."], 3, "manifest.json"),
    ([str(damaged)], 3, str(shard)),
    ([str(unfinished)], 3, "unfinished"),
    (["{made}", "--source=x.txt"], 2, "{made}/vocabulary"),
    (["{made}/vocabulary", "--source=/nowhere/*"], 3, "/nowhere/*"),
    (["{made}", "--records=-1"], 2, "--records=-1"),
    (["{made}", "--block=1"], 2, "--blocks"),
    ([], 2, "DIR"),
  ):
    found = inspect.main([text.format(made=made) for text in arguments])
    error = capsys.readouterr().err.strip()
    if found != code or words.format(made=made) not in error or error.count("error: ") != 1:
      failures.append(f"{arguments}: {found} {error}, expected {words}")
  assert not failures, "\n".join(failures)


def test_several_directories_are_shown_one_after_the_other(made, prepared, capsys):
  text = seen(capsys, made, prepared, made / "vocabulary")
  _, first, second = text.split("\nRecords\n")
  assert [lines(f"\nRecords\n{part}", "Records")["packing"] for part in (first, second)] == [
    ["eos"],
    ["complete"],
  ]
  assert str(made) in first and str(prepared) in second
  assert lines(text, "Vocabulary")["kind"] == ["wordpiece"]
