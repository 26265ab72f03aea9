"""Names of prepared directories and the command that fills one; what importing these modules loads."""

import json
import subprocess
import sys

from configs import base
from data.prepare import __main__ as prepare
from data.prepare import from_config
from pretrain.settings import PRETRAINING
from tests.data.conftest import ROOT, arguments


def directory(**changes):
  data = base.get_config().data.to_dict() | {"source": "installed_docs", "length": 64, "directory": ""}
  vocab_size = changes.pop("vocab_size", 4096)
  return from_config.directory(data | changes, vocab_size=vocab_size)


def test_a_directory_is_named_for_what_is_in_it_and_only_that():
  assert directory() == "prepared/installed_docs-sentencepiece_uncased_4096-complete-64"
  assert directory(source="seqio:wikipedia_books").startswith("prepared/seqio_wikipedia_books-")
  assert directory(directory="/records") == "/records"
  changes = {"source": ("a/*.txt", "a/?.txt", "b/*.txt"), "vocabulary": ("x/v", "y/v"), "vocab_size": (8192,)}
  changes |= {"vocabulary_kind": ("wordpiece",), "vocabulary_cased": (True,), "length": (128,)}
  changes |= {"packing": ("concat",), "text_field": ("body",), "clean": ("exact,near:0.8", "exact,near:0.9")}
  names = [directory(), *(directory(**{name: value}) for name in changes for value in changes[name])]
  assert len(set(names)) == len(names)
  assert all(name.count("/") == 1 and "*" not in name for name in names)


def test_flags_become_fields_but_those_of_a_command_stay():
  line = "--vocabulary=x: nothing there; make one:\n  python -m data.vocabulary train --source=a --output=x"
  expected = line.replace("--vocabulary=x", "--config.data.vocabulary=x")
  assert from_config.with_fields(line) == expected
  assert set(from_config.FIELD_OF_FLAG.values()) <= set(PRETRAINING.defaults)


def test_the_command_of_a_config_is_understood_by_prepare():
  data = base.get_config().data.to_dict() | {
    "vocabulary_cased": True,
    "source": "a b/*.txt",
    "length": 96,
    "packing": "concat",
    "vocabulary_kind": "wordpiece",
    "workers": 3,
    "tfds_directory": "/somewhere",
    "clean": "exact,length:200",
  }
  for text_field, given in (("", "text"), ("body", "body")):
    command = from_config.command(data | {"text_field": text_field}, vocab_size=4096, output="out")
    assert command[:3] == [sys.executable, "-m", "data.prepare"]
    args = prepare.parse(command[3:])
    assert (args.source, args.output, args.length, args.packing) == ("a b/*.txt", "out", 96, "concat")
    assert (args.train_vocabulary_kind, args.workers) == ("wordpiece", 3)
    assert (args.train_vocabulary_size, args.train_vocabulary_cased) == (4096, True)
    assert (args.text_field, args.clean) == (given, "exact,length:200")
    assert (args.vocabulary, args.tfds_directory, args.download) == ("", "/somewhere", False)


def test_the_trainers_modules_are_light_and_text_sources_never_import_tensorflow(
  corpus, vocabulary_directory, tmp_path
):
  program = (
    "import json, sys\nfrom data import manifest\nfrom data.prepare import from_config\n"
    "heavy = {'numpy', 'sentencepiece', 'grain', 'jax', 'tensorflow', 'seqio'} & set(sys.modules)\n"
    "from data.prepare import __main__ as prepare\n"
    f"code = prepare.main({arguments(corpus, vocabulary_directory, tmp_path / 'o')!r})\n"
    "heavier = {'tensorflow', 'seqio', 'tensorflow_datasets', 'jax', 'grain', 'flax'} & set(sys.modules)\n"
    "print(json.dumps([code, sorted(heavy), sorted(heavier)]))\n"
  )
  done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
  assert json.loads(done.stdout) == [0, [], []]
