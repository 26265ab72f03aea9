"""Files of people who prepare text: many small files, vocabularies with own markers, arrays of JSON."""

import collections
import dataclasses
import gzip
import importlib.util
import json
import re
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, processors

from data import errors, inspect, manifest, rows, sources, text_files, vocabulary
from data.prepare import __main__ as prepare
from data.prepare import output_directory, packing
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import tokenizer_files
from pretrain.export.tokenizer import convert
from tests import byte_level
from tests.data.conftest import make_documents, write_text


def prepared_at(output, source, vocabulary, *more) -> int:
  """Returns the exit code of a preparation of `source` by one process."""
  flags = [f"--source={source}", f"--vocabulary={vocabulary}", f"--output={output}", "--workers=1"]
  return prepare.main([*flags, *more])


def test_texts_of_small_files_share_records_as_those_of_one_file(vocabulary_directory, tmp_path):
  documents = make_documents(60, seed=4)
  write_text(tmp_path / "one.txt", documents)
  (tmp_path / "many").mkdir()
  for number, document in enumerate(documents):
    write_text(tmp_path / "many" / f"{number:02}.txt", [document])
  for mode in packing.MODES:
    made = []
    for name, source in (("one", "one.txt"), ("many", "many/*.txt")):
      output = tmp_path / mode / name
      flags = [f"--packing={mode}", "--length=256"]
      assert prepared_at(output, tmp_path / source, vocabulary_directory, *flags) == 0
      made.append(manifest.read(output))
    assert made[0].splits == made[1].splits and made[0].counts == made[1].counts
    assert made[1].counts["documents_found"] == 60


