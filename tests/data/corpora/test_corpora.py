"""The papers' texts: the table, what is refused, and the printed commands, which are run as they are."""

import dataclasses
import importlib.util
import shlex

import pyarrow
import pyarrow.parquet
import pytest

from data import manifest, vocabulary
from data.corpora import CORPORA
from data.corpora import __main__ as corpora
from data.prepare import __main__ as prepare
from data.vocabulary import __main__ as vocabulary_command
from tests.data.conftest import ROOT, make_documents


def write_parquet(path, column, texts):
  path.parent.mkdir(parents=True, exist_ok=True)
  pyarrow.parquet.write_table(pyarrow.table({column: texts}), path)


def texts(seed):
  return ["\n".join(document) for document in make_documents(150, seed=seed)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """The layout of the publishers: Wikipedia, and PG-19 with a file that is not for training."""
  directory = tmp_path_factory.mktemp("the root")
  write_parquet(directory / "wikipedia/20231101.en/train-00000-of-00041.parquet", "text", texts(0))
  write_parquet(directory / "wikipedia/20231101.de/train-00000-of-00020.parquet", "text", ["ein Satz"] * 9)
  write_parquet(directory / "pg19/data/train-00000-of-00023.parquet", "text", texts(1))
  write_parquet(directory / "pg19/data/validation-00000-of-00001.parquet", "text", ["not for training"] * 9)
  return directory


def shrunk(monkeypatch, config="configs/coco_lm_base.py:tiny"):
  """Makes the recipe of `wikipedia_books` small enough for a test."""
  small = {"vocabulary_size": 150, "length": 32, "config": config}
  monkeypatch.setitem(CORPORA, "wikipedia_books", dataclasses.replace(CORPORA["wikipedia_books"], **small))


def printed(capsys, *flags):
  assert corpora.main(list(flags)) == 0
  return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_the_sizes_add_up_to_what_the_name_says_and_the_settings_are_those_of_the_recipe():
  for name, files, tfds in (("wikipedia_books", 32.80, 32.80), ("web_160gb", 159.29, 159.90)):
    corpus = CORPORA[name]
    for parts, gigabytes in ((corpus.files, files), (corpus.tfds, tfds)):
      assert sum(part.gigabytes for part in parts) == pytest.approx(gigabytes, abs=0.005)
    spec = importlib.util.spec_from_file_location("recipe", ROOT / corpus.config)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    assert config.data.source == f"seqio:{name}"
    assert (config.data.length, config.data.packing) == (corpus.length, corpus.packing)
    assert (config.model.vocab_size, config.data.vocabulary_cased) == (corpus.vocabulary_size, corpus.cased)
    assert config.data.vocabulary_kind == corpus.vocabulary_kind


def test_what_makes_no_sense_or_is_not_there_is_refused_in_a_line(root, capsys):
  for flags, code, words in (
    (["web_160g", "--root=x"], 2, "did you mean 'web_160gb'?"),
    (["web_160gb"], 2, "--root=DIR"),
    (["web_160gb", "--root=x", "--tfds_directory=y"], 2, "--root=DIR"),
    (["--root=x"], 2, "wikipedia_books, web_160gb"),
    (["wikipedia_books", "--tfds_directory=no"], 3, "lacks 2 of the 2 sources of wikipedia_books"),
    (["web_160gb", f"--root={root}"], 3, "lacks 3 of the 5 sources of web_160gb: c4/realnewslike/"),
  ):
    assert corpora.main(flags) == code, flags
    said = capsys.readouterr()
    assert words in said.err and not said.out, flags
  assert "openwebtext/**/*.parquet" in said.err and "c4/en/" in said.err and "pg19" not in said.err


def test_printed_commands_make_a_vocabulary_and_the_records_of_each_source(
  root, tmp_path, capsys, monkeypatch
):
  shrunk(monkeypatch)
  output = tmp_path / "prepared"
  train, *preparations, run = printed(capsys, "wikipedia_books", f"--root={root}", f"--output={output}")
  assert train[:4] == ["python", "-m", "data.vocabulary", "train"]
  assert [word for word in train if word.startswith("--rate")] == ["--rate=21.35", "--rate=11.45"]
  assert vocabulary_command.main([*train[3:], "--workers=1"]) == 0
  assert vocabulary.load(output / "vocabulary").size == 150
  for words in preparations:
    assert words[:3] == ["python", "-m", "data.prepare"]
    assert prepare.main([*words[3:], "--workers=1"]) == 0
  for name in ("wikipedia", "pg19"):  # neither German nor the validation file
    made = manifest.read(output / name)
    assert (made.counts["documents"], made.length, made.vocabulary.size) == (150, 32, 150)
  assert run[:4] == ["python", "-m", "pretrain.main", "--config=configs/coco_lm_base.py:tiny"]
  assert run[4:] == [f"--config.data.mixture={output}/wikipedia:21.35,{output}/pg19:11.45"]


def test_a_part_of_a_tfds_data_set_is_a_fraction_of_its_documents(tmp_path, capsys):
  for part in CORPORA["web_160gb"].tfds:
    directory = tmp_path / part.source.tfds_name.replace(":", "/")
    directory.mkdir(parents=True)
    (directory / "dataset_info.json").write_text("{}")
  train, *preparations, run = printed(capsys, "web_160gb", f"--tfds_directory={tmp_path}")
  assert ["--cased" in train, train[-2:]] == [
    True,
    ["--output=prepared/web_160gb/vocabulary", f"--tfds_directory={tmp_path}"],
  ]
  assert train.count("--text_field=book_text") == 1 and train.count("--text_field=text") == 4
  assert [words for words in preparations if "--fraction=0.084" in words] == [preparations[-1]]
  assert "--source=tfds:c4/en:3.1.0" in preparations[-1]
  assert run[-1].endswith("prepared/web_160gb/c4_en:69.6")
