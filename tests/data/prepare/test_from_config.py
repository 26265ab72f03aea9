"""Names of prepared directories and the command that fills one."""

import subprocess
import sys

from configs import base
from data.prepare import command as prepare
from data.prepare import from_config
from pretrain.command import fields
from tests.data.conftest import ROOT


def directory(**changes):
  fields = {
    "directory": "",
    "source": "installed_docs",
    "vocabulary": "",
    "vocabulary_kind": "sentencepiece",
    "vocabulary_cased": False,
    "length": 64,
    "packing": "complete",
    "text_field": "",
  }
  vocab_size = changes.pop("vocab_size", 4096)
  return from_config.directory(fields | changes, vocab_size=vocab_size)


def test_a_directory_is_named_for_what_is_in_it():
  assert directory() == "prepared/installed_docs-sentencepiece_uncased_4096-complete-64"
  assert directory(source="seqio:wikipedia_books").startswith("prepared/seqio_wikipedia_books-")


def test_flags_become_fields_but_those_of_a_command_stay():
  line = "--vocabulary=x: nothing there; make one:\n  python -m data.vocabulary train --source=a --output=x"
  expected = line.replace("--vocabulary=x", "--config.data.vocabulary=x")
  assert from_config.with_fields(line) == expected


def test_different_requests_have_different_directories():
  changes = [
    {},
    {"source": "a/*.txt"},
    {"source": "a/?.txt"},
    {"source": "b/*.txt"},
    {"vocabulary": "x/vocabulary"},
    {"vocabulary": "y/vocabulary"},
    {"vocabulary_kind": "wordpiece"},
    {"vocabulary_cased": True},
    {"vocab_size": 8192},
    {"length": 128},
    {"packing": "concat"},
    {"text_field": "body"},
    {"clean": "exact,near:0.8"},
    {"clean": "exact,near:0.9"},
  ]
  names = [directory(**change) for change in changes]
  assert len(set(names)) == len(names)
  assert all(name.count("/") == 1 and "*" not in name for name in names)


def test_the_command_of_a_config_is_understood_by_prepare():
  config, place = base.get_config(), {"vocab_size": 4096, "output": "out"}
  config.data.vocabulary_cased = True
  config.data.source = "a b/*.txt"
  config.data.length = 96
  config.data.packing = "concat"
  config.data.vocabulary_kind = "wordpiece"
  config.data.workers = 3
  config.data.tfds_directory = "/somewhere"
  config.data.clean = "exact,length:200"
  assert prepare.parse(from_config.command(config.data.to_dict(), **place)[3:]).text_field == "text"
  config.data.text_field = "body"
  command = from_config.command(config.data.to_dict(), **place)
  assert command[:3] == [sys.executable, "-m", "data.prepare"]
  args = prepare.parse(command[3:])
  assert (args.source, args.output, args.length, args.packing) == ("a b/*.txt", "out", 96, "concat")
  assert (args.train_vocabulary_kind, args.workers) == ("wordpiece", 3)
  assert (args.train_vocabulary_size, args.train_vocabulary_cased) == (4096, True)
  assert (args.text_field, args.clean) == ("body", "exact,length:200")
  assert (args.vocabulary, args.tfds_directory, args.download) == ("", "/somewhere", False)


def test_every_flag_has_its_field():
  known = fields.known_fields()
  assert set(from_config.FIELD_OF_FLAG.values()) <= set(known)
  args = prepare.parse(["--source=a", "--output=o"])
  assert all(hasattr(args, flag) for flag in from_config.FIELD_OF_FLAG)


def test_the_trainers_modules_are_light():
  program = (
    "import sys\nfrom data import manifest\nfrom data.prepare import from_config\n"
    "assert not {'numpy', 'sentencepiece', 'grain', 'jax', 'tensorflow', 'seqio'} & set(sys.modules)\n"
  )
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