def test_units_are_small_files_in_the_order_of_names_beside_parts_of_large_ones(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MIN_UNIT_BYTES", 100)
  for name, size in (("a", 40), ("b", 60), ("c", 4), ("d", 252), ("e", 100), ("f", 0), ("g", 4)):
    (tmp_path / f"{name}.txt").write_text("xx\n\n" * (size // 4))
  units = sources.plan(sources.Request(f"{tmp_path}/*.txt")).units
  names = [[part.name[-5] for part in unit.parts] for unit in units]
  assert names == [["a", "b"], ["c"], ["d"], ["d"], ["d"], ["e", "f"], ["g"]]


def test_files_of_one_unit_have_their_own_repairs_and_dropped_documents(vocabulary_directory, tmp_path):
  for number in range(5):
    write_text(tmp_path / f"{number}.txt", make_documents(4, seed=number))
  (tmp_path / "1.txt").write_bytes(b"Bad \xff bytes are here.\n\n" * 2)
  (tmp_path / "3.txt").write_text("")
  flags = ["--clean=exact", "--length=32"]
  assert prepared_at(tmp_path / "o", tmp_path / "*.txt", vocabulary_directory, *flags) == 0
  paths = [f"{tmp_path}/{number}.txt" for number in (1, 3)]
  found = manifest.read(tmp_path / "o").damaged_files
  assert found == {paths[0]: {"invalid_characters": 1}, paths[1]: {manifest.NO_DOCUMENTS: 1}}
  (dropped,) = map(json.loads, (tmp_path / "o" / "dropped.jsonl").read_text().splitlines())
  assert [dropped["source"], dropped["document"]] == [paths[0], 2]
  assert dropped["reason"] == f"duplicate of document 1 of {paths[0]}"


def test_a_text_below_one_record_and_records_that_are_hardly_full_are_named(
  prepared, vocabulary_directory, tmp_path, capsys
):
  path = write_text(tmp_path / "a.txt", make_documents(3, seed=6))
  assert prepared_at(tmp_path / "o", path, vocabulary_directory, "--packing=concat", "--length=4096") == 3
  said = capsys.readouterr().err
  assert "--length=4096" in said and "without: 0" not in said and not (tmp_path / "o").exists()
  made = manifest.read(prepared)
  for filled, mode, is_said in ((0.6, "complete", False), (0.4, "complete", True), (0.4, "eos", False)):
    train = dataclasses.replace(made.splits["train"], tokens=int(made.splits["train"].records * 32 * filled))
    changed = dataclasses.replace(made, packing=mode, splits=made.splits | {"train": train})
    assert ("half full" in output_directory.summary(changed)) == is_said


def word_pieces() -> Tokenizer:
  """Returns BERT's tokenizer with a few pieces."""
  special = {name: number for number, name in enumerate(byte_level.SPECIAL.values())}
  pieces = special | {
    piece: 5 + number for number, piece in enumerate(("the", "people", "make", "a", "user", "@"))
  }
  made = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
  tokenizer_files.configure_wordpiece(made, cased=False)
  made.add_special_tokens([*special])
  made.post_processor = processors.BertProcessing(("[SEP]", special["[SEP]"]), ("[CLS]", special["[CLS]"]))
  return made


def test_tokens_that_a_user_added_have_their_ids_in_text_here_and_after_an_export(tmp_path):
  for name, made in (("bytes", byte_level.tokenizer()), ("pieces", word_pieces())):
    made.add_special_tokens(["[E1]", "[/E1]"])
    made.add_tokens(["@USER"])
    folder = byte_level.write(tmp_path / name, made).parent
    convert.read_tokenizer(folder, tmp_path / name / "v")
    convert.write_tokenizer(tmp_path / name / "v", tmp_path / name / "x", max_length=64)
    exported = Tokenizer.from_file(str(tmp_path / name / "x" / "tokenizer.json"))
    words = vocabulary.load(tmp_path / name / "v")
    for text in ("[E1] the people [/E1] make", "a[E1]the @USER", "@USER"):
      assert words.encode(text) == exported.encode(text, add_special_tokens=False).ids, text
      own = [made.token_to_id(name) for name in ("[E1]", "[/E1]", "@USER") if name in text]
      assert [number for number in words.encode(text) if number in own] == own, text
    assert not {*vars(words.special_ids).values()} - {words.special_ids.unk} & {*words.encode("[MASK] [CLS]")}


def test_added_tokens_beside_files_that_have_no_place_for_them_are_refused(tmp_path, capsys):
  (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n[E1]\n")
  flags = ["import", f"--vocab_txt={tmp_path}/vocab.txt", f"--output={tmp_path}/v"]
  slot = {"0": {"content": "[PAD]"}, "9": {"content": "[unused3]"}}
  for file, content in (
    ("added_tokens.json", {"[E1]": 7, "[MASK]": 4}),
    ("special_tokens_map.json", {"additional_special_tokens": ["[E1]"]}),
    ("tokenizer_config.json", {"added_tokens_decoder": slot | {"6": {"content": "[E1]"}}}),
  ):
    (tmp_path / file).write_text(json.dumps(content))
    assert vocabulary_command.main(flags) == 3 and not (tmp_path / "v").exists()
    said = capsys.readouterr().err
    assert "added tokens [E1] " in said and "[PAD]" not in said and "AutoTokenizer" in said
    (tmp_path / file).write_text(
      "{}" if file == "added_tokens.json" else json.dumps({"added_tokens_decoder": slot})
    )
  assert vocabulary_command.main(flags) == 0


def test_a_users_file_does_not_replace_the_module_of_its_name(
  vocabulary_directory, tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  text = write_text(tmp_path / "a.txt", [["Sh."], *make_documents(20, seed=6)])
  function = "def keep(document):\n  return 'short' if len(document[0]) < 4 else document\n"
  for name in ("json", "random"):
    (tmp_path / f"{name}.py").write_text(function)
    flags = [f"--clean={name}.py:keep", "--length=32"]
    assert prepared_at(tmp_path / name, text, vocabulary_directory, *flags) == 0
    assert manifest.read(tmp_path / name).counts[f"dropped_by {name}.py:keep"] == 1
    assert not hasattr(sys.modules[name], "keep")
  (tmp_path / "helpers.py").write_text("")
  (tmp_path / "mine.py").write_text(f"import helpers\n{function}")
  assert prepared_at(tmp_path / "o", text, vocabulary_directory, "--clean=mine.py:keep") == 2
  assert f"\n  export PYTHONPATH={tmp_path}" in capsys.readouterr().err


TASKS = """
import seqio, tensorflow as tf
for name, number in (("one", 30), ("two", 10)):
  path = f"{__file__}.{name}"
  tf.io.gfile.GFile(path, "w").write("a line\\n" * number)
  feature = seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0)
  source = seqio.TextLineDataSource({"train": path})
  seqio.TaskRegistry.add(name, source=source, preprocessors=[], output_features={"text": feature})
seqio.MixtureRegistry.add("both", ["one", "two"], default_rate=seqio.mixing_rate_num_examples)
seqio.MixtureRegistry.add("failing", [("one", 1.0), ("two", lambda task: 1 / 0)])
"""


RATES = """
import importlib, sys
from data import errors, seqio_tasks
given = {"module": sys.argv[1], "tfds_directory": "", "download": False}
print(seqio_tasks.rates("both", **given))
try:
  seqio_tasks.rates("failing", **given)
except errors.DataError as error:
  print(error)
if importlib.util.find_spec("triton"):
  import triton  # as training on GPUs does later; it may not crash
"""


@pytest.mark.skipif(importlib.util.find_spec("seqio") is None, reason="Python 3.14 has no TensorFlow")
def test_examples_of_files_are_counted_for_a_rate_by_their_number(tmp_path):
  (tmp_path / "tasks.py").write_text(TASKS)
  program = [sys.executable, "-c", RATES, str(tmp_path / "tasks.py")]
  done = subprocess.run(program, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  rates, error = done.stdout.splitlines()
  assert rates == "[('one', 30.0), ('two', 10.0)]"
  assert re.search("'failing': the rate of its Task 'two' .*ZeroDivisionError", error)


def test_an_array_of_json_is_read_as_lines_are(vocabulary_directory, tmp_path, monkeypatch):
  monkeypatch.setattr(text_files, "FIRST_LOOK", 16)
  monkeypatch.setattr(sources, "MIN_UNIT_BYTES", 500)
  records = [
    {"text": f'É "{paragraph}" [x], {{y}} \u2028', "n": number, "more": [1, {"a": [2]}]}
    for number, (paragraph, *_) in enumerate(make_documents(40, seed=8))
  ]
  (tmp_path / "lines.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
  (tmp_path / "indented.json").write_text("\ufeff" + json.dumps(records, indent=1, ensure_ascii=False))
  (tmp_path / "one.json").write_text(json.dumps(records))
  with gzip.open(tmp_path / "packed.json.gz", "wt") as file:
    json.dump(records, file, indent=2)
  request, found = sources.Request(""), {}
  for path in sorted(tmp_path.iterdir()):
    units = sources.plan(dataclasses.replace(request, source=str(path))).units
    documents = [d for unit in units for d in sources.read_documents(unit, request, collections.Counter())]
    found[path.name] = documents, [row.fields for row in rows.read(str(path))], rows.columns(str(path))
  assert all(of_file == found["lines.jsonl"] for of_file in found.values())
  assert found["one.json"][1] == records
  for content, phrase in (
    ('[{"text": "a"}, 3]', "item 2"),
    ('[{"text": "a"}, {"text": ]', "item 2"),
    ('[{"text": "a"}', "item 2"),
    ('[{"text": "a"}] {"text": "b"}', "behind its array"),
  ):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(errors.DataError, match=phrase):
      list(rows.read(str(tmp_path / "bad.json")))
    with pytest.raises(errors.DataError, match=phrase):
      unit = sources.Unit("file", str(tmp_path / "bad.json"))
      list(sources.read_documents(unit, request, collections.Counter()))


def test_a_valid_replacement_character_is_not_called_a_wrong_encoding(vocabulary_directory, tmp_path):
  text = "\n\n".join("\n".join(document) for document in make_documents(9, seed=2))
  for name, content, phrase in (
    ("own.txt", f"a \ufffd b\n\n{text}".encode(), "another program"),
    ("own.jsonl", json.dumps({"text": f"a \ufffd b {text}"}, ensure_ascii=False).encode(), "another program"),
    ("wrong.txt", f"a \ufffd b\n\n{text}".encode() + b" caf\xe9.", "iconv"),
    ("none.txt", text.encode(), ""),
  ):
    (tmp_path / name).write_bytes(content)
    output = tmp_path / f"{name}.o"
    assert prepared_at(output, tmp_path / name, vocabulary_directory, "--length=32") == 0
    said = output_directory.summary(manifest.read(output))
    assert [word for word in ("another program", "iconv") if word in said] == ([phrase] if phrase else []), (
      name
    )


def test_unknown_pieces_of_held_out_records_are_shown(vocabulary_directory, tmp_path, capsys):
  documents = [
    [f"{text} 日本" if at % 3 == 0 else text] for at, (text, *_) in enumerate(make_documents(60, seed=3))
  ]
  path = write_text(tmp_path / "a.txt", documents)
  flags = ["--length=32", "--heldout_fraction=0.3"]
  assert prepared_at(tmp_path / "o", path, vocabulary_directory, *flags) == 0
  unknown = manifest.read(tmp_path / "o").counts["unknown_tokens"]
  capsys.readouterr()
  assert inspect.main([str(tmp_path / "o"), "--records=0"]) == 0
  assert f"{unknown:,} with the held-out ones" in capsys.readouterr().out
